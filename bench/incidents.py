"""`python -m bench.incidents`: how long answers take while the gateway's database cannot be used.

A gateway of its own for each incident, steering on, the store on disk; agents one call after the
other. The first calls of an incident, during which the gateway finds out, are shown apart.

    none     nothing happens
    locked   another process holds the write lock
    full     the system refuses to let the database's log grow (RLIMIT_FSIZE; Linux only)
    gone     the file is deleted
    copied   a backup is copied over it in place, as `cp` does
    cut      it is cut off in its middle
    replaced a backup is renamed to its place
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import uvloop

from bench import bodies
from bench.arms import ARMS, CHAT, Command, Place, Running, start, upstream
from bench.client import Connection, post
from bench.load import correct
from bench.report import aligned, machine, ms
from bench.statistics import percentile
from steering_gateway_testing.outages import FILE_OUTAGES

FIRST = 8
"""Calls of each incident that are shown apart: one a connection, and the breaker has opened."""
_SETTLE_POLLS = 150  # of 0.1 s


def _steered(place: Place) -> Command:
    """The gateway with steering on; no call goes out unsteered because the machine is busy."""
    assert _STEERED.command is not None
    command, env = _STEERED.command(place)
    return command, env | {"GATEWAY_STEERING__DEADLINE_MS": "10000"}


_STEERED = next(arm for arm in ARMS if arm.name == "steered")
_ARM = replace(_STEERED, command=_steered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One incident: milliseconds a call, and how many calls were made in it and recorded."""

    incident: str
    first: Sequence[float]
    later: Sequence[float]
    made: int
    recorded: int


@contextmanager
def _full(running: Running, path: Path) -> Iterator[None]:
    assert running.server is not None
    pid, log = running.server.pid, path.with_name(path.name + "-wal")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _incident(name: str, running: Running, path: Path) -> AbstractContextManager[None]:
    return _full(running, path) if name == "full" else FILE_OUTAGES[name](path)


async def measure(name: str, port: int, home: Path, options: argparse.Namespace) -> Took:
    """One gateway through one incident."""
    running = start(_ARM, port, home)
    path = home / f"gateway-{running.port}.db"
    numbers = itertools.count(1)
    try:
        await calls(running, numbers, options.warm, 60.0)
        before = _recorded(path)
        with _incident(name, running, path):
            first = await calls(running, numbers, FIRST, 60.0, connections=FIRST)
            later = await calls(
                running, numbers, options.calls, options.seconds, connections=options.connections
            )
        made = len(first) + len(later)
        wanted = made if name in ("gone", "cut") else before + made
        for _ in range(_SETTLE_POLLS):
            if _recorded(path) >= wanted:
                break
            await asyncio.sleep(0.1)
        recorded = _recorded(path) - (0 if name in ("gone", "cut") else before)
    finally:
        if running.server:
            running.server.stop()
    return Took(incident=name, first=first, later=later, made=made, recorded=recorded)


async def calls(
    running: Running, numbers: Iterator[int], count: int, seconds: float, *, connections: int = 1
) -> list[float]:
    """Milliseconds of each of `count` calls, or of those begun within `seconds`."""
    body, taken = bodies.small(), list[float]()
    ends = time.monotonic() + seconds

    async def work(share: int) -> None:
        connection = await Connection.open(running.port)
        for _ in range(share):
            if time.monotonic() > ends:
                break
            answer = await connection.ask(post(CHAT, body.numbered(next(numbers)), running.headers))
            if not correct(answer, stream=False):
                raise RuntimeError(f"answered {answer.status}")
            taken.append(answer.last_s * 1000)
        connection.close()

    await asyncio.gather(*(work(count // connections) for _ in range(connections)))
    return taken


def _recorded(path: Path) -> int:
    """The calls in the file; 0 when there is no file, or none of ours."""
    if not path.exists():
        return 0
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = connection.execute("SELECT count(*) FROM steps WHERE call IS NOT NULL").get
    except apsw.Error:
        return 0
    finally:
        connection.close()
    return int(found)


def table(took: Sequence[Took]) -> str:
    """One line an incident."""
    rows = [["incident", "first, most ms", "p50 ms", "p99 ms", "most ms", "calls", "recorded"]]
    for each in took:
        later = [percentile(each.later, percent) for percent in (50, 99, 100)]
        figures = [ms(value) for value in (max(each.first), *later)]
        rows.append([each.incident, *figures, str(each.made), str(each.recorded)])
    return aligned(rows)


async def measure_all(options: argparse.Namespace, home: Path) -> list[Took]:
    """Every incident, one after the other."""
    with upstream(home) as port:
        return [await measure(name, port, home, options) for name in options.incidents]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every call was recorded."""
    parser = argparse.ArgumentParser(prog="python -m bench.incidents", description=__doc__)
    names = [*FILE_OUTAGES, "full"]
    parser.add_argument("--incidents", nargs="+", choices=names, default=names, metavar="INCIDENT")
    parser.add_argument("--calls", type=int, default=400, help="in an incident, at most")
    parser.add_argument("--seconds", type=float, default=20, help="of an incident, at most")
    parser.add_argument("--connections", type=int, default=1, help="calls at once in an incident")
    parser.add_argument("--warm", type=int, default=50, help="calls before it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as home:
        took = uvloop.run(measure_all(options, Path(home)))
    print(f"{machine()}\n\n{table(took)}")
    return 0 if all(each.made == each.recorded for each in took) else 1


if __name__ == "__main__":
    sys.exit(main())
