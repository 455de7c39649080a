"""`python -m bench.patterns`: how long a look-up takes, and how long it holds up the event loop.

1,000, 10,000 and 100,000 patterns of tier e2, filled with vectors of made-up sentences, searched in
three ways, in turn, in one process: by the statement of the SQLite store, in a `vec0` table of
sqlite-vec with the tenant and the tier as its partition, and in memory as a gateway does it. CPU is
the processor time of one search, which a busy machine changes less than the clock; a second reading
is of the patterns of one failure type. All three have to find the same. A ticker measures the
longest stretch in which the event loop did not run, during look-ups and while nothing is done.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw
import numpy as np
import uvloop

from gateway.config.storage import StorageSettings
from gateway.core.guidance_settings import EtraceSettings
from gateway.core.monitors import FAILURE_TYPES
from gateway.core.pattern import Pattern, Query, Tier, embedding_text
from gateway.embedding.static import StaticEmbedder
from gateway.library import PatternLibrary
from gateway.library.memory import PatternMemory
from gateway.stores.patterns import VectorSearch
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
    """Times in milliseconds: the median processor time of a search in each way, and of one that is
    for one failure type; `reading`: the time until all patterns are in memory."""

    size: int
    statement: float
    vec0: float
    memory: float
    typed_statement: float
    typed_memory: float
    reading: float
    memory_mb: float
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
    library = await PatternLibrary(store, embedder, EtraceSettings()).prepare(starter=False)
    await fill(store, embedder, size)
    await database.write(_fill_vec0)
    before_mb, begun = _resident_mb(), time.perf_counter()
    await library.memory.refresh()
    reading, memory_mb = time.perf_counter() - begun, _resident_mb() - before_mb
    draw = random.Random(4)
    texts = [f"{sentence(draw)} {sentence(draw)}" for _ in range(rounds)]
    stop = asyncio.Event()
    ticker = asyncio.ensure_future(longest_stall(stop))
    begun, whole = time.perf_counter(), []
    for text in texts:
        sent = time.perf_counter()
        await library.look_up(Query(tier=Tier.E2, text=text, top_k=2), "")
        whole.append(time.perf_counter() - sent)
    stop.set()
    stall, idle = await ticker, await _idle(time.perf_counter() - begun)
    taken: dict[str, list[float]] = defaultdict(list)
    for text in texts:
        (vector,) = embedder.vectors([text])
        for kind, failure_type in (("", None), ("typed ", "loop")):
            search = VectorSearch(tier=Tier.E2, vector=vector, failure_type=failure_type, limit=2)
            found = await _each_way(search, database, store, library.memory)
            assert len({ids for _, ids in found.values()}) == 1, found
            for way, (seconds, _) in found.items():
                taken[f"{kind}{way}"].append(seconds)
    await database.close()
    return Measured(
        size=size,
        statement=_quantile(taken["statement"], 0.5),
        vec0=_quantile(taken["vec0"], 0.5),
        memory=_quantile(taken["memory"], 0.5),
        typed_statement=_quantile(taken["typed statement"], 0.5),
        typed_memory=_quantile(taken["typed memory"], 0.5),
        reading=reading * 1000,
        memory_mb=memory_mb,
        whole_p50=_quantile(whole, 0.5),
        whole_p99=_quantile(whole, 0.99),
        stall=stall * 1000,
        idle=idle * 1000,
    )


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * resource.getpagesize() / 2**20


_VEC0 = """
CREATE VIRTUAL TABLE nearest USING vec0 (
    pk INTEGER PRIMARY KEY, tenant TEXT PARTITION KEY, tier TEXT PARTITION KEY,
    vector FLOAT[256] DISTANCE_METRIC=cosine
)
"""


def _fill_vec0(connection: apsw.Connection) -> None:
    connection.execute(_VEC0)
    connection.execute(
        "INSERT INTO nearest (pk, tenant, tier, vector) "
        "SELECT pk, tenant, tier, vector FROM pattern_vectors"
    )


async def _idle(seconds: float) -> float:
    """The longest stall in a stretch of `seconds` without look-ups."""
    stop = asyncio.Event()
    ticker = asyncio.ensure_future(longest_stall(stop))
    await asyncio.sleep(seconds)
    stop.set()
    return await ticker


Found = dict[str, tuple[float, tuple[int, ...]]]
"""Way -> (seconds of the processor, rows found)."""


async def _each_way(
    search: VectorSearch, database: Database, store: PatternStore, memory: PatternMemory
) -> Found:
    def stored(connection: apsw.Connection) -> Found:
        used = time.thread_time()
        rows = _driven(lambda c: store._nearest(search, None, c), connection)
        found = {"statement": (time.thread_time() - used, tuple(row[0] for row in rows))}
        if search.failure_type is None:
            used = time.thread_time()
            statement = (
                "SELECT pk FROM nearest WHERE vector MATCH ? AND k = ? AND tenant = '' "
                "AND tier = 'e2' ORDER BY distance"
            )
            rows = connection.execute(statement, (search.vector, search.limit)).fetchall()
            found["vec0"] = (time.thread_time() - used, tuple(row[0] for row in rows))
        return found

    def remembered() -> tuple[float, tuple[int, ...]]:
        assert memory.searched is not None
        scope = memory.searched._scopes["", "e2"]
        used = time.thread_time()
        matches = memory.searched._nearest(scope, search)
        taken = time.thread_time() - used
        return taken, tuple(int(match.pattern.pattern_id[1:]) + 1 for match in matches)

    return await database.read(stored) | {"memory": await asyncio.to_thread(remembered)}


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
        "| patterns | statement | vec0 | memory | of one type: statement, memory | look-up "
        "p50 / p99 | longest stall (idle) | read into memory |"
    )
    print("| --- " * 8 + "|")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            row = uvloop.run(measure(Path(folder) / "bench.db", size, arguments.rounds))
        print(
            f"| {row.size:,} | {row.statement:.2f} ms "
            f"| {row.vec0:.2f} ms ({row.vec0 / row.statement:.2f}) "
            f"| {row.memory:.2f} ms ({row.memory / row.statement:.2f}) "
            f"| {row.typed_statement:.2f}, {row.typed_memory:.2f} ms "
            f"| {row.whole_p50:.2f} / {row.whole_p99:.2f} ms "
            f"| {row.stall:.1f} ({row.idle:.1f}) ms "
            f"| {row.reading:.0f} ms, {row.memory_mb:.0f} MB |"
        )


if __name__ == "__main__":
    main()
