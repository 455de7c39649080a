"""Checks of LearningStore."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.core.pattern import Lesson, Pattern, Status, Tier, Trust
from gateway.stores.learning import (
    MARK,
    DecisionRow,
    EvidenceRow,
    JobLimits,
    Learned,
    LessonFilter,
    NearOutcome,
    OutcomeRow,
    Posterior,
    ReaderJob,
)
from gateway.stores.patterns import PatternFilter
from steering_gateway_testing.store_conformance.check import Check, raises
from steering_gateway_testing.store_conformance.records import START, TENANT, a_call

OTHER = "other"


def a_lesson(id: str = "e1-a", tenant: str = TENANT, **changes: Any) -> Pattern:
    """A lesson of a tenant; `changes` are those of its `Lesson`, and its tier."""
    tier = changes.pop("tier", Tier.E1)
    values: dict[str, Any] = {"key": "not_found|bash.mvn|1", "last_confirmed_at": START}
    lesson = Lesson(**(values | changes))
    return Pattern(
        tier=tier,
        pattern_id=id,
        tenant=tenant,
        fields={"recommended_action": f"what {id} says"},
        source_trace_id="r1#2",
        lesson=lesson,
    )


def some_evidence(id: str = "e1-a", run: str = "r1", **changes: Any) -> EvidenceRow:
    """The support of one run."""
    values: dict[str, Any] = {
        "tenant": TENANT,
        "pattern_id": id,
        "run_id": run,
        "step_index": 2,
        "kind": "fix",
        "conversation": f"c-{run}",
        "task": "t1",
        "at": START,
    }
    return EvidenceRow(**(values | changes))


def a_decision(run: str = "r1", step: int = 1, **changes: Any) -> DecisionRow:
    """One occasion to give the lesson."""
    values: dict[str, Any] = {
        "run_id": run,
        "step_index": step,
        "pattern_id": "e1-a",
        "owner": TENANT,
        "version": 1,
        "share": 0.5,
        "given": True,
        "similarity": 1.0,
        "key": "k",
        "state": "NORMAL",
        "failure_type": "loop",
    }
    return DecisionRow(**(values | changes))


async def keeps_every_verdict(stores: Stores) -> None:
    """A verdict that changes nothing is not stored again; another one is added behind the first."""
    store = stores.learning
    first = OutcomeRow(run_id="r1", tenant=TENANT, source="told_api", verdict="success", at=START)
    assert await store.add_outcome(first)
    assert not await store.add_outcome(dataclasses.replace(first, at=START + 5))
    second = dataclasses.replace(first, verdict="failure", score=0.25, comment="half", at=START + 6)
    assert await store.add_outcome(second)
    other = dataclasses.replace(first, source="result", weight=0.8, evidence="step 4")
    assert await store.add_outcome(other)
    assert await store.outcomes(TENANT, "r1") == [first, second, other]
    assert await store.outcomes(None, "r1") == [first, second, other]
    assert await store.outcomes(OTHER, "r1") == []


async def keeps_a_verdict_once_at_once(stores: Stores) -> None:
    """Of gateways that read a run at the same time one adds what it says."""
    row = OutcomeRow(run_id="r1", tenant=TENANT, source="result", verdict="failure", at=START)
    added = await asyncio.gather(*(stores.learning.add_outcome(row) for _ in range(8)))
    assert added.count(True) == 1
    assert await stores.learning.outcomes(TENANT, "r1") == [row]


async def counts_the_keys_of_a_lesson(stores: Stores) -> None:
    """How many gateway keys made the supporting runs; keys of one name count as one."""
    rows = [some_evidence(run=f"r{n}", key_name=name) for n, name in enumerate(("a", "a", ""))]
    rows.append(some_evidence(run="r9", key_name="b", kind="failed_again"))
    await stores.learning.learn([(a_lesson(), rows)])
    (stored,) = await stores.learning.lessons(LessonFilter(tenant=TENANT))
    assert (stored.support.conversations, stored.support.keys) == (3, 2)
    evidence = await stores.learning.evidence(TENANT, "e1-a")
    assert {row.run_id: row.key_name for row in evidence}["r0"] == "a"


async def keeps_what_speaks_against_a_lesson(stores: Stores) -> None:
    """Evidence against an unknown lesson makes none, and counts as soon as there is one; a lesson
    that nothing else speaks for goes with the run that did."""
    store = stores.learning
    against = some_evidence(run="r1", kind="failed_again")
    assert await store.learn([(a_lesson(), [against])]) == Learned(evidence=1)
    assert await store.learn([(a_lesson(), [against])]) == Learned()
    assert await store.lesson(TENANT, "e1-a") is None
    assert await store.learn([(a_lesson(), [some_evidence(run="r2")])]) == Learned(
        lessons=1, evidence=1
    )
    found = await store.lesson(TENANT, "e1-a")
    assert found is not None
    assert (found.support.conversations, found.support.against) == (1, 1)
    assert await store.forget(TENANT, "r2", START) == ["e1-a"]
    assert await store.lesson(TENANT, "e1-a") is None


async def lists_lessons_by_the_beginning_of_their_key(stores: Stores) -> None:
    """Signs with a meaning in a search are none here."""
    keys = ("error|a_b%|1", "error|a_b%|2", "error|axbc|3")
    for number, key in enumerate(keys):
        await stores.learning.learn([(a_lesson(f"e1-{number}", key=key), [])])
    found = await stores.learning.lessons(LessonFilter(key_prefix="error|a_b%|"))
    assert sorted(each.pattern.pattern_id for each in found) == ["e1-0", "e1-1"]
    assert len(await stores.learning.lessons(LessonFilter(key_prefix=""))) == len(keys)


async def learns_a_lesson_once(stores: Stores) -> None:
    """The same lesson and evidence again change nothing; new evidence confirms it."""
    store = stores.learning
    pattern = a_lesson(trust=Trust.MODEL, applies_when={"head": "mvn"}, supersedes="e1-z")
    entries = [(pattern, [some_evidence()])]
    assert await store.learn(entries) == Learned(lessons=1, evidence=1)
    assert await store.learn(entries) == Learned()
    (stored,) = await store.lessons(LessonFilter(tenant=TENANT))
    assert stored.pattern == pattern
    assert (stored.support.conversations, stored.support.tasks, stored.posterior) == (
        1,
        1,
        Posterior(),
    )
    more = some_evidence(run="r2", task="t2", at=START + 4)
    again = some_evidence(run="r3", kind="failed_again", at=START + 8)
    assert await store.learn([(pattern, [more, again])]) == Learned(evidence=2)
    found = await store.lesson(TENANT, "e1-a")
    assert found is not None
    assert found.pattern.lesson is not None
    assert found.pattern.lesson.last_confirmed_at == START + 4
    assert (found.support.conversations, found.support.tasks) == (2, 2)
    assert await store.evidence(TENANT, "e1-a") == [again, more, some_evidence()]
    with raises(ValueError):
        await store.learn([(replace(pattern, lesson=None), [])])


async def keeps_marks_apart_from_support(stores: Stores) -> None:
    """A call that a person marked supports and confirms nothing; it can be taken back, and goes
    with its run."""
    store = stores.learning
    marks = [some_evidence(run=f"r{n}", kind=MARK, task="git push", at=START + n) for n in (7, 8)]
    await store.learn([(a_lesson(), [some_evidence()])])
    assert await store.learn([(a_lesson(), marks)]) == Learned(evidence=2)
    assert await store.marks(TENANT) == await store.marks(None) == marks
    assert await store.marks(OTHER) == []
    found = await store.lesson(TENANT, "e1-a")
    assert found is not None
    assert found.pattern.lesson == a_lesson().lesson
    assert (found.support.conversations, found.support.tasks) == (1, 1)
    assert not await store.unmark(OTHER, "e1-a", "r7", marks[0].step_index)
    assert await store.unmark(TENANT, "e1-a", "r7", marks[0].step_index)
    assert not await store.unmark(TENANT, "e1-a", "r7", marks[0].step_index)
    assert await store.forget(TENANT, "r8", START + 9) == []
    assert await store.marks(TENANT) == []


async def keeps_lessons_that_say_the_same(stores: Stores) -> None:
    """Two failures may have lessons with one text: both are kept."""
    store = stores.learning
    text = {"recommended_action": "Look for the cause."}
    twins = [replace(a_lesson(f"e1-{n}", key=f"k{n}"), fields=text) for n in range(2)]
    assert await store.learn([(each, []) for each in twins]) == Learned(lessons=2)
    found = await store.lessons(LessonFilter(tenant=TENANT))
    assert sorted(each.pattern.pattern_id for each in found) == ["e1-0", "e1-1"]


async def keeps_lessons_apart_from_patterns_and_tenants(stores: Stores) -> None:
    """A lesson is listed with its tenant's patterns, in no search, and seen by no other tenant."""
    store = stores.learning
    await stores.patterns.open_space("test", 2)
    await store.learn([(a_lesson(), [some_evidence()]), (a_lesson("e2-b", tier=Tier.E2), [])])
    assert await store.lessons(LessonFilter(tenant=OTHER)) == []
    assert await store.lesson(OTHER, "e1-a") is None
    assert await store.evidence(OTHER, "e1-a") == []
    assert not await store.move(OTHER, "e1-a", Status.ACTIVE, reason="", at=START)
    listed = await stores.patterns.list_patterns(PatternFilter(tenant=TENANT, learned=True))
    assert [each.pattern.pattern_id for each in listed.patterns] == ["e2-b", "e1-a"]
    assert all(each.indexed for each in listed.patterns)
    assert not (await stores.patterns.list_patterns(PatternFilter(learned=False))).patterns
    assert await stores.patterns.without_vector(9) == []
    by_key = LessonFilter(tenant=TENANT, key_prefix="not_found|bash.mvn|1", tier=Tier.E2)
    assert [each.pattern.pattern_id for each in await store.lessons(by_key)] == ["e2-b"]


