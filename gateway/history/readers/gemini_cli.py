"""Gemini CLI's sessions in `~/.gemini/tmp/*/chats`, and those that early versions of Qwen Code
wrote in the same form.

Older versions wrote one JSON document, newer ones lines: about the session, a message (again each
time it grows), changes of either (`$set`) and returns to an earlier message (`$rewindTo`). Calls
are written into the answer that made them, with their results. What was undone stays a part of the
session, because it was done and paid for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.content import json_text
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.steering.transcript.user_words import user_words
from gateway.wire.coerce import as_int, as_list, as_mapping, as_text

_HASH = re.compile(rb'"projectHash"\s*:')
_ANSWERS = ("gemini", "qwen", "model")
_NOTICES = ("info", "error", "warning")
_NOT_WORDS = re.compile(r"System: Please continue\.|<(?:state_snapshot|conversation_summary)\b")
_ENDED = ("success", "error", "cancelled")
_THOUGHT = ("subject", "description")
_EMPTY = {"role": "assistant", "content": ""}


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    return name.endswith((".json", ".jsonl")) and (
        _HASH.search(head) is not None and b'"sessionId"' in head
    )


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    chat = _Chat(log)
    if log.name.endswith(".jsonl"):
        records: Iterator[Mapping[str, Any]] = log.records()
    else:
        document = as_mapping(log.document())
        messages = [as_mapping(message) for message in as_list(document.get("messages"))]
        records = iter([document, *messages] if document else [])
    for at, record in enumerate(records):
        if log.name.endswith(".json"):
            log.seen = at + 1
        if reason := chat.add(record):
            log.skip(reason)
    chat.close()
    if chat.is_known or chat.session.messages:
        yield chat.session


class _Chat:
    """The records of one session, each in its newest form at the place of its first."""

    def __init__(self, log: LogFile) -> None:
        agent = "qwen-code" if ".qwen" in log.path.parts else "gemini-cli"
        self.session = Session(id=log.stem, agent=agent, project=_project(log.path))
        self._path = log.path
        self._messages: dict[str, Mapping[str, Any]] = {}
        self.is_known = False  # the file says that it is a session
        self._recorded: set[str] = set()  # ids of calls
        self._summaries: set[str] = set()  # messages that replaced all earlier ones

    def add(self, record: Mapping[str, Any]) -> str:
        """Read one record. Returns why it was not understood, "" if it was."""
        kind = record.get("type")
        if isinstance(record.get("$set"), dict):
            self._change(record["$set"])
        elif "sessionId" in record and "projectHash" in record:
            self._change({key: record[key] for key in record if key != "messages"})
        elif kind in (*_ANSWERS, *_NOTICES, "user"):
            name = as_text(record.get("id"), "") or f"#{len(self._messages)}"
            self._messages[name] = {**self._messages.get(name, {}), **record}
        elif "$rewindTo" not in record:
            return f"unknown type {kind!r}"
        return ""

    def _change(self, fields: Mapping[str, Any]) -> None:
        session = self.session
        session.id = as_text(fields.get("sessionId"), "") or session.id
        self.is_known |= "sessionId" in fields
        session.at(fields.get("startTime"))
        session.title = as_text(fields.get("summary"), "") or session.title
        folders = [each for each in as_list(fields.get("directories")) if isinstance(each, str)]
        session.project = session.project or next(iter(folders), "")
        if fields.get("kind") == "subagent":
            folder = self._path.parent.name
            session.parent = folder if folder not in ("", "chats") else "unknown"
        history = [as_mapping(message) for message in as_list(fields.get("messages"))]
        kept = {as_text(message.get("id"), "") for message in history}
        is_shorter = bool(history) and not self._messages.keys() <= kept
        for message in history:
            name = as_text(message.get("id"), "")
            is_new = message.get("type") == "user" and name and name not in self._messages
            if is_new and parts_text(message.get("content")):
                self._messages[name] = message
                if is_shorter:  # the summary of what is left out
                    self._summaries.add(name)
                    break

    def close(self) -> None:
        """Write the session's messages."""
        for message in self._messages.values():
            calls = as_list(message.get("toolCalls"))
            self._recorded.update(as_text(as_mapping(call).get("id"), "") for call in calls)
        for name, message in self._messages.items():
            at = self.session.at(message.get("timestamp"))
            kind = message.get("type")
            if kind in _ANSWERS:
                self._answer(name, message, at)
            elif kind == "user":
                self._user(name, message, at)
            else:
                note_refusal(self.session, parts_text(message.get("content")), at)

    def _user(self, name: str, message: Mapping[str, Any], at: float | None) -> None:
        session, content = self.session, message.get("content")
        text = parts_text(content)
        responses = [as_mapping(part) for part in as_list(content)]
        responses = [part for part in responses if part.get("functionResponse")]
        for part in responses:
            self._response(part, at)
        if responses and not text:
            return
        if name in self._summaries:
            session.compactions.append(len(session.messages))
            session.messages.append({"role": "user", "content": text, "compact": True})
            return
        typed = parts_text(message.get("displayContent")) or text
        if not session.parent and not _NOT_WORDS.match(typed) and (words := user_words(typed)):
            session.did("message", words, at)
        session.messages.append({"role": "user", "content": text})

    def _answer(self, name: str, message: Mapping[str, Any], at: float | None) -> None:
        session = self.session
        tokens, model = as_mapping(message.get("tokens")), as_text(message.get("model"), "")
        calls = [as_mapping(call) for call in as_list(message.get("toolCalls"))]
        if not (tokens or model or calls):
            return  # written by the program, such as that a picture was received
        reply: dict[str, Any] = {"role": "assistant", "content": parts_text(message.get("content"))}
        thoughts = map(as_mapping, as_list(message.get("thoughts")))
        shown = [as_text(each.get(key), "") for each in thoughts for key in _THOUGHT]
        if any(shown):
            reply["reasoning_content"] = "\n".join(filter(None, shown))
        last = session.messages[-1] if session.messages else {}
        is_rest = reply == _EMPTY and not tokens.get("total")
        if is_rest and last.get("role") == "assistant" and "tool_calls" not in last:
            reply = last  # a notice of the program came between an answer and its calls
        else:
            call = ModelCall(position=len(session.messages), model=model, at=at, key=name)
            session.calls.append(replace(call, usage=_usage(tokens)))
            session.messages.append(reply)
        for each in calls:
            self._call(reply, each)

    def _response(self, part: Mapping[str, Any], at: float | None) -> None:
        """Read the result of a call; a refused call is written nowhere else."""
        response, calls = as_mapping(part["functionResponse"]), self.session.calls
        if calls and as_text(response.get("id"), "") not in self._recorded:
            call = {"id": response.get("id"), "name": response.get("name"), "result": [part]}
            self._call(self.session.messages[calls[-1].position], {**call, "timestamp": at})

    def _call(self, reply: dict[str, Any], call: Mapping[str, Any]) -> None:
        session, name = self.session, as_text(call.get("id"), "")
        function = {"name": as_text(call.get("name"), ""), "arguments": call.get("args")}
        asked = {"id": name, "type": "function", "function": function}
        reply.setdefault("tool_calls", []).append(asked)
        at = session.at(call.get("timestamp"))
        text, failed = response_text(call.get("result"))
        if call.get("result") is None and call.get("status") not in _ENDED:
            return
        result = {"role": "tool", "tool_call_id": name, "content": text}
        session.messages.append({**result, "is_error": True} if failed else result)
        note_refusal(session, text, at)


