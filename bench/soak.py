"""Agents at work for long, through every fault: is memory flat, and is nothing lost?

    python -m bench.soak --minutes 15
    python -m bench.soak --calls 60000 --turns 1 --faults 0 --incident-s 0

Agents in three dialects, streaming and not, make `--turns` calls a conversation and send a call
that failed again. A share of the upstream's answers is one of the faults of the scripted upstream,
a share of the calls is left by the client, and now and then another process holds the database's
write lock. In the end every answer that arrived whole must be in the run log.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw
import httpx
import uvloop

from bench.arms import ARMS, Command, Place, Running, gateway_command, start
from bench.fault_matrix import DIALECTS, view_of
from bench.report import aligned, machine
from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.received import ReceivedRequest

_SILENCE_S = 3.0
"""How long a silent upstream is; the gateway's limits are a third of it."""
_LEAVES = 0.02  # share of the calls that the client leaves
_SENT_AGAIN = 6  # times that a failed call is sent again, as by an SDK
_LOCKED_S = 2.0  # how long another process holds the database
_SAMPLES = 12
_HEADERS = ("authorization", "x-api-key")


@dataclass
class Seen:
    """What the clients saw, the gateway's memory meanwhile in MiB, and its warnings and errors."""

    answers: set[tuple[str, int]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    rss_mb: list[float] = field(default_factory=list)
    logged: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Status and beginning of the answers that did not arrive whole."""


def behaviour(share: float) -> Callable[[ReceivedRequest], Reply | Fault]:
    """An upstream that answers with a fault in this share of the calls."""
    draw, numbers = random.Random(7), itertools.count()

    def answer(_request: ReceivedRequest) -> Reply | Fault:
        reply = Reply(f"I run the tests again, attempt {next(numbers)}: 1 failed, 3 passed.")
        if draw.random() >= share:
            return reply
        kind = draw.choice(list(FaultKind))
        silent = kind in (FaultKind.SLOW_FIRST_BYTE, FaultKind.STALL)
        delay_s = _SILENCE_S if silent else None
        return Fault(kind, delay_s=delay_s, retry_after="0", size_mb=0.2, reply=reply)

    return answer


class Agent:
    """One client, one conversation after the other."""

    def __init__(self, number: int, running: Running, seen: Seen, options: argparse.Namespace):
        self._dialect = list(DIALECTS)[number % len(DIALECTS)]
        self._streams = number % 2 == 0
        self._base = f"http://127.0.0.1:{running.port}/v1/{DIALECTS[self._dialect]}"
        self._seen, self._options = seen, options
        self._draw = random.Random(number)
        self._number = number

    async def work(self, goes_on: Callable[[], bool]) -> None:
        """Conversations until the end."""
        async with httpx.AsyncClient(timeout=60) as http:
            for task in itertools.count():
                said = [{"role": "user", "content": f"Mend part {task} for {self._number}."}]
                for _ in range(self._options.turns):
                    if not goes_on():
                        return
                    text = await self._turn(http, said)
                    said.append({"role": "assistant", "content": text or "I was cut off."})
                    said.append({"role": "user", "content": "1 failed: assert 1 == 2"})

    async def _turn(self, http: httpx.AsyncClient, said: list[dict[str, str]]) -> str:
        """The text of a call that is sent until it is answered; empty when it never is."""
        for again in range(_SENT_AGAIN):
            self._seen.counts["calls"] += 1
            text = await self._call(http, said, again)
            if text is not None:
                return text
        self._seen.counts["given up"] += 1
        return ""

    async def _call(
        self, http: httpx.AsyncClient, said: list[dict[str, str]], again: int
    ) -> str | None:
        key = "input" if self._dialect == "responses" else "messages"
        body: dict[str, Any] = {"model": "m", key: said, "stream": self._streams}
        if self._dialect == "messages":
            body["max_tokens"] = 64
        headers = dict.fromkeys(_HEADERS, "Bearer k") | {"x-stainless-retry-count": str(again)}
        leaves, received = self._draw.random() < _LEAVES * bool(self._options.faults), b""
        try:
            async with http.stream("POST", self._base, json=body, headers=headers) as answer:
                async for piece in answer.aiter_bytes():
                    received += piece
                    if leaves:
                        break
        except httpx.HTTPError:
            self._seen.counts["broken off"] += 1
            return None
        if leaves:
            self._seen.counts["left"] += 1
            return None
        view = view_of(self._dialect, self._streams, answer.status_code, received, True)
        if not view.whole:
            self._seen.counts["failed"] += 1
            self._seen.failed[f"{answer.status_code} {received[:120].decode('latin-1')}"] += 1
            return None
        self._note(answer)
        return view.text

    def _note(self, answer: httpx.Response) -> None:
        counts, home = self._seen.counts, answer.headers.get("x-gateway-conversation-id")
        counts["answers"] += 1
        counts["unsteered"] += "x-gateway-unsteered" in answer.headers
        step = answer.headers.get("x-gateway-step")
        if home is None or step is None:
            counts["without a step"] += 1
        else:
            self._seen.answers.add((home, int(step)))


def recorded(path: Path) -> set[tuple[str, int]]:
    """The (conversation, step) of every call in the file, which must be intact."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    if connection.pragma("integrity_check") != "ok":
        raise RuntimeError("the database is damaged")
    rows = connection.execute(
        "SELECT runs.id, step_index FROM steps JOIN runs ON runs.pk = run_pk WHERE call IS NOT NULL"
    ).fetchall()
    connection.close()
    return {(str(run).rpartition(".")[0], int(str(index))) for run, index in rows}


def _command(options: argparse.Namespace, place: Place) -> Command:
    steering = {"mode": "on", "max_conversations_in_memory": options.kept}
    more: dict[str, Any] = {
        "steering": steering,
        "router": {"num_retries": 1, "backoff_s": 0.05, "allowed_fails": 1_000_000},
    }
    if options.faults:  # on a busy machine, an upstream without faults may be silent for as long
        more["timeouts"] = {"first_byte_s": _SILENCE_S / 3, "idle_s": _SILENCE_S / 3}
    return gateway_command(place, "on", **more)


async def soak(options: argparse.Namespace, home: Path) -> tuple[Seen, int]:
    """What was seen, and how many whole answers are not recorded."""
    seen, started = Seen(), time.monotonic()
    ends_at = started + options.minutes * 60

    def done() -> float:
        calls = seen.counts["calls"] / options.calls if options.calls else 0.0
        return max(calls, (time.monotonic() - started) / (ends_at - started))

    def goes_on() -> bool:
        return done() < 1

    arm = next(arm for arm in ARMS if arm.name == "steered")
    with ScriptedUpstream(behaviour(options.faults), record=0) as upstream:
        running = start(
            replace(arm, command=functools.partial(_command, options)), upstream.port, home
        )
        assert running.server is not None
        path = home / f"gateway-{running.port}.db"
        agents = [Agent(n, running, seen, options) for n in range(options.agents)]
        others = [
            asyncio.ensure_future(_sample(running, seen, done)),
            asyncio.ensure_future(_lock_now_and_then(path, options.incident_s)),
        ]
        try:
            await asyncio.gather(*(agent.work(goes_on) for agent in agents))
        finally:
            for other in others:
                other.cancel()
            seen.rss_mb.append(running.server.rss_mb())
            running.server.stop()
    seen.logged = logged(home / f"{arm.name}.log")
    return seen, len(seen.answers - recorded(path))


def logged(path: Path) -> Counter[str]:
    """The gateway's warnings and errors."""
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        event = json.loads(line) if line.startswith("{") else {"event": line, "level": "error"}
        if event.get("level") in ("warning", "error"):
            found[f"{event['event']}: {event.get('kind', '')} {event.get('reason', '')}"[:150]] += 1
    return found


async def _sample(running: Running, seen: Seen, done: Callable[[], float]) -> None:
    assert running.server is not None
    for number in range(1, _SAMPLES):
        while done() < number / _SAMPLES:  # noqa: ASYNC110 - two clocks, calls and seconds
            await asyncio.sleep(0.2)
        seen.rss_mb.append(running.server.rss_mb())


async def _lock_now_and_then(path: Path, pause_s: float) -> None:
    while pause_s:
        await asyncio.sleep(pause_s)
        with apsw.Connection(str(path)) as connection:
            connection.set_busy_timeout(10_000)
            connection.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(_LOCKED_S)
            connection.execute("ROLLBACK")


def table(seen: Seen, lost: int) -> str:
    """Counts, and the memory over the time."""
    rows = [[name, str(number)] for name, number in sorted(seen.counts.items())]
    memory = " ".join(f"{each:.0f}" for each in seen.rss_mb)
    said = _listed(seen.logged)
    return (
        f"{aligned(rows)}\nlogged:\n{said}not whole:\n{_listed(seen.failed)}"
        f"resident MiB, evenly spaced: {memory}\nanswers not recorded: {lost}"
    )


def _listed(counts: Counter[str]) -> str:
    return "".join(f"  {count} x {what}\n" for what, count in counts.most_common(20))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; status 1 when an answer is not recorded."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="at most")
    parser.add_argument("--calls", type=int, default=0, help="at most; 0 = any number")
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--kept", type=int, default=200, help="conversations kept in memory")
    parser.add_argument("--turns", type=int, default=20, help="calls of a conversation")
    parser.add_argument("--faults", type=float, default=0.25, help="share of the answers")
    parser.add_argument("--incident-s", type=float, default=20, help="between two locks; 0 = none")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-soak-") as home:
        seen, lost = uvloop.run(soak(options, Path(home)))
    print(f"{machine()}\n\n{table(seen, lost)}")
    print(json.dumps({"counts": seen.counts, "rss_mb": seen.rss_mb, "lost": lost}))
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
