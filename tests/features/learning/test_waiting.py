"""Runs that end faster than they are read do not fill the memory."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, cast

from gateway.backends import open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.features.learning.settings import LearningSettings
from gateway.features.learning.worker import MOST_WAITING, Learner
from tests.features.learning.runs import shell, stored

MISSING = "bash: mvn: command not found"


def test_the_runs_without_a_call_for_longest_are_given_up() -> None:
    """At most MOST_WAITING runs wait; a run that goes on keeps its place among the newest."""
    nowhere = cast(Any, None)  # nothing is read from a store until a look
    learner = Learner(nowhere, nowhere, LearningSettings)
    for number in range(MOST_WAITING + 50):
        learner.touch(f"r{number}", "t", step=0, ended=True, decided=False)
        learner.touch("r0", "t", step=number, ended=False, decided=False)
    assert learner.waiting == MOST_WAITING
    assert "r0" in learner._touched
    assert "r50" not in learner._touched


async def test_a_run_is_read_when_its_last_calls_are_stored() -> None:
    """While calls wait to be stored, a run that is over is not read: it would be read in part, and
    never again."""
    calls = [shell("mvn test", MISSING), shell("./gradlew test", "BUILD SUCCESSFUL")]
    async with AsyncExitStack() as opened:
        stores = await open_stores(StorageSettings(path=IN_MEMORY))
        opened.push_async_callback(stores.close)
        waits = [True]
        learner = Learner(
            stores.learning,
            stores.runs,
            LearningSettings,
            behind=lambda: bool(waits),
        )
        record = stored(0, calls)
        learner.touch(
            record.runs[0].id, record.conversation.tenant, step=2, ended=True, decided=False
        )
        assert (await learner.look()).runs == 0
        await stores.states.commit(record)
        waits.clear()
        assert (await learner.look()).runs == 1
        assert learner.waiting == 0
