"""`python -m bench.steps`: what steering costs as a conversation grows, through the live gateway.

At each length a few conversations go on step by step, with steering off (recorded only) and on. A
longer history is a longer body, and moving and parsing that costs something without any steering:
the bare relay and one parse of the same bodies stand beside it. What is left is the gateway's own
work, and must not grow with the length.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import uvloop

from bench import bodies
from bench.arms import ARMS, CHAT, Running, start, upstream
from bench.client import Connection, post
from bench.load import correct
from bench.report import aligned, machine, ms
from bench.statistics import Figure, percentile

LENGTHS = (10, 100, 1000)
_ARMS = ("relay-aiohttp", "native", "steered")
_RESULT_BYTES = 400
_WALK = 16
"""Steps a conversation goes on for, each one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One arm at one length: milliseconds a request, and the body's size."""

    arm: str
    step: int
    body_kb: float
    cpu_ms: Figure
    p50_ms: Figure
    parse_ms: float


async def walk(running: Running, length: int, number: int) -> tuple[float, float, float, float]:
    """(CPU ms, p50 ms, body kB, parse ms) of one conversation around step `length`."""
    requests = [_body(steps).numbered(number) for steps in _lengths(length)]
    connection = await Connection.open(running.port)
    await _ask(connection, running, _body(_lengths(length).start - 1).numbered(number))
    paid = running.cpu_s()
    latencies = [await _ask(connection, running, request) for request in requests]
    cpu_ms = (running.cpu_s() - paid) * 1000 / len(requests)
    connection.close()
    size = len(requests[len(requests) // 2])
    return cpu_ms, percentile(latencies, 50), size / 1000, _parse_ms(requests)


def _lengths(length: int) -> range:
    first = max(2, length - _WALK // 2)
    return range(first, first + _WALK)


def _body(steps: int) -> bodies.Body:
    return bodies.agent("steps", steps=steps, result_bytes=_RESULT_BYTES)


async def _ask(connection: Connection, running: Running, body: bytes) -> float:
    answer = await connection.ask(post(CHAT, body, running.headers))
    if not correct(answer, stream=False):
        raise RuntimeError(f"{running.arm.name} answered {answer.status}")
    return answer.last_s * 1000


def _parse_ms(requests: Sequence[bytes]) -> float:
    taken = []
    for request in requests:
        started = time.perf_counter()
        orjson.loads(request)
        taken.append((time.perf_counter() - started) * 1000)
    return percentile(taken, 50)


async def measure(lengths: Sequence[int], rounds: int, home: Path) -> list[Cost]:
    """Every arm at every length, in interleaved rounds."""
    arms = [arm for arm in ARMS if arm.name in _ARMS]
    found: dict[tuple[str, int], list[tuple[float, float, float, float]]] = {}
    with upstream(home) as port:
        running = [start(arm, port, home) for arm in arms]
        try:
            number = 0
            for turn in range(rounds + 1):
                for length in lengths:
                    for arm in running:
                        number += 1
                        taken = await walk(arm, length, number)
                        if turn:  # the first round warms up
                            found.setdefault((arm.arm.name, length), []).append(taken)
        finally:
            for arm in running:
                if arm.server:
                    arm.server.stop()
    return [_cost(arm.name, length, found[arm.name, length]) for length in lengths for arm in arms]


def _cost(arm: str, length: int, rounds: Sequence[tuple[float, float, float, float]]) -> Cost:
    cpu, p50, size, parse = zip(*rounds, strict=True)
    return Cost(
        arm=arm,
        step=length,
        body_kb=size[0],
        cpu_ms=Figure.of(cpu),
        p50_ms=Figure.of(p50),
        parse_ms=Figure.of(parse).median,
    )


def table(costs: Sequence[Cost]) -> str:
    """One line a length."""
    head = ["step", "body kB", "relay CPU ms", "one parse", "off", "(spread)", "on", "(spread)"]
    rows = [[*head, "on, less relay and parse"]]
    by = {(c.arm, c.step): c for c in costs}
    for step in dict.fromkeys(c.step for c in costs):
        relay, off, on = (by[name, step] for name in _ARMS)
        left = on.cpu_ms.median - relay.cpu_ms.median - on.parse_ms
        row = [str(step), f"{on.body_kb:.0f}", ms(relay.cpu_ms.median), ms(on.parse_ms)]
        for cost in (off, on):
            row += [ms(cost.cpu_ms.median), f"{ms(cost.cpu_ms.low)}-{ms(cost.cpu_ms.high)}"]
        rows.append([*row, ms(left)])
    return aligned(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="STEPS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as home:
        costs = uvloop.run(measure(options.lengths, options.rounds, Path(home)))
    print(f"{machine()}\n\n{table(costs)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(c) for c in costs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
