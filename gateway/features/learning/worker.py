"""Reads runs that are over, off the path of requests: outcomes, and how trials of lessons go.

Everything can be done again without effect, by this gateway or another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from cachetools import TTLCache

from gateway.backends import Stores
from gateway.config import Settings
from gateway.core.guidance_choice import LessonMatch, LessonQuery
from gateway.core.pattern import RETRIEVED, Pattern, Status
from gateway.features.learning import life_cycle
from gateway.features.learning.context import scope_of
from gateway.features.learning.lessons_in_memory import MOST_TENANTS, LessonBook
from gateway.features.learning.lessons_of_failures import lessons_of
from gateway.features.learning.reader.own_calls import PaidModel
from gateway.features.learning.reader.reader import ReaderWorker
from gateway.features.learning.reading import WINDOW_CALLS, ReadCallOfRun, read_run
from gateway.features.learning.settings import LearningSettings, ReaderSettings
from gateway.features.learning.typed_counts import TypedCounts, count_typed
from gateway.features.learning.verdicts import Verdicts, steps_of
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.steering.guidance.lessons import SAID
from gateway.stores.filters import LIVE, RunFilter
from gateway.stores.learning import LessonFilter, NearOutcome, StoredLesson
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import StoreError
from gateway.stores.records import CallRecord
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.traces import RunTrace
from gateway.tasks import off_loop
from gateway.values import frozen

MOST_PER_LOOK = 8  # runs read at one look: requests share the interpreter with this
MOST_WAITING = 10_000  # runs that wait to be read; those without a call for longest are given up
MOST_FIRST = 500  # newest runs that a gateway looks at when it starts
MOST_RECOMPUTED = 5  # times that another gateway's decisions make a posterior be computed again
MOST_REVIEWED = 20_000
COUNTED_S = 600.0  # seconds for which counts of what people typed hold
REVIEW_S = 3600.0  # seconds after which all lessons are looked at


@dataclass(slots=True)
class LearnReport:
    """Counts of what was read."""

    runs: int = 0  # that are over
    outcomes: int = 0  # new verdicts
    lessons: int = 0  # new ones, of what ended exact failures
    settled: int = 0  # decisions about lessons
    moves: int = 0  # lessons that changed their status

    def add(self, other: LearnReport) -> None:
        """Add the counts of another report."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Touched:
    """A run with calls that were not read yet."""

    tenant: str  # owner of the run
    at: float  # epoch seconds of the newest call
    ended: bool  # that call ended the run
    step: int  # of that call
    decided: int | None = None  # step of the newest decision about a lesson; None without one


