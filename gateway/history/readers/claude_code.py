"""Claude Code's session files: one JSON object per line, in `~/.claude/projects`.

An answer is written as one line per content block, all with its message id; each line repeats the
usage, of which the last is complete. Sub-agents have a file of their own, or, in older versions,
lines marked `isSidechain` between those of the session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.content import read_content, read_result
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.steering.transcript.user_words import user_words
from gateway.wire.coerce import as_list, as_mapping, as_text

AGENT = "claude-code"
_MARKS = (b'"parentUuid"', b'"file-history-snapshot"', b'"sessionId"', b'"leafUuid"')
# fmt: off
_SILENT = frozenset((
    "agent-color", "agent-name", "agent-setting", "ai-title", "attachment",
    "content-replacement", "custom-title", "file-history-snapshot", "last-prompt", "mode",
    "permission-mode", "pr-link", "progress", "queue-operation", "summary", "system", "tag",
    "task-summary", "worktree-state",
))
# fmt: on
"""Types of lines without a message. Source: sessions of versions 2.0 to 2.1."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SYNTHETIC = "<synthetic>"  # the model of messages that the client wrote itself
_COMMAND = re.compile(
    r"<command-message>.*?</command-message>\s*<command-name>(.*?)</command-name>"
)
_COMMAND_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)
_NOT_WORDS = re.compile(
    r"<(?:local-command-\w+|command-name|bash-(?:input|stdout|stderr)|task-notification"
    r"|teammate-message|user-memory-input|system-reminder)>|Operation stopped by hook|Caveat: "
)
"""Beginnings of messages with the role of the user that no person typed."""


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    first = head.partition(b"\n")[0]
    return (
        name.endswith(".jsonl")
        and first.lstrip()[:1] == b"{"
        and any(mark in head for mark in _MARKS)
        and b'"type"' in head
    )


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    threads: dict[str, _Thread] = {}
    roots: dict[str, str] = {}  # uuid of a sub-agent's line -> that of its first one
    for entry in log.records():
        kind = as_text(entry.get("type"), "")
        if kind not in ("user", "assistant"):
            if kind == "system" and entry.get("subtype") == "compact_boundary":
                _thread(threads, "", log).compacts = True
            elif kind == "attachment":
                _thread(threads, "", log).queued(entry)
            elif kind not in _SILENT:
                log.skip(f"unknown type {kind!r}")
            continue
        side = ""
        if entry.get("isSidechain") is True:
            uuid, parent = as_text(entry.get("uuid"), ""), as_text(entry.get("parentUuid"), "")
            roots[uuid] = side = roots.get(parent) or as_text(entry.get("agentId"), "") or uuid
        _thread(threads, side, log).add(entry, kind)
    for name, thread in threads.items():
        session = thread.session
        if name:
            session.parent, session.id = session.id, f"{session.id}/{name}"
        if session.messages:
            yield session


def _thread(threads: dict[str, _Thread], name: str, log: LogFile) -> _Thread:
    if name not in threads:
        threads[name] = _Thread(log, is_side=bool(name))
    return threads[name]


class _Thread:
    """The lines of one session or of one of its sub-agents, in their order."""

    def __init__(self, log: LogFile, *, is_side: bool) -> None:
        self.session = Session(id=log.stem, agent=AGENT)
        self.compacts = False  # the next message replaces the history
        self._is_side = is_side
        self._replies: dict[str, int] = {}  # message id -> index of its call

    def add(self, entry: Mapping[str, Any], kind: str) -> None:
        """Read one line with a message."""
        session = self.session
        if not _UUID.fullmatch(session.id):
            session.id = as_text(entry.get("sessionId"), "") or session.id
        session.version = as_text(entry.get("version"), "") or session.version
        session.project = session.project or as_text(entry.get("cwd"), "")
        at = session.at(entry.get("timestamp"))
        message = as_mapping(entry.get("message"))
        if kind == "assistant":
            self._reply(entry, message, at)
        else:
            self._user(entry, message.get("content"), at)

    def queued(self, entry: Mapping[str, Any]) -> None:
        """Read what the person typed while the model worked, from a line of an attachment."""
        attachment = as_mapping(entry.get("attachment"))
        if attachment.get("type") == "queued_command":
            content = attachment.get("prompt")
            self._user(entry, content, self.session.at(entry.get("timestamp")))

    def _reply(
        self, entry: Mapping[str, Any], message: Mapping[str, Any], at: float | None
    ) -> None:
        session, model = self.session, as_text(message.get("model"), "")
        if model == _SYNTHETIC or entry.get("isApiErrorMessage") is True:
            return
        name = as_text(message.get("id"), "")
        blocks = as_list(message.get("content")) or [{"type": "text", "text": ""}]
        usage = as_mapping(message.get("usage"))
        if name in self._replies:
            index = self._replies[name]
            call = session.calls[index]
            session.messages[call.position]["content"] += blocks
            usage = usage or call.usage
        else:
            index = self._replies[name] = len(session.calls)
            position = len(session.messages)
            session.messages.append({"role": "assistant", "content": list(blocks)})
            key = f"{name}:{as_text(entry.get('requestId'), '')}" if name else ""
            call = ModelCall(position=position, model=model, at=at, key=key)
            session.calls.append(call)
        session.calls[index] = ModelCall(
            position=call.position, model=model or call.model, usage=usage, at=call.at, key=call.key
        )

    def _user(self, entry: Mapping[str, Any], content: object, at: float | None) -> None:
        session = self.session
        parts = as_list(content) or [{"type": "text", "text": as_text(content, "")}]
        parts = [part for part in parts if isinstance(part, dict)]
        summary = entry.get("isCompactSummary") is True
        if summary or self.compacts:
            session.compactions.append(len(session.messages))
            self.compacts = False
        last = session.messages[-1] if session.messages else {}
        joins = last.get("role") == "user" and len(session.messages) not in session.compactions
        if not joins:
            last = {"role": "user", "content": []}
            session.messages.append(last)
        results = [part for part in parts if part.get("type") == "tool_result"]
        # The client sends what is answered first, and results before words.
        words = [part for part in last["content"] if part.get("type") != "tool_result"]
        kept = [part for part in last["content"] if part.get("type") == "tool_result"]
        last["content"] = [*kept, *results, *words, *[p for p in parts if p not in results]]
        if summary:
            last["compact"] = True
        if not (summary or entry.get("isMeta") is True or self._is_side):
            self._acts(parts, results, at)

    def _acts(self, parts: list[Any], results: list[Any], at: float | None) -> None:
        """Note what the person did in one line."""
        session = self.session
        for part in results:
            said = rejection(read_result(part, "").text)
            if said is not None:
                session.did("reject", said, at, back=1)
        texts = [part for part in parts if part.get("type") == "text"]
        if any(is_interruption(as_text(part.get("text"), "")) for part in texts):
            session.did("interrupt", "", at, back=1)
        elif text := _words(texts):
            session.did("message", text, at, back=1)
        elif not results and read_content(parts).image:
            session.did("message", "", at, back=1)


def _words(texts: list[Any]) -> str:
    """What the person typed in these text blocks."""
    found = []
    for part in texts:
        text = as_text(part.get("text"), "").strip()
        if command := _COMMAND.match(text):
            arguments = _COMMAND_ARGUMENTS.search(text)
            found.append(f"{command[1]} {arguments[1] if arguments else ''}".strip())
        elif text and not _NOT_WORDS.match(text):
            found.append(user_words(text))
    return "\n".join(filter(None, found))
