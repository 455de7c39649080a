"""Patterns by their texts: look-ups, changes, import and export, re-embedding."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.embedding.base import Embedder, EmbeddingError, Vector
from gateway.library.gates import gates_for
from gateway.library.starter import starter_patterns
from gateway.steering.etrace.codec import read_lines, to_line
from gateway.steering.etrace.pattern import Match, Pattern, Query, Tier, embedding_text
from gateway.steering.etrace.settings import EtraceSettings, Gates
from gateway.stores.base import StoreCorrupt, StoreError
from gateway.stores.patterns import Added, PatternFilter, PatternStore, Search

T = TypeVar("T")

Progress = Callable[[int], None]
"""Told the number of patterns done so far."""

Failed = Callable[[Tier, Exception], None]
"""Told which tier's look-up failed, and why."""

_BATCH = 256

KEPT_S = 5.0
"""How long universal rules, and whether a tenant has patterns of its own, are taken for granted: a
change made by another process is seen after this."""
_MODELS_KEPT = 256
_TENANTS_KEPT = 4096


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """How many patterns an import added, replaced, and found unchanged; which lines it refused."""

    counts: dict[Added, int] = field(default_factory=lambda: dict.fromkeys(Added, 0))
    refused: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All patterns that were stored."""
        return sum(self.counts.values())


class PatternLibrary:
    """A pattern store that is spoken to in texts. Make it with `PatternLibrary.open`."""

    def __init__(
        self,
        store: PatternStore,
        embedder: Embedder,
        settings: EtraceSettings,
        failed: Failed | None = None,
    ) -> None:
        self.store = store
        self.embedder = embedder
        self._settings = settings
        self._failed = failed
        self._universal: dict[tuple[str, int], tuple[float, list[Match]]] = {}
        self._own: dict[str, tuple[float, bool]] = {}

    @classmethod
    async def open(
        cls,
        store: PatternStore,
        embedder: Embedder,
        settings: EtraceSettings,
        *,
        failed: Failed | None = None,
        starter: bool = True,
        repair: bool = False,
    ) -> PatternLibrary:
        """The library over an open store; an empty one gets the starter patterns.

        Patterns without a vector of this embedder are not found until `reindex` has run. With
        `repair` a damaged search index is made anew instead of raising StoreCorrupt.
        Raises: StoreError, EmbeddingError.
        """
        library = cls(store, embedder, settings, failed)
        try:
            await store.open_space(embedder.embedder_id, embedder.dimensions)
        except StoreCorrupt:
            if not repair:
                raise
            await store.rebuild()
        if starter and not await store.count():
            await library.add(starter_patterns())
        return library

    def with_settings(self, settings: EtraceSettings) -> PatternLibrary:
        """The same library under other settings; what is remembered is shared."""
        other = PatternLibrary(self.store, self.embedder, settings, self._failed)
        other._universal, other._own = self._universal, self._own
        return other

    @property
    def gates(self) -> Gates:
        """Similarity that an injection needs, for this embedder and these settings."""
        return gates_for(self.embedder.embedder_id, self._settings)

    async def __call__(
        self, queries: Sequence[Query], tenant: str
    ) -> Mapping[Tier, Sequence[Match]]:
        """The answers by tier; a tier whose look-up failed is missing, and `failed` is told."""
        answers = await asyncio.gather(*(self._attempt(query, tenant) for query in queries))
        return {
            query.tier: answer
            for query, answer in zip(queries, answers, strict=True)
            if answer is not None
        }

    async def look_up(self, query: Query, tenant: str) -> list[Match]:
        """One answer. Raises: StoreError, EmbeddingError."""
        if query.tier is Tier.E3:
            return await self._rules(query.model, query.fetch)
        if query.tier is Tier.E1 and not await self._has_own(tenant):
            return []
        (vector,) = await self.embedder.embed([query.text])
        return await self.store.search(
            Search(
                tier=query.tier,
                vector=vector,
                tenant=tenant,
                limit=query.fetch,
                failure_type=query.failure_type,
                model=query.model,
                floor=query.floor,
            )
        )

    async def _has_own(self, tenant: str) -> bool:
        """Whether there is anything to look up: most tenants have no patterns of their own, and a
        run at risk asks for them at every step."""
        now = time.monotonic()
        known = self._own.get(tenant)
        if known is None or now - known[0] > KEPT_S:
            if len(self._own) >= _TENANTS_KEPT:
                self._own.clear()
            own = PatternFilter(tenant=tenant, tier=Tier.E1)
            page = await self.store.list_patterns(own, limit=1)
            known = self._own[tenant] = (now, bool(page.patterns))
        return known[1]

    async def _rules(self, model: str, limit: int) -> list[Match]:
        """The universal rules; every run begins with them, so they are kept for a moment."""
        now = time.monotonic()
        known = self._universal.get((model, limit))
        if known is None or now - known[0] > KEPT_S:
            if len(self._universal) >= _MODELS_KEPT:
                self._universal.clear()
            known = (now, await self.store.universal(model=model, limit=limit))
            self._universal[model, limit] = known
        return known[1]

    async def _attempt(self, query: Query, tenant: str) -> list[Match] | None:
        try:
            return await self.look_up(query, tenant)
        except (StoreError, EmbeddingError) as error:
            if self._failed is not None:
                self._failed(query.tier, error)
            return None

    async def add(self, patterns: Sequence[Pattern]) -> list[tuple[Added, str]]:
        """Embed and store patterns, all or none; as PatternStore.add."""
        self._forget()
        vectors = await self._vectors(patterns)
        return await self.store.add(list(zip(patterns, vectors, strict=True)))

    async def edit(self, pattern: Pattern) -> None:
        """Replace the pattern of this tenant and id. Raises: PatternConflict."""
        self._forget()
        (vector,) = await self._vectors([pattern])
        await self.store.edit(pattern, vector)

    def _forget(self) -> None:
        self._universal.clear()
        self._own.clear()

    async def import_lines(
        self,
        lines: Iterable[str | bytes],
        tenant: str,
        progress: Progress | None = None,
        *,
        names_tenant: bool = False,
        keep_going: bool = False,
    ) -> ImportReport:
        """Store the patterns of a JSONL file; e1 patterns become the tenant's.

        With `names_tenant`, they become the tenant's that their line names, if any. A line that is
        no pattern refuses the file, or, to `keep_going`, is reported while all others are stored.
        Importing a file again is safe.
        Raises: ValueError (`line N: ...`), before anything is stored.
        """
        report = ImportReport()
        refused = report.refused.append if keep_going else None
        read = read_lines(lines, tenant=tenant, names_tenant=names_tenant, refused=refused)
        patterns = await asyncio.to_thread(list, read)
        for batch in _batches(iter(patterns)):
            for outcome, _ in await self.add(batch):
                report.counts[outcome] += 1
            if progress is not None:
                progress(report.total)
        return report

    async def export_lines(self, patterns: PatternFilter) -> AsyncIterator[str]:
        """The patterns as JSON lines, newest first, read a page at a time."""
        cursor: str | None = None
        while True:
            page = await self.store.list_patterns(patterns, limit=_BATCH, cursor=cursor)
            for stored in page.patterns:
                yield to_line(stored.pattern)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def reindex(self, progress: Progress | None = None) -> int:
        """Embed every pattern that has no vector of this embedder; returns how many there were.

        May be stopped at any time and run again; look-ups go on meanwhile.
        """
        done, before = 0, None
        # The same batch again means that its vectors do not keep: no use in going on for ever.
        while (batch := await self.store.without_vector(_BATCH)) and batch != before:
            vectors = await self.embedder.embed([embedding_text(pattern) for pattern in batch])
            await self.store.set_vectors(list(zip(batch, vectors, strict=True)))
            done, before = done + len(batch), batch
            if progress is not None:
                progress(done)
        return done

    async def _vectors(self, patterns: Sequence[Pattern]) -> list[Vector[float] | None]:
        """One vector per pattern; universal rules, which are never searched, get none."""
        searched = [pattern for pattern in patterns if pattern.tier is not Tier.E3]
        texts = [embedding_text(pattern) for pattern in searched]
        vectors = iter(await self.embedder.embed(texts) if texts else [])
        return [None if pattern.tier is Tier.E3 else next(vectors) for pattern in patterns]


def _batches(items: Iterator[T]) -> Iterator[list[T]]:
    while batch := list(itertools.islice(items, _BATCH)):
        yield batch
