"""Runs that are read again change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.config.models import LearningSettings
from gateway.config.storage import StorageSettings
from gateway.learning.book import LessonBook
from gateway.learning.life_cycle import BY_OPERATOR, LessonActions
from gateway.learning.worker import Learner
from gateway.steering.guidance.lessons import LessonQuery
from gateway.steering.guidance.pattern import MINED, Pattern, Status
from gateway.stores.learning import LessonFilter, StoredLesson
from steering_gateway_testing.store_conformance.records import TENANT
from tests.learning.distilling import read_again, stored, unsaid
from tests.learning.runs import lessons_of, run, shell
from tests.learning.test_rules import RULE, talk

MISSING = "bash: mvn: command not found"


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    found = await open_stores(StorageSettings(path=":memory:"))
    yield found
    await found.close()


async def lessons(stores: Stores) -> list[StoredLesson]:
    return await stores.learning.lessons(LessonFilter())


async def test_a_second_pass_changes_nothing(stores: Stores) -> None:
    """The same rule with the same evidence and status, and the same job."""
    for number in range(2):
        await talk(stores, number, "please use pnpm instead of npm", read=False)
    await stores.states.commit(stored(2, unsaid()))
    runs = [f"r{number:04}" for number in range(3)]
    first = await read_again(stores, runs)
    assert (first.said, first.lessons, first.evidence, first.jobs) == (2, 1, 2, 1)
    known = await lessons(stores)
    assert [each.pattern.fields["recommended_action"] for each in known] == [RULE]
    again = await read_again(stores, runs)
    assert (again.lessons, again.evidence, again.jobs, again.outcomes) == (0, 0, 0, 0)
    assert await lessons(stores) == known


async def test_what_worked_after_a_failure_is_no_lesson(stores: Stores) -> None:
    """The order of calls shows no cause: however many runs did the same, nothing is learned."""
    fixed = [shell("mvn test", MISSING), shell("./gradlew test", "BUILD SUCCESSFUL")]
    for number in range(5):
        await stores.states.commit(stored(number, fixed, task_preview=f"task {'abcde'[number]}"))
    report = await read_again(stores, [f"r{number:04}" for number in range(5)])
    assert (report.runs, report.lessons, report.evidence) == (5, 0, 0)
    assert await lessons(stores) == []


async def test_lessons_of_the_order_of_calls_are_retired(stores: Stores) -> None:
    """Those that an earlier version made are given to no run, and the next look retires them; one
    that an operator approved stays, also when its trial is over. Nothing is removed."""
    commands = ("mvn test", "npm test", "tox run")
    made = [old(command) for command in commands]
    await stores.learning.learn([(each, ()) for each in made])
    approved = await stores.learning.lesson(TENANT, made[2].pattern_id)
    assert approved is not None
    actions = LessonActions(stores.learning)
    assert await actions.move(approved, Status.ACTIVE, f"approved {BY_OPERATOR}", 2.0)
    keys = tuple(each.lesson.key for each in made if each.lesson)
    query = LessonQuery(keys=keys, exclude=frozenset())
    given = await LessonBook(stores.learning, failed=print).find(query, TENANT)
    assert [each.pattern.pattern_id for each in given] == [made[2].pattern_id]
    learner = Learner(stores.learning, stores.runs, stores.states, LearningSettings)
    assert (await learner.look()).moves == 2
    found = {each.pattern.pattern_id: each for each in await lessons(stores)}
    status = {
        name: each.pattern.lesson.status for name, each in found.items() if each.pattern.lesson
    }
    assert [status[each.pattern_id] for each in made] == [
        *(Status.RETIRED, Status.RETIRED),
        Status.ACTIVE,
    ]
    assert "order of calls" in found[made[0].pattern_id].reason


def old(command: str) -> Pattern:
    """A lesson in trial that an earlier version read off a run."""
    missing = f"bash: {command.split()[0]}: command not found"
    (pattern,) = lessons_of(run([shell(command, missing)], tenant=TENANT))
    assert pattern.lesson is not None
    lesson = replace(pattern.lesson, origin=MINED, applies_when={})
    return replace(pattern, lesson=lesson)
