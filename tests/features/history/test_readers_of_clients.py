"""Codex, Gemini CLI, Qwen Code and Copilot CLI: counts of an independent reader for real logs, and
what their formats hold besides."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.features.history.find import Found, identify
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.steering.transcript.interventions import rejection
from gateway.steering.transcript.steps import extract
from gateway.wire.usage import tokens_of
from tests.features.history.logs import acts

LOGS = Path(__file__).parent / "logs"
CLIENTS = ("codex", "gemini_cli", "qwen_code", "copilot_cli")
FILES = [path for client in CLIENTS for path in sorted((LOGS / client).glob("*.json*"))]

Lines = list[dict[str, Any]]


def read(path: Path) -> list[Session]:
    return list(identify(path).sessions(LogFile(path)))


def write(path: Path, lines: Iterable[object]) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def raw_lines(path: Path) -> Lines:
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return [json.loads(text)]
    mended = re.sub(r"(</custom_instruction>)\\s", r"\1s", text)
    return [json.loads(line) for line in mended.splitlines()]


def counts(session: Session) -> dict[str, int]:
    steps = extract(session.messages)
    assert len(steps) == len(session.calls)
    return {
        "steps": len(steps),
        "calls": sum(len(step.actions) for step in steps),
        "said": acts(session, "message"),
        "interrupts": acts(session, "interrupt"),
        "rejects": acts(session, "reject"),
        "tokens": sum(sum(tokens_of(call.usage).values()) for call in session.calls),
    }


def count_codex(lines: Lines) -> Counter[str]:
    """Answers end where the sum of the tokens grows; the rest is an answer, too."""
    found: Counter[str] = Counter(steps=0)
    rest = False
    for line in lines:
        payload = line["payload"]
        kind = payload.get("type", line["type"])
        info = payload.get("info")
        if kind == "token_count" and info:
            total = info["total_token_usage"]["total_tokens"]
            found["steps"] += total > found["tokens"]
            found["tokens"], rest = total, False
        own = kind.endswith("_call") or kind == "reasoning" or payload.get("role") == "assistant"
        rest = (rest or own) and info is None
        found["calls"] += kind.endswith("_call")
        typed = payload.get("item", {}).get("type") == "UserMessage"
        found["said"] += kind == "user_message" or typed
        found["interrupts"] += kind == "turn_aborted"
        found["rejects"] += "rejected by user" in str(payload.get("output"))
    found["steps"] += rest
    return found


def count_gemini(lines: Lines) -> Counter[str]:
    messages = {m["id"]: m for m in lines[0].get("messages", lines) if "id" in m}.values()
    tokens = [(m.get("tokens") or {}).get("total", 0) for m in messages]
    text = json.dumps(list(messages))
    mine = [m["content"] for m in messages if m["type"] == "user"]
    return Counter(
        steps=sum(map(bool, tokens)),
        calls=len(set(re.findall(r'"functionResponse": {"id": "([^"]*)"', text))),
        said=sum("functionResponse" not in str(content) for content in mine),
        interrupts=text.count("cancelled by user before"),
        rejects=text.count("was canceled by the user"),
        tokens=sum(tokens),
    )


def count_qwen(lines: Lines) -> Counter[str]:
    results = [line["toolCallResult"] for line in lines if line["type"] == "tool_result"]
    refused = Counter(each.get("executionStatus") for each in results)
    answers = [line for line in lines if line["type"] == "assistant"]
    return Counter(
        steps=len(answers),
        calls=str(answers).count("'functionCall'"),
        said=sum(line["type"] == "user" for line in lines),
        interrupts=refused["cancelled"],
        rejects=refused["not_started"],
        tokens=sum(line["usageMetadata"]["totalTokenCount"] for line in answers),
    )


def is_answer(line: dict[str, Any]) -> bool:
    return bool(line["type"] == "assistant.message")


def count_copilot(lines: Lines) -> Counter[str]:
    kinds = Counter(line["type"] for line in lines)
    ended = [line["data"] for line in lines if line["type"] == "session.shutdown"][-1]
    models = (ended.get("accountingSnapshot") or ended)["modelMetrics"].values()
    return Counter(
        steps=sum(not line["data"].get("chunkIndex") for line in lines if is_answer(line)),
        calls=sum(len(line["data"].get("toolRequests", ())) for line in lines),
        said=kinds["user.message"] - str(lines).count("'content': '[[ ## "),  # of a program
        # a rejection without words is followed by one
        interrupts=kinds["abort"] - str(lines).count("The user rejected this tool call.'"),
        rejects=str(lines).count("'code': 'rejected'"),
        tokens=sum(m["usage"]["inputTokens"] + m["usage"]["outputTokens"] for m in models),
    )


COUNT: dict[str, Callable[[Lines], Counter[str]]] = dict(
    zip(CLIENTS, (count_codex, count_gemini, count_qwen, count_copilot), strict=True)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_counts_are_those_of_an_independent_reader(path: Path) -> None:
    """All lines are read, and the client, its version and the folder are known."""
    found = identify(path)
    (session,) = read(path)
    expected = COUNT[path.parent.name](raw_lines(path))
    assert counts(session) == {name: expected[name] for name in counts(session)}
    assert session.unread == () or not list(session.unread)
    assert found.format is not None
    assert found.format.name == session.agent == path.parent.name.replace("_", "-")
    if path.parent.name != "gemini_cli":
        assert session.version.startswith(re.split(r"-|\.jsonl", path.name)[0])
        assert session.project
    assert session.started is not None
    assert session.ended is not None
    assert session.ended >= session.started


def test_codex_steps_are_those_of_its_requests() -> None:
    """Read from the disk or from the items of a request: the same steps."""
    for path in sorted((LOGS / "codex").glob("*.jsonl")):
        lines = raw_lines(path)
        items = [line["payload"] for line in lines if line["type"] == "response_item"]
        (session,) = read(path)
        mine, sent = extract(session.messages), extract(items)
        assert mine == sent, path.name


def codex(*payloads: dict[str, Any], kind: str = "response_item") -> Lines:
    lines = [{"type": "session_meta", "payload": {"id": "s", "cwd": "/p", "cli_version": "1"}}]
    for payload in payloads:
        own = payload.pop("line", kind)
        lines.append({"timestamp": "2026-01-01T00:00:00Z", "type": own, "payload": payload})
    return lines


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "text", "text": text}]}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": "{}", "call_id": name}


def output(name: str, text: str = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": text}


def tokens(total: int, last: int = 10) -> dict[str, Any]:
    usage = {"input_tokens": last, "output_tokens": 0, "total_tokens": last}
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": usage}
    return {"type": "token_count", "info": info, "line": "event_msg"}


def test_codex_answers_end_with_their_usage(tmp_path: Path) -> None:
    """Results of parallel calls may come between them; a sum that is repeated counts once."""
    parallel = [call("a"), output("a"), call("b"), output("b")]
    after = [*parallel, tokens(10), tokens(10), said("assistant", "done"), tokens(20)]
    (session,) = read(write(tmp_path / "after.jsonl", codex(said("user", "go"), *after)))
    assert [len(step.actions) for step in extract(session.messages)] == [2, 0]
    assert counts(session)["tokens"] == 20
    before = [tokens(10), *parallel, tokens(25, 15), said("assistant", "done")]
    again = codex(said("user", "go"), *json.loads(json.dumps(before)))
    (session,) = read(write(tmp_path / "before.jsonl", again))
    assert [len(step.actions) for step in extract(session.messages)] == [2, 0]
    assert [call.usage["prompt_tokens"] for call in session.calls] == [10, 15]
    (session,) = read(write(tmp_path / "none.jsonl", codex(said("user", "go"), *parallel)))
    assert [len(step.actions) for step in extract(session.messages)] == [1, 1]


def test_codex_says_what_a_person_typed(tmp_path: Path) -> None:
    """Without events, the client's own messages are told by how they begin."""
    own = [
        "# AGENTS.md instructions for /p\n\nx",
        "<environment_context>x</environment_context>",
        "<user_instructions>x</user_instructions>",
        "<turn_aborted>\nx</turn_aborted>",
        "<skill>x</skill>",
        "<user_shell_command>ls</user_shell_command>",
    ]
    lines = codex(*(said("user", text) for text in (*own, "go on")), said("assistant", "yes"))
    (session,) = read(write(tmp_path / "said.jsonl", lines))
    assert [(turn.kind, turn.text) for turn in session.human] == [
        ("interrupt", ""),
        ("message", "go on"),
    ]
    aborted = {"type": "turn_aborted", "reason": "interrupted", "line": "event_msg"}
    twice = codex(said("assistant", "x"), said("user", "<turn_aborted>\nx"), aborted, dict(aborted))
    (session,) = read(write(tmp_path / "twice.jsonl", twice))
    assert acts(session, "interrupt") == 1


