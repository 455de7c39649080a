"""Patterns by text: searches, changes, import and export, re-embedding."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from gateway.embedding.base import Embedder, EmbeddingError, Vector
from gateway.steering.guidance.codec import read_lines, to_line
from gateway.steering.guidance.pattern import Pattern, PatternMatch, Query, Tier, embedding_text
from gateway.steering.guidance.render import family_matches
from gateway.steering.guidance.settings import EtraceSettings, Gates
from gateway.stores.patterns import Added, Event, PatternFilter, Search
from gateway.stores.protocols import StoreError, StoreUnavailable
from gateway.stores.reads import Reads, directly
from gateway.stores.sql.patterns import PatternStore
from gateway.tasks import off_loop, spawn
from gateway.text.secrets import mask_secrets

# By embedder id. Source: `bench/retrieval.py`, results in docs/etraces.md.
CALIBRATED: Mapping[str, Gates] = {
    "static-minilm-256-1": Gates(e1=0.66, e2=0.48, e2_untyped=0.54),
    "hashing-256-1": Gates(e1=0.80, e2=0.66),
}
UNCALIBRATED = Gates(e1=0.80, e2=0.70)
"""For embedders without measurements. Source: reference section 6.1."""


def gates_for(embedder_id: str, settings: EtraceSettings) -> Gates:
    """The configured gates, or else those calibrated for the embedder."""
    known = CALIBRATED.get(embedder_id, UNCALIBRATED)
    e1, e2 = settings.e1_gate, settings.e2_gate
    return Gates(
        e1=known.e1 if e1 is None else e1,
        e2=known.e2 if e2 is None else e2,
        e2_untyped=known.e2_untyped if e2 is None else e2,
    )


K = TypeVar("K")
T = TypeVar("T")
_STARTER_FILE = Path(__file__).parent / "starter.jsonl"

Progress = Callable[[int], None]  # called with the number of patterns done so far

# Called with the tier whose search failed, and the error.
Failed = Callable[[Tier, Exception], None]
_BATCH = 256
CACHED_S = 5.0
"""Seconds for which the universal rules, and whether a tenant has e1 patterns, are cached: a change
by another process is seen after this time."""
_MOST_RULES = 1000
_TENANTS_CACHED = 4096


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """Numbers of patterns that an import added, replaced and left unchanged; the refused lines."""

    counts: dict[Added, int] = field(default_factory=lambda: dict.fromkeys(Added, 0))
    refused: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of valid patterns in the file."""
        return sum(self.counts.values())


