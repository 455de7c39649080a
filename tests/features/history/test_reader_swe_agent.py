"""Trajectories of mini-swe-agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from tests.features.history.logs import PROGRAMS, Counts, counts, sessions

MINI = sorted(PROGRAMS.glob("mini-swe-agent-*.traj.json"))


def mini(name: str) -> Session:
    (session,) = sessions(PROGRAMS / f"mini-swe-agent-2.4.6-{name}.traj.json")
    return session


def values(document: object, name: str) -> Iterator[Any]:
    """All values with a name, wherever they are in a document."""
    if isinstance(document, dict):
        yield from ([document[name]] if document.get(name) is not None else [])
        document = list(document.values())
    if isinstance(document, list):
        for each in document:
            yield from values(each, name)


@pytest.mark.parametrize("path", MINI, ids=lambda path: path.stem)
def test_each_call_of_the_model_is_a_step_with_its_tokens(path: Path) -> None:
    """Steps and tokens are those of all the provider's responses in the file."""
    (session,) = sessions(path)
    document = json.loads(path.read_text())
    found = counts(session)
    assert found.steps == document["info"]["model_stats"]["api_calls"]
    assert found.tokens == sum(values(document, "total_tokens"))
    assert session.lines == len(document["messages"])
    assert not session.unread
    assert (session.agent, session.version) == ("mini-swe-agent", "2.4.6")
    assert session.outcome is None


def test_calls_as_tools_keep_their_results() -> None:
    """Native calls have their results; an answer without a call is a step."""
    session = mini("tool")
    assert counts(session)[1:5] == (4, 1, 0, 0)
    assert [turn.text for turn in session.human] == ["repair the test"]
    first, refused, both, _ = extract(session.messages)
    assert (first.actions[0].name, first.actions[0].arguments) == ("bash", '{"command": "ls"}')
    assert json.loads(first.actions[0].observation) == {"returncode": 0, "output": "a.txt\n"}
    assert (refused.thought, refused.actions) == ("No call at all.", ())
    assert [json.loads(action.observation)["returncode"] for action in both.actions] == [2, 0]


def test_calls_in_the_text_keep_their_results() -> None:
    """Calls written into the text have the messages behind them as results."""
    session = mini("text")
    assert counts(session)[1:5] == (3, 1, 0, 0)
    first, _, failed, _ = extract(session.messages)
    assert "<returncode>0</returncode>" in first.actions[0].observation
    assert "No such file" in failed.actions[0].observation


def test_a_person_rejects_interrupts_and_adds_a_task() -> None:
    """Each act of the person has its words."""
    session = mini("inter")
    assert counts(session)[1:5] == Counts(0, 5, 2, 1, 1, 0)[1:5]
    assert [(turn.kind, turn.text) for turn in session.human] == [
        ("message", "rename the file"),
        ("reject", "move it, do not delete it"),
        ("interrupt", "look first"),
        ("message", "say hi"),
    ]
    for turn in session.human:
        assert session.messages[turn.position]["role"] == "user"


@pytest.mark.parametrize("path", MINI, ids=lambda path: path.stem)
def test_a_cut_off_trajectory_is_noted_or_not_taken(tmp_path: Path, path: Path) -> None:
    """Half a document gives no session and raises nothing."""
    text = path.read_bytes()
    for kept in (1, 100, len(text) // 2, len(text) - 3):
        (tmp_path / path.name).write_bytes(text[:kept])
        assert sessions(tmp_path) == []


@pytest.mark.parametrize("messages", [[1, None, "x"], [{"role": "wizard"}], [{}]])
def test_odd_messages_are_noted(tmp_path: Path, messages: list[object]) -> None:
    """Messages of no known form are named, and the rest is read."""
    good = {"role": "assistant", "content": "Hi.", "extra": {"response": "<repr>"}}
    document = {
        "info": None,
        "messages": [*messages, good],
        "trajectory_format": "mini-swe-agent-1",
    }
    (tmp_path / "x.traj.json").write_text(json.dumps(document))
    (session,) = sessions(tmp_path)
    assert len(session.calls) == 1
    assert sum(session.reasons.values()) == len(messages)
