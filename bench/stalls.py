"""`python -m bench.stalls`: what holds the event loop up while patterns are searched, and why.

A ticker notes every stretch in which the loop did not run, and how much of it its thread was ready
to run and waited for a core (`/proc/self/task/*/schedstat`, Linux only). What is left over it spent
waiting for the interpreter's lock, or doing nothing. The arms take turns in one process, so that
they meet the same neighbours:

    idle        nothing else happens: what the machine itself costs
    hashing     a reader thread hashes a block, which takes as long as a search, without the lock
    searching   a reader thread searches
    four        four searches asked for at once
    python      a reader thread runs Python for as long: what holding the lock would look like

When `searching` stalls like `hashing`, searches do not hold the lock; when its stalls are waits for
a core, only more cores or fewer neighbours shorten them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import numpy as np
import uvloop

from bench.patterns import SIZES, fill, sentence
from gateway.config.storage import StorageSettings
from gateway.core.guidance_settings import EtraceSettings
from gateway.core.pattern import Tier
from gateway.embedding.static import StaticEmbedder
from gateway.library import PatternLibrary
from gateway.stores.patterns import VectorSearch
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.sqlite.connection import load_vector_extension
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine

TICK_S = 0.001
Work = Callable[[], Awaitable[object]]


@dataclass(slots=True, kw_only=True)
class Stalls:
    """Of every tick, in seconds: how late it came, and how long of that it waited for a core."""

    late: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        """A line of the table, in milliseconds."""
        late, waited = (np.asarray(values) * 1000 for values in (self.late, self.waited))
        rest = np.maximum(late - waited, 0.0)
        cells = (_cell(values) for values in (late, waited, rest))
        return f"| {name} | {' | '.join(cells)} |"


def _cell(values: np.ndarray) -> str:
    return (
        f"{np.quantile(values, 0.99):.2f} / {np.quantile(values, 0.999):.2f} / {values.max():.2f}"
    )


class CoreWait:
    """How long the calling thread has been ready to run without a core; 0 where nothing tells."""

    def __init__(self) -> None:
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file: int | None = os.open(path, os.O_RDONLY)
        except OSError:
            self._file = None

    def seconds(self) -> float:
        """Since the thread began."""
        return 0.0 if self._file is None else int(os.pread(self._file, 99, 0).split()[1]) / 1e9


async def tick(stop: asyncio.Event, stalls: Stalls) -> None:
    """Note every stretch without the loop, until `stop` is set."""
    core = CoreWait()
    while not stop.is_set():
        waited, begun = core.seconds(), time.perf_counter()
        await asyncio.sleep(TICK_S)
        stalls.late.append(time.perf_counter() - begun - TICK_S)
        stalls.waited.append(core.seconds() - waited)


async def run_arm(work: Work, seconds: float, stalls: Stalls) -> None:
    """Do `work` again and again for `seconds`, with the ticker beside it."""
    stop = asyncio.Event()
    ticker = asyncio.ensure_future(tick(stop, stalls))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await work()
    stop.set()
    await ticker


def arms(database: Database, store: PatternStore, embedder: StaticEmbedder) -> dict[str, Work]:
    """The arms by name, in the order of their turns."""
    draw = random.Random(4)
    vectors = embedder.vectors([f"{sentence(draw)} {sentence(draw)}" for _ in range(200)])
    queries: Iterator[int] = itertools.cycle(range(len(vectors)))

    async def search() -> float:
        begun = time.perf_counter()
        await store.search(VectorSearch(tier=Tier.E2, vector=vectors[next(queries)], limit=2))
        return time.perf_counter() - begun

    block = os.urandom(12_000_000)

    def python(_: apsw.Connection) -> None:
        end = time.perf_counter() + 0.009
        while time.perf_counter() < end:
            pass

    return {
        "idle": lambda: asyncio.sleep(0.01),
        "hashing": lambda: database.read(lambda _: hashlib.sha256(block).digest()),
        "searching": search,
        "four": lambda: asyncio.gather(*(search() for _ in range(4))),
        "python": lambda: database.read(python),
    }


async def measure(path: Path, size: int, turns: int, seconds: float) -> dict[str, Stalls]:
    """One size of store."""
    database = await Database.open(StorageSettings(path=str(path)), hooks=(load_vector_extension,))
    store, embedder = PatternStore(SQLiteEngine(database)), StaticEmbedder.load()
    await PatternLibrary(store, embedder, EtraceSettings()).prepare(starter=False)
    await fill(store, embedder, size)
    working = arms(database, store, embedder)
    found = {name: Stalls() for name in working}
    for _ in range(turns):
        for name, work in working.items():
            await run_arm(work, seconds, found[name])
    await database.close()
    return found


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.db"
            found = uvloop.run(measure(path, size, arguments.turns, arguments.seconds))
        print(f"\n{size:,} patterns; p99 / p99.9 / longest, ms; load {os.getloadavg()[0]:.1f}")
        print("| arm | stall | waiting for a core | the rest |\n| --- | --- | --- | --- |")
        for name, stalls in found.items():
            print(stalls.row(name))


if __name__ == "__main__":
    main()
