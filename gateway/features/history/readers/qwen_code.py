"""Qwen Code's sessions: one JSON object per line, in `~/.qwen/projects/*/chats`.

A line is a record of a message in Gemini's form, or of the program. Sub-agents have a file of their
own, or lines with their id. Version 0.1 wrote Gemini CLI's form, which that reader reads."""

from collections.abc import Iterable

from gateway.features.history.log_file import LogFile
from gateway.features.history.readers.gemini_cli import parts_text, response_text
from gateway.features.history.session import (
    Session,
    add_call,
    chat_usage,
    family,
    order_beside,
    token_counts,
)
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import mapping_at, mappings_at, text_at

_TYPED = (None, "mid_turn_user_message")  # subtypes of messages that a person typed


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    sessions: dict[str, Session] = {}
    for record in log.records():
        agent = text_at(record, "agentId")
        new = Session(id=log.stem, agent="qwen-code", parent=agent)
        if agent and not sessions:
            new.order = order_beside(log)
        if not _add(sessions.setdefault(agent, new), record):
            log.skip(f"unknown type {record.get('type')!r}")
    yield from family(sessions)


def _add(session: Session, record: Fields) -> bool:
    """Read one record. False if it is of no known type."""
    session.about(record)
    at = session.at(record.get("timestamp"))
    kind = record.get("type")
    payload = mapping_at(record, "systemPayload")
    parts = mappings_at(mapping_at(record, "message"), "parts")
    if kind == "assistant":
        _answer(session, record, parts, at=at)
    elif kind == "tool_result":
        for part in parts:
            if "functionResponse" in part:
                _result(session, record, part, at=at)
    elif kind == "user":
        text = parts_text(parts)
        typed = text_at(payload, "displayText") or text
        is_own = record.get("subtype") in _TYPED
        is_own = is_own and record.get("provenance") in (None, "real_user")
        session.user(text, typed if is_own else "", at)
    elif kind == "system" and record.get("subtype") == "chat_compression":
        contents = mappings_at(payload, "compressedHistory")
        texts = [parts_text(each.get("parts")) for each in contents if each.get("role") == "user"]
        session.compact(*(filter(None, texts) if any(texts) else [""]))
    return kind in ("assistant", "tool_result", "user", "system")


def _answer(session: Session, record: Fields, parts: list[Fields], at: float | None) -> None:
    model = text_at(record, "model")
    usage = _usage(mapping_at(record, "usageMetadata"))
    text = parts_text(parts)
    thought = parts_text(parts, thought=True)
    reply = session.reply(text, thought, model=model, usage=usage, at=at)
    for part in parts:
        if call := mapping_at(part, "functionCall"):
            add_call(reply, call.get("id"), call.get("name"), arguments=call.get("args"))


def _result(session: Session, record: Fields, part: Fields, at: float | None) -> None:
    text, failed = response_text(part)
    name = mapping_at(part, "functionResponse").get("id")
    # Newer versions tell apart what was refused and what was stopped; older ones only in words.
    session.result(name, text, at, failed=failed, rejected=False)
    if mapping_at(record, "toolCallResult").get("executionStatus") == "cancelled":
        session.did("interrupt", at=at)
    else:
        session.typed(text, at)


def _usage(metadata: Fields) -> FieldDict:
    """The tokens of an answer. An OpenAI API counts thoughts in the output; the total shows it."""
    count = token_counts(metadata)
    prompt = count["promptTokenCount"]
    output = count["candidatesTokenCount"]
    thoughts = count["thoughtsTokenCount"]
    if count["totalTokenCount"] >= prompt + output + thoughts:
        output += thoughts
    return chat_usage(prompt, output, count["cachedContentTokenCount"], thoughts=thoughts)
