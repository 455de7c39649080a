"""Runs that are read again change nothing, whatever was learned in between."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.learning.worker import Report
from gateway.steering.guidance.lesson import Status
from gateway.stores.learning import LessonFilter, StoredLesson
from tests.learning.distilling import read_again, stored, unsaid
from tests.learning.runs import Call

TOO_MANY = "Error: limit must be below 100: invalid"


def search(limit: int, result: str) -> Call:
    return "search", {"q": "a", "limit": limit}, result


RUNS: list[list[Call]] = [
    [search(50, TOO_MANY)],
    [search(900, TOO_MANY), search(50, "[1]"), search(900, TOO_MANY), search(50, TOO_MANY)],
    [search(800, TOO_MANY), search(50, "[1]")],
    unsaid(),
]


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    found = await open_stores(StorageSettings(path=":memory:"))
    yield found
    await found.close()


async def read(stores: Stores, numbers: range) -> Report:
    return await read_again(stores, [f"r{number:04}" for number in numbers])


async def lessons(stores: Stores) -> list[StoredLesson]:
    return await stores.learning.lessons(LessonFilter())


async def test_a_second_pass_changes_nothing(stores: Stores) -> None:
    """The same lessons with the same evidence and status, though an earlier run had failed with
    what a later one found to be the fix; a failure after that puts the lesson aside."""
    for number, (calls, task) in enumerate(zip(RUNS, ("one", "two", "three", "four"), strict=True)):
        await stores.states.commit(stored(number, calls, task_preview=task))
    first = await read(stores, range(len(RUNS)))
    assert (first.lessons, first.evidence, first.jobs) == (2, 4, 1)
    known = await lessons(stores)
    again = await read(stores, range(len(RUNS)))
    assert (again.lessons, again.evidence, again.jobs, again.outcomes) == (0, 0, 0, 0)
    assert await lessons(stores) == known
    assert {each.pattern.lesson.status for each in known if each.pattern.lesson} == {
        Status.CANDIDATE
    }
    await stores.states.commit(stored(9, RUNS[0]))
    await read(stores, range(9, 10))
    moved = [each.pattern.lesson for each in await lessons(stores) if each.pattern.lesson]
    assert Status.QUARANTINED in {lesson.status for lesson in moved}
