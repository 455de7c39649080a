"""Patterns by text: searches, changes, import and export, re-embedding."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.core.guidance_settings import EtraceSettings, Gates
from gateway.core.guidance_text import family_matches
from gateway.core.pattern import Pattern, PatternMatch, Query, Tier, embedding_text
from gateway.embedding.base import Embedder, EmbeddingError, Vector
from gateway.embedding.similarity_thresholds import gates_for
from gateway.library.memory import MOST_RULES, PatternCopy, PatternMemory
from gateway.steering.guidance.codec import read_lines, to_line
from gateway.stores.patterns import Added, PatternFilter, VectorSearch
from gateway.stores.protocols import StoreError, StoreUnavailable
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.time_limits import Reads, directly
from gateway.tasks import off_loop
from gateway.text.secrets import mask_secrets

_Matches = list[PatternMatch]
_Look = Callable[[PatternCopy | PatternStore], Awaitable[_Matches]]
_STARTER_FILE = Path(__file__).parent / "starter.jsonl"

Progress = Callable[[int], None]  # called with the number of patterns done so far

# Called with the tier whose search failed, and the error.
Failed = Callable[[Tier, Exception], None]
_BATCH = 256


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """The result of an import."""

    # patterns added, replaced and left unchanged
    counts: dict[Added, int] = field(default_factory=lambda: dict.fromkeys(Added, 0))
    refused: list[str] = field(default_factory=list)  # lines that were not taken, and why

    @property
    def total(self) -> int:
        """The number of valid patterns in the file."""
        return sum(self.counts.values())


@dataclass(eq=False)
class PatternLibrary:
    """A pattern store whose queries are texts, see `prepare`."""

    store: PatternStore  # patterns with vectors
    embedder: Embedder  # makes the vectors
    settings: EtraceSettings  # gates, margins and numbers of look-ups
    failed: Failed | None = None  # gets the error of a look-up; None: it is raised
    read: Reads = directly  # for look-ups, in which a gateway waits for no database that is away
    masks_secrets: bool = True  # in the patterns that are added
    # answers in place of the store once it is kept up to date (`PatternMemory.follow`)
    memory: PatternMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = PatternMemory(self.store)

    async def prepare(self, *, starter: bool = True) -> PatternLibrary:
        """Open the store, also one that was opened again and may be empty now, which gets the
        starter patterns; returns the library. Raises: StoreError, EmbeddingError."""
        self.memory.forget()
        await self.store.open_space(self.embedder.embedder_id, self.embedder.dimensions)
        if starter and not await self.store.count():
            await self.add(starter_patterns())
        return self

    def with_settings(self, settings: EtraceSettings) -> PatternLibrary:
        """The same library with other settings; the memory is shared."""
        other = copy.copy(self)
        other.settings = settings
        return other

    @property
    def gates(self) -> Gates:
        """The similarity gates of this embedder under these settings."""
        return gates_for(self.embedder.embedder_id, self.settings)

    async def look_up_all(
        self, queries: Sequence[Query], tenant: str
    ) -> Mapping[Tier, Sequence[PatternMatch]]:
        """The matches by tier; a tier whose search failed is left out and reported to `failed`."""
        if len(queries) == 1:  # as most calls have; it needs no separate task
            answers = [await self._attempt(queries[0], tenant)]
        else:
            answers = await asyncio.gather(*(self._attempt(query, tenant) for query in queries))
        return {
            query.tier: answer
            for query, answer in zip(queries, answers, strict=True)
            if answer is not None
        }

    async def look_up(self, query: Query, tenant: str) -> list[PatternMatch]:
        """The matches of one query. Raises: StoreError, EmbeddingError."""
        memory = self.memory
        if query.tier is Tier.E3:
            rules = await self._answered(
                memory.copy, lambda source: source.universal(limit=MOST_RULES)
            )
            return [m for m in rules if family_matches(m.pattern.model_family, query.model)]
        known = memory.searched
        if known is not None and memory.current and not known.has_any(query.tier, tenant):
            return []  # most tenants have no e1 patterns, and a text may be costly to embed
        (vector,) = await self.embedder.embed([query.text])
        search = VectorSearch(
            tier=query.tier,
            vector=vector,
            tenant=tenant,
            limit=query.top_k + len(query.exclude),
            failure_type=query.failure_type,
            model=query.model,
            floor=query.floor,
        )
        found = await self._searched(known, search)
        if query.cause:
            # However many are nearer, and those that were given, too: they replace all others.
            about = replace(search, cause=query.cause, limit=MOST_RULES)
            found += await self._searched(known, about)
        return found

    async def _searched(self, known: PatternCopy | None, search: VectorSearch) -> _Matches:
        return await self._answered(known, lambda source: source.search(search))

    async def _answered(self, known: PatternCopy | None, look: _Look) -> _Matches:
        """Look in memory when it is up to date, or when the store does not answer. Raises:
        StoreError."""
        if known is not None and self.memory.current:
            return await look(known)
        try:
            return await self.read(lambda: look(self.store))
        except StoreError:
            if known is None:
                raise
            return await look(known)

    async def _attempt(self, query: Query, tenant: str) -> list[PatternMatch] | None:
        try:
            return await self.look_up(query, tenant)
        except (StoreError, EmbeddingError) as error:
            if self.failed is not None:
                self.failed(query.tier, error)
            return None

    async def add(self, patterns: Sequence[Pattern]) -> list[tuple[Added, str]]:
        """Embed and store patterns, all or none; as PatternStore.add."""
        patterns = [self._masked(pattern) for pattern in patterns]
        vectors = await self._vectors(patterns)
        added = await self.store.add(list(zip(patterns, vectors, strict=True)))
        self.memory.forget()
        return added

    async def edit(self, pattern: Pattern) -> None:
        """Replace the pattern of this tenant and id. Raises: PatternConflict."""
        pattern = self._masked(pattern)
        (vector,) = await self._vectors([pattern])
        await self.store.edit(pattern, vector)
        self.memory.forget()

    async def remove(self, tenant: str, pattern_id: str) -> None:
        """Remove the pattern of this tenant and id, if there is one."""
        await self.store.delete(tenant, pattern_id)
        self.memory.forget()

    def _masked(self, pattern: Pattern) -> Pattern:
        masks = self.masks_secrets
        if masks:
            return replace(pattern, fields=_mask_values(pattern.fields))
        return pattern

    async def import_lines(
        self,
        lines: Iterable[str | bytes],
        tenant: str,
        progress: Progress | None = None,
        *,
        names_tenant: bool = False,
        keep_going: bool = False,
    ) -> ImportReport:
        """Store the patterns of a JSONL file; e1 patterns become the tenant's or, with
        `names_tenant`, those of the tenant that their line names. An invalid line refuses the whole
        file (ValueError, before anything is stored) or, with `keep_going`, is reported."""
        report = ImportReport()
        refused = None
        if keep_going:
            refused = report.refused.append
        read = read_lines(lines, tenant=tenant, names_tenant=names_tenant, refused=refused)
        patterns = iter(await off_loop(list, read))
        while batch := list(islice(patterns, _BATCH)):
            for outcome, _ in await self.add(batch):
                report.counts[outcome] += 1
            if progress is not None:
                progress(report.total)
        return report

    async def export_lines(self, patterns: PatternFilter) -> AsyncIterator[str]:
        """The patterns as JSON lines, newest first, read page by page; lessons are left out."""
        patterns = dataclasses.replace(patterns, learned=False)
        cursor = None
        while True:
            page = await self.store.list_patterns(patterns, limit=_BATCH, cursor=cursor)
            for stored in page.patterns:
                yield to_line(stored.pattern)
            if (cursor := page.next_cursor) is None:
                return

    async def reindex(self, progress: Progress | None = None) -> int:
        """Embed every pattern that has no sound vector of this embedder; returns their number. It
        may be stopped at any time and run again; searches work meanwhile."""
        await self.store.remove_unfit()
        done = 0
        before = None
        # The same batch again means that its vectors are not stored: stop instead of looping.
        while (batch := await self.store.without_vector(_BATCH)) and batch != before:
            vectors = await self.embedder.embed([embedding_text(pattern) for pattern in batch])
            await self.store.set_vectors(list(zip(batch, vectors, strict=True)))
            done = done + len(batch)
            before = batch
            if progress is not None:
                progress(done)
        return done

    async def _vectors(self, patterns: Sequence[Pattern]) -> list[Vector[float] | None]:
        """One vector per pattern; None for universal rules, which are never searched."""
        texts = [embedding_text(pattern) for pattern in patterns if pattern.tier is not Tier.E3]
        vectors = iter(await self.embedder.embed(texts) if texts else [])
        return [None if pattern.tier is Tier.E3 else next(vectors) for pattern in patterns]


def _mask_values(value: Any) -> Any:
    match value:
        case str():
            return mask_secrets(value)
        case Mapping():
            return {key: _mask_values(item) for key, item in value.items()}
        case list() | tuple():
            return [_mask_values(item) for item in value]
    return value


@cache
def starter_patterns() -> tuple[Pattern, ...]:
    """The patterns that ship: universal rules, and failure patterns for several kinds of agents."""
    with _STARTER_FILE.open(encoding="utf-8") as lines:
        return tuple(read_lines(lines))


FLUSH_S = 2.0  # seconds between two writes of the counts; a crash loses at most this much


@dataclass(eq=False)
class PatternTally:
    """Counts how often each pattern was given to a tenant; the last `FLUSH_S` s are not written."""

    store: PatternStore  # gets the counts
    failed: Callable[[StoreError], None]  # gets the first of several failures in a row
    # not written yet, by tenant and pattern
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _failing: bool = field(default=False, init=False)  # the last write failed

    def note(self, tenant: str, pattern_ids: Iterable[str], by: int = 1) -> None:
        """Add `by` to the count of each pattern."""
        for pattern_id in pattern_ids:
            self._counts[tenant, pattern_id] += by

    async def follow(self) -> None:
        """Write the counts every `FLUSH_S` seconds, without end."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the counts since the last write; those that cannot be written now are kept. The
        first of several failures in a row is reported to `failed`."""
        counts = self._counts
        self._counts = Counter()
        grouped: dict[tuple[str, int], list[str]] = {}
        for (tenant, pattern_id), number in counts.items():
            grouped.setdefault((tenant, number), []).append(pattern_id)
        available = True
        for (tenant, number), pattern_ids in grouped.items():
            try:
                if available:
                    await self.store.note_injected(tenant, pattern_ids, by=number)
            except StoreError as error:
                if not self._failing:
                    self.failed(error)
                self._failing = True
                available = not isinstance(error, StoreUnavailable)  # else the count is lost
            if not available:
                self.note(tenant, pattern_ids, by=number)
        if available:
            self._failing = False