def test_codex_compacts(tmp_path: Path) -> None:
    """The messages that it keeps follow, marked; none of them is said again."""
    kept = [said("user", "the task"), said("assistant", "no"), said("user", "the summary")]
    compacted = {"message": "m", "replacement_history": kept, "line": "compacted"}
    lines = codex(said("user", "the task"), said("assistant", "x"), tokens(9), compacted)
    (session,) = read(write(tmp_path / "c.jsonl", lines))
    (at,) = session.compactions
    assert [message.get("compact") for message in session.messages[at:]] == [True, True]
    assert counts(session)["said"] == 1
    assert counts(session)["steps"] == 1


def test_codex_knows_whose_session_it_is(tmp_path: Path) -> None:
    """A sub-agent has a parent, and nobody speaks to it; a fork keeps its own name."""
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "root", "depth": 1}}}
    lines = codex(said("user", "look"), said("assistant", "x"))
    lines[0]["payload"]["source"] = spawned
    (session,) = read(write(tmp_path / "sub.jsonl", lines))
    assert (session.id, session.parent, acts(session, "message")) == ("s", "root", 0)
    lines[0]["payload"]["source"] = {"subagent": "review"}
    assert read(write(tmp_path / "review.jsonl", lines))[0].parent == "review"
    lines[0]["payload"]["source"] = "cli"
    lines.insert(1, {"type": "session_meta", "payload": {"id": "copied"}})
    (session,) = read(write(tmp_path / "fork.jsonl", lines))
    assert (session.id, session.parent) == ("s", "")


