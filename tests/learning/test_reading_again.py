"""Runs that are read again change nothing, whatever was learned in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.models import LearningSettings
from gateway.config.storage import StorageSettings
from gateway.learning.life_cycle import BY_OPERATOR, LessonActions, next_move
from gateway.learning.worker import Learner, Report
from gateway.steering.guidance.pattern import Status, Tier
from gateway.stores.learning import LessonFilter, StoredLesson
from steering_gateway_testing.store_conformance.keys import a_key
from steering_gateway_testing.store_conformance.records import START
from tests.learning.distilling import read_again, stored, unsaid
from tests.learning.runs import Call, shell

TOO_MANY = "Error: limit must be below 100: invalid"


def search(limit: int | None, result: str) -> Call:
    return "search", {"q": "a"} | ({} if limit is None else {"limit": limit}), result


FIXED = [search(900, TOO_MANY), search(None, "[1]")]
RUNS: list[list[Call]] = [
    [search(50, TOO_MANY)],
    [*FIXED, search(900, TOO_MANY), search(50, TOO_MANY)],
    FIXED,
    FIXED,
    FIXED,
    unsaid(),
]


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    found = await open_stores(StorageSettings(path=":memory:"))
    yield found
    await found.close()


async def read(stores: Stores, numbers: Sequence[int]) -> Report:
    return await read_again(stores, [f"r{number:04}" for number in numbers])


async def lessons(stores: Stores) -> list[StoredLesson]:
    return await stores.learning.lessons(LessonFilter())


async def test_a_second_pass_changes_nothing(stores: Stores) -> None:
    """The same lessons with the same evidence and status; runs in which the call worked without the
    move withdraw the candidate."""
    for number, (calls, task) in enumerate(zip(RUNS, "abcdef", strict=True)):
        await stores.states.commit(stored(number, calls, task_preview=task))
    first = await read(stores, range(len(RUNS)))
    assert (first.lessons, first.evidence, first.jobs) == (2, 6, 1)
    known = await lessons(stores)
    again = await read(stores, range(len(RUNS)))
    assert (again.lessons, again.evidence, again.jobs, again.outcomes) == (0, 0, 0, 0)
    assert await lessons(stores) == known
    assert {each.pattern.lesson.status for each in known if each.pattern.lesson} == {
        Status.CANDIDATE
    }
    for number in range(6, 26):
        await stores.states.commit(stored(number, [search(900, TOO_MANY), search(20, "[1]")]))
    await stores.states.commit(stored(26, FIXED))
    await read(stores, [*range(1, 4), *range(6, 27)])
    retired = [e for e in await lessons(stores) if e.reason == "runs without it did as well"]
    assert [each.pattern.tier for each in retired] == [Tier.E1]


async def test_failures_of_one_kind_support_one_text(stores: Stores) -> None:
    """Failures of one tool and kind in other words, each on one task: the first two make a general
    lesson, the third one more for its key; another failure and another pass add nothing."""
    words = ("list index out of range", "the page index was too high", "no index of that number")
    runs = [[search(900, f"IndexError: {each}"), search(None, "[1]")] for each in words]
    other: list[Call] = [("find", {"q": "a"}, "Error: no way"), ("find", {"p": "a"}, "[1]")]
    for number, calls in enumerate([*runs, other]):
        await stores.states.commit(stored(number, calls, task_preview=f"task {'abcd'[number]}"))
    await read(stores, range(2))
    (first,) = [e for e in await lessons(stores) if e.pattern.tier is Tier.E2]
    assert (first.support.conversations, first.support.tasks) == (2, 2)
    await read(stores, range(4))
    general = [e for e in await lessons(stores) if e.pattern.tier is Tier.E2]
    assert {e.pattern.fields["intervention"] for e in general} == {"Call `search` without `limit`."}
    known = await lessons(stores)
    again = await read(stores, range(4))
    assert (again.lessons, again.evidence) == (0, 0)
    assert await lessons(stores) == known


async def test_one_gateway_key_of_several_opens_no_trial(stores: Stores) -> None:
    """Two conversations with one key leave a candidate, a third one with another key opens it."""
    for name in ("team", "guest"):
        await stores.keys.add_key(a_key(name, name=name))
    for number, key in enumerate(("guest", "guest", "team")):
        task = f"task {'abc'[number]}"
        await stores.states.commit(stored(number, FIXED, task_preview=task, key_name=key))
        await read(stores, range(number + 1))
        for each in await lessons(stores):
            move = next_move(each, 0.0, trials=True)
            opened = move.status if move else Status.CANDIDATE
            assert opened is (Status.TRIAL if key == "team" else Status.CANDIDATE)
            assert (each.support.keys, each.support.tenant_keys) == (1 + (key == "team"), 2)


async def test_a_restart_changes_no_lesson(stores: Stores) -> None:
    """A gateway that starts compares with all runs that were read before, not with the newest of
    them alone, in which the call worked without the move."""
    for number in range(8):
        task = f"task {'abcdefgh'[number]}"
        await stores.states.commit(stored(number, FIXED, task_preview=task))
    for number in range(8, 13):
        await stores.states.commit(stored(number, [search(900, TOO_MANY), search(20, "[1]")]))
    await read(stores, range(13))
    known = await lessons(stores)
    assert known
    assert "runs without it did as well" not in {each.reason for each in known}
    settings = LearningSettings(interval_s=0.001)
    where = (stores.learning, stores.runs, stores.states)
    learner = Learner(*where, lambda: settings, now=lambda: START + 10_000.0)
    following = asyncio.ensure_future(learner.follow())
    async with asyncio.timeout(60):
        for begins in (True, False):
            while (learner.waiting == 0) is begins:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
    following.cancel()
    assert await lessons(stores) == known


async def test_a_lesson_whose_move_fails_in_many_runs_is_retired(stores: Stores) -> None:
    """The program that it names is gone, too: after ten runs in a row that tried it, and not while
    it works in one of them. An operator's approval does not keep it, and trials need none."""
    learner = Learner(stores.learning, stores.runs, stores.states, LearningSettings)
    gone, numbers = "bash: line 1: {}: command not found", itertools.count(1)

    async def reads(runs: int, *, works: bool) -> set[Status]:
        after = [("find src > o", "" if works else gone.format("find")), ("ls src", "a")]
        calls = [shell("fd src > o", gone.format("fd")), *itertools.starmap(shell, after)]
        for number in itertools.islice(numbers, runs):
            record = stored(number, calls)
            await stores.states.commit(record)
            await learner.read(record.runs[0].id, None)
        found = await stores.learning.lessons(LessonFilter(key_prefix="missing_command|$fd"))
        return {each.pattern.lesson.status for each in found if each.pattern.lesson}

    assert await reads(3, works=True) == {Status.CANDIDATE}
    for each in await stores.learning.lessons(LessonFilter()):
        await LessonActions(stores.learning).move(each, Status.ACTIVE, BY_OPERATOR, 1.0)
    assert await reads(9, works=False) == {Status.ACTIVE}
    assert await reads(1, works=True) == {Status.ACTIVE}
    assert await reads(9, works=False) == {Status.ACTIVE}
    assert await reads(1, works=False) == {Status.RETIRED}
