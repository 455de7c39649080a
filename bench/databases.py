"""`python -m bench.databases --url postgresql://...`: what a call costs on a file and on a server.

Conversations of ten calls, some at a time, each with the replies before it, as agents make them,
through a gateway on SQLite and one on PostgreSQL, in interleaved rounds; CPU of the gateway's
process, and apart from it that of the database's server (`--server`: the id of its first process)
and that of this process: the agents and the provider. `of sqlite`: the gateway's CPU as a share of
the SQLite arm's in the same round. `a CPU s`: calls for each second of CPU of gateways and
database. `--apart`: gateways have the first core for themselves, and the database, the agents and
the provider the others, as if they were on other machines. `--replicas N` adds so many gateways on
the database, once asked in turn, once with each conversation kept at one of them. Linux only, as
the bench.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
import yaml

from bench import bodies
from bench.arms import CHAT, launch
from bench.client import LOOPBACK, Connection, post
from bench.load import correct
from bench.processes import Server, cpu_of, free_port, tree
from bench.report import aligned, machine
from bench.scripted import Provider
from bench.statistics import Figure, percentile

STEPS = 10
"""Calls of one conversation."""

_RESULT_BYTES = 1480
_START_S = 120.0


@dataclass(slots=True, kw_only=True)
class Arm:
    """One gateway or several; `in_turn`: each call goes to the next one, not each conversation."""

    name: str
    servers: Sequence[Server]
    in_turn: bool = True
    rounds: dict[int, list[Round]] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """CPU seconds of all of its processes so far."""
        return sum(server.cpu_s() for server in self.servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of one arm: milliseconds of CPU a call, calls a second, and each call's time."""

    cpu_ms: float
    database_ms: float
    load_ms: float
    per_s: float
    latencies_ms: Sequence[float]

    @property
    def per_cpu_s(self) -> float:
        """Calls for each second of CPU of gateways and database."""
        return 1000 / (self.cpu_ms + self.database_ms)


def start(name: str, storage: Mapping[str, Any], port: int, home: Path) -> Server:
    """A gateway with this storage; no call goes out unsteered because the machine is busy."""
    own = free_port()
    config = {
        "default_upstream": {"api_base": f"http://{LOOPBACK}:{port}/v1"},
        "storage": {"commit_limit_ms": 10_000, **storage},
        "steering": {"mode": "on", "deadline_ms": 10_000},
    }
    (path := home / f"{name}-{own}.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path), "--port", str(own)]
    server = launch(command, port=own, home=home, name=path.stem)
    server.wait_ready("/readyz", _START_S)
    return server


def separate(gateways: Sequence[Server], database: int | None) -> None:
    """Leave the first core to the gateways; also of what the others start from now on."""
    first, *others = sorted(os.sched_getaffinity(0))
    theirs = [os.getpid(), *([] if database is None else [database])]
    placed = {**{each.pid: [first] for each in gateways}, **dict.fromkeys(theirs, others)}
    for pid, cores in placed.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
    if database is not None:
        for child in tree(database):
            os.sched_setaffinity(child, others)


async def measure(
    arm: Arm, at_once: int, numbers: Iterator[int], calls: int, database: int | None
) -> Round:
    """`calls` calls, of so many conversations at a time."""
    latencies: list[float] = []
    left = [calls // STEPS]
    steps = [bodies.agent("steps", steps=n, result_bytes=_RESULT_BYTES) for n in range(STEPS)]

    async def work() -> None:
        connections = [await Connection.open(server.port) for server in arm.servers]
        turns = itertools.cycle(connections)
        while left[0] > 0:
            left[0] -= 1
            number = next(numbers)
            kept = connections[number % len(connections)]
            for body in steps:
                connection = next(turns) if arm.in_turn else kept
                answer = await connection.ask(post(CHAT, body.numbered(number), ()))
                if not correct(answer, stream=False):
                    raise RuntimeError(f"{arm.name} answered {answer.status}")
                latencies.append(answer.last_s * 1000)
        for connection in connections:
            connection.close()

    paid, theirs = arm.cpu_s(), 0.0 if database is None else cpu_of(database)
    begun, own = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(at_once)))
    taken = time.perf_counter() - begun
    cost = (0.0 if database is None else cpu_of(database)) - theirs
    return Round(
        cpu_ms=(arm.cpu_s() - paid) * 1000 / len(latencies),
        database_ms=cost * 1000 / len(latencies),
        load_ms=(time.process_time() - own) * 1000 / len(latencies),
        per_s=len(latencies) / taken,
        latencies_ms=latencies,
    )


