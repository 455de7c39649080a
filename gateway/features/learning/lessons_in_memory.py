"""The lessons that runs may be given, by tenant, in memory: found by key and project."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from msgspec.structs import replace

from gateway.core.guidance_choice import LessonMatch, LessonQuery
from gateway.core.pattern import ENDED, RETRIEVED, Pattern, Trust, content
from gateway.features.learning.context import instructed, like_of, project_of, scope_of
from gateway.features.learning.gate import does_harm, refusal, strange
from gateway.features.learning.life_cycle import approved, why_withheld
from gateway.steering.guidance.lessons import is_rule
from gateway.stores.learning import LessonFilter, StoredLesson
from gateway.stores.protocols import StoreError
from gateway.stores.sql.learning import LearningStore
from gateway.stores.time_limits import Reads, directly
from gateway.tasks import off_loop, spawn

CACHED_S = 5.0  # seconds after which a change of a tenant's lessons is seen
MOST_TENANTS = 1024
MOST_LESSONS = 2000
MET_CHARS = 4000  # of a call and of its result, in which names are looked for
KNOWN_CHARS = 40_000  # of these and the tools together: the time of a look-up stays bounded


@dataclass(slots=True)
class _Shelf:
    """The lessons of one tenant and the shared ones."""

    read_at: float  # monotonic seconds
    # lessons by the key of the failure they answer
    by_key: dict[str, list[Pattern]] = field(default_factory=dict)
    rules: list[StoredLesson] = field(default_factory=list)  # the most often said first
    # (id of a rule, calls that a person marked for it)
    marks: set[tuple[str, str]] = field(default_factory=set)

    def fitting(self, query: LessonQuery) -> list[LessonMatch]:
        """The lessons that fit."""
        return self._rules_for(query) + _fitting(query, self.by_key)

    def _rules_for(self, query: LessonQuery) -> list[LessonMatch]:
        """The rules to begin with, or to remind of behind calls like those that were marked."""
        likes = [like_of(action) for action in query.actions] if self.marks else []
        due = []
        for stored in self.rules:
            name = stored.pattern.pattern_id
            marked = any((name, like) in self.marks for like in likes)
            if query.begins or (marked and name not in query.exclude):
                due.append(stored.pattern)
        prompts = query.opening() if due else ()
        project, _ = project_of(prompts)
        return [
            LessonMatch(pattern=pattern, key=pattern.lesson.key)
            for pattern in due
            if project and pattern.lesson and pattern.lesson.key.split("|")[1] == project
            if not instructed(content(pattern.fields).move, prompts)
        ]


@dataclass(eq=False)
class LessonBook:
    """Answers the look-ups of requests. While the store cannot be read, what was read before
    holds."""

    store: LearningStore  # lessons
    _: KW_ONLY
    failed: Callable[[Exception], None]  # gets the error of a look-up
    read: Reads = directly  # limits how long a look-up waits for the store
    _shelves: dict[str, _Shelf] = field(default_factory=dict, init=False)  # by tenant
    # reads under way, by tenant, so that each happens once
    _reading: dict[str, asyncio.Task[_Shelf]] = field(default_factory=dict, init=False)

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]:
        """The lessons that fit; nothing when the store fails."""
        try:
            return (await self.shelf(tenant)).fitting(query)
        except StoreError as error:
            self.failed(error)
            return ()

    def forget(self) -> None:
        """Read everything again: lessons have changed here. What is being read now may be from
        before the change, and is not kept; what was read holds while the store cannot be read."""
        for shelf in self._shelves.values():
            shelf.read_at = float("-inf")
        self._reading.clear()

    async def shelf(self, tenant: str) -> _Shelf:
        """The tenant's lessons. Raises: StoreError."""
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
        shelf = await off_loop(_shelved, stored)
        if shelf.rules:
            marks = await self.read(lambda: self.store.marks(tenant))
            shelf.marks = {(mark.pattern_id, mark.task) for mark in marks}
        return shelf


def _shelved(stored: Sequence[StoredLesson]) -> _Shelf:
    """The lessons as they are looked up: those that an operator approved, and what ended an exact
    failure again. The gate reads each text, so this is for a thread."""
    shelf = _Shelf(time.monotonic())
    for each in stored:
        pattern = each.pattern
        lesson = each.pattern.lesson
        exact = lesson is not None and lesson.origin == ENDED and not approved(each)
        if lesson is None or not (approved(each) or exact) or (exact and why_withheld(each)):
            continue
        if exact:
            lesson = replace(lesson, share=1.0)  # no draw: an exact failure needs no trial
            pattern = replace(pattern, lesson=lesson)
        move = content(pattern.fields).move
        if refusal(move, approved=True):
            continue
        rule = is_rule(pattern)
        if does_harm(move):  # then it is a quotation all the same
            pattern = replace(pattern, lesson=replace(lesson, trust=Trust.MODEL))
        elif rule or (lesson.origin == ENDED and not exact):
            pattern = replace(pattern, lesson=replace(lesson, trust=Trust.OPERATOR))
        if rule:
            shelf.rules.append(replace(each, pattern=pattern))
        else:
            shelf.by_key.setdefault(lesson.key, []).append(pattern)
    shelf.rules.sort(key=lambda each: (-each.support.conversations, each.reason))
    return shelf


def _fitting(query: LessonQuery, by_key: Mapping[str, Sequence[Pattern]]) -> list[LessonMatch]:
    """The lessons for the failures, those of the run's project and those of all projects."""
    found = [
        (LessonMatch(pattern=pattern, key=key), scope_of(pattern))
        for key in query.keys
        for pattern in by_key.get(key, ())
        if pattern.pattern_id not in query.exclude and _knows_names(query, pattern)
    ]
    if any(scope is not None for _, scope in found):
        opening = query.opening()
    else:
        opening = ()
    # A run of which the opening is unknown may be of any project.
    if opening:
        here = {None, project_of(opening)[0]}
    else:
        here = {None}
    return [match for match, scope in found if scope in here]


def _knows_names(query: LessonQuery, pattern: Pattern) -> bool:
    """False for what ended a failure, as long as no operator approved it, where the run knows a
    name in it neither from its tools nor from its newest calls."""
    lesson = pattern.lesson
    if lesson is None or lesson.origin != ENDED or lesson.trust is not Trust.TEMPLATE:
        return True
    met = [f"{each.name} {each.arguments[:MET_CHARS]}" for each in query.actions]
    met += [each.observation[:MET_CHARS] for each in query.actions]
    known = f"{met} {query.declared()}"[:KNOWN_CHARS]
    return not strange(content(pattern.fields).move, known)