async def moves_a_lesson(stores: Stores) -> None:
    """A status changes once."""
    store = stores.learning
    await store.learn([(a_lesson("e2-b", tier=Tier.E2), [some_evidence("e2-b")])])
    assert await store.move(TENANT, "e2-b", Status.TRIAL, reason="approved", at=START + 1)
    assert not await store.move(TENANT, "e2-b", Status.TRIAL, reason="approved", at=START + 2)
    trials = LessonFilter(statuses=(Status.TRIAL, Status.ACTIVE))
    (moved,) = await store.lessons(trials)
    assert (moved.reason, moved.updated_at) == ("approved", START + 1)
    assert await store.lessons(LessonFilter(since=START + 2)) == []
    assert await store.lesson(OTHER, "e2-b") is None


async def settles_a_decision_once(stores: Stores) -> None:
    """Decisions come with their call, once; what came after each is filled in once."""
    store = stores.learning
    held = a_decision(step=2, given=False)
    await stores.states.commit(a_call(decisions=(a_decision(), held)))
    assert await store.open_decisions("r1") == [a_decision(), held]
    near = NearOutcome(
        run_id="r1",
        step_index=2,
        pattern_id="e1-a",
        recurred=True,
        calls_to_success=None,
        steps_left=3,
    )
    assert await store.settle([near]) == 1
    assert await store.settle([dataclasses.replace(near, recurred=False)]) == 0
    assert await store.open_decisions("r1") == [a_decision()]
    first, second = await store.decisions(TENANT, "e1-a", 1)
    assert (first.recurred, first.tenant) == (None, TENANT)
    assert (second.recurred, second.calls_to_success, second.steps_left) == (True, None, 3)
    assert await store.decisions(TENANT, "e1-a", 2) == []
    assert await store.decisions(OTHER, "e1-a") == []


