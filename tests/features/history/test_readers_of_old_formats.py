"""Forms that agents no longer write, and SpecStory's Markdown, which is written from other logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.features.history.find import at_home, identify
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from gateway.wire.usage import tokens_of
from tests.features.history.logs import counts, read, sessions, write_files

SPECSTORY = Path(__file__).parent / "logs" / "specstory"
ROLLOUT = "c3c4b301-27c8-4c70-b6e4-46b99fdf0236"
META = {"id": ROLLOUT, "timestamp": "2025-08-18T01:16:13.522Z", "instructions": None}
Files = dict[str, Any]


def one_at_home(home: Path) -> Session:
    (found,) = at_home(home)
    assert identify(found.path).format == found.format
    (session,) = read(found)
    assert not session.reasons
    return session


def codex_items() -> list[dict[str, Any]]:
    def said(role: str, kind: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    where = "<environment_context>\n  <cwd>/home/dev/shop</cwd>\n</environment_context>"
    result = json.dumps({"output": "two tests failed", "metadata": {"exit_code": 1}})
    call = {"name": "shell", "arguments": '{"command": ["make"]}', "call_id": "call_1"}
    return [
        said("user", "input_text", where),
        said("user", "input_text", "repair the tests"),
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": "call_1", "output": result},
        said("assistant", "output_text", "Two tests fail."),
    ]


@pytest.mark.parametrize("form", ["lines", "lines with git", "document"])
def test_codex_before_0_30(tmp_path: Path, form: str) -> None:
    """Bare items after a line about the session, or, in the first versions, one document."""
    folder = tmp_path / ".codex" / "sessions"
    folder.mkdir(parents=True)
    if form == "document":
        document = {"session": META, "items": codex_items()}
        (folder / "rollout-2025-05-01.json").write_text(json.dumps(document, indent=2))
    else:
        meta = {"git": {"branch": "main"}, **META} if "git" in form else META
        lines = [meta, {"record_type": "state"}, *codex_items()]
        (folder / "rollout-2025-08-18.jsonl").write_text("\n".join(map(json.dumps, lines)))
    session = one_at_home(tmp_path)
    assert (session.agent, session.id, session.project) == ("codex", ROLLOUT, "/home/dev/shop")
    assert [turn.text for turn in session.human] == ["repair the tests"]
    first, last = extract(session.messages)
    assert (first.reasoning, first.actions[0].name, last.thought) == (
        "Hm.",
        "shell",
        "Two tests fail.",
    )
    assert "two tests failed" in first.actions[0].observation
    assert session.started is not None


def opencode_files(info: str, messages: str, parts: str) -> Files:
    """The files of a session, by the folders of a version."""
    tokens = {"input": 100, "output": 7, "reasoning": 0, "cache": {"read": 40, "write": 0}}
    ran = {"status": "completed", "input": {"command": "make"}, "output": "ok"}
    times = {"created": 1_750_000_000_000, "updated": 1_750_000_009_000}
    return {
        f"{info}/ses_1.json": {"id": "ses_1", "title": "Tests", "version": "0.3.0", "time": times},
        f"{messages}/ses_1/msg_1.json": {"id": "msg_1", "role": "user", "time": times},
        f"{messages}/ses_1/msg_2.json": {
            "id": "msg_2",
            "role": "assistant",
            "modelID": "m",
            "time": times,
            "cost": 0.25,
            "tokens": tokens,
        },
        f"{parts}/msg_1/prt_1.json": {"type": "text", "text": "repair the tests"},
        f"{parts}/msg_2/prt_2.json": {"type": "step-start"},
        f"{parts}/msg_2/prt_3.json": {"type": "tool", "tool": "bash", "callID": "c", "state": ran},
        f"{parts}/msg_2/prt_4.json": {"type": "step-finish", "tokens": tokens, "cost": 0.25},
    }


@pytest.mark.parametrize(
    "folders",
    [
        ("storage/session/a1b2", "storage/message", "storage/part"),
        (
            "project/home-dev-shop/storage/session/info",
            "project/home-dev-shop/storage/session/message",
            "project/home-dev-shop/storage/session/part/ses_1",
        ),
    ],
)
def test_opencode_before_1_2(tmp_path: Path, folders: tuple[str, str, str]) -> None:
    """A file for each session, message and part, in the two orders of folders that there were."""
    write_files(tmp_path / ".local" / "share" / "opencode", opencode_files(*folders))
    session = one_at_home(tmp_path)
    assert counts(session) == (1, 1, 1, 0, 0, 147)
    assert (session.id, session.title, session.lines) == ("ses_1", "Tests", 7)
    assert session.calls[0].cost_usd == 0.25
    (step,) = extract(session.messages)
    assert (step.actions[0].name, step.actions[0].observation) == ("bash", "ok")


def test_opencode_that_took_the_files_over_is_paid_once(tmp_path: Path) -> None:
    """The export of a session has the answers of its files."""
    files = opencode_files("storage/session/a", "storage/message", "storage/part")
    write_files(tmp_path, files)
    entries = [
        {"info": value, "parts": [p for f, p in files.items() if f"part/{value['id']}/" in f]}
        for name, value in files.items()
        if "/message/" in name
    ]
    info = next(iter(files.values()))
    write_files(tmp_path, {"export.json": {"info": info, "messages": entries}})
    first, second = sessions(tmp_path)
    assert [call.key for call in first.calls] == [call.key for call in second.calls] != [""]


def openhands_events() -> list[dict[str, Any]]:
    """Events as version 0.59 wrote them, with a call that was asked for as text at the end."""

    def event(number: int, source: str, **more: Any) -> dict[str, Any]:
        stamp = f"2025-06-01T10:00:{number:02}.000000"
        return {"id": number, "timestamp": stamp, "source": source, "message": "", **more}

    usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
    usage |= {"prompt_tokens_details": {"cached_tokens": 40}}  # type: ignore[dict-item]
    answer = {"id": "chatcmpl-1", "model": "claude-sonnet-4", "usage": usage}
    called = {"function_name": "execute_bash", "tool_call_id": "toolu_1", "model_response": answer}
    second = {**called, "tool_call_id": "toolu_2"}
    run = {"command": "make", "thought": "I look first."}
    return [
        event(0, "agent", action="system", args={"content": "You are OpenHands."}),
        event(1, "user", action="message", args={"content": "repair the tests"}),
        event(2, "user", action="recall", args={"query": "repair the tests"}),
        event(3, "environment", observation="recall", cause=2, content="knowledge"),
        event(4, "agent", action="run", args=run, tool_call_metadata=called),
        event(5, "agent", action="read", args={"path": "a.py"}, tool_call_metadata=second),
        event(6, "agent", observation="run", cause=4, content="1 failed", extras={}),
        event(7, "agent", observation="error", cause=5, content="no such file"),
        event(8, "environment", observation="agent_state_changed", content="", extras={}),
        event(9, "agent", action="run", args={"command": "make test"}),
        event(10, "agent", observation="user_rejected", cause=9, content="no"),
        event(11, "agent", action="write", args={"path": "b.py", "content": "x = 1"}),
        event(12, "agent", observation="write", cause=11, content="written"),
        event(13, "agent", action="message", args={"content": "All done.", "thought": ""}),
        event(14, "user", action="message", args={"content": "thanks"}),
        event(15, "agent", action="finish", args={"final_thought": "", "thought": "Bye."}),
    ]


def test_openhands_0_48() -> None:
    """Results are as the model saw them, under the names of its tools."""
    (session,) = sessions(SPECSTORY.parent / "openhands" / "0.48.0.json")
    assert counts(session) == (3, 3, 1, 0, 0, 10_613)
    failed, ran, finished = (step.actions[0] for step in extract(session.messages))
    assert [failed.name, ran.name, finished.name] == ["execute_bash", "execute_bash", "finish"]
    assert failed.observation.endswith("[Command finished with exit code 2]")
    assert "[The command completed with exit code 0.]" in ran.observation
    assert tokens_of(session.calls[2].usage)["cache_read"] == 8960
    assert {call.model for call in session.calls} == {"gpt-5.1-2025-11-13"}


@pytest.mark.parametrize("form", ["folder", "export"])
def test_openhands_before_1_0(tmp_path: Path, form: str) -> None:
    """A file for each event, or the list that the program exports."""
    events = openhands_events()
    if form == "folder":
        folder = tmp_path / ".openhands" / "sessions" / "abc123" / "events"
        write_files(folder, {f"{event['id']}.json": event for event in events})
        session = one_at_home(tmp_path)
        assert (session.id, session.lines) == ("abc123", 16)
    else:
        write_files(tmp_path, {"abc123.json": events})
        (session,) = sessions(tmp_path)
    assert [(turn.kind, turn.text) for turn in session.human] == [
        ("message", "repair the tests"),
        ("reject", ""),
        ("message", "thanks"),
    ]
    steps = extract(session.messages)
    results = [[action.observation for action in step.actions] for step in steps]
    assert results == [["1 failed", "no such file"], ["no"], ["written"], [], [""]]
    said = ["I look first.", "", "", "All done.", "Bye."]
    assert [step.thought for step in steps] == said
    assert steps[0].actions[1].is_error
    assert counts(session).tokens == 107
    assert session.calls[0].model == "claude-sonnet-4"


def test_specstory_of_claude_code() -> None:
    """Each block in a section of the agent is a call with its result."""
    path = SPECSTORY / "2026-03-06_17-57-45Z-give-me-the-exact.md"
    (session,) = sessions(path)
    assert (session.agent, session.id) == ("specstory", "fffd6c6f-eb97-413c-b701-965dfba44bc2")
    assert counts(session) == (5, 3, 2, 0, 0, 0)
    steps = extract(session.messages)
    assert [[action.name for action in step.actions] for step in steps] == [
        *(["ToolSearch"], ["Grep"], []),
        *(["Grep"], []),
    ]
    asked = steps[1].actions[0]
    assert asked.arguments == (
        "path `./specstory-cli/README.md` pattern `otel|verbose|debug|watch`"
    )
    assert asked.observation.splitlines()[-1] == "423-```"
    assert steps[2].thought.startswith("Here's the command")
    assert session.calls[0].model == "claude-sonnet-4-6"
    assert session.lines == len(path.read_text().splitlines())


def test_specstory_of_cursor() -> None:
    """Blocks in the other order of tags, without results, and an answer in sections of its own for
    its text and its calls, of which only the first has a time."""
    (session,) = sessions(SPECSTORY / "2025-06-30_12-46-48Z-fix-unknown-field.md")
    assert counts(session) == (3, 3, 1, 0, 0, 0)
    edit = extract(session.messages)[1].actions[0]
    assert edit.name == "search_replace"
    assert "AgentName" in edit.observation
    assert {call.model for call in session.calls} == {"claude-4-sonnet"}


def test_sections_that_a_result_quotes_are_no_sections(tmp_path: Path) -> None:
    """An agent that reads such a file shows it."""
    text = (SPECSTORY / "2026-03-06_17-57-45Z-give-me-the-exact.md").read_text()
    quoted = text.replace("118-[logging]", "_**User (2026-03-06 17:57:45Z)**_\n\nnot said")
    path = tmp_path / "project" / ".specstory" / "history" / "a.md"
    path.parent.mkdir(parents=True)
    path.write_text(quoted)
    (session,) = sessions(path)
    assert counts(session)[:3] == (5, 3, 2)
    assert session.project == str(tmp_path / "project")


@pytest.mark.parametrize("name", ["rollout.json", "ses_1.json", "0.json", "a.md"])
def test_broken_files_of_old_forms_are_noted(tmp_path: Path, name: str) -> None:
    """What breaks off gives a note or what could be read, and never an error."""
    texts = {
        "rollout.json": json.dumps({"session": META, "items": codex_items()}),
        "ses_1.json": json.dumps({"id": "ses_1", "time": {}}),
        "0.json": json.dumps(openhands_events()[0]),
        "a.md": (SPECSTORY / "2025-06-30_12-46-48Z-fix-unknown-field.md").read_text(),
    }
    for length in (len(texts[name]) // 2, len(texts[name]) - 3):
        path = tmp_path / name
        path.write_text(texts[name][:length])
        found = identify(path)
        if found.format is not None:
            log = LogFile(path)
            assert list(found.format.read(log)) or log.unread
