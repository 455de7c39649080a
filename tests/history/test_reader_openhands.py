"""OpenHands' events: folders of both generations, lists of events, and results of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.history.find import at_home
from gateway.history.session import Session
from gateway.steering.transcript.steps import extract
from tests.history.logs import PROGRAMS, Counts, counts, read, sessions, write_files

FILES: dict[str, Any] = json.loads((PROGRAMS / "openhands-sdk-1.58.2.json").read_text())
EVALUATION = PROGRAMS / "openhands-0.x-output.jsonl"


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
    folder = tmp_path / ".openhands/conversations"
    write_files(folder, FILES)
    write_files(tmp_path / ".openhands/sessions/old/events", dict(_old_files()))
    found = at_home(tmp_path)
    assert len(found) == 3
    assert {session.id for log in found for session in read(log)} == {
        "old",
        *(content["id"] for path, content in FILES.items() if "base_state" in path),
    }


def test_a_sub_agent_has_its_parent_and_no_person(tmp_path: Path) -> None:
    files = {path: c for path, c in FILES.items() if path.startswith("stopped")}
    write_files(tmp_path / "main/subagents", files)
    (session,) = sessions(tmp_path)
    assert session.parent == "main"
    assert session.count("message") == 0


def test_a_hooks_rejection_is_no_persons(tmp_path: Path) -> None:
    changed = json.loads(json.dumps(FILES))
    for event in changed.values():
        if event.get("kind") == "UserRejectObservation":
            event["rejection_source"] = "hook"
    write_files(tmp_path, {path: c for path, c in changed.items() if path.startswith("rejected")})
    (session,) = sessions(tmp_path)
    assert session.count("reject") == 0


def test_a_rejection_without_a_reason_has_no_words(tmp_path: Path) -> None:
    changed = json.loads(json.dumps(FILES))
    for event in changed.values():
        event.pop("rejection_reason", None)
        if event.get("kind") == "UserRejectObservation":
            event["rejection_reason"] = "User rejected the action"
    write_files(tmp_path, {path: c for path, c in changed.items() if path.startswith("rejected")})
    (session,) = sessions(tmp_path)
    assert [turn.text for turn in session.human if turn.kind == "reject"] == [""]


def test_a_condensation_is_a_compaction(tmp_path: Path) -> None:
    files = {path: c for path, c in FILES.items() if path.startswith("stopped")}
    condensed = {"kind": "Condensation", "summary": "Two files.", "source": "environment"}
    write_files(tmp_path, files | {"stopped/events/event-00099-aa.json": condensed})
    (session,) = sessions(tmp_path)
    assert session.compactions == [len(session.messages) - 1]
    assert session.messages[-1] == {"role": "user", "content": "Two files."}


def test_an_evaluation_has_the_tokens_of_its_metrics() -> None:
    (session,) = sessions(EVALUATION)
    record = json.loads(EVALUATION.read_text())
    actions = [e for e in record["history"] if e.get("tool_call_metadata") and "action" in e]
    usages = record["metrics"]["token_usages"]
    spent = sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
    assert counts(session) == (len(usages), len(actions), 1, 0, 0, spent)
    assert session.id == record["instance_id"]
    assert not session.reasons


def _old_files() -> list[tuple[str, dict[str, Any]]]:
    """A session of version 0.x by its schema, after the recorded one: a person rejects a command,
    stops the agent, and gets an answer whose tokens only the sum of the session tells."""
    recorded = json.loads(EVALUATION.read_text())["history"]
    last = recorded[-1]["id"]
    total = next(e["llm_metrics"] for e in reversed(recorded) if "llm_metrics" in e)
    sums = dict(total["accumulated_token_usage"])
    sums["prompt_tokens"] += 100
    sums["completion_tokens"] += 7
    more: list[dict[str, Any]] = [
        {
            "source": "agent",
            "action": "run",
            "args": {"command": "rm a", "thought": "I remove it."},
        },
        {
            "source": "user",
            "observation": "user_rejected",
            "content": "Action has been rejected by the user! Waiting for further user input.",
            "cause": last + 1,
            "extras": {},
        },
        {"source": "user", "action": "change_agent_state", "args": {"agent_state": "stopped"}},
        {"source": "environment", "observation": "agent_state_changed", "content": ""},
        {"source": "user", "action": "message", "args": {"content": "Say hi."}},
        {
            "source": "agent",
            "action": "message",
            "args": {"content": "Hi."},
            "llm_metrics": {"accumulated_token_usage": sums},
        },
    ]
    events = [*recorded, *({"id": last + 1 + at, **event} for at, event in enumerate(more))]
    return [(f"{event['id']}.json", event) for event in events]


@pytest.mark.parametrize("form", ["folder", "list"])
def test_events_of_the_older_generation(tmp_path: Path, form: str) -> None:
    files = _old_files()
    if form == "folder":
        write_files(tmp_path / "old/events", dict(files))
    else:
        (tmp_path / "old.json").write_text(json.dumps([event for _, event in files]))
    (session,) = sessions(tmp_path)
    (recorded,) = sessions(EVALUATION)
    before = counts(recorded)
    assert counts(session)[:5] == (before.steps + 2, before.calls + 1, 2, 1, 1)
    assert session.id == "old"
    assert session.lines in (len(files), len(files) + 1)
    *_, rejected, answer = extract(session.messages)
    assert (rejected.thought, rejected.actions[0].name) == ("I remove it.", "run")
    assert rejected.actions[0].observation.startswith("Action has been rejected by the user!")
    assert answer.thought == "Hi."
    usage = session.calls[-1].usage
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, 7)


def test_broken_events_are_noted(tmp_path: Path) -> None:
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
        "an event of no known kind": 1,
    }


def test_cut_off_and_empty_files_have_no_session(tmp_path: Path) -> None:
    text = EVALUATION.read_bytes()
    (tmp_path / "output.jsonl").write_bytes(text[: len(text) // 2])
    (tmp_path / "base_state.json").write_text('{"workspace": ')
    (tmp_path / "0.json").write_text("")
    (tmp_path / "list.json").write_text('[{"source": "user", "action": "x", "timestamp": ')
    assert sessions(tmp_path) == []


def test_the_harness_of_an_evaluation_is_no_person(tmp_path: Path) -> None:
    record = json.loads(EVALUATION.read_text())
    reply = {"source": "user", "action": "message", "args": {"content": "Please continue."}}
    record["history"].append({"id": 99, **reply})
    record["test_result"]["report"] = {"resolved": False}
    (tmp_path / "output.jsonl").write_text(json.dumps(record) + "\n")
    (session,) = sessions(tmp_path)
    assert session.count("message") == 1
    assert session.messages[-1]["content"] == "Please continue."
    assert session.outcome is False