async def replaces_a_posterior(stores: Stores) -> None:
    """The newest posterior of a lesson's version is the one that is read, and gives its share."""
    store = stores.learning
    await store.learn([(a_lesson(), [])])
    await store.put_posterior(TENANT, "e1-a", 1, Posterior(decisions=1), START)
    newest = Posterior(decisions=9, given=4, effect=0.25, helps=0.75, harms=0.1, share=0.7)
    await store.put_posterior(TENANT, "e1-a", 1, newest, START + 1)
    stored = await store.lesson(TENANT, "e1-a")
    assert stored is not None
    assert stored.posterior == newest
    assert stored.pattern.lesson is not None
    assert stored.pattern.lesson.share == 0.7


async def gives_each_job_to_one(stores: Stores) -> None:
    """A job is added once, held by one, claimed again when its holder is gone, then given up."""
    store = stores.learning
    job = ReaderJob(kind="read", key="a", tenant=TENANT, payload={"run": "r1"}, created_at=START)
    assert await store.enqueue(job)
    assert not await store.enqueue(job)

    claim = partial(_claim, stores)
    held = await claim(START)
    assert held is not None
    assert (held.payload, held.attempts, held.lease_until) == ({"run": "r1"}, 1, START + 10)
    assert await claim(START + 9) is None
    again = await claim(START + 10)
    assert again is not None
    assert again.attempts == 2
    assert await claim(START + 20) is None
    assert await store.count_jobs("read") == {"failed": 1}
    await store.enqueue(dataclasses.replace(job, key="b"))
    second = await claim(START + 30)
    assert second is not None
    assert await store.finish(dataclasses.replace(second, tokens=40, cost_usd=0.5), now=START + 31)
    assert not await store.finish(second, now=START + 32)
    assert await claim(START + 60) is None
    assert await store.spent("read", TENANT, START + 30) == (40, 0.5)
    assert await store.spent("read", None, START + 30) == (40, 0.5)
    assert await store.spent("read", OTHER, START) == (0, 0.0)
    assert await store.spent("read", TENANT, START + 31) == (0, 0.0)
    at_once = dataclasses.replace(job, key="c", state="done", created_at=START + 40, tokens=2)
    await store.enqueue(dataclasses.replace(at_once, lease_until=START + 40))
    assert await store.spent("read", TENANT, START + 31) == (2, 0.0)
    assert await store.count_jobs("read") == {"failed": 1, "done": 2}
    assert await store.count_jobs("read", OTHER) == {}