@dataclass(eq=False)
class Learner:
    """Reads the runs of one store."""

    store: LearningStore  # lessons, outcomes and decisions
    runs: RunStore  # the run log
    settings: Callable[[], LearningSettings]  # gives those in force
    changed: Callable[[], None] = lambda: None  # runs when lessons have changed
    failed: Callable[[StoreError], None] = lambda error: None  # gets errors of the store
    # calls wait to be stored, so that the last ones of a run may be missing
    behind: Callable[[], bool] = lambda: False
    # takes each run that is over; None: nobody asks
    noted: Callable[[RunTrace], Awaitable[None]] | None = None
    now: Callable[[], float] = time.time  # epoch seconds
    _touched: dict[str, _Touched] = field(default_factory=dict, init=False)  # runs to read, by id
    # epoch seconds of the last review of all lessons
    _reviewed: float = field(default=0.0, init=False)

    def touch(self, run_id: str, tenant: str, *, step: int, ended: bool, decided: bool) -> None:
        """A call of the run was committed. `decided`: about a lesson, too."""
        known = self._touched.pop(run_id, None)
        before = None
        if known:
            before = known.decided
        newest = step if decided else before
        self._touched[run_id] = _Touched(tenant, self.now(), ended, step=step, decided=newest)
        if len(self._touched) > MOST_WAITING:
            del self._touched[next(iter(self._touched))]

    @property
    def waiting(self) -> int:
        """Runs that are not read yet."""
        return len(self._touched)

    async def follow(self) -> None:
        """Read runs as they end, without end."""
        page = PageRequest(limit=MOST_FIRST, sort="updated_at")
        try:
            newest = (await self.runs.list_runs(RunFilter(mode=LIVE), page)).runs[::-1]
            for run in newest:
                ended = run.ended_at is not None
                steps = run.totals.steps
                known = _Touched(run.tenant, run.updated_at, ended, step=steps)
                self._touched.setdefault(run.id, known)
        except StoreError as error:
            self.failed(error)
        while True:
            await asyncio.sleep(self.settings().interval_s)
            await self.look()

    async def look(self) -> LearnReport:
        """Read the runs that are over, or whose decisions can be settled."""
        report = LearnReport()
        settings = self.settings()
        now = self.now()
        if self.behind():
            return report  # runs stay touched, and are read when they are whole
        for run_id, run in list(self._touched.items()):
            over = run.ended or now - run.at >= settings.over_after_s
            settles = run.decided is not None and run.step >= run.decided + WINDOW_CALLS
            if not over and not settles:
                continue
            if report.runs >= MOST_PER_LOOK:
                break
            try:
                report.add(await self.read(run_id, run.tenant, over=over))
            except StoreError as error:
                self.failed(error)
                return report  # it stays touched, and is read later
            if self._touched.get(run_id) is run:
                if over:
                    del self._touched[run_id]
                else:
                    run.decided = None
        late = now - self._reviewed >= REVIEW_S
        if report.settled or late:
            try:
                report.moves += await self.review(late=late)
            except StoreError as error:
                self.failed(error)
        return report

    async def read(self, run_id: str, tenant: str | None, *, over: bool = True) -> LearnReport:
        """Read one run. `over`: no call is expected; otherwise, and while another gateway
        serves the run, only decisions are settled."""
        verdicts = Verdicts(self.store, self.runs)
        trace = await verdicts.unforgotten(run_id, tenant)
        if trace is None:
            return LearnReport()
        run = trace.run
        known = self._touched.get(run_id)
        recent = self.now() - run.updated_at < self.settings().over_after_s
        if over and run.ended_at is None and recent:
            # Another gateway served a later call: look again when that one, too, is long ago.
            over = False
            if known is not None:
                self._touched[run_id] = replace(known, at=run.updated_at, ended=False)
        calls = await off_loop(read_run, steps_of(trace))
        report = LearnReport(runs=1)
        if over:
            report.outcomes += await verdicts.keep(trace, calls)
            report.lessons += await self._learn(trace, calls)
            if self.noted is not None:
                await self.noted(trace)
        report.settled = await self._settle(trace, calls, over)
        return report

    async def _learn(self, trace: RunTrace, calls: Sequence[ReadCallOfRun]) -> int:
        """Keep what ended the run's failures, and let runs be given what ended one again."""
        lessons = await off_loop(lessons_of, trace, calls)
        learned = await self.store.learn(lessons)
        keys = {pattern.lesson.key for pattern, _ in lessons if pattern.lesson}
        moved = 0
        for key in keys:
            wanted = LessonFilter(tenant=trace.run.tenant, key_prefix=key)
            scope = scope_of(lessons[0][0])
            found = await self.store.lessons(wanted)
            here = [each for each in found if scope_of(each.pattern) == scope]
            for stored, move in life_cycle.weighed(here):
                moved += await self._move(stored.pattern, *move, at=self.now())
        if moved:
            self.changed()
        return learned.lessons

    async def _settle(self, trace: RunTrace, calls: Sequence[ReadCallOfRun], over: bool) -> int:
        waiting = await self.store.open_decisions(trace.run.id)
        last = trace.run.totals.scored_steps
        known: list[NearOutcome] = []
        for each in waiting:
            near = life_cycle.near_outcome(each, calls, ended=over, last_step=last)
            known += [near] if near is not None else []
        if not known or not await self.store.settle(known):
            return 0
        for lesson in {(d.owner, d.pattern_id, d.version) for d in waiting}:
            await self.recompute(*lesson)
        return len(known)

    async def recompute(self, owner: str, pattern_id: str, version: int) -> None:
        """Compute the posterior of a lesson from all its decisions."""
        stored = await self.store.lesson(owner or None, pattern_id)
        lesson = None
        if stored:
            lesson = stored.pattern.lesson
        now = self.now()
        active = lesson is not None and lesson.status is Status.ACTIVE

        async def observed() -> list[life_cycle.Observation]:
            decisions = await self.store.decisions(owner, pattern_id, version)
            verdicts = await self.store.verdicts(owner, pattern_id, version)
            return life_cycle.observations(decisions, verdicts)

        newest = await observed()
        for _ in range(MOST_RECOMPUTED):
            seen = newest
            found = await off_loop(life_cycle.posterior, seen, active=active)
            await self.store.put_posterior(owner, pattern_id, version, posterior=found, at=now)
            newest = await observed()
            if newest == seen:
                break  # no other gateway has settled a decision meanwhile, so this is the newest
        self.changed()

    async def _move(self, pattern: Pattern, to: Status, reason: str, at: float) -> bool:
        return await self.store.move(pattern.tenant, pattern.pattern_id, to, reason=reason, at=at)

    async def review(self, *, late: bool = False) -> int:
        """Move the lessons whose time has come; how many moved. `late`: count outcomes that were
        reported since the decisions were settled."""
        now = self.now()
        moved = 0
        if late:
            self._reviewed = now
            for stored in await self._tried(RETRIEVED):
                if stored.posterior.decisions and stored.pattern.lesson is not None:
                    pattern = stored.pattern
                    version = stored.pattern.lesson.version
                    await self.recompute(pattern.tenant, pattern.pattern_id, version)
        for stored in await self._tried((Status.CANDIDATE, *RETRIEVED)):
            if move := life_cycle.next_move(stored):
                moved += await self._move(stored.pattern, move.status, move.reason, at=now)
        if moved:
            self.changed()
        return moved

    async def _tried(self, statuses: Sequence[Status]) -> list[StoredLesson]:
        wanted = LessonFilter(statuses=statuses)
        return await self.store.lessons(wanted, limit=MOST_REVIEWED)


