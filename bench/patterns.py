"""`python -m bench.patterns`: how long a look-up takes, and how long it holds up the event loop.

A SQLite store of 1,000, 10,000 and 100,000 patterns of tier e2, filled with vectors of made-up
sentences. Times are of the whole look-up through the library (embedding, hand-over to the reader
thread, search, hand-over back) and of the search inside the reader thread alone, over all patterns
and over those of one failure type. A ticker measures the longest stretch in which the event loop
did not run, during the look-ups and, as the share of a busy machine in it, while nothing is done;
`CPU` is the processor time of a search, which a busy machine changes less than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from gateway.config.storage import StorageSettings
from gateway.embedding.static import StaticEmbedder
from gateway.library import PatternLibrary
from gateway.steering.guidance.pattern import Pattern, Query, Tier, embedding_text
from gateway.steering.guidance.settings import EtraceSettings
from gateway.steering.monitors import FAILURE_TYPES
from gateway.stores.patterns import Search
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.sqlite.connection import load_vector_extension
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine, _driven

SIZES = (1_000, 10_000, 100_000)
TICK_S = 0.001
_BATCH = 2_000

_WHO = ("agent", "test", "build", "parser", "order", "user", "flight", "search", "tool", "cache")
_DOES = (
    "fails",
    "repeats",
    "opens",
    "reads",
    "changes",
    "reverts",
    "calls",
    "asks",
    "loses",
    "finds",
)
_WHAT = (
    "assertion",
    "import",
    "record",
    "refund",
    "timeout",
    "template",
    "column",
    "token",
    "index",
)
_HOW = ("again", "slowly", "twice", "early", "without reason", "after an upgrade", "on retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times in milliseconds."""

    size: int
    all_p50: float
    all_p99: float
    cpu_p50: float
    cpu_p99: float
    typed_p50: float
    typed_p99: float
    typed_cpu_p50: float
    whole_p50: float
    whole_p99: float
    stall: float
    idle: float


def sentence(draw: random.Random) -> str:
    """A made-up situation."""
    parts = [" ".join(draw.choice(words) for words in (_WHO, _DOES, _WHAT, _HOW)) for _ in "abc"]
    return f"{', '.join(parts)} {draw.randrange(10_000)}"


def patterns(count: int, draw: random.Random) -> list[Pattern]:
    """As many different patterns, of all failure types and of none."""
    kinds = [*FAILURE_TYPES.values(), None]
    return [
        Pattern(
            tier=Tier.E2,
            pattern_id=f"p{number}",
            fields={"situation": sentence(draw), "unlock": "look elsewhere"},
            failure_type=draw.choice(kinds),
        )
        for number in range(count)
    ]


async def fill(store: PatternStore, embedder: StaticEmbedder, count: int) -> None:
    """Add patterns."""
    made = patterns(count, random.Random(3))
    for start in range(0, count, _BATCH):
        batch = made[start : start + _BATCH]
        embedded = embedder.vectors([embedding_text(pattern) for pattern in batch])
        await store.add(list(zip(batch, embedded, strict=True)))


async def longest_stall(stop: asyncio.Event) -> float:
    """The longest stretch in seconds without the loop running, until `stop` is set."""
    longest, before = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        longest, before = max(longest, now - before - TICK_S), now
    return longest


