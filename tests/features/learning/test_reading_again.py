"""Runs that are read teach nothing by themselves, and what earlier versions made of them goes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.core.guidance_choice import LessonQuery
from gateway.core.pattern import Pattern, Status
from gateway.features.learning.lessons_in_memory import LessonBook
from gateway.features.learning.life_cycle import BY_OPERATOR, LessonActions
from gateway.steering.guidance.lessons import SAID
from gateway.stores.learning import LessonFilter, StoredLesson
from gateway.stores.records import PromptMessage
from steering_gateway_testing.store_conformance.records import TENANT
from tests.features.learning.runs import lessons_of, read_again, rule, run, shell, stored

MISSING = "bash: mvn: command not found"
SHOP = (PromptMessage(role="system", text="Working directory: /home/ann/shop"),)


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    found = await open_stores(StorageSettings(path=":memory:"))
    yield found
    await found.close()


async def lessons(stores: Stores) -> list[StoredLesson]:
    return await stores.learning.lessons(LessonFilter())


async def test_runs_are_read_for_outcomes_only(stores: Stores) -> None:
    """The order of calls shows no cause: however many runs did the same, nothing is learned, and a
    second look finds no other outcome."""
    fixed = [shell("mvn test", MISSING), shell("./gradlew test", "BUILD SUCCESSFUL")]
    for number in range(5):
        await stores.states.commit(stored(number, fixed, task_preview=f"task {'abcde'[number]}"))
    runs = [f"r{number:04}" for number in range(5)]
    first = await read_again(stores, runs)
    assert (first.runs, first.outcomes > 0) == (5, True)
    assert await lessons(stores) == []
    assert (await read_again(stores, runs)).outcomes == 0


def mined(command: str) -> Pattern:
    """A lesson in trial that an earlier version read off the order of calls."""
    missing = f"bash: {command.split()[0]}: command not found"
    (pattern,) = lessons_of(run([shell(command, missing)], tenant=TENANT))
    assert pattern.lesson is not None
    return replace(pattern, lesson=replace(pattern.lesson, origin="mined", applies_when={}))


def extracted(text: str) -> Pattern:
    """A rule in trial that an earlier version made of a person's words by expressions."""
    pattern = rule(text, TENANT, origin=SAID)
    assert pattern.lesson is not None
    return replace(pattern, lesson=replace(pattern.lesson, status=Status.TRIAL))


MADE = {
    "order of calls": [mined(command) for command in ("mvn test", "npm test", "tox run")],
    "by expressions": [extracted(f"Open {what} as drafts.") for what in ("PRs", "notes", "plans")],
}


@pytest.mark.parametrize("why", list(MADE))
async def test_what_earlier_versions_guessed_is_retired(tmp_path: Path, why: str) -> None:
    """Lessons and rules that were made without a reader are given to no run, and are retired when
    an older file is opened; one that an operator approved stays. Nothing is removed."""
    made = MADE[why]
    path = str(tmp_path / "older.db")
    stores = await open_stores(StorageSettings(path=path))
    await stores.learning.learn([(each, ()) for each in made])
    approved = await stores.learning.lesson(TENANT, made[2].pattern_id)
    assert approved is not None
    actions = LessonActions(stores.learning)
    assert await actions.move(approved, Status.ACTIVE, f"approved {BY_OPERATOR}", 2.0)
    keys = tuple(each.lesson.key for each in made if each.lesson)
    query = LessonQuery(keys=keys, exclude=frozenset(), begins=True, opening=lambda: SHOP)
    given = await LessonBook(stores.learning, failed=print).find(query, TENANT)
    assert [each.pattern.pattern_id for each in given] == [made[2].pattern_id]
    await stores.close()
    with closing(sqlite3.connect(path)) as older:
        older.execute("DELETE FROM migrations WHERE name = 'learning_005_no_guesses'")
        older.commit()
    stores = await open_stores(StorageSettings(path=path))
    found = {each.pattern.pattern_id: each for each in await lessons(stores)}
    status = {
        name: each.pattern.lesson.status for name, each in found.items() if each.pattern.lesson
    }
    assert [status[each.pattern_id] for each in made] == [
        *(Status.RETIRED, Status.RETIRED),
        Status.ACTIVE,
    ]
    assert why in found[made[0].pattern_id].reason
    await stores.close()