@dataclass(eq=False)
class PatternLibrary:
    """A pattern store whose queries are texts, see `open`. `read`: for look-ups, in which a gateway
    waits for no database that is away. `masks_secrets`: in the patterns that are added."""

    store: PatternStore
    embedder: Embedder
    settings: EtraceSettings
    failed: Failed | None = None
    read: Reads = directly
    masks_secrets: bool = True
    _universal: _Cache[None, list[PatternMatch]] = field(default_factory=dict, init=False)
    _own: _Cache[str, bool] = field(default_factory=dict, init=False)

    @classmethod
    async def open(
        cls,
        store: PatternStore,
        embedder: Embedder,
        settings: EtraceSettings,
        *,
        failed: Failed | None = None,
        read: Reads = directly,
        starter: bool = True,
        masks_secrets: bool = True,
    ) -> PatternLibrary:
        """The library over an open store; an empty one gets the starter patterns.
        Raises: StoreError, EmbeddingError."""
        library = cls(store, embedder, settings, failed, read=read, masks_secrets=masks_secrets)
        await library.prepare(starter=starter)
        return library

    async def prepare(self, *, starter: bool = True) -> None:
        """Open again, for a store that was opened again and may be empty now."""
        self.forget()
        await self.store.open_space(self.embedder.embedder_id, self.embedder.dimensions)
        if starter and not await self.store.count():
            await self.add(starter_patterns())
        await self._rules()

    def with_settings(self, settings: EtraceSettings) -> PatternLibrary:
        """The same library with other settings; the caches are shared."""
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
        if query.tier is Tier.E3:
            return await self._rules(query.model, query.fetch)
        if query.tier is Tier.E1:
            # Most tenants have no e1 patterns, and a run at risk searches them at every step.
            wanted = PatternFilter(tenant=tenant, tier=Tier.E1, learned=False)

            async def has_any() -> bool:
                page = await self.read(lambda: self.store.list_patterns(wanted, limit=1))
                return bool(page.patterns)

            if not await _read_once(self._own, tenant, has_any, _TENANTS_CACHED):
                return []
        (vector,) = await self.embedder.embed([query.text])
        search = Search(
            tier=query.tier,
            vector=vector,
            tenant=tenant,
            limit=query.fetch,
            failure_type=query.failure_type,
            model=query.model,
            floor=query.least,
        )
        return await self.read(lambda: self.store.search(search))

    async def _rules(self, model: str = "", limit: int = 0) -> list[PatternMatch]:
        """The first universal rules for a model. All rules are one snapshot in memory, because
        every run begins with them: an outage takes them away from no run, whatever its model."""

        async def read() -> list[PatternMatch]:
            return await self.read(lambda: self.store.universal(limit=_MOST_RULES))

        rules = await _read_once(self._universal, None, read, 1)
        suit = (m for m in rules if family_matches(m.pattern.model_family, model))
        return list(itertools.islice(suit, limit))

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
        self.forget()
        return added

    async def edit(self, pattern: Pattern) -> None:
        """Replace the pattern of this tenant and id. Raises: PatternConflict."""
        pattern = self._masked(pattern)
        (vector,) = await self._vectors([pattern])
        await self.store.edit(pattern, vector)
        self.forget()

    async def remove(self, tenant: str, pattern_id: str) -> None:
        """Remove the pattern of this tenant and id, if there is one."""
        await self.store.delete(tenant, pattern_id)
        self.forget()

    def _masked(self, pattern: Pattern) -> Pattern:
        masks = self.masks_secrets
        return replace(pattern, fields=_mask_values(pattern.fields)) if masks else pattern

    def forget(self) -> None:
        """Read everything again that is cached: patterns have changed. What is being read now may
        be from before the change, and is read again, too; what was read holds until then."""
        caches: tuple[_Cache[Any, Any], ...] = (self._universal, self._own)
        for cache in caches:
            for key, reading in list(cache.items()):
                cache[key] = _Reading(float("-inf"), reading.task, reading.usable)

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
        refused = report.refused.append if keep_going else None
        read = read_lines(lines, tenant=tenant, names_tenant=names_tenant, refused=refused)
        patterns = iter(await off_loop(list, read))
        while batch := list(itertools.islice(patterns, _BATCH)):
            for outcome, _ in await self.add(batch):
                report.counts[outcome] += 1
            if progress is not None:
                progress(report.total)
        return report

    async def export_lines(self, patterns: PatternFilter) -> AsyncIterator[str]:
        """The patterns as JSON lines, newest first, read page by page; lessons are left out."""
        patterns, cursor = dataclasses.replace(patterns, learned=False), None
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
        done, before = 0, None
        # The same batch again means that its vectors are not stored: stop instead of looping.
        while (batch := await self.store.without_vector(_BATCH)) and batch != before:
            vectors = await self.embedder.embed([embedding_text(pattern) for pattern in batch])
            await self.store.set_vectors(list(zip(batch, vectors, strict=True)))
            done, before = done + len(batch), batch
            if progress is not None:
                progress(done)
        return done

    async def _vectors(self, patterns: Sequence[Pattern]) -> list[Vector[float] | None]:
        """One vector per pattern; None for universal rules, which are never searched."""
        texts = [embedding_text(pattern) for pattern in patterns if pattern.tier is not Tier.E3]
        vectors = iter(await self.embedder.embed(texts) if texts else [])
        return [None if pattern.tier is Tier.E3 else next(vectors) for pattern in patterns]