async def measure(path: Path, size: int, rounds: int) -> Measured:
    """One size of store."""
    database = await Database.open(StorageSettings(path=str(path)), hooks=(load_vector_extension,))
    store, embedder = PatternStore(SQLiteEngine(database)), StaticEmbedder.load()
    library = await PatternLibrary.open(store, embedder, EtraceSettings(), starter=False)
    await fill(store, embedder, size)
    draw = random.Random(4)
    texts = [f"{sentence(draw)} {sentence(draw)}" for _ in range(rounds)]
    for text in texts[:20]:
        await library.look_up(Query(tier=Tier.E2, text=text, top_k=2), "")
    stop = asyncio.Event()
    ticker = asyncio.ensure_future(longest_stall(stop))
    begun, whole = time.perf_counter(), []
    for text in texts:
        sent = time.perf_counter()
        await library.look_up(Query(tier=Tier.E2, text=text, top_k=2), "")
        whole.append(time.perf_counter() - sent)
    stop.set()
    stall, idle = await ticker, await _idle(time.perf_counter() - begun)
    worker: dict[str | None, list[tuple[float, float]]] = {None: [], "loop": []}
    for text in texts:
        (vector,) = embedder.vectors([text])
        for failure_type, taken in worker.items():
            taken.append(await _worker(database, store, vector, failure_type))
    await database.close()
    return Measured(
        size=size,
        all_p50=_quantile([wall for wall, _ in worker[None]], 0.5),
        all_p99=_quantile([wall for wall, _ in worker[None]], 0.99),
        cpu_p50=_quantile([cpu for _, cpu in worker[None]], 0.5),
        cpu_p99=_quantile([cpu for _, cpu in worker[None]], 0.99),
        typed_p50=_quantile([wall for wall, _ in worker["loop"]], 0.5),
        typed_p99=_quantile([wall for wall, _ in worker["loop"]], 0.99),
        typed_cpu_p50=_quantile([cpu for _, cpu in worker["loop"]], 0.5),
        whole_p50=_quantile(whole, 0.5),
        whole_p99=_quantile(whole, 0.99),
        stall=stall * 1000,
        idle=idle * 1000,
    )


async def _idle(seconds: float) -> float:
    """The longest stall in a stretch of `seconds` without look-ups."""
    stop = asyncio.Event()
    ticker = asyncio.ensure_future(longest_stall(stop))
    await asyncio.sleep(seconds)
    stop.set()
    return await ticker


async def _worker(
    database: Database, store: PatternStore, vector: object, failure_type: str | None
) -> tuple[float, float]:
    """Seconds the search takes inside the reader thread, by the clock and of the processor."""
    search = Search(tier=Tier.E2, vector=vector, failure_type=failure_type, limit=2)  # type: ignore[arg-type]

    def timed(connection: object) -> tuple[float, float]:
        begun, used = time.perf_counter(), time.thread_time()
        _driven(lambda c: store._nearest(search, None, c), connection)  # type: ignore[arg-type]
        return time.perf_counter() - begun, time.thread_time() - used

    return await database.read(timed)


def _quantile(seconds: Sequence[float], share: float) -> float:
    return float(np.quantile(seconds, share)) * 1000


def embedding() -> None:
    """Print how long a query takes to embed."""
    embedder, draw = StaticEmbedder.load(), random.Random(5)
    for words in (5, 25, 100):
        texts = [" ".join(sentence(draw) for _ in range(words)) for _ in range(300)]
        taken = []
        for text in texts:
            begun = time.perf_counter()
            embedder.vectors([text])
            taken.append(time.perf_counter() - begun)
        length = sum(map(len, texts)) // len(texts)
        print(
            f"embedding {length} characters: p50 {_quantile(taken, 0.5):.3f} ms, "
            f"p99 {_quantile(taken, 0.99):.3f} ms"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    arguments = parser.parse_args()
    embedding()
    print(
        "| patterns | search p50 / p99 | CPU p50 / p99 | of one type (CPU p50) | look-up "
        "| longest stall (idle) |"
    )
    print("| --- " * 6 + "|")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            row = uvloop.run(measure(Path(folder) / "bench.db", size, arguments.rounds))
        print(
            f"| {row.size:,} | {row.all_p50:.2f} / {row.all_p99:.2f} ms "
            f"| {row.cpu_p50:.2f} / {row.cpu_p99:.2f} ms "
            f"| {row.typed_p50:.2f} / {row.typed_p99:.2f} ms ({row.typed_cpu_p50:.2f}) "
            f"| {row.whole_p50:.2f} / {row.whole_p99:.2f} ms "
            f"| {row.stall:.2f} ({row.idle:.2f}) ms |"
        )


if __name__ == "__main__":
    main()
