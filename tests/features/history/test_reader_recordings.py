"""Recorded runs: transcripts as chat messages, and what the gateway itself exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli import main
from gateway.features.history.find import named
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from gateway.wire.usage import tokens_of
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall, Usage

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
REFUSED = "The user doesn't want to proceed with this tool use. The user said:\nnot there"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Repair it."},
    {"role": "assistant", "content": "Now.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": REFUSED},
    {"role": "user", "content": "[Request interrupted by user]"},
    {"role": "user", "content": "Summary: it was repaired.", "compact": True},
    {"role": "user", "content": "No, keep the name."},
    {"role": "assistant", "content": "Kept."},
]


def read(path: Path) -> list[Session]:
    return [each for found in named([path]) for each in found.sessions(found.open())]


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def acts(session: Session) -> list[tuple[str, int, str]]:
    return [(turn.kind, turn.position, turn.text) for turn in session.human]


def test_a_transcript_is_a_session(tmp_path: Path) -> None:
    """What the person did is read from the agents' own wordings."""
    record = {"id": "one", "source": "mine", "model": "m", "success": False, "messages": MESSAGES}
    (session,) = read(written(tmp_path / "runs.jsonl", record))
    assert (session.id, session.project, session.outcome) == ("one", "mine", False)
    assert session.messages == MESSAGES
    assert [(call.position, call.model) for call in session.calls] == [(2, "m"), (7, "m")]
    assert session.compactions == [5]
    assert acts(session) == [
        ("message", 1, "Repair it."),
        ("reject", 3, "not there"),
        ("message", 6, "No, keep the name."),
    ]


def test_labels_say_what_the_person_did(tmp_path: Path) -> None:
    """Where a recording has them they are believed, also one after the last message; one after a
    rejection is the same stop."""
    labels = {"interventions": [["interrupt", 6], ["reject", 3], ["interrupt", 8], ["odd", 1], 7]}
    record = {"id": "one", "messages": MESSAGES, "labels": labels, "started": "2026-02-01T10:00Z"}
    (session,) = read(written(tmp_path / "runs.jsonl", record))
    done = [each for each in acts(session) if each[0] != "message"]
    assert done == [("reject", 3, "not there"), ("interrupt", 8, "")]
    assert session.started == 1769940000


@pytest.mark.parametrize("form", ["jsonl", "openai"])
def test_own_exports_are_sessions(
    gateway_server: Callable[..., AppServer],
    upstream: ScriptedUpstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    """A run that a gateway served and exported has its messages, calls and tokens again."""
    usage = Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=60)
    call = ToolCall("bash", {"command": "pytest"})
    upstream.script(Reply("Now.", tool_calls=(call,), usage=usage), Reply("Done.", usage=usage))
    server = gateway_server()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair it."}]
    for result in ("1 failed", None):
        body = {"model": "gpt-4o-mini", "messages": messages}
        answer = httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=120).json()
        made = answer["choices"][0]["message"]
        messages.append(
            {name: made[name] for name in ("role", "content", "tool_calls") if name in made}
        )
        if result:
            name = made["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": name, "content": result})
    server.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEWAY_STORAGE__PATH", server.app.runtime.settings.storage.path)
        assert main(["runs", "export", "--format", form]) == 0
    path = tmp_path / "exported.jsonl"
    path.write_text(capsys.readouterr().out)
    (session,) = read(path)
    first, last = extract(session.messages)
    assert first.actions[0].observation == "1 failed"
    assert (first.thought, last.thought) == ("Now.", "Done.")
    assert [turn.text for turn in session.human] == ["Repair it."]
    assert [session.messages[each.position]["role"] for each in session.calls] == ["assistant"] * 2
    if form == "jsonl":
        assert [sum(tokens_of(each.usage).values()) for each in session.calls] == [107, 107]
        assert [tokens_of(each.usage)["cache_read"] for each in session.calls] == [60, 60]


def test_lines_that_are_no_recordings_are_named(tmp_path: Path) -> None:
    """Each with its line and a reason; the others are read."""
    path = written(tmp_path / "runs.jsonl", {"id": "a", "messages": MESSAGES}, {"messages": 5})
    with path.open("a") as file:
        file.write('{"steps": [{"at": "noon"}]}\n[1]\nnonsense\n{"id": "b", "messages": []}\n')
    first, second = read(path)
    assert (first.id, second.id) == ("a", "b")
    assert [unread.line for unread in first.unread] == [2, 3, 4, 5]
    assert first.reasons["neither `messages` nor `steps` is a list"] == 1


@pytest.mark.parametrize("text", [r'"C:\new\\.txt \d \\d \u00e9 \ud"', r'"\x"'])
def test_a_backslash_that_json_does_not_know_is_read_as_itself(tmp_path: Path, text: str) -> None:
    """Masked texts have such; backslashes that JSON knows keep their meaning."""
    path = tmp_path / "runs.jsonl"
    message = '{"role": "user", "content": TEXT}'.replace("TEXT", text)
    path.write_text(f'{{"id": "a", "messages": [{message}]}}\n')
    (session,) = read(path)
    content = {'"C': "C:\new\\.txt \\d \\d é \\ud", '"\\': "\\x"}[text[:2]]
    assert session.messages[0]["content"] == content
    assert session.unread == []