async def lets_jobs_use_no_more_than_allowed(stores: Stores) -> None:
    """One job of a tenant at a time, none once the allowance is used; what a claim reserves counts
    until the job ends, and for good when it is abandoned. Who lost the lease ends nothing."""
    store = stores.learning
    for key, tenant in (("a", TENANT), ("b", TENANT), ("c", OTHER)):
        await store.enqueue(ReaderJob(kind="read", key=key, tenant=tenant, created_at=START))
    claim = partial(_claim, stores, reserve_tokens=30, reserve_usd=0.25)
    first, second = await claim(START), await claim(START)
    assert first is not None
    assert second is not None
    assert (first.key, second.key) == ("a", "c")
    assert (first.tokens, first.cost_usd) == (30, 0.25)
    assert await claim(START) is None
    assert await store.finish(dataclasses.replace(second, tokens=7), now=START + 1)
    again = await claim(START + 10)
    assert again is not None
    assert (again.key, again.tokens) == ("a", 60)
    assert not await store.finish(first, now=START + 11)
    assert not await store.give_back(first, START + 11)
    assert await store.give_back(dataclasses.replace(again, attempts=1, tokens=45), START + 13)
    assert await claim(START + 12) is None
    third = await claim(START + 13)
    assert third is not None
    assert (third.key, third.attempts, third.tokens) == ("a", 2, 75)
    assert await store.finish(dataclasses.replace(third, tokens=100), now=START + 14)
    assert await store.spent("read", TENANT, START) == (100, 0.75)
    assert await claim(START + 20) is None
    assert await claim(START + 20, cost_usd=0.5, tokens=900) is None
    last = await claim(START + 20, tokens=101)
    assert last is not None
    assert last.key == "b"


async def _claim(
    stores: Stores, now: float, most_attempts: int = 2, **allowed: Any
) -> ReaderJob | None:
    values: dict[str, Any] = {"since": START, "tokens": 100, "cost_usd": 5.0}
    allowance = JobLimits(**(values | allowed))
    return await stores.learning.claim(
        "read", now=now, lease_s=10, most_attempts=most_attempts, allowance=allowance
    )


async def forgets_what_one_run_supports(stores: Stores) -> None:
    """Its evidence, outcomes and decisions go, and lessons that nothing else supports."""
    store = stores.learning
    await store.learn(
        [
            (a_lesson("e1-a"), [some_evidence("e1-a")]),
            (a_lesson("e1-b"), [some_evidence("e1-b"), some_evidence("e1-b", "r2")]),
        ]
    )
    told = OutcomeRow(run_id="r1", tenant=TENANT, source="told_api", verdict="success", at=START)
    await store.add_outcome(told)
    await store.enqueue(ReaderJob(kind="read", key="a", tenant=TENANT, payload={"run": "r1"}))
    await store.enqueue(ReaderJob(kind="read", key="b", tenant=TENANT, payload={"run": "r2"}))
    await stores.states.commit(a_call(decisions=(a_decision(),)))
    assert await store.forget(OTHER, "r1", START) is None
    assert await store.forget(TENANT, "unknown", START) is None
    assert await store.forget(TENANT, "r1", START) == ["e1-a"]
    assert await store.forget(TENANT, "r1", START) == []
    assert await store.forgotten(TENANT) == {"r1"}
    again = await store.learn([(a_lesson("e1-a"), [some_evidence("e1-a")])])
    assert (again.lessons, again.evidence) == (0, 0)
    left = await store.lessons(LessonFilter(tenant=TENANT))
    assert [(each.pattern.pattern_id, each.support.conversations) for each in left] == [("e1-b", 1)]
    assert await store.outcomes(TENANT, "r1") == []
    assert await store.decisions(TENANT, "e1-a") == []
    assert await store.count_jobs("read") == {"waiting": 1}
    known = await store.job("read", "b")
    assert known is not None
    assert (known.key, await store.job("read", "a"), await store.job("x", "b")) == ("b", None, None)


LEARNING_CHECKS: tuple[Check, ...] = (
    keeps_every_verdict,
    keeps_a_verdict_once_at_once,
    counts_the_keys_of_a_lesson,
    keeps_what_speaks_against_a_lesson,
    lists_lessons_by_the_beginning_of_their_key,
    learns_a_lesson_once,
    keeps_marks_apart_from_support,
    keeps_lessons_that_say_the_same,
    keeps_lessons_apart_from_patterns_and_tenants,
    moves_a_lesson,
    settles_a_decision_once,
    replaces_a_posterior,
    gives_each_job_to_one,
    lets_jobs_use_no_more_than_allowed,
    forgets_what_one_run_supports,
)
