"""`python -m bench.instructions`: million instructions a request, counted by callgrind.

The count repeats within a few per cent where a time does not, on a busy machine too, and so guards
what was reached: a kind that exceeds its budget (`bench/instructions.json`) by 5 % fails the run.
What the server executes without a request, its timers, is measured and subtracted.

`postgres` is the arm `on` with a PostgreSQL server, whose own processes are not counted. They are
not slowed down either: a commit is over before the next call of the gateway wants one, so that
calls hardly ever share a statement, as they do where the gateway is as fast as its database.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from bench.scripted import Answer, Provider
from steering_gateway_testing.postgres import PostgresServer, new_folder

BUDGETS = Path(__file__).parent / "instructions.json"
TOLERANCE = 1.05
"""How far a budget may be exceeded: two runs of one tree differ by up to 3 %."""

_RARELY_S = 300
"""Between two looks at the store of what looks without a request."""

_WARM = 12
"""Requests before the count: caches fill, and what is imported late is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a kind, and what the provider answers."""

    body: bytes
    answer: Answer


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


def _steps(number: int) -> Iterator[Request]:
    """The first calls of such a run; the provider's reply follows from the request."""
    for steps in range(_STEPS):
        body = bodies.agent("steps", steps=steps, result_bytes=1480)
        yield Request(body=body.numbered(number), answer=bodies.next_reply)


_ANSWER = {"role": "assistant", "content": "The report test fails because of a wrong path."}
_SESSION_CALLS = 40
_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the requests of a conversation are made, how many conversations are counted, and how
    many are under way at one time."""

    make: Callable[[int], Iterator[Request]]
    conversations: int
    at_once: int = 1


KINDS = {
    "small": Kind(make=_small, conversations=30),
    "cold": Kind(make=_cold, conversations=6),
    "stream": Kind(make=_stream, conversations=6),
    "session": Kind(make=_session, conversations=1),
    "steps": Kind(make=_steps, conversations=8),
    "steps8": Kind(make=_steps, conversations=24, at_once=8),
}

LEARNING: dict[str, dict[str, Any]] = {
    "unlearned": {"trials": "off"},
    "learning": {"trials": "on", "interval_s": 3600},
}
"""Two arms of mode `on`: without learning from runs, and with it. Runs are read later, so that
their difference is what learning costs on the way of a request."""
ARMS = ("relay", "off", "shadow", "on", "postgres", *LEARNING, "switchyard")
_READY = {"relay": "/", "switchyard": "/metrics"}


async def measure(
    arm: str, kinds: Sequence[str], home: Path, keep: Path | None
) -> dict[str, float]:
    """Million instructions a request of one arm, by kind. Raises: Unavailable, NotReady."""
    with ExitStack() as stack:
        url = stack.enter_context(_database()) if arm == "postgres" else None
        async with Provider() as provider:
            port = free_port()
            command = _command(arm, port, provider.port, home, url)
            environment = launch_environment() | {"PYTHONHASHSEED": "0"}
            counted = Counted(command, port=port, home=home, env=environment)
            stack.callback(counted.stop)
            counted.wait_ready(_READY.get(arm, "/readyz"))
            load = Load(provider, port)
            return {kind: await _count(counted, load, arm, kind, keep) for kind in kinds}


@contextmanager
def _database() -> Iterator[str]:
    """The URL of an empty database on a server of its own. Raises: Unavailable."""
    try:
        server = PostgresServer(new_folder(), "-c", "listen_addresses=")
        server.start()
    except (ImportError, OSError) as error:
        raise Unavailable(f"PostgreSQL cannot be started: {error}") from error
    try:
        yield server.url("postgres")
    finally:
        server.stop()


async def _count(counted: Counted, load: Load, arm: str, name: str, keep: Path | None) -> float:
    kind = KINDS[name]
    await load.send(kind, max(_WARM, kind.at_once) if kind.conversations > 1 else 1)
    idle = counted.idle_per_second()
    counted.zero()
    began = counted.server.cpu_s() + load.paused_s
    sent = await load.send(kind, kind.conversations)
    seconds = counted.server.cpu_s() + load.paused_s - began
    total = counted.total()
    if keep is not None:
        shutil.copy(counted.profile, keep / f"{arm}-{name}.callgrind")
    # In seconds of its own CPU and of the provider's pauses: where others are at work, the timers
    # of a server that waits for a core fire less often than the clock says.
    return (total - idle * seconds) / sent / 1e6


class Load:
    """Sends conversations, each of them once, and checks their answers."""

    def __init__(self, provider: Provider, port: int) -> None:
        self._provider = provider
        self._port = port
        self._numbers = itertools.count()
        self._connections: list[Connection] = []

    @property
    def paused_s(self) -> float:
        """Seconds of pauses in the provider's streams."""
        return self._provider.paused_s

    async def send(self, kind: Kind, conversations: int) -> int:
        """The number of requests sent. Raises: RuntimeError for an answer that is not right."""
        while len(self._connections) < kind.at_once:
            self._connections.append(await Connection.open(self._port))
        numbers = itertools.islice(self._numbers, conversations)
        work = (self._work(each, kind, numbers) for each in self._connections[: kind.at_once])
        return sum(await asyncio.gather(*work))

    async def _work(self, connection: Connection, kind: Kind, numbers: Iterator[int]) -> int:
        sent = 0
        for number in numbers:
            for request in kind.make(number):
                self._provider.answer = request.answer
                answer = await connection.ask(post(CHAT, request.body))
                if not correct(answer, isinstance(request.answer, int)):
                    raise RuntimeError(f"answered {answer.status}: {answer.raw[:300]!r}")
                sent += 1
        return sent


def _command(arm: str, port: int, upstream: int, home: Path, url: str | None) -> Sequence[str]:
    if arm == "relay":
        return relay_command(port, upstream)
    if arm == "switchyard":
        return switchyard_command(port, upstream, home)
    config = {
        "default_upstream": {"api_base": f"http://127.0.0.1:{upstream}/v1"},
        # Under valgrind everything takes fifty times as long. What only asks the store now and then
        # rests: it is no request's work, and fires the more often, the busier the machine is.
        "storage": {
            **({"url": url} if url else {"path": str(home / "gateway.db")}),
            "commit_limit_ms": 60_000,
            "probe_interval_s": _RARELY_S,
        },
        "auth": {"poll_s": _RARELY_S},
        "control": {"poll_s": _RARELY_S},
        "steering": {
            "mode": arm if arm in ("off", "shadow") else "on",
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