@dataclass(frozen=True, slots=True)
class _Reading(Generic[T]):
    """A reading that began at a time; `last`: the one before it that succeeded."""

    begun: float
    task: asyncio.Task[T]
    last: asyncio.Task[T] | None

    @property
    def usable(self) -> asyncio.Task[T] | None:
        """The newest reading that succeeded."""
        return self.task if self.task.done() and not _failed(self.task) else self.last


_Cache = dict[K, _Reading[T]]
"""Key -> (when it was read, in seconds of the monotonic clock; the reading)."""


async def _read_once(
    cache: _Cache[K, T], key: K, read: Callable[[], Coroutine[Any, Any, T]], most: int
) -> T:
    """The value of `key`, at most CACHED_S old; an older one while the store cannot be read.
    Callers at the same time share one reading."""
    now = time.monotonic()
    known = cache.get(key)
    if known is None or now - known.begun > CACHED_S or _failed(known.task):
        if known is None and len(cache) >= most:
            del cache[next(iter(cache))]
        last = known.usable if known is not None else None
        known = cache[key] = _Reading(now, spawn(read(), name="read patterns"), last)
    try:
        # One caller that gives up must not cancel what the others wait for.
        return known.task.result() if known.task.done() else await asyncio.shield(known.task)
    except StoreError:
        if known.last is None:
            raise
        return known.last.result()


def _failed(reading: asyncio.Task[Any]) -> bool:
    return reading.done() and (reading.cancelled() or reading.exception() is not None)


def _mask_values(value: Any) -> Any:
    match value:
        case str():
            return mask_secrets(value)
        case Mapping():
            return {key: _mask_values(item) for key, item in value.items()}
        case list() | tuple():
            return [_mask_values(item) for item in value]
    return value


@functools.cache
def starter_patterns() -> tuple[Pattern, ...]:
    """The patterns that ship: universal rules, and failure patterns for several kinds of agents."""
    with _STARTER_FILE.open(encoding="utf-8") as lines:
        return tuple(read_lines(lines))


FLUSH_S = 2.0  # seconds between two writes of the counts; a crash loses at most this much


@dataclass(eq=False)
class PatternTally:
    """Counts by tenant, pattern and event; those of the last `FLUSH_S` seconds are not written."""

    store: PatternStore
    failed: Callable[[StoreError], None]
    _counts: Counter[tuple[str, Event, str]] = field(default_factory=Counter, init=False)
    _failing: bool = field(default=False, init=False)

    def note(self, tenant: str, pattern_ids: Iterable[str], event: Event, by: int = 1) -> None:
        """Add `by` to the count of an event for each pattern; -1 takes one back."""
        for pattern_id in pattern_ids:
            self._counts[tenant, event, pattern_id] += by

    async def follow(self) -> None:
        """Write the counts every `FLUSH_S` seconds, without end."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the counts since the last write; those that cannot be written now are kept. The
        first of several failures in a row is reported to `failed`."""
        counts, self._counts = self._counts, Counter()
        grouped: dict[tuple[str, Event, int], list[str]] = {}
        for (tenant, event, pattern_id), number in counts.items():
            if number:
                grouped.setdefault((tenant, event, number), []).append(pattern_id)
        available = True
        for (tenant, event, number), pattern_ids in grouped.items():
            try:
                if available:
                    await self.store.record(tenant, pattern_ids, event, number)
            except StoreError as error:
                if not self._failing:
                    self.failed(error)
                self._failing = True
                available = not isinstance(error, StoreUnavailable)  # else the count is lost
            if not available:
                self.note(tenant, pattern_ids, event, number)
        if available:
            self._failing = False
