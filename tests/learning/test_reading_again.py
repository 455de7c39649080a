"""Runs that are read again change nothing, whatever was learned in between."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.embedding.base import Embedder
from gateway.embedding.hashing import HashingEmbedder
from gateway.learning.worker import Report
from gateway.steering.guidance.lesson import Status
from gateway.steering.guidance.pattern import Tier
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


async def read(stores: Stores, numbers: range, embedder: Embedder | None = None) -> Report:
    return await read_again(stores, [f"r{number:04}" for number in numbers], embedder=embedder)


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


@pytest.mark.parametrize(("embedder", "chosen"), [(None, "`q`"), (HashingEmbedder(), "`limit`")])
async def test_a_general_lesson_says_what_is_typical(
    stores: Stores, embedder: Embedder | None, chosen: str
) -> None:
    """With an embedder it is the instance that is most like the others; without one, the one that
    most runs support."""
    other: list[Call] = [search(900, TOO_MANY), ("search", {"q": "b c", "limit": 900}, "[1]")]
    runs = [other, other, *[[search(900, TOO_MANY), search(n, "[1]")] for n in (40, 50, 60)]]
    for number, (calls, task) in enumerate(zip(runs, ["one"] * 4 + ["two"], strict=True)):
        await stores.states.commit(stored(number, calls, task_preview=task))
    await read(stores, range(len(runs)), embedder)
    (general,) = [e.pattern for e in await lessons(stores) if e.pattern.tier is Tier.E2]
    assert f"{chosen}." in general.fields["intervention"]