async def run(options: argparse.Namespace, home: Path) -> list[Arm]:
    """Every arm, warmed, then measured in rounds."""
    async with Provider() as provider:
        provider.answer = bodies.next_reply
        with ExitStack() as stack:
            return await _run(options, home, provider.port, stack)


async def _run(options: argparse.Namespace, home: Path, port: int, stack: ExitStack) -> list[Arm]:
    def server(name: str, **storage: Any) -> Server:
        found = start(name, storage, port, home)
        stack.callback(found.stop)
        return found

    arms = [
        Arm(name="sqlite", servers=[server("sqlite", path=str(home / "bench.db"))]),
        Arm(name="postgres", servers=[server("postgres", url=options.url)]),
    ]
    if options.replicas:
        several = [server("replica", url=options.url) for _ in range(options.replicas)]
        arms.append(Arm(name=f"{options.replicas} in turn", servers=several))
        arms.append(Arm(name=f"{options.replicas} kept", servers=several, in_turn=False))
    if options.apart:
        separate([each for arm in arms for each in arm.servers], options.server)
    numbers = itertools.count(int(time.time()))
    for arm in arms:
        await measure(arm, 8, numbers, options.calls, options.server)
    for number in range(options.rounds):
        for at_once in options.conversations:
            for arm in [*arms[number % len(arms) :], *arms[: number % len(arms)]]:
                calls = max(options.calls, at_once * STEPS)
                done = await measure(arm, at_once, numbers, calls, options.server)
                arm.rounds.setdefault(at_once, []).append(done)
    return arms


def table(arms: Sequence[Arm]) -> str:
    """One line an arm and number of conversations: medians of the rounds, and their range."""
    heads = ["conversations", "arm", "CPU ms a call", "", "of sqlite", "", "database", "load"]
    rows = [[*heads, "p50 ms", "p99 ms", "a s", "a CPU s"]]
    for at_once in arms[0].rounds:
        for arm in arms:
            rounds = arm.rounds[at_once]
            pairs = zip(rounds, arms[0].rounds[at_once], strict=True)
            cpu = Figure.of([each.cpu_ms for each in rounds])
            share = Figure.of([each.cpu_ms / sqlite.cpu_ms for each, sqlite in pairs])
            times = [[percentile(each.latencies_ms, p) for each in rounds] for p in (50, 99)]
            others = [
                [each.database_ms for each in rounds],
                [each.load_ms for each in rounds],
                *times,
            ]
            rates = [[each.per_s for each in rounds], [each.per_cpu_s for each in rounds]]
            figures = [_with_range(cpu), _with_range(share)]
            figures.append([f"{Figure.of(each).median:.2f}" for each in others])
            figures.append([f"{Figure.of(each).median:.0f}" for each in rates])
            rows.append([str(at_once), arm.name, *itertools.chain(*figures)])
    return aligned(rows)


def _with_range(figure: Figure) -> list[str]:
    return [f"{figure.median:.2f}", f"{figure.low:.2f}-{figure.high:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.databases", description=__doc__)
    parser.add_argument("--url", required=True, help="of a database for this bench alone")
    parser.add_argument("--server", type=int, help="the id of the database's first process")
    parser.add_argument("--apart", action="store_true", help="gateways alone on the first core")
    parser.add_argument("--replicas", type=int, default=0, help="further gateways, asked in turn")
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--calls", type=int, default=400, help="of an arm in a round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as home:
        arms = uvloop.run(run(options, Path(home)))
    print(f"{machine()}; load {os.getloadavg()[0]:.0f}\n\n{table(arms)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
