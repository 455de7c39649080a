"""Many requests at one moment: are they all steered and recorded, and how long do they wait?

    python -m bench.arrivals --new 1000 --agents 200 --rounds 5

First `--new` conversations begin at once; then `--agents` agents make `--rounds` calls in lockstep,
each with a tool's result added to its history. The connections are open before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apsw

from bench.arms import ARMS, CHAT, Running, start, upstream
from bench.bodies import MODEL, step
from bench.client import Answer, Connection, post
from bench.statistics import percentile

_RESULT_BYTES = 800
_SETTLE_POLLS = 300  # of 0.1 s
_TASK = "Repair conversation {number}: the tests of module {number} fail since the last change."
_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("read_file", "edit_file", "run_tests")
]
_STATE = b"\r\nx-gateway-state:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One load. `steered` answers name the run's state; `at_once` calls are in the database when
    the last answer arrives, `recorded` ones 30 s later at the latest.

    First byte and last byte in milliseconds from the moment all requests are sent.
    """

    load: str
    calls: int
    answered: int
    steered: int
    at_once: int
    recorded: int
    first_p50_ms: float
    first_p99_ms: float
    last_max_ms: float
    cpu_ms_per_call: float
    rss_mb: float


async def measure(
    home: Path, *, new: int, agents: int, rounds: int, stream: bool
) -> list[Arrivals]:
    """Start the steered gateway before a scripted upstream, and send it both loads."""
    arm = next(arm for arm in ARMS if arm.name == "steered")
    with upstream(home) as port:
        running = start(arm, port, home)
        assert running.server is not None
        try:
            found = [await _burst("new", running, home, [_begun(n, stream) for n in range(new)])]
            answers = [
                await _burst(f"round {turn}", running, home, list(_round(agents, turn, stream)))
                for turn in range(rounds)
            ]
            return found + answers
        finally:
            running.server.stop()


def _begun(number: int, stream: bool) -> bytes:
    return _body(number, 0, stream)


def _round(agents: int, turn: int, stream: bool) -> Iterator[bytes]:
    return (_body(1_000_000 + agent, turn, stream) for agent in range(agents))


def _body(number: int, steps: int, stream: bool) -> bytes:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You repair programs, with care and with the tools given."},
        {"role": "user", "content": _TASK.format(number=number)},
    ]
    for index in range(steps):
        messages += step(index, _RESULT_BYTES)
    fields = {"model": MODEL, "messages": messages, "tools": _TOOLS, "stream": stream}
    return json.dumps(fields).encode()


async def _burst(load: str, running: Running, home: Path, bodies: Sequence[bytes]) -> Arrivals:
    assert running.server is not None
    connections = [await Connection.open(running.port) for _ in bodies]
    recorded, paid = _recorded(home), running.cpu_s()
    asked = [
        connection.ask(post(CHAT, body, running.headers))
        for connection, body in zip(connections, bodies, strict=True)
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    spent_s = running.cpu_s() - paid
    for connection in connections:
        connection.close()
    at_once = _recorded(home) - recorded
    for _ in range(_SETTLE_POLLS):
        if _recorded(home) - recorded >= len(bodies):
            break
        await asyncio.sleep(0.1)
    good = [a for a in answers if isinstance(a, Answer) and a.status == 200]
    first = [answer.first_s * 1000 for answer in good] or [float("nan")]
    return Arrivals(
        load=load,
        calls=len(bodies),
        answered=len(good),
        steered=sum(_STATE in answer.raw.lower() for answer in good),
        at_once=at_once,
        recorded=_recorded(home) - recorded,
        first_p50_ms=round(percentile(first, 50), 1),
        first_p99_ms=round(percentile(first, 99), 1),
        last_max_ms=round(max((a.last_s for a in good), default=0.0) * 1000, 1),
        cpu_ms_per_call=round(spent_s * 1000 / len(bodies), 2),
        rss_mb=round(running.server.rss_mb(), 1),
    )


def _recorded(home: Path) -> int:
    """Calls in the run logs of the gateways that were started in `home`."""
    total = 0
    for path in home.glob("gateway-*.db"):
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            total += connection.execute("SELECT coalesce(sum(calls), 0) FROM runs").get
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON line per load."""
    parser = argparse.ArgumentParser(prog="python -m bench.arrivals", description=__doc__)
    parser.add_argument("--new", type=int, default=1000, help="conversations that begin at once")
    parser.add_argument("--agents", type=int, default=200, help="agents in lockstep")
    parser.add_argument("--rounds", type=int, default=5, help="calls of each agent")
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        found = asyncio.run(
            measure(
                Path(home),
                new=options.new,
                agents=options.agents,
                rounds=options.rounds,
                stream=options.stream,
            )
        )
    for arrivals in found:
        sys.stdout.write(json.dumps(asdict(arrivals)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