def note_refusal(session: Session, text: str, at: float | None) -> None:
    """Note that the person refused the call with this result, or stopped it: once, however many
    calls ran."""
    text = text.removeprefix("<untrusted_context>").lstrip()
    if (said := rejection(text)) is not None:
        session.did("reject", said, at, back=1)
    elif is_interruption(text):
        note_interruption(session, at)


def note_interruption(session: Session, at: float | None) -> None:
    """Note an interruption of the newest answer, which every call that it stopped repeats."""
    answer = session.calls[-1].position if session.calls else -1
    acts = (turn for turn in session.human if turn.position > answer)
    if not any(turn.kind == "interrupt" for turn in acts):
        session.did("interrupt", "", at)


def parts_text(content: object) -> str:
    """The text of Gemini's content: a string, a part, or a list of them; thoughts are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part if isinstance(part, str) else _part_text(as_mapping(part)) for part in parts]
    return "".join(texts)


def _part_text(part: Mapping[str, Any]) -> str:
    return "" if part.get("thought") is True else as_text(part.get("text"), "")


def response_text(parts: object) -> tuple[str, bool]:
    """The text of a call's `functionResponse` parts, and whether it failed."""
    texts, failed = [], False
    for part in map(as_mapping, parts if isinstance(parts, list) else [parts]):
        response = as_mapping(part.get("functionResponse")).get("response")
        fields = as_mapping(response)
        error = fields.get("error")
        failed = failed or bool(error)
        given = error or fields.get("output", response)
        texts.append(given if isinstance(given, str) else json_text(given))
    return "\n".join(filter(None, texts)), failed


def _usage(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Gemini's counts in the form of Chat Completions: input includes what was cached, output does
    not include the thoughts."""
    count = {name: as_int(value, 0) for name, value in tokens.items()}
    thoughts = count.get("thoughts", 0)
    return {
        "prompt_tokens": count.get("input", 0) + count.get("tool", 0),
        "prompt_tokens_details": {"cached_tokens": count.get("cached", 0)},
        "completion_tokens": count.get("output", 0) + thoughts,
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


def _project(path: Path) -> str:
    """The working directory, which newer versions keep in a file beside the folder of chats."""
    for folder in path.parents[1:3]:
        try:
            return (folder / ".project_root").read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            continue
    return ""
