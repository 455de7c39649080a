"""`python -m bench.outages`: how long answers take while the PostgreSQL database cannot be used.

A server and a gateway of its own for each outage, steering on; agents one call after the other. The
first calls of an outage, during which the gateway finds out, are shown apart. `before` is what the
same gateway needs without one. `of nothing` is the p99 in an outage as a share of that of the arm
`nothing` in the same round: on a machine that others use, too, milliseconds say little. `--spools
disk memory` measures each outage with and without `storage.spool_path`, in turn. `full` and
`log full` need a file system of its own, which only root may mount.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen

import uvloop

from bench.arms import ARMS, Command, Place, Running, gateway_command, start, upstream
from bench.client import LOOPBACK
from bench.incidents import FIRST, calls
from bench.report import aligned, machine, ms
from bench.statistics import percentile
from steering_gateway_testing.outages import OUTAGES, SMALL, small_folder
from steering_gateway_testing.postgres import PostgresServer, new_folder

_IN_LITTLE_ROOM = ("full", "log full")
_SETTLE_POLLS = 300  # of 0.1 s
_RECORDED = "SELECT count(*) FROM steps WHERE call IS NOT NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One outage: milliseconds a call, how many calls were made before and in it, and recorded.

    `spool`: where records waited. `ready`: the status that the gateway gave of itself at the
    outage's end."""

    outage: str
    spool: str
    before: Sequence[float]
    first: Sequence[float]
    later: Sequence[float]
    recorded: int
    ready: str

    @property
    def made(self) -> int:
        """All calls."""
        return len(self.before) + len(self.first) + len(self.later)


@contextmanager
def _server(name: str) -> Iterator[PostgresServer]:
    if name not in _IN_LITTLE_ROOM:
        server = PostgresServer(new_folder(), "-c", "listen_addresses=")
        server.start()
        try:
            yield server
        finally:
            server.stop()
        return
    with small_folder() as folder:
        server = PostgresServer(folder, *SMALL)
        server.start()
        try:
            yield server
        finally:
            server.stop()


async def measure(
    name: str, spool: str, port: int, home: Path, options: argparse.Namespace
) -> Took:
    """One gateway through one outage. Raises: OSError where it cannot be made."""
    with _server(name) as server:

        def command(place: Place) -> Command:
            storage = {
                "url": server.url("postgres"),
                "synchronous": options.synchronous,
                "spool_path": str(home / "spool") if spool == "disk" else None,
            }
            found, env = gateway_command(place, "on", storage=storage)
            return found, env | {"GATEWAY_STEERING__DEADLINE_MS": "10000"}

        arm = replace(next(arm for arm in ARMS if arm.name == "steered"), command=command)
        running = start(arm, port, home)
        try:
            return await _through(name, spool, running, server, options)
        finally:
            if running.server:
                running.server.stop()


async def _through(
    name: str, spool: str, running: Running, server: PostgresServer, options: argparse.Namespace
) -> Took:
    numbers = itertools.count(1)
    before = await calls(running, numbers, options.calls, options.seconds)
    with OUTAGES[name](server):
        first = await calls(running, numbers, FIRST, 60.0, connections=FIRST)
        later = await calls(running, numbers, options.calls, options.seconds)
        ready = await asyncio.to_thread(_ready, running.port)
    made = len(before) + len(first) + len(later)
    for _ in range(_SETTLE_POLLS):
        if (recorded := _recorded(server)) >= made:
            break
        await asyncio.sleep(0.1)
    return Took(
        outage=name,
        spool=spool,
        before=before,
        first=first,
        later=later,
        recorded=recorded,
        ready=ready,
    )


def _ready(port: int) -> str:
    with urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=60) as answer:
        return str(json.load(answer)["status"])


def _recorded(server: PostgresServer) -> int:
    try:
        return int(server.execute(_RECORDED))
    except OSError:  # it is starting
        return 0


def table(took: Sequence[Took]) -> str:
    """One line an outage, in the order in which they were measured."""
    heads = ["outage", "spool", "before, p50 ms", "p99", "first, most", "p50", "p99", "of nothing"]
    rows = [[*heads, "made", "recorded", "says"]]
    calm = math.nan
    for each in took:
        before = [percentile(each.before, percent) for percent in (50, 99)]
        later = [percentile(each.later, percent) for percent in (50, 99)]
        calm = later[1] if each.outage == "nothing" else calm
        figures = [ms(value) for value in (*before, max(each.first), *later)]
        figures.append(f"{later[1] / calm:.2f}")
        rows.append(
            [each.outage, each.spool, *figures, str(each.made), str(each.recorded), each.ready]
        )
    return aligned(rows)


async def measure_all(options: argparse.Namespace, home: Path) -> list[Took]:
    """Every outage, one after the other, as often as asked for."""
    took = []
    with upstream(home) as port:
        for name, spool in [*itertools.product(options.outages, options.spools)] * options.rounds:
            try:
                took.append(await measure(name, spool, port, home, options))
            except OSError as error:
                print(f"{name}: {error}", file=sys.stderr)
    return took


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every call was recorded."""
    parser = argparse.ArgumentParser(prog="python -m bench.outages", description=__doc__)
    names = list(OUTAGES)
    parser.add_argument("--outages", nargs="+", choices=names, default=names, metavar="OUTAGE")
    spools = ["disk", "memory"]
    parser.add_argument("--spools", nargs="+", choices=spools, default=["disk"], metavar="SPOOL")
    parser.add_argument("--calls", type=int, default=300, help="before it and in it, at most")
    parser.add_argument("--seconds", type=float, default=20, help="of each, at most")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--synchronous", choices=["normal", "full"], default="normal")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as home:
        took = uvloop.run(measure_all(options, Path(home)))
    print(f"{machine()}; load {os.getloadavg()[0]:.0f}\n\n{table(took)}")
    return 0 if all(each.made == each.recorded for each in took) else 1


if __name__ == "__main__":
    sys.exit(main())