def test_codex_sub_agents_leave_out_what_they_inherit() -> None:
    """The file of one that was forked begins with a copy of its parent's history."""
    (session,) = read(LOGS / "codex" / "sub_agents" / "0.171.0.jsonl")
    assert session.parent == "01a21841-2423-72d3-bab5-d583dfb658c9"
    assert session.id == "01a21841-24fa-7120-9210-1a0a1cfc3589"
    first, last = extract(session.messages)
    assert [action.name for action in first.actions] == ["wait_agent"]
    assert last.thought == "All done."
    assert session.human == []
    assert "Message Type: NEW_TASK" in str(session.messages)
    assert counts(session)["tokens"] == 111


def test_codex_continued_by_a_newer_version(tmp_path: Path) -> None:
    """Usage and words are in events first, then in records, or for a while in both."""
    record = {"usage": {"input_tokens": 7}, "response_id": "r", "line": "token_usage_record"}
    words = {"type": "user_message", "message": "go on", "line": "event_msg"}
    item = {"type": "UserMessage", "content": [{"type": "text", "text": "go on"}]}
    again = {"type": "item_completed", "item": item, "line": "event_msg"}
    old = [said("user", "go on"), words, again, said("assistant", "x"), tokens(10)]
    new = [said("user", "go on"), dict(again), said("assistant", "y"), record, tokens(17, 7)]
    (session,) = read(write(tmp_path / "mixed.jsonl", codex(*old, *new)))
    assert counts(session) == Counter(steps=2, calls=0, said=2, interrupts=0, rejects=0, tokens=17)
    assert session.calls[1].key == "r"


@pytest.mark.parametrize("version", ["0.45.0", "0.80.0"])
def test_codex_older_versions_mark_answers_otherwise(version: str) -> None:
    """By usage that comes first; by usage before the results."""
    (session,) = read(LOGS / "codex" / "older" / f"{version}.jsonl")
    assert [len(step.actions) for step in extract(session.messages)] == [1, 2, 1, 0]
    assert counts(session)["said"] == 1
    assert counts(session)["tokens"] == 80
    assert list(session.unread) == []


def gemini(*records: dict[str, Any]) -> Lines:
    return [{"sessionId": "g", "projectHash": "h", "kind": "main"}, *records]


