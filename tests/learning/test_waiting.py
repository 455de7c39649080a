"""Runs that end faster than they are read do not fill the memory."""

from __future__ import annotations

from typing import Any, cast

from gateway.config.learning import LearningSettings
from gateway.learning.worker import MOST_WAITING, Learner


def test_the_runs_without_a_call_for_longest_are_given_up() -> None:
    """At most MOST_WAITING runs wait; a run that goes on keeps its place among the newest."""
    nowhere = cast(Any, None)  # nothing is read from a store until a look
    learner = Learner(nowhere, nowhere, nowhere, LearningSettings, has_secret=lambda _: False)
    for number in range(MOST_WAITING + 50):
        learner.touch(f"r{number}", "t", step=0, ended=True, decided=False)
        learner.touch("r0", "t", step=number, ended=False, decided=False)
    assert learner.waiting == MOST_WAITING
    assert "r0" in learner._touched
    assert "r50" not in learner._touched
