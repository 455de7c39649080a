"""OpenHands' events: folders and lists of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.features.history.find import at_home
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from tests.features.history.logs import (
    PROGRAMS,
    Counts,
    acts,
    counts,
    read,
    sessions,
    write_files,
)

FILES: dict[str, Any] = json.loads((PROGRAMS / "openhands-sdk-1.58.2.json").read_text())


def conversation(tmp_path: Path, name: str) -> Session:
    write_files(tmp_path, {path: c for path, c in FILES.items() if path.startswith(name)})
    (session,) = sessions(tmp_path)
    return session


@pytest.mark.parametrize(
    ("name", "said", "interrupts", "rejects"), [("rejected", 4, 0, 1), ("stopped", 3, 2, 0)]
)
def test_a_conversation_has_what_the_program_counted_itself(
    tmp_path: Path, name: str, said: int, interrupts: int, rejects: int
) -> None:
    """Counts, tokens and price are those of the program's own state."""
    session = conversation(tmp_path, name)
    events = [value for path, value in FILES.items() if path.startswith(f"{name}/events")]
    metrics = FILES[f"{name}/base_state.json"]["stats"]["usage_to_metrics"]["agent"]
    total = metrics["accumulated_token_usage"]
    assert counts(session) == Counts(
        steps=len({event["llm_response_id"] for event in events if "llm_response_id" in event}),
        calls=sum("tool_call" in event for event in events),
        said=said,
        interrupts=interrupts,
        rejects=rejects,
        tokens=total["prompt_tokens"] + total["completion_tokens"],
    )
    cost = sum(call.cost_usd or 0 for call in session.calls)
    assert cost == pytest.approx(metrics["accumulated_cost"])
    assert session.lines == 1 + len(events)
    assert not session.reasons
    assert session.project == "/project"


def test_results_are_as_the_model_saw_them(tmp_path: Path) -> None:
    """A result has what the shell said of the command; a rejection has its reason."""
    session = conversation(tmp_path, "rejected")
    first, unknown, *_ = extract(session.messages)
    assert first.thought == "I look."
    assert first.actions[1].observation == (
        "ls: cannot access 'nothere': No such file or directory\n"
        "[The command completed with exit code 2.]\n"
        "[Current working directory: /project]\n"
        "[Python interpreter: /usr/bin/python]\n"
        "[Command finished with exit code 2]"
    )
    assert unknown.actions[0].is_error
    rejected = next(turn for turn in session.human if turn.kind == "reject")
    assert rejected.text == "Keep the file, rename it."
    text = session.messages[rejected.position]["content"]
    assert text == "Action rejected: Keep the file, rename it."


def test_homes_lead_to_each_conversation_once(tmp_path: Path) -> None:
    """Each conversation is found by one of its files."""
    folder = tmp_path / ".openhands/conversations"
    write_files(folder, FILES)
    found = at_home(tmp_path)
    assert len(found) == 2
    assert {session.id for log in found for session in read(log)} == {
        content["id"] for path, content in FILES.items() if "base_state" in path
    }


def test_a_sub_agent_has_its_parent_and_no_person(tmp_path: Path) -> None:
    """Messages to a sub-agent are not said by a person."""
    files = {path: c for path, c in FILES.items() if path.startswith("stopped")}
    write_files(tmp_path / "main/subagents", files)
    (session,) = sessions(tmp_path)
    assert session.parent == "main"
    assert acts(session, "message") == 0


def test_a_hooks_rejection_is_no_persons(tmp_path: Path) -> None:
    """A call that a hook blocked is not rejected by a person."""
    changed = json.loads(json.dumps(FILES))
    for event in changed.values():
        if event.get("kind") == "UserRejectObservation":
            event["rejection_source"] = "hook"
    write_files(tmp_path, {path: c for path, c in changed.items() if path.startswith("rejected")})
    (session,) = sessions(tmp_path)
    assert acts(session, "reject") == 0


def test_a_rejection_without_a_reason_has_no_words(tmp_path: Path) -> None:
    """The program's default reason is not the person's."""
    changed = json.loads(json.dumps(FILES))
    for event in changed.values():
        event.pop("rejection_reason", None)
        if event.get("kind") == "UserRejectObservation":
            event["rejection_reason"] = "User rejected the action"
    write_files(tmp_path, {path: c for path, c in changed.items() if path.startswith("rejected")})
    (session,) = sessions(tmp_path)
    assert [turn.text for turn in session.human if turn.kind == "reject"] == [""]


def test_a_condensation_is_a_compaction(tmp_path: Path) -> None:
    """A summary is a message at which the history was compacted."""
    files = {path: c for path, c in FILES.items() if path.startswith("stopped")}
    condensed = {"kind": "Condensation", "summary": "Two files.", "source": "environment"}
    write_files(tmp_path, files | {"stopped/events/event-00099-aa.json": condensed})
    (session,) = sessions(tmp_path)
    assert session.compactions == [len(session.messages) - 1]
    assert session.messages[-1]["content"] == "Two files."


def test_broken_events_are_noted(tmp_path: Path) -> None:
    """Each unreadable event has its reason, and the rest is read."""
    write_files(tmp_path, {path: c for path, c in FILES.items() if path.startswith("stopped")})
    paths = sorted((tmp_path / "stopped/events").iterdir())
    paths[4].write_text("")
    paths[5].write_text("[1]")
    paths[6].write_text('{"kind": "HologramEvent"}')
    paths[7].write_text('{"id": 3}')
    (session,) = sessions(tmp_path)
    assert session.reasons == {
        "not an object in JSON": 2,
        "unknown kind 'HologramEvent'": 1,
        "unknown kind ''": 1,
    }


def test_cut_off_and_empty_files_have_no_session(tmp_path: Path) -> None:
    """Broken files give no session and raise nothing."""
    (tmp_path / "base_state.json").write_text('{"workspace": ')
    (tmp_path / "list.json").write_text('[{"source": "user", "kind": "x", "timestamp": ')
    assert sessions(tmp_path) == []