def g_said(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "user", "content": [{"text": text}], **more}


def g_answer(name: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    used = {"input": 100, "output": 8, "cached": 40, "thoughts": 5, "tool": 0, "total": 113}
    answer = {"id": name, "type": "gemini", "content": "x", "model": "m", "tokens": used}
    return {**answer, "toolCalls": list(calls), **more}


def g_call(name: str, status: str, response: dict[str, Any]) -> dict[str, Any]:
    parts = [{"functionResponse": {"id": name, "name": "sh", "response": response}}]
    return {"id": name, "name": "sh", "args": {"a": 1}, "status": status, "result": parts}


def test_gemini_records_grow_and_are_undone(tmp_path: Path) -> None:
    """The newest form of a record counts, at its first place; what was undone was done."""
    first, last = g_answer("a"), g_answer("a", g_call("c", "success", {"output": "out"}))
    undone = g_answer("b", g_call("d", "error", {"error": "bad"}))
    lines = gemini(g_said("u", "go"), first, {"$set": {"lastUpdated": "x"}}, last, undone)
    lines += [{"$rewindTo": "b"}, g_said("v", "again"), g_answer("e")]
    (session,) = read(write(tmp_path / "session-1.jsonl", lines))
    steps = extract(session.messages)
    assert [[each.observation for each in step.actions] for step in steps] == [["out"], ["bad"], []]
    assert steps[1].actions[0].is_error
    assert counts(session)["tokens"] == 3 * 113
    assert tokens_of(session.calls[0].usage)["cache_read"] == 40
    assert list(session.unread) == []


def test_gemini_compresses(tmp_path: Path) -> None:
    """A shorter history begins with a summary, which nobody typed."""
    start = {"$set": {"messages": [g_said("ctx", "<session_context>x</session_context>")]}}
    summary = g_said("sum", "<state_snapshot>what was done</state_snapshot>")
    shorter = {"$set": {"messages": [g_said("ctx", "x"), summary, g_answer("b")]}}
    lines = gemini(start, g_said("u", "go"), g_answer("a"), g_answer("b"), shorter, g_answer("c"))
    (session,) = read(write(tmp_path / "session-1.jsonl", lines))
    (at,) = session.compactions
    assert "what was done" in session.messages[at]["content"]
    assert counts(session)["said"] == 1
    assert counts(session)["steps"] == 3


def test_gemini_refusals_and_interruptions(tmp_path: Path) -> None:
    """Several calls that one key stopped are one interruption."""
    denied = {"error": "[Operation Cancelled] Reason: User denied execution."}
    stopped = {"error": "[Operation Cancelled] Reason: User cancelled tool execution."}
    lines = gemini(
        g_said("u", "go"),
        g_answer("a", g_call("c", "cancelled", denied)),
        g_answer("b", g_call("d", "cancelled", stopped), g_call("e", "cancelled", stopped)),
        {"id": "i", "type": "info", "content": "Request cancelled."},
        g_said("v", "System: Please continue."),
        g_said("w", "expanded @file", displayContent=[{"text": "see @file"}]),
        g_answer("f"),
        {"id": "j", "type": "info", "content": "Request cancelled."},
    )
    (session,) = read(write(tmp_path / "session-1.jsonl", lines))
    assert [turn.kind for turn in session.human] == [
        *("message", "reject", "interrupt", "message", "interrupt")
    ]
    assert session.human[3].text == "see @file"


def test_gemini_sub_agents_and_folders(tmp_path: Path) -> None:
    """A sub-agent's file is below its parent's name; the folder is in a file of its own."""
    (tmp_path / ".project_root").write_text("/home/dev/project\n")
    chats = tmp_path / "chats" / "root"
    chats.mkdir(parents=True)
    lines = gemini(g_said("u", "look"), g_answer("a"))
    lines[0]["kind"] = "subagent"
    (session,) = read(write(chats / "s.jsonl", lines))
    assert (session.parent, acts(session, "message")) == ("root", 0)
    assert session.project == "/home/dev/project"


def test_qwen_first_versions(tmp_path: Path) -> None:
    """Gemini CLI's form, with answers of another name."""
    messages = [g_said("u", "go"), g_answer("a", type="qwen")]
    path = tmp_path / "session-1.json"
    path.write_text(json.dumps({"sessionId": "g", "projectHash": "h", "messages": messages}))
    (session,) = read(path)
    assert (session.agent, counts(session)["steps"]) == ("qwen-code", 1)


def q_record(kind: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"role": "user", "parts": list(parts)}
    line = {"uuid": "u", "parentUuid": None, "sessionId": "q", "type": kind, "message": message}
    return {**line, **more}


def test_qwen_sub_agents_and_compressions(tmp_path: Path) -> None:
    """A sub-agent's lines are a session of their own; notices and summaries are not said."""
    history = [{"role": "user", "parts": [{"text": "summary"}]}, {"role": "model", "parts": []}]
    compressed = {"subtype": "chat_compression", "systemPayload": {"compressedHistory": history}}
    thought = {"text": "hm", "thought": True}
    used = {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 2}
    lines = [
        q_record("user", {"text": "go"}),
        q_record("user", {"text": "a task ended"}, subtype="notification"),
        q_record("user", {"text": "and this"}, subtype="mid_turn_user_message"),
        q_record("assistant", thought, {"text": "x"}, usageMetadata={**used, "totalTokenCount": 8}),
        q_record("user", {"text": "look"}, agentId="explore-1"),
        q_record("assistant", {"text": "y"}, agentId="explore-1"),
        {**q_record("system"), **compressed},
        q_record("assistant", {"text": "z"}, usageMetadata={**used, "totalTokenCount": 10}),
    ]
    session, side = read(write(tmp_path / "q.jsonl", lines))
    assert [turn.text for turn in session.human] == ["go", "and this"]
    assert extract(session.messages)[0].reasoning == "hm"
    assert [sum(tokens_of(call.usage).values()) for call in session.calls] == [8, 10]
    assert session.messages[session.compactions[0]]["content"] == "summary"
    assert (side.id, side.parent, side.human) == ("q/explore-1", "q", [])


def event(kind: str, agent: str = "", **data: Any) -> dict[str, Any]:
    line = {"type": kind, "data": data, "timestamp": "2026-01-01T00:00:00Z"}
    return {**line, "agentId": agent} if agent else line


def shutdown(started: int, given: int, output: int) -> dict[str, Any]:
    usage = {"inputTokens": given, "outputTokens": output, "cacheReadTokens": 4}
    metrics = {"m": {"usage": usage}}
    return event("session.shutdown", sessionStartTime=started, modelMetrics=metrics)


def test_copilot_parts_agents_and_compactions(tmp_path: Path) -> None:
    """An answer in parts is one; sub-agents, what they are told, and summaries are kept apart."""
    asked = [{"toolCallId": "t", "name": "bash", "arguments": {"command": "ls"}}]
    lines = [
        event("session.start", sessionId="c", copilotVersion="1", context={"cwd": "/p"}),
        event("user.message", content="go"),
        event("user.message", content="a skill", source="skill-pdf"),
        event("assistant.message", apiCallId="1", content="a", model="m", chunkIndex=0),
        event("assistant.message", apiCallId="1", content="b", model="m", toolRequests=asked),
        event("user.message", "sub", content="look", source="agent-sub"),
        event("assistant.message", "sub", apiCallId="2", content="found", model="m"),
        event("tool.execution_complete", toolCallId="t", success=True, result={"content": "out"}),
        event("tool.execution_complete", toolCallId="own", isUserRequested=True),
        event("session.compaction_complete", success=True, summaryContent="summary"),
        event("assistant.message", apiCallId="3", content="done", model="m"),
        event("abort", reason="autopilot_credit_limit"),
        event("session.context_cleared"),
    ]
    main, side = read(write(tmp_path / "events.jsonl", lines))
    first, last = extract(main.messages)
    assert (first.thought, first.actions[0].observation, last.thought) == ("a\n\nb", "out", "done")
    assert [turn.text for turn in main.human] == ["go"]
    assert main.messages[main.compactions[0]]["content"] == "summary"
    assert (side.id, side.parent, side.project, side.human) == ("c/sub", "c", "/p", [])


def test_copilot_totals_of_older_versions(tmp_path: Path) -> None:
    """A sum counts once: that of a program that was started again is another one."""

    def answer(name: str) -> dict[str, Any]:
        return event("assistant.message", apiCallId=name, content="x", model="m", outputTokens=5)

    lines = [event("session.start", sessionId="c"), event("user.message", content="go")]
    lines += [answer("1"), answer("2"), shutdown(1, 100, 12)]
    lines += [answer("3"), shutdown(1, 150, 20), answer("4"), shutdown(2, 30, 5)]
    (session,) = read(write(tmp_path / "events.jsonl", lines))
    assert counts(session)["tokens"] == 150 + 20 + 30 + 5
    outputs = [tokens_of(call.usage)["output"] for call in session.calls]
    assert outputs == [5, 5, 10, 5]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_broken_and_unknown_lines_are_noted(path: Path, tmp_path: Path) -> None:
    """Whatever breaks off or is new, nothing else is lost."""
    content = path.read_bytes()
    for length in (len(content) // 3, len(content) - 5):
        cut = tmp_path / f"cut{path.suffix}"
        cut.write_bytes(content[:length])
        log = LogFile(cut)
        found = identify(cut)
        assert found.format is not None
        sessions = list(found.format.read(log))
        assert len(log.unread) == 1
        assert sessions or path.suffix == ".json"
    if path.suffix == ".jsonl":
        new = {"type": "brand_new", "payload": {"type": "new"}, "data": {}}
        strange = [new, {"type": 5}, {"payload": 3}, {"message": [None, 1]}]
        more = b"\n".join([b"{broken", b"[1]", *(json.dumps(each).encode() for each in strange)])
        mixed = tmp_path / "mixed.jsonl"
        mixed.write_bytes(content + more + b"\n")
        (session,), (whole,) = read(mixed), read(path)
        assert counts(session) == counts(whole)
        assert len(session.unread) >= 5
        assert any("brand_new" in each.reason for each in session.unread)


@pytest.mark.parametrize("name", ["rollout-1.jsonl", "session-1.json", "events.jsonl", "logs.json"])
def test_empty_and_foreign_files(name: str, tmp_path: Path) -> None:
    """They belong to no client."""
    path = tmp_path / name
    for content in ("", '{"hello": 1}\n', '[{"sessionId": "x", "message": "hi", "type": "user"}]'):
        path.write_text(content)
        assert identify(path) == Found(path=path, problem=identify(path).problem)
        assert identify(path).problem


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_values_of_any_type_are_survived(path: Path, tmp_path: Path) -> None:
    """Every position stays within the messages."""
    mixed = tmp_path / f"mixed{path.suffix}"
    found = identify(path)
    assert found.format is not None
    for seed in range(12):
        chance = random.Random(seed)
        lines = [mutated(line, chance, 0.02) for line in raw_lines(path)]
        write(mixed, lines)
        for session in found.format.read(LogFile(mixed)):
            extract(session.messages)
            count = len(session.messages)
            assert all(
                session.messages[call.position]["role"] == "assistant" for call in session.calls
            )
            assert all(0 <= turn.position <= count for turn in session.human)
            assert all(sum(tokens_of(call.usage).values()) >= 0 for call in session.calls)


def mutated(value: Any, chance: random.Random, rate: float) -> Any:
    """A copy in which some values have another type and some fields are missing."""
    if chance.random() < rate:
        return chance.choice([None, 1, 1.5, True, "x", [], {}, [None], [[1]], {"a": 1}, 10**400])
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if chance.random() > rate / 3}
        return {key: mutated(each, chance, rate) for key, each in kept.items()}
    return [mutated(e, chance, rate) for e in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('exec_command failed: CreateProcess { message: "Rejected(\\"rejected by user\\")" }', ""),
        ("exec_command failed: CreateProcess { message: no such file }", None),
        ("patch rejected by user", ""),
        ('Tool "run_shell_command" was canceled by the user.', ""),
        ('Tool "run_shell_command" not found in registry.', None),
        ("[Operation Cancelled] Reason: User did not allow tool call", ""),
        ("[Operation Cancelled] Reason: User cancelled tool execution.", None),
        ("The user rejected this tool call. User feedback: use make", "use make"),
    ],
)
def test_the_wordings_of_refusals(text: str, said: str | None) -> None:
    """As the programs wrote them, or hold them."""
    assert rejection(text) == said
