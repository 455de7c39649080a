"""Several gateways on one store read the same runs: nothing is counted twice."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.core.pattern import Pattern, Status
from gateway.features.learning.settings import LearningSettings
from gateway.features.learning.worker import Learner, LearnReport
from gateway.stores.learning import LessonFilter, Posterior
from gateway.stores.raw_calls_and_answers import AnswerRecord, RawCall
from gateway.stores.sql.learning import LearningStore
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.learning import a_decision
from tests.features.learning.families import answers
from tests.features.learning.runs import Call, lessons_of, run, shell, stored
from tests.features.learning.test_ended_failures import MOVE, behind, ended

GATEWAYS = 3
MISSING = "bash: mvn: command not found"
SETTINGS = LearningSettings(trials="on")


@pytest.fixture
async def gateways(either_store: dict[str, Any]) -> AsyncIterator[list[Stores]]:
    """The stores of several gateways over one database."""
    async with AsyncExitStack() as opened:
        found = [await open_stores(StorageSettings(**either_store)) for _ in range(GATEWAYS)]
        for stores in found:
            opened.push_async_callback(stores.close)
        yield found


def learner(stores: Stores, now: float = records.START + 10_000.0) -> Learner:
    return Learner(stores.learning, stores.runs, lambda: SETTINGS, now=lambda: now)


async def test_gateways_that_read_the_same_runs_at_once_count_them_once(
    gateways: list[Stores],
) -> None:
    """Each run has its outcomes once, as if one gateway had read it, and a lesson that does harm is
    retired once."""
    failing: list[Call] = [shell("pytest", "1 failed"), shell("pytest", "E  Error: 1 failed")]
    (harmful,) = lessons_of(run([shell("mvn test", MISSING)], tenant=records.TENANT))
    await gateways[0].learning.learn([(harmful, ())])
    await gateways[0].learning.put_posterior(
        records.TENANT, harmful.pattern_id, 1, Posterior(harms=0.99), 1.0
    )
    for number in range(3):
        await gateways[0].states.commit(stored(number, failing))

    async def read_all(one: Learner) -> LearnReport:
        report = LearnReport()
        for number in range(3):
            report.add(await one.read(f"r{number:04}", records.TENANT))
        report.moves += await one.review()
        return report

    learners = [learner(stores) for stores in gateways]
    reports = await asyncio.gather(*map(read_all, learners))
    store = gateways[0].learning
    outcomes = [row for n in range(3) for row in await store.outcomes(records.TENANT, f"r{n:04}")]
    assert sum(report.outcomes for report in reports) == len(outcomes)
    assert len({(row.run_id, row.source) for row in outcomes}) == len(outcomes) > 0
    assert sum(report.moves for report in reports) == 1
    again = await read_all(learners[0])
    assert (again.outcomes, again.moves) == (0, 0)


class _Overtaken:
    """A store whose first posterior is written late, after something else has happened."""

    def __init__(self, store: Any, happens: Callable[[], Awaitable[Any]]) -> None:
        self._store = store
        self._happens: list[Callable[[], Awaitable[Any]]] = [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put_posterior(self, *values: Any, **named: Any) -> None:
        while self._happens:
            await self._happens.pop()()
        await self._store.put_posterior(*values, **named)


async def taught(stores: Stores) -> Pattern:
    """A lesson in trial that the run r0000 supports."""
    source = run([shell("mvn test", MISSING)], id="r0000", tenant=records.TENANT)
    (pattern,) = lessons_of(source)
    await stores.learning.learn([(pattern, [source.evidence(pattern.pattern_id, 1)])])
    return pattern


async def test_an_overtaken_gateway_stores_what_all_decisions_come_to(
    gateways: list[Stores],
) -> None:
    """Another gateway settles a run's decision between reading them and storing the result."""
    calls = [shell("mvn test", MISSING), shell("./gradlew test", "BUILD SUCCESSFUL")]
    pattern = await taught(gateways[0])
    for number in (1, 2):
        decision = a_decision(
            f"r{number:04}",
            1,
            pattern_id=pattern.pattern_id,
            given=number == 1,
            key=pattern.lesson.key if pattern.lesson else "",
        )
        await gateways[0].states.commit(replace(stored(number, calls), decisions=(decision,)))
    fast = learner(gateways[1])
    overtaken = _Overtaken(gateways[0].learning, lambda: fast.read("r0002", records.TENANT))
    late = dataclasses.replace(gateways[0], learning=cast(LearningStore, overtaken))
    await learner(late).read("r0001", records.TENANT)
    (lesson,) = await gateways[2].learning.lessons(LessonFilter())
    assert (lesson.posterior.decisions, lesson.posterior.given) == (2, 1)


async def test_a_run_that_another_gateway_serves_is_not_over(gateways: list[Stores]) -> None:
    """A gateway that has not seen a call for long asks the store when the newest was."""
    record = stored(0, [shell("mvn test", MISSING)], state="SLOW", ended_at=None)
    await gateways[0].states.commit(record)
    here = learner(gateways[0], now=records.START + 5.0)
    here.touch("r0000", records.TENANT, step=1, ended=True, decided=False)
    report = await here.look()
    assert (report.runs, report.outcomes, here.waiting) == (1, 0, 1)
    later = learner(gateways[0])
    later.touch("r0000", records.TENANT, step=1, ended=True, decided=False)
    report = await later.look()
    assert (report.runs, report.outcomes, later.waiting) == (1, 1, 0)