def open_learner(stores: Stores, settings: Settings) -> Learner:
    """The learner from the runs of these stores."""
    return Learner(stores.learning, stores.runs, lambda: settings.of(LearningSettings))


@frozen
class Learning:
    """The lessons that runs may be given, and what reads runs."""

    book: LessonBook  # answers look-ups
    learner: Learner | None  # None where no content is stored, so that there is nothing to read
    # how often rules were typed, by tenant: counting reads all sessions
    counts: TTLCache[str | None, dict[str, TypedCounts]] = field(
        default_factory=lambda: TTLCache(MOST_TENANTS, COUNTED_S)
    )

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]:
        """The lessons that fit."""
        return await self.book.find(query, tenant)

    def forget(self) -> None:
        """Read the lessons again."""
        self.book.forget()
        self.counts.clear()

    async def typed(self, tenant: str | None) -> dict[str, TypedCounts]:
        """Counts of how often a tenant's rules were typed, by their ids; None: of all tenants."""
        if tenant not in self.counts:
            store = self.book.store
            rules = await store.lessons(LessonFilter(tenant=tenant, key_prefix=f"{SAID}|"))
            self.counts[tenant] = await count_typed(store, rules, tenant)
        return self.counts[tenant]

    def recorded(self, record: CallRecord) -> None:
        """Note which runs had a call, and which are over."""
        learner = self.learner
        if learner is None:
            return
        for run in record.runs:
            step = max([0, *[s.step_index for s in record.steps if s.run_id == run.id]])
            decided = any(each.run_id == run.id for each in record.decisions)
            ended = run.ended_at is not None
            tenant = record.conversation.tenant
            if not run.updated_at:
                ended = True  # a person has judged its answer since
            elif ended and not (step or run.sequence or run.outcome or decided):
                continue  # answered at once: there is no call to learn from
            learner.touch(run.id, tenant, step=step, ended=ended, decided=decided)


def learning_of(runtime: Runtime) -> Learning:
    """The learning of a gateway that has started."""
    return cast(Learning, runtime.learning)


async def start(runtime: Runtime) -> None:
    """Give lessons, read runs that are over, and have `reader.model` read what people typed."""
    opened = runtime.opened
    stores = opened.stores
    failed = partial(runtime.note_failed_lookup, "lessons")
    book = LessonBook(stores.learning, failed=failed, read=opened.states.read_beside)
    learner = _learner(runtime, book)
    runtime.learning = Learning(book=book, learner=learner)
    if learner is None:
        return
    reader = ReaderWorker(
        store=stores.learning,
        runs=stores.runs,
        model=PaidModel(lambda: runtime.services, runtime.metrics),
        settings=lambda: runtime.settings.of(ReaderSettings),
        counted=lambda result: runtime.metrics.readings.labels(result).inc(),
    )
    learner.noted = reader.note
    runtime.follow(learner.follow(), "learning")
    runtime.follow(reader.follow(), "reader")


def _learner(runtime: Runtime, book: LessonBook) -> Learner | None:
    """Reads the runs of a gateway; None where no content is stored."""
    log = get_logger("gateway.learning")
    stores = runtime.opened.stores
    if not runtime.settings.storage.store_content:
        if runtime.settings.of(LearningSettings).trials == "on":
            log.warning("nothing is learned: learning.trials needs storage.store_content")
        return None
    return Learner(
        stores.learning,
        stores.runs,
        lambda: runtime.settings.of(LearningSettings),
        changed=book.forget,
        failed=lambda error: log.warning("runs not read", reason=str(error)),
        behind=lambda: runtime.degraded() is not None,
    )
