"""The lessons that runs may be given, by tenant, in memory: found by key first, by words second;
rules by project and person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from gateway.embedding.base import Embedder, EmbeddingError
from gateway.learning.corrections import instructed, project_of, situation_of
from gateway.learning.life_cycle import approved
from gateway.learning.mining import SIGNS, lesson_signs, signs_of
from gateway.steering.guidance.lessons import LessonMatch, LessonQuery, is_rule
from gateway.steering.guidance.pattern import RETRIEVED, Lesson, Pattern, Status, content
from gateway.stores.learning import LearningStore, LessonFilter, StoredLesson
from gateway.stores.protocols import StoreError
from gateway.stores.reads import Reads, directly
from gateway.tasks import spawn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CACHED_S = 5.0  # seconds after which a change of a tenant's lessons is seen
MOST_TENANTS = 1024
MOST_LESSONS = 2000


@dataclass(slots=True)
class _Shelf:
    """The lessons of one tenant and the shared ones."""

    read_at: float
    by_key: dict[str, list[Pattern]] = field(default_factory=dict)
    by_head: dict[str, list[Pattern]] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """By head, one row per lesson of `by_head`."""
    rules: list[StoredLesson] = field(default_factory=list)  # the most often said first


@dataclass(eq=False)
class LessonBook:
    """Answers the look-ups of requests. `similarity`: that a lesson for another key needs; above 1,
    and without an embedder, only keys count. While `read` fails, what was read before holds."""

    store: LearningStore
    embedder: Embedder | None
    _: KW_ONLY
    similarity: Callable[[], float]
    failed: Callable[[Exception], None]
    read: Reads = directly
    _shelves: dict[str, _Shelf] = field(default_factory=dict, init=False)
    _reading: dict[str, asyncio.Task[_Shelf]] = field(default_factory=dict, init=False)

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]:
        """The lessons that fit, those of the exact key first; nothing when the store fails."""
        try:
            shelf = await self._shelf(tenant)
            exact = _rules_for(query, shelf.rules)
            exact += [
                LessonMatch(pattern=pattern, similarity=1.0, key=key)
                for key in query.keys
                for pattern in shelf.by_key.get(key, ())
                if pattern.pattern_id not in query.exclude
            ]
            return exact or await self._near(shelf, query)
        except (StoreError, EmbeddingError) as error:
            self.failed(error)
            return ()

    def forget(self) -> None:
        """Read everything again: lessons have changed here. What is being read now may be from
        before the change, and is not kept; what was read holds while the store cannot be read."""
        for shelf in self._shelves.values():
            shelf.read_at = float("-inf")
        self._reading.clear()

    async def _shelf(self, tenant: str) -> _Shelf:
        known = self._shelves.get(tenant)
        if known is not None and time.monotonic() - known.read_at < CACHED_S:
            return known
        reading = self._reading.get(tenant)
        if reading is None:
            reading = self._reading[tenant] = spawn(self._read(tenant), name="read lessons")
            reading.add_done_callback(lambda done: self._keep(tenant, done))
        try:
            # One caller that gives up must not cancel what the others wait for.
            return await asyncio.shield(reading)
        except StoreError:
            if known is None:
                raise
            return known

    def _keep(self, tenant: str, reading: asyncio.Task[_Shelf]) -> None:
        if self._reading.get(tenant) is not reading:
            return
        del self._reading[tenant]
        if reading.cancelled() or reading.exception() is not None:
            return
        if tenant not in self._shelves and len(self._shelves) >= MOST_TENANTS:
            del self._shelves[next(iter(self._shelves))]
        self._shelves[tenant] = reading.result()

    async def _read(self, tenant: str) -> _Shelf:
        wanted = LessonFilter(tenant=tenant, statuses=RETRIEVED)
        stored = await self.read(lambda: self.store.lessons(wanted, limit=MOST_LESSONS))
        shelf = _Shelf(time.monotonic())
        for each in stored:
            pattern, lesson = each.pattern, each.pattern.lesson
            if lesson is None:
                continue
            if is_rule(pattern):
                shelf.rules.append(each)
                continue
            shelf.by_key.setdefault(lesson.key, []).append(pattern)
            if lesson.applies_when.get(SIGNS):
                shelf.by_head.setdefault(lesson.applies_when["head"], []).append(pattern)
        shelf.rules.sort(key=lambda each: (-each.support.conversations, each.reason))
        for head, patterns in shelf.by_head.items() if self.embedder else ():
            shelf.vectors[head] = await self._embed([lesson_signs(each) for each in patterns])
        return shelf

    async def _near(self, shelf: _Shelf, query: LessonQuery) -> list[LessonMatch]:
        least = self.similarity()
        found: list[LessonMatch] = []
        for failure in query.failures:
            if self.embedder is None or failure.head not in shelf.vectors or least > 1.0:
                continue
            similar = shelf.vectors[failure.head] @ (await self._embed([signs_of(failure)]))[0]
            for pattern, similarity in zip(shelf.by_head[failure.head], similar, strict=True):
                if similarity >= least and pattern.pattern_id not in query.exclude:
                    near = min(float(similarity), 1.0)
                    found.append(LessonMatch(pattern=pattern, similarity=near, key=failure.key))
        return found

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        assert self.embedder is not None
        vectors = await self.embedder.embed(texts)
        return np.array([np.frombuffer(vector, dtype=np.float32) for vector in vectors])


def _rules_for(query: LessonQuery, rules: Sequence[StoredLesson]) -> list[LessonMatch]:
    """The rules to begin a run with, or to remind of after the calls before their mistakes. One
    that is neither proved nor approved, and that one person alone has said, is for that person."""
    doing = {situation_of(action).doing for action in query.actions} if rules else set()
    fitting: list[tuple[Pattern, str]] = []
    for stored in rules:
        known = stored.pattern.lesson or Lesson(key="")
        marks, name = known.applies_when, stored.pattern.pattern_id
        proved = known.status is Status.ACTIVE or approved(stored) or stored.support.keys > 1
        due = (not query.actions or marks.get("precedes") in doing) and name not in query.exclude
        if due and (proved or marks.get("author", "") == query.person):
            fitting.append((stored.pattern, known.key))
    prompts = query.opening() if fitting else ()
    project, _ = project_of(prompts)
    return [
        LessonMatch(pattern=pattern, similarity=1.0, key=key)
        for pattern, key in fitting
        if project and key.split("|")[1] == project
        if not instructed(content(pattern.fields).move, prompts)
    ]
