"""`python -m bench.tenants --url postgresql://...`: what tenants find among 100,000 patterns.

Four tenants own 60, 10, 1 and .1 % of all patterns (tier e1, vectors of made-up sentences), others
the rest. `recall`: the share of the two nearest patterns of the tenant that a search returns,
against a comparison with each of its vectors here. `ms`: of a search as the gateway waits for it;
`server`: CPU milliseconds of the database (`--server`: the id of its first process).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import uvloop
from msgspec.structs import replace

from bench.patterns import patterns, sentence
from bench.processes import cpu_of
from bench.report import aligned
from bench.statistics import percentile
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.core.pattern import Pattern, Tier, embedding_text
from gateway.embedding.static import StaticEmbedder
from gateway.features.postgres.database import Database
from gateway.features.postgres.engine import PostgresEngine
from gateway.stores.patterns import VectorSearch
from gateway.stores.sql.patterns import PatternStore

SHARES = {"60 %": 0.6, "10 %": 0.1, "1 %": 0.01, "0.1 %": 0.001}
_BATCH = 1000
_NEAREST = 2


def owned(count: int) -> Iterator[Pattern]:
    """Patterns in random order, each with its owner."""
    draw = random.Random(7)
    owners = [name for name, share in SHARES.items() for _ in range(int(count * share))]
    owners += ["others"] * (count - len(owners))
    draw.shuffle(owners)
    for pattern, owner in zip(patterns(count, draw), owners, strict=True):
        yield replace(pattern, tier=Tier.E1, tenant=owner)


async def fill(store: PatternStore, embedder: StaticEmbedder, count: int) -> dict[str, np.ndarray]:
    """Add the patterns, and return the vectors of each owner; ids are their places there."""
    vectors: dict[str, list[Sequence[float]]] = {}
    made = list(owned(count))
    for start in range(0, count, _BATCH):
        batch = made[start : start + _BATCH]
        entries = []
        embedded = embedder.vectors([embedding_text(pattern) for pattern in batch])
        for pattern, vector in zip(batch, embedded, strict=True):
            own = vectors.setdefault(pattern.tenant, [])
            entries.append((replace(pattern, pattern_id=f"p{len(own)}"), vector))
            own.append(vector)
        await store.add(entries)
    return {owner: np.asarray(own) for owner, own in vectors.items()}


async def run(options: argparse.Namespace) -> str:
    """The table."""
    settings = StorageSettings(url=Secret(options.url))
    database = await Database.open(settings, vectors=True)
    store, embedder = PatternStore(PostgresEngine(database)), StaticEmbedder.load()
    await store.open_space("bench", embedder.dimensions)
    vectors = await fill(store, embedder, options.patterns)
    draw = random.Random(4)
    asked = embedder.vectors([f"{sentence(draw)} {sentence(draw)}" for _ in range(options.rounds)])
    rows = [["tenant", "patterns", "recall", "p50 ms", "p99 ms", "server"]]
    for tenant in SHARES:
        own, taken, hits = vectors[tenant], [], 0
        paid = cpu_of(options.server) if options.server else 0.0
        for vector in asked:
            begun = time.perf_counter()
            search = VectorSearch(
                tier=Tier.E1, vector=vector, tenant=tenant, limit=_NEAREST, floor=-1.0
            )
            found = await store.search(search)
            taken.append((time.perf_counter() - begun) * 1000)
            nearest = np.argsort(-(own @ np.asarray(vector)))[:_NEAREST]
            hits += len({int(match.pattern.pattern_id[1:]) for match in found} & set(nearest))
        spent = (cpu_of(options.server) - paid) * 1000 / len(asked) if options.server else 0.0
        times = [f"{percentile(taken, p):.1f}" for p in (50, 99)]
        recall = hits / (_NEAREST * len(asked))
        rows.append([tenant, str(len(own)), f"{recall:.3f}", *times, f"{spent:.1f}"])
    await database.close()
    return aligned(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.tenants", description=__doc__)
    parser.add_argument("--url", required=True, help="of an empty database for this bench alone")
    parser.add_argument("--server", type=int, help="the id of the database's first process")
    parser.add_argument("--patterns", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200, help="searches of each tenant")
    print(uvloop.run(run(parser.parse_args(arguments))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
