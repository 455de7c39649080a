"""`python -m bench.instructions`: million instructions a request, counted by callgrind.

The count repeats within a few per cent where a time does not, on a busy machine too, and so guards
what was reached: a kind that exceeds its budget (`bench/instructions.json`) by 5 % fails the run.
What the server executes without a request, its timers, is measured and subtracted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
import yaml

from bench import bodies
from bench.arms import CHAT, launch_environment, relay_command, switchyard_command
from bench.callgrind import Counted
from bench.client import Connection, post
from bench.load import STREAM_CHUNKS, correct
from bench.peers import Unavailable
from bench.processes import NotReady, free_port
from bench.scripted import Provider

BUDGETS = Path(__file__).parent / "instructions.json"
TOLERANCE = 1.05
"""How far a budget may be exceeded: two runs of one tree differ by up to 3 %."""

_RARELY_S = 300
"""Between two looks at the store of what looks without a request."""

_WARM = 12
"""Requests before the count: caches fill, and what is imported late is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a kind, and what the provider answers: a message, or chunks of a stream."""

    body: bytes
    answer: dict[str, Any] | int


def _small(number: int) -> Iterator[Request]:
    yield Request(body=bodies.small().numbered(number), answer=_ANSWER)


def _cold(number: int) -> Iterator[Request]:
    yield Request(body=bodies.tools().numbered(number), answer=bodies.step(29, 0)[0])


def _stream(number: int) -> Iterator[Request]:
    yield Request(body=bodies.small(stream=True).numbered(number), answer=STREAM_CHUNKS)


def _session(number: int) -> Iterator[Request]:
    """An agent's run: each request is the last one, the answer to it, and a call's result."""
    for steps in range(_SESSION_CALLS):
        body = bodies.agent("session", steps=steps, result_bytes=1480)
        yield Request(body=body.numbered(number), answer=bodies.step(steps, 0)[0])


_ANSWER = {"role": "assistant", "content": "The report test fails because of a wrong path."}
_SESSION_CALLS = 40

KINDS: dict[str, tuple[Callable[[int], Iterator[Request]], int]] = {
    "small": (_small, 30),
    "cold": (_cold, 6),
    "stream": (_stream, 6),
    "session": (_session, 1),
}
"""How a kind's requests are made, and how many conversations are counted."""

LEARNING: dict[str, dict[str, Any]] = {
    "unlearned": {"mining": False, "trials": "off"},
    "learning": {"mining": True, "trials": "on", "interval_s": 3600},
}
"""Two arms of mode `on`: without learning from runs, and with it. Runs are read later, so that
their difference is what learning costs on the way of a request."""
ARMS = ("relay", "off", "shadow", "on", *LEARNING, "switchyard")
_READY = {"relay": "/", "switchyard": "/metrics"}


async def measure(
    arm: str, kinds: Sequence[str], home: Path, keep: Path | None
) -> dict[str, float]:
    """Million instructions a request of one arm, by kind. Raises: Unavailable, NotReady."""
    async with Provider() as provider:
        port = free_port()
        command = _command(arm, port, provider.port, home)
        environment = launch_environment() | {"PYTHONHASHSEED": "0"}
        counted = Counted(command, port=port, home=home, env=environment)
        try:
            counted.wait_ready(_READY.get(arm, "/readyz"))
            load = Load(provider, await Connection.open(port))
            found = {}
            for kind in kinds:
                found[kind] = await _count(counted, load, arm, kind, keep)
            return found
        finally:
            counted.stop()


async def _count(counted: Counted, load: Load, arm: str, kind: str, keep: Path | None) -> float:
    make, conversations = KINDS[kind]
    await load.send(make, _WARM if conversations > 1 else 1)
    idle = counted.idle_per_second()
    counted.zero()
    began = counted.server.cpu_s() + load.paused_s
    sent = await load.send(make, conversations)
    seconds = counted.server.cpu_s() + load.paused_s - began
    total = counted.total()
    if keep is not None:
        shutil.copy(counted.profile, keep / f"{arm}-{kind}.callgrind")
    # In seconds of its own CPU and of the provider's pauses: where others are at work, the timers
    # of a server that waits for a core fire less often than the clock says.
    return (total - idle * seconds) / sent / 1e6


class Load:
    """Sends conversations on one connection, each of them once, and checks their answers."""

    def __init__(self, provider: Provider, connection: Connection) -> None:
        self._provider = provider
        self._connection = connection
        self._numbers = itertools.count()

    @property
    def paused_s(self) -> float:
        """Seconds of pauses in the provider's streams."""
        return self._provider.paused_s

    async def send(self, make: Callable[[int], Iterator[Request]], conversations: int) -> int:
        """The number of requests sent. Raises: RuntimeError for an answer that is not right."""
        sent = 0
        for number in itertools.islice(self._numbers, conversations):
            for request in make(number):
                self._provider.answer = request.answer
                answer = await self._connection.ask(post(CHAT, request.body))
                if not correct(answer, isinstance(request.answer, int)):
                    raise RuntimeError(f"answered {answer.status}: {answer.raw[:300]!r}")
                sent += 1
        return sent


def _command(arm: str, port: int, upstream: int, home: Path) -> Sequence[str]:
    if arm == "relay":
        return relay_command(port, upstream)
    if arm == "switchyard":
        return switchyard_command(port, upstream, home)
    config = {
        "default_upstream": {"api_base": f"http://127.0.0.1:{upstream}/v1"},
        # Under valgrind everything takes fifty times as long. What only asks the store now and then
        # rests: it is no request's work, and fires the more often, the busier the machine is.
        "storage": {
            "path": str(home / "gateway.db"),
            "commit_limit_ms": 60_000,
            "probe_interval_s": _RARELY_S,
        },
        "auth": {"poll_s": _RARELY_S},
        "control": {"poll_s": _RARELY_S},
        "steering": {
            "mode": "on" if arm in LEARNING else arm,
            "deadline_ms": 60_000,
            "max_wait_ms": 120_000,
        },
        "learning": LEARNING.get(arm, {}),
        "logging": {"level": "info"},
    }
    path = home / "gateway.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    return [*command, "--port", str(port)]


def exceeded(found: dict[str, dict[str, float]], budgets: dict[str, dict[str, float]]) -> list[str]:
    """What is over its budget by more than the tolerance, in words."""
    return [
        f"{arm} {kind}: {figure:.2f} M instructions, budget {budgets[arm][kind]:g}"
        for arm, kinds in found.items()
        for kind, figure in kinds.items()
        if kind in budgets.get(arm, {}) and figure > budgets[arm][kind] * TOLERANCE
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, compare with the budgets; 1 when one is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--keep", type=Path, help="a folder for the profiles (callgrind_annotate)")
    options = parser.parse_args(argv)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, float]] = {}
    print(f"{'arm':<12}" + "".join(f"{kind:>10}" for kind in options.kinds), flush=True)
    for arm in options.arms:
        with tempfile.TemporaryDirectory() as home:
            try:
                figures = uvloop.run(measure(arm, options.kinds, Path(home), options.keep))
            except (Unavailable, NotReady) as exc:
                print(f"{arm:<12} not measured: {exc}", flush=True)
                continue
        found[arm] = figures
        print(f"{arm:<12}" + "".join(f"{figures[k]:>10.2f}" for k in options.kinds), flush=True)
    over = exceeded(found, json.loads(BUDGETS.read_text()))
    for line in over:
        print(f"over budget: {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
