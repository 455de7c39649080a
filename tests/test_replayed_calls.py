"""What a replay draws, counts and looks up for the calls of a recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.guidance_choice import LessonMatch, LessonQuery
from gateway.core.guidance_settings import Gates
from gateway.core.pattern import (
    Lesson,
    Pattern,
    PatternMatch,
    Query,
    Status,
    Tier,
    Trust,
)
from gateway.core.steer import Found
from gateway.offline.playback import LookUps, play
from gateway.offline.recordings import Recording, parse_recording
from gateway.offline.replay import policy_from_dict
from gateway.steering.identity.ids import draw
from tests.conversations.steering import BASH, TASK, step

PATTERN = Pattern(
    tier=Tier.E2, fields={"situation": "Stuck.", "unlock": "Look again."}, pattern_id="p-1"
)
LESSON = Pattern(
    tier=Tier.E2,
    fields={"situation": "The test fails again.", "unlock": "Read the assertion first."},
    pattern_id="l-1",
    lesson=Lesson(
        key="k", status=Status.TRIAL, origin="distilled", trust=Trust.OPERATOR, share=0.5
    ),
)


def failing(name: str, steps: int = 3) -> Recording:
    """A run whose test fails at every step."""
    messages = [*TASK, *(message for number in range(steps) for message in step(number))]
    run: dict[str, Any] = {"id": name, "model": "asked", "messages": messages, "tools": [BASH]}
    return parse_recording(json.dumps(run), "-")


def given(recording: Recording, settings: dict[str, Any], look_ups: LookUps) -> list[list[str]]:
    """The patterns that each call after a step is given."""
    played = play(recording, policy_from_dict(settings), look_ups)
    return [[each.get("pattern_id", "") for each in s.get("guidance", ())] for s in played["steps"]]


def test_a_lesson_is_drawn_for_each_recording() -> None:
    """Its runs are the units of the trial, as the gateway's are by their conversations."""

    def lessons(query: LessonQuery) -> list[LessonMatch]:
        return [LessonMatch(pattern=LESSON, key=key) for key in query.keys[:1]]

    look_ups = LookUps(look_up=lambda queries: {}, gates=Gates(e1=1.0, e2=1.0), lessons=lessons)
    settings = {"learning": {"trials": "on"}}
    names = [f"run-{number}" for number in range(12)]
    found = ["l-1" in given(failing(name), settings, look_ups)[0] for name in names]
    assert found == [draw("l-1@1", f"{name}.0#1") < 0.5 for name in names]
    assert set(found) == {True, False}


@pytest.mark.parametrize("spent", [False, True])
def test_the_tokens_of_earlier_calls_count(spent: bool) -> None:
    """Once they reach the budget, each call asks the agent to hand over its work."""
    budget = {"token_budget": 30 if spent else 10**6, "budget_action": "wrap_up"}
    settings = {"steering": budget}
    look_ups = LookUps(look_up=lambda queries: {}, gates=Gates(e1=1.0, e2=1.0))
    played = play(failing("r"), policy_from_dict(settings), look_ups)
    asked = [any(g["source"] == "skip" for g in s.get("guidance", ())) for s in played["steps"]]
    assert any(asked) is spent


def test_look_ups_use_the_librarys_gates_and_the_recordings_tools() -> None:
    """A match that is similar enough there is given; rules are those for the kind of agent."""
    asked = list[Query]()

    def look_up(queries: Sequence[Query]) -> Found:
        asked.extend(queries)
        return {
            query.tier: [PatternMatch(pattern=replace(PATTERN, tier=query.tier), similarity=0.5)]
            for query in queries
        }

    look_ups = LookUps(look_up=look_up, gates=Gates(e1=0.0, e2=0.0))
    settings = {"etraces": {"e2_when": "always"}}
    assert "p-1" in given(failing("r"), settings, look_ups)[0]
    assert [query.kind for query in asked if query.tier is Tier.E3] == ["coding"]
