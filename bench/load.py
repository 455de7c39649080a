"""One slice of load on one arm: requests at a fixed concurrency, timed, checked, paid for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench.arms import CHAT, Running
from bench.bodies import Body
from bench.client import Answer, Connection, post

STREAM_CHUNKS = 100
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One body at one concurrency."""

    body: Body
    concurrency: int

    @property
    def name(self) -> str:
        """Such as `small@32`."""
        return f"{self.body.name}@{self.concurrency}"


@dataclass(slots=True, kw_only=True)
class Slice:
    """What one arm did in one round of one case."""

    latencies_ms: list[float] = field(default_factory=list)
    first_byte_ms: list[float] = field(default_factory=list)
    failures: int = 0
    seconds: float = 0.0
    cpu_ms: float = 0.0
    """Of the arm's processes, over the whole slice."""

    def add(self, more: Slice) -> None:
        """Take in what was done after this."""
        self.latencies_ms += more.latencies_ms
        self.first_byte_ms += more.first_byte_ms
        self.failures += more.failures
        self.seconds += more.seconds
        self.cpu_ms += more.cpu_ms

    @property
    def cpu_ms_per_request(self) -> float:
        """CPU milliseconds a request, failed ones included."""
        return self.cpu_ms / max(1, len(self.latencies_ms) + self.failures)


async def run_slice(
    running: Running, case: Case, numbers: Iterable[int], *, limit_s: float = math.inf
) -> Slice:
    """One request for each of the conversation `numbers`, or as many as begin within `limit_s`.

    Each connection sends at least one while there are numbers.
    """
    out = Slice()
    connections = [await _connect(running.port) for _ in range(case.concurrency)]
    left = iter(numbers)
    paid = running.cpu_s()
    started = time.perf_counter()
    deadline = started + limit_s
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(_worker(running, case, connection, left, deadline, out))
    out.seconds = time.perf_counter() - started
    out.cpu_ms = (running.cpu_s() - paid) * 1000
    return out


async def _worker(
    running: Running,
    case: Case,
    connection: Connection,
    left: Iterator[int],
    deadline: float,
    out: Slice,
) -> None:
    for sent, number in enumerate(left):
        if sent and time.perf_counter() >= deadline:
            break
        request = post(CHAT, case.body.numbered(number), running.headers)
        try:
            answer = await connection.ask(request)
        except ConnectionError:
            out.failures += 1
            connection = await _connect(running.port)
            continue
        if correct(answer, case.body.stream):
            out.latencies_ms.append(answer.last_s * 1000)
            out.first_byte_ms.append(answer.first_s * 1000)
        else:
            out.failures += 1
    connection.close()


def correct(answer: Answer, stream: bool, chunks: int = STREAM_CHUNKS) -> bool:
    """Whether an answer is the scripted one: status 200, and every event of a stream."""
    if answer.status != 200:
        return False
    if not stream:
        return b'"chat.completion"' in answer.raw
    return answer.raw.count(b"data: {") >= chunks and b"data: [DONE]" in answer.raw


async def _connect(port: int) -> Connection:
    for attempt in range(_TRIES):
        try:
            return await Connection.open(port)
        except OSError:
            if attempt + 1 == _TRIES:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError
