"""A person who stops the agent again and again: what counts, and what it leads to."""

from __future__ import annotations

import json

import pytest

from gateway.core.decision_settings import Policy
from gateway.steering.runs_of_transcript import ConversationFold

REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). To tell you how to proceed, the "
    "user said:\nnot like this"
)


def step(number: int, result: str | None, tool: str = "Edit") -> list[dict]:
    """A call with its result; None for none."""
    arguments = json.dumps({"file_path": f"/w/{number}.py", "old_string": "a", "new_string": "b"})
    call: dict[str, object] = {"id": f"c{number}", "type": "function"}
    call |= {"function": {"name": tool, "arguments": arguments}}
    found: list[dict] = [{"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]}]
    if result is not None:
        found.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return found


def alarmed(*stopped: list[dict], apart: int = 3) -> list[int]:
    """The steps with an alarm of a run in which these stops are so many steps apart."""
    messages: list[dict] = [{"role": "user", "content": "Do the task."}]
    number = 100
    for stop in stopped:
        messages += stop
        for _ in range(apart):
            number += 1
            messages += step(number, f"File {number} has been updated.")
    outcomes = ConversationFold(Policy()).extend(messages)
    return [
        each.step.index
        for each in outcomes
        for alarm in each.readings.alarms
        if alarm.sentence.startswith("the person stopped the agent")
    ]


@pytest.mark.parametrize(
    "stop",
    [
        step(1, REFUSED),
        [*step(1, "done"), {"role": "user", "content": "<turn_aborted>\nThe user interrupted"}],
        [*step(1, None), {"role": "user", "content": "wait, look at the tests first"}],
        step(1, "exec command rejected by user"),
    ],
    ids=["refused", "interrupted", "cut", "codex"],
)
def test_a_third_stop_within_twelve_steps_raises_an_alarm(stop: list[dict]) -> None:
    """In the step after it; two stops, or three far apart, raise none."""
    assert alarmed(stop, stop, stop) == [9]
    assert alarmed(stop, stop) == []
    assert alarmed(stop, stop, stop, apart=7) == []


@pytest.mark.parametrize("tool", ["AskUserQuestion", "ExitPlanMode", "request_user_input"])
def test_what_the_user_is_asked_for_is_no_stop(tool: str) -> None:
    """An answer in other words, and remarks on a plan, are what the agent asked for."""
    assert alarmed(*[step(1, REFUSED, tool)] * 4) == []


def test_stops_are_counted_over_the_runs_of_a_conversation() -> None:
    """A question of the agent in between, and its answer, end a run and not the trouble."""
    talk = [
        {"role": "assistant", "content": "It is done. Anything else?"},
        {"role": "user", "content": "I do not see the change."},
    ]
    stop = step(1, REFUSED)
    assert alarmed([*stop, *talk], stop, [*talk, *stop], apart=2)
