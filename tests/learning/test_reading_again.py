"""Runs that are read again change nothing, whatever was learned in between."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.embedding.base import Embedder, HashingEmbedder
from gateway.embedding.static import StaticEmbedder
from gateway.learning.life_cycle import next_move
from gateway.learning.worker import Report
from gateway.steering.guidance.pattern import Status, Tier
from gateway.stores.learning import LessonFilter, StoredLesson
from steering_gateway_testing.store_conformance.keys import a_key
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


INDEXES = ("list index", "pop index", "page index")


async def test_situations_that_resemble_each_other_have_one_general_lesson(stores: Stores) -> None:
    """Failures of one tool and kind in similar words, each on one task: the first two make it, the
    third confirms it without a change of its text; another failure and another pass add nothing."""
    runs = [
        [search(900, f"IndexError: {what} out of range"), search(10, "[1]")] for what in INDEXES
    ]
    other = [search(900, "UnicodeError: the letters of the name are odd"), search(10, "[1]")]
    for number, calls in enumerate([*runs, other]):
        await stores.states.commit(stored(number, calls, task_preview=f"task {'abcd'[number]}"))
    embedder = StaticEmbedder.load()
    await read(stores, range(2), embedder)
    (first,) = [e for e in await lessons(stores) if e.pattern.tier is Tier.E2]
    assert (first.support.conversations, first.support.tasks) == (2, 2)
    await read(stores, range(2, 4), embedder)
    (confirmed,) = [e for e in await lessons(stores) if e.pattern.tier is Tier.E2]
    assert (confirmed.support.conversations, confirmed.support.tasks) == (3, 3)
    assert confirmed.pattern.fields == first.pattern.fields
    known = await lessons(stores)
    again = await read(stores, range(4), embedder)
    assert (again.lessons, again.evidence) == (0, 0)
    assert await lessons(stores) == known


async def test_without_an_embedder_only_equal_keys_are_one_situation(stores: Stores) -> None:
    """Similar words alone make no general lesson then."""
    for number, what in enumerate(INDEXES):
        calls = [search(900, f"IndexError: {what} out of range"), search(10, "[1]")]
        await stores.states.commit(stored(number, calls, task_preview=f"task {'abc'[number]}"))
    await read(stores, range(3))
    assert {each.pattern.tier for each in await lessons(stores)} == {Tier.E1}


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


async def test_one_gateway_key_of_several_opens_no_trial(stores: Stores) -> None:
    """Two conversations with one key leave a candidate, a third one with another key opens it."""
    for name in ("team", "guest"):
        await stores.keys.add_key(a_key(name, name=name))
    for number, key in enumerate(("guest", "guest", "team")):
        calls = [search(900, TOO_MANY), search(50, "[1]")]
        task = f"task {'abc'[number]}"
        await stores.states.commit(stored(number, calls, task_preview=task, key_name=key))
        await read(stores, range(number + 1))
        for each in await lessons(stores):
            move = next_move(each, 0.0, trials=True)
            opened = move.status if move else Status.CANDIDATE
            assert opened is (Status.TRIAL if key == "team" else Status.CANDIDATE)
            assert (each.support.keys, each.support.tenant_keys) == (1 + (key == "team"), 2)
