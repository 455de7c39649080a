"""Qwen Code's sessions: one JSON object per line, in `~/.qwen/projects/*/chats`.

A line is a record of a message in Gemini's form, or of the program. Sub-agents have a file of their
own, or lines with their id. Versions before 0.3 wrote Gemini CLI's form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.history.log_file import LogFile
from gateway.history.readers.gemini_cli import (
    note_interruption,
    note_refusal,
    parts_text,
    response_text,
)
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.user_words import user_words
from gateway.wire.coerce import as_int, as_list, as_mapping, as_text

_RECORD = re.compile(rb'"message": ?\{"role": ?"[a-z]+", ?"parts": ?\[|"systemPayload": ?\{')
_TYPED = (None, "mid_turn_user_message")
"""Subtypes of messages that a person typed."""


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    return name.endswith(".jsonl") and b'"parentUuid"' in head and _RECORD.search(head) is not None


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    sessions: dict[str, Session] = {}
    for record in log.records():
        agent = as_text(record.get("agentId"), "")
        session = sessions.setdefault(agent, Session(id=log.stem, agent="qwen-code"))
        if not _add(session, record):
            log.skip(f"unknown type {record.get('type')!r}")
    for agent, session in sessions.items():
        if agent:
            session.parent, session.id = session.id, f"{session.id}/{agent}"
        if session.messages:
            yield session


def _add(session: Session, record: Mapping[str, Any]) -> bool:
    """Read one record. False if it is of no known type."""
    session.id = as_text(record.get("sessionId"), "") or session.id
    session.version = as_text(record.get("version"), "") or session.version
    session.project = session.project or as_text(record.get("cwd"), "")
    at = session.at(record.get("timestamp"))
    kind, parts = record.get("type"), as_list(as_mapping(record.get("message")).get("parts"))
    if kind == "assistant":
        _answer(session, record, [as_mapping(part) for part in parts], at)
    elif kind == "tool_result":
        for part in map(as_mapping, parts):
            if "functionResponse" in part:
                _result(session, record, part, at)
    elif kind == "user":
        text = parts_text(parts)
        typed = as_text(as_mapping(record.get("systemPayload")).get("displayText"), "") or text
        is_own = record.get("subtype") in _TYPED and not record.get("agentId")
        is_own = is_own and record.get("provenance") in (None, "real_user")
        if is_own and (words := user_words(typed)):
            session.did("message", words, at)
        session.messages.append({"role": "user", "content": text})
    elif kind == "system" and record.get("subtype") == "chat_compression":
        _compact(session, as_mapping(record.get("systemPayload")))
    return kind in ("assistant", "tool_result", "user", "system")


def _answer(
    session: Session, record: Mapping[str, Any], parts: list[Mapping[str, Any]], at: float | None
) -> None:
    thoughts = [as_text(part.get("text"), "") for part in parts if part.get("thought") is True]
    reply: dict[str, Any] = {"role": "assistant", "content": parts_text(parts)}
    if any(thoughts):
        reply["reasoning_content"] = "\n".join(thoughts)
    for part in parts:
        if call := as_mapping(part.get("functionCall")):
            function = {"name": call.get("name"), "arguments": call.get("args")}
            asked = {"id": call.get("id"), "type": "function", "function": function}
            reply.setdefault("tool_calls", []).append(asked)
    session.calls.append(
        ModelCall(
            position=len(session.messages),
            model=as_text(record.get("model"), ""),
            usage=_usage(as_mapping(record.get("usageMetadata"))),
            at=at,
            key=as_text(record.get("uuid"), ""),
        )
    )
    session.messages.append(reply)


def _result(
    session: Session, record: Mapping[str, Any], part: Mapping[str, Any], at: float | None
) -> None:
    text, failed = response_text(part)
    name = as_mapping(part.get("functionResponse")).get("id")
    result = {"role": "tool", "tool_call_id": name, "content": text}
    session.messages.append({**result, "is_error": True} if failed else result)
    # Newer versions tell apart what was refused and what was stopped; older ones only in words.
    if as_mapping(record.get("toolCallResult")).get("executionStatus") == "cancelled":
        note_interruption(session, at)
    else:
        note_refusal(session, text, at)


def _compact(session: Session, payload: Mapping[str, Any]) -> None:
    """The history that a summary replaced: its messages of the user."""
    session.compactions.append(len(session.messages))
    contents = [as_mapping(each) for each in as_list(payload.get("compressedHistory"))]
    texts = [parts_text(each.get("parts")) for each in contents if each.get("role") == "user"]
    for text in list(filter(None, texts)) or [""]:
        session.messages.append({"role": "user", "content": text, "compact": True})


def _usage(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Gemini's counts in the form of Chat Completions. What an OpenAI API counted has the thoughts
    in its output already; the total tells."""
    count = {name: as_int(value, 0) for name, value in metadata.items()}
    prompt, output = count.get("promptTokenCount", 0), count.get("candidatesTokenCount", 0)
    thoughts = count.get("thoughtsTokenCount", 0)
    if count.get("totalTokenCount", 0) >= prompt + output + thoughts:
        output += thoughts
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": count.get("cachedContentTokenCount", 0)},
        "completion_tokens": output,
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }
