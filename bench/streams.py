"""Many streams held open at once: are they whole, and does the event loop stall meanwhile?"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.arms import CHAT, Arm, Running, start, upstream
from bench.bodies import small
from bench.client import Connection, post
from bench.load import correct
from bench.processes import clean_env
from bench.statistics import percentile

CHUNKS = 50
CHUNK_DELAY_MS = 100
RAMP_S = 2.0
LIMIT_S = 30.0
"""A stream that takes longer counts as not whole."""

_SETTLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How one arm held its streams. Stalls: the wait of a probe every 20 ms, in milliseconds.

    `whole` streams had every chunk and their end within `LIMIT_S`.
    """

    arm: str
    streams: int
    whole: int
    stall_p50_ms: float
    stall_p99_ms: float
    stall_max_ms: float
    idle_max_ms: float
    """The longest wait of the same probe before the streams: the machine's own noise."""

    longest_s: float
    """The slowest stream; undisturbed ones take `CHUNKS * CHUNK_DELAY_MS`."""

    cpu_ms_per_stream: float
    rss_mb: float


async def hold(
    arm: Arm,
    home: Path,
    streams: int,
    *,
    chunks: int = CHUNKS,
    chunk_delay_ms: float = CHUNK_DELAY_MS,
) -> Held:
    """Start `arm` on a slow upstream, open `streams` within two seconds, wait for their ends."""
    pace = ("--chunks", str(chunks), "--chunk-delay-ms", str(chunk_delay_ms))
    with upstream(home, *pace) as port:
        running = start(arm, port, home)
        try:
            return await _hold(running, streams, chunks)
        finally:
            if running.server:
                running.server.stop()


async def _hold(running: Running, streams: int, chunks: int) -> Held:
    await _stream(running, 0, 0.0, chunks)
    with _Probe(running) as probe:
        await asyncio.sleep(1.0)
    idle = probe.latencies_ms
    paid = running.cpu_s()
    with _Probe(running) as probe:
        await asyncio.sleep(_SETTLE_S)
        gap = RAMP_S / streams
        taken = await asyncio.gather(
            *(_stream(running, i + 1, i * gap, chunks) for i in range(streams))
        )
    stalls = probe.latencies_ms
    return Held(
        arm=running.arm.name,
        streams=streams,
        whole=sum(t is not None for t in taken),
        stall_p50_ms=percentile(stalls, 50),
        stall_p99_ms=percentile(stalls, 99),
        stall_max_ms=max(stalls),
        idle_max_ms=max(idle),
        longest_s=max((t for t in taken if t is not None), default=0.0),
        cpu_ms_per_stream=(running.cpu_s() - paid) * 1000 / streams,
        rss_mb=running.server.rss_mb() if running.server else 0.0,
    )


async def _stream(running: Running, number: int, delay_s: float, chunks: int) -> float | None:
    """Seconds one stream took; None when it was not whole."""
    await asyncio.sleep(delay_s)
    started = time.perf_counter()
    body = small(stream=True).numbered(number)
    connection = None
    try:
        async with asyncio.timeout(LIMIT_S):
            connection = await Connection.open(running.port)
            answer = await connection.ask(post(CHAT, body, running.headers))
    except OSError:  # TimeoutError is one, too
        return None
    finally:
        if connection is not None:
            connection.close()
    return time.perf_counter() - started if correct(answer, True, chunks) else None


class _Probe:
    """The probe process while the block runs."""

    def __init__(self, running: Running) -> None:
        self._options = ["--port", str(running.port), "--path", running.arm.probe]
        self.latencies_ms: list[float] = []

    def __enter__(self) -> _Probe:
        root = Path(__file__).resolve().parents[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.probe", *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_env(),
            cwd=root,
        )
        return self

    def __exit__(self, *_: object) -> None:
        out, _err = self._process.communicate()
        self.latencies_ms = json.loads(out or b"[]") or [float("nan")]