async def test_a_forgotten_run_stays_forgotten_on_every_gateway(gateways: list[Stores]) -> None:
    """Another gateway that has the run in memory, one that was started later, and reading all runs
    again learn nothing from it; its decisions count no longer, and texts that only it taught are
    masked where other runs were given them: in logs, steps and conversations; raw calls go, and so
    do calls that wait for an answer."""
    await gateways[0].states.commit(stored(0, [shell("mvn test", MISSING)]))
    pattern = await taught(gateways[0])
    one, other = learner(gateways[0]), learner(gateways[1])
    for each in (one, other):
        await each.read("r0000", records.TENANT)
    name, key = pattern.pattern_id, pattern.lesson and pattern.lesson.key
    decision = a_decision("r0001", 1, pattern_id=name, key=key or "")
    text = pattern.fields["recommended_action"]
    frame = f'LEARNED: "{text}"'
    given = records.an_injection(1, run_id="r0001", pattern_id=name, text=frame)
    quotes = records.some_content(reply_text=f"I was told: {text}", actions=())
    later = stored(1, [shell("ls", "README.md")] * 8)
    talk = replace(later.conversation, state=json.dumps({"v": 1, "text": f"[{frame}]"}).encode())
    steps = (*later.steps, records.a_step(9, "r0001", content=quotes))
    record = replace(later, conversation=talk, steps=steps, injections=(given,))
    await gateways[0].states.commit(replace(record, decisions=(decision,)))
    assert gateways[0].raw is not None
    raw = RawCall(
        tenant=records.TENANT,
        run_id="r0001",
        step_index=1,
        at=records.START,
        dialect="chat",
        request=text.encode(),
        response=b"",
    )
    assert await gateways[0].raw.put_raw(raw, most_bytes=10**6)
    answers = gateways[1].answers
    assert answers is not None
    calls = {"gave": name, "state": later.conversation.id, "other": "r0009"}
    for id_of_answer, call in calls.items():
        waiting = AnswerRecord(
            tenant=records.TENANT, id=id_of_answer, at=records.START, place="p", call=call
        )
        await answers.keep_answer(waiting)
    await other.read("r0001", records.TENANT)
    assert await other.store.forget(records.TENANT, "unknown", records.START) is None
    assert await one.store.forget(records.TENANT, "r0000", records.START) == [name]
    for each in (one, other, learner(gateways[2])):
        for name_of_run in ("r0000", "r0001"):
            await each.read(name_of_run, records.TENANT)
    assert await gateways[2].learning.lessons(LessonFilter()) == []
    trace = await gateways[2].runs.get_run("r0001", tenant=records.TENANT)
    assert trace is not None
    assert [each.text for each in trace.injections] == ["[forgotten]"]
    assert trace.steps[-1].content is not None
    assert trace.steps[-1].content.reply_text == "I was told: [forgotten]"
    talked = await gateways[2].states.load(records.TENANT, later.conversation.id)
    assert talked is not None
    assert json.loads(talked.state)["text"] == "[[forgotten]]"
    assert gateways[2].raw is not None
    assert await gateways[2].raw.find_raw("r0001", 1, tenant=records.TENANT) is None
    kept = [await answers.find_answer(records.TENANT, each) for each in calls]
    assert [(each.place, each.call) for each in kept if each] == [
        ("p", ""),
        ("p", ""),
        ("p", "r0009"),
    ]
    assert len(await gateways[2].learning.decisions(records.TENANT, name)) == 1
    assert await other.store.forget(records.TENANT, "r0001", records.START) == []
    assert await gateways[2].learning.decisions(records.TENANT, name) == []


async def test_gateways_settle_a_decision_once(gateways: list[Stores]) -> None:
    """Each run's decision is settled by one of them, and all count in the lesson's two arms."""
    pattern = await taught(gateways[0])
    learners = [learner(stores) for stores in gateways]
    runs = [f"r{number:04}" for number in range(2, 12)]
    for number in range(2, 12):
        given = number % 2 == 0
        decision = a_decision(
            runs[number - 2],
            0,
            pattern_id=pattern.pattern_id,
            given=given,
            key=pattern.lesson.key if pattern.lesson else "",
        )
        call = shell("./gradlew test", "BUILD SUCCESSFUL") if given else shell("mvn test", MISSING)
        await gateways[0].states.commit(replace(stored(number, [call]), decisions=(decision,)))

    async def read_all(one: Learner) -> int:
        return sum([(await one.read(run, records.TENANT)).settled for run in runs])

    assert sum(await asyncio.gather(*map(read_all, learners))) == len(runs)
    (lesson,) = await gateways[1].learning.lessons(LessonFilter())
    found = lesson.posterior
    assert (found.decisions, found.given) == (10, 5)
    assert (found.rate_given, found.rate_held) == (0.0, 1.0)


async def test_what_ended_a_failure_is_counted_once_by_gateways_that_read_at_once(
    gateways: list[Stores],
) -> None:
    """Two runs that all gateways read at the same time support one lesson, which is given."""
    for number, name in enumerate(("orders", "bids")):
        await gateways[0].states.commit(stored(number, ended(name)))
    learners = [learner(stores) for stores in gateways]
    await asyncio.gather(
        *(each.read(run_id, None) for each in learners for run_id in ("r0000", "r0001"))
    )
    (found,) = await gateways[0].learning.lessons(LessonFilter())
    assert (found.support.conversations, found.support.against) == (2, 0)
    assert found.pattern.lesson is not None
    assert found.pattern.lesson.status is Status.ACTIVE
    for stores in gateways:
        assert await answers(stores, [behind("mails")]) == [MOVE]
