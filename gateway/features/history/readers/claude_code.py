"""Claude Code's session files: one JSON object per line, in `~/.claude/projects`.

An answer is written as one line per content block, all with its message id; each line repeats the
usage, of which the last is complete. Sub-agents have a file of their own, or, in older versions,
lines marked `isSidechain` between those of the session. Some versions also report them in lines of
progress, without the last answer, which is in the result of the call that started the sub-agent."""

import re
from collections.abc import Iterable
from typing import Any

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import (
    ModelCall,
    Session,
    family,
    joined,
    order_beside,
    own_id,
)
from gateway.steering.transcript.client_texts import typed_words
from gateway.steering.transcript.content import read_content, read_result
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_int, as_list, as_text, list_at, mapping_at, text_at

AGENT = "claude-code"
_SILENT = re.compile(r"[a-z]+(?:-[a-z]+)+|attachment|mode|progress|relocated|summary|system|tag")
"""Types of lines without a message, as `file-history-delta` or `pr-link`. Source: the types that
versions 2.1.37 and 2.1.332 write, and sessions of versions 1.0 to 2.1."""
_DENIED = (None, "user-rejected")  # newer versions say who refused a call
_FROM_CLIENT = ("isCompactSummary", "isMeta", "isVisibleInTranscriptOnly", "interruptedByShutdown")
_SENT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_COMMAND = re.compile(
    r"<command-message>[^<]{0,200}</command-message>\s{0,20}"
    r"<command-name>([^<]{0,200})</command-name>"
)


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    threads: dict[str, _Thread] = {}
    reported: dict[str, _Thread] = {}  # of sub-agents that the session's lines tell of
    roots: dict[str, str] = {}  # uuid of a sub-agent's line -> name of the sub-agent
    # a resumed session may hold its beginning twice; masked ids are the same for all lines
    seen: dict[tuple[str, str], object] = {}
    for line in log.records():
        entry = _reported(line)
        kind = text_at(entry, "type")
        uuid = text_at(line, "uuid")
        if kind in ("user", "assistant", "attachment"):
            mark = (uuid, text_at(entry, "timestamp"))
            content = entry.get("message") or entry.get("attachment")
            if any(mark) and content and content == seen.get(mark):
                continue
            seen[mark] = content
        side = ""
        among = threads
        if entry is not line:
            side = own_id(entry.get("agentId"), entry.get("parentToolUseID")) or log.stem
            among = reported
        elif entry.get("isSidechain") is True:
            parent = text_at(entry, "parentUuid")
            side = own_id(entry.get("agentId"), roots.get(parent), uuid) or log.stem
            roots[uuid] = side
        thread = among.get(side) or among.setdefault(side, _Thread(log, side))
        if kind in ("user", "assistant"):
            thread.add(entry, kind)
        elif _SILENT.fullmatch(kind):
            thread.note(entry, kind)
        else:
            log.skip(f"unknown type {kind!r}")
        result = mapping_at(entry, "toolUseResult")
        if name := own_id(result.get("agentId")):
            reported.setdefault(name, _Thread(log, name)).end(entry, result)
    known = {call.key for thread in threads.values() for call in thread.session.calls}
    for name, thread in reported.items():
        if name not in threads and known.isdisjoint(call.key for call in thread.session.calls):
            threads[name] = thread
    for thread in threads.values():
        thread.tell()
        if thread.session.parent:
            thread.session.order = order_beside(log)
    yield from family({name: thread.session for name, thread in threads.items()})


def _reported(entry: Fields) -> Fields:
    """The line of a sub-agent that a line of progress repeats; any other line as it is."""
    data = mapping_at(entry, "data")
    if data.get("type") != "agent_progress":
        return entry
    return {**entry, "agentId": data.get("agentId"), **mapping_at(data, "message")}


class _Thread:
    """The lines of one session or of one of its sub-agents, in their order."""

    def __init__(self, log: LogFile, side: str) -> None:
        self.session = Session(id=log.stem, agent=AGENT, parent=side)
        if log.path.parent.name == "subagents":
            self.session.id = log.path.parent.parent.name
        self._compacts = False  # the next message replaces the history
        self._replies: dict[str, int] = {}  # message id -> index of its call
        self._queued: list[str] = []  # typed while the model works, and not yet sent
        self._sent: list[tuple[str, float | None]] = []  # sent, and in no line of a message yet

    def add(self, entry: Fields, kind: str) -> None:
        """Read one line with a message."""
        session = self.session
        session.about(entry)
        at = session.at(entry.get("timestamp"))
        message = mapping_at(entry, "message")
        if kind == "assistant":
            self._reply(entry, message, at)
        else:
            self._user(entry, message.get("content"), at)

    def end(self, entry: Fields, result: Fields) -> None:
        """Add the last answer of a sub-agent, by the result of the call that started it."""
        usage = mapping_at(result, "usage")
        if not any(_sent(usage)):
            return
        if not self.session.calls:
            prompt = {"content": text_at(result, "prompt")}
            self.add({**entry, "timestamp": None, "message": prompt}, "user")
        last: FieldDict = {"content": result.get("content"), "usage": usage}
        before = ModelCall(position=0)
        for before in self.session.calls[-1:]:
            last["model"] = before.model
        if _sent(before.usage) != _sent(usage):  # else it was reported, too
            self.add({**entry, "message": last}, "assistant")
        call = self.session.calls[-1]
        call.usage = usage
        call.at_least = ""
        made = [read_content(m.get("content")).calls for m in self.session.messages]
        if sum(map(len, made)) < as_int(result.get("totalToolUseCount"), 0):
            call.at_least = "steps"

    def note(self, entry: Fields, kind: str) -> None:
        """Read what a line without a message says about the session."""
        if kind == "system" and entry.get("subtype") == "compact_boundary":
            self._compacts = True
        elif kind == "attachment":
            attachment = mapping_at(entry, "attachment")
            if attachment.get("type") == "queued_command":
                before = len(self._sent)
                at = self.session.at(entry.get("timestamp"))
                self._user(attachment, attachment.get("prompt"), at)
                if before and before == len(self._sent):  # the same words, written differently
                    del self._sent[0]
        elif kind == "queue-operation":
            self._queue(entry)
        elif kind in ("ai-title", "custom-title"):
            own = text_at(entry, "customTitle")
            self.session.title = own or self.session.title or text_at(entry, "aiTitle")

    def _queue(self, entry: Fields) -> None:
        """Follow what the person types while the model works. Most versions write what was sent
        between two calls as an attachment; 2.0 and the first of 2.1 write it nowhere else."""
        text = text_at(entry, "content")
        if entry.get("operation") == "enqueue":
            self._queued.append(text)
            return
        if text in self._queued:
            self._queued.remove(text)
        elif self._queued:
            text = self._queued.pop(0)
        if entry.get("operation") == "remove" and entry.get("reason") in (
            None,
            "absorbed_mid_turn",
        ):
            self._sent.append((text, self.session.at(entry.get("timestamp"))))

    def tell(self) -> None:
        """Add what was sent between two calls and is in no line of a message."""
        sent = self._sent
        self._sent = []
        for text, at in sent:
            self._user({}, text, at)

    def _reply(self, entry: Fields, message: Fields, at: float | None) -> None:
        session = self.session
        model = text_at(message, "model")
        if model == "<synthetic>" or entry.get("isApiErrorMessage") is True:
            return  # written by the client itself
        name = own_id(message.get("id"), entry.get("requestId"))
        usage = mapping_at(message, "usage")
        blocks = list_at(message, "content") or [{"type": "text", "text": ""}]
        index = self._replies.get(name, -1)
        fresh = len(session.calls)
        if index >= 0 and self._goes_on(session.calls[index], name, usage):
            session.wrote(at)
            session.messages[session.calls[index].position]["content"] += blocks
        else:
            self.tell()
            index = self._replies[name] = fresh
            key = ""
            if name:
                key = f"{name}:{text_at(entry, 'requestId')}"
            session.reply(at=at, key=key)["content"] = list(blocks)
        call = session.calls[index]
        call.model = model or call.model
        call.usage = usage or call.usage
        # Each line has the usage at its time. Of an answer that ended the last one says why.
        if message.get("stop_reason"):
            call.at_least = ""
        elif index == fresh and "stop_reason" in message:
            call.at_least = "output"

    def _goes_on(self, call: ModelCall, name: str, usage: Fields) -> bool:
        """True if a line belongs to an answer whose id, or lack of one, it shares. An id that
        repeats over answers is none: after the results between them the prompt is another, of
        which more was cached."""
        sent = _sent(usage)
        before = _sent(call.usage)
        is_last = call.position == len(self.session.messages) - 1
        if any(sent) and any(before) and sent != before:
            return bool(name) and is_last
        return is_last or bool(name) or any(sent[1:])

    def _user(self, entry: Fields, content: object, at: float | None) -> None:
        session = self.session
        parts = as_list(content) or [{"type": "text", "text": as_text(content, "")}]
        parts = [part for part in parts if isinstance(part, dict)]
        by_person = entry.get("toolDenialKind") in _DENIED
        for part in parts:
            if not _is_word(part):
                refused = by_person and rejection(read_result(part, "").text) is not None
                session.answered(part.get("tool_use_id"), at, refused=refused)
        summary = entry.get("isCompactSummary") is True
        if summary or self._compacts:
            session.compactions.append(len(session.messages))
            self._compacts = False
        count = len(session.messages)
        if not count or session.messages[-1]["role"] != "user" or count in session.compactions:
            session.user([], at=at)
        last = session.messages[-1]
        # The client sends what is answered first, and results before words.
        last["content"] = sorted((*last["content"], *parts), key=_is_word)
        if summary:
            last["compact"] = True
        if _from_person(entry) and not session.parent:
            self._acts(parts, at, by_person=by_person)

    def _acts(self, parts: list[Any], at: float | None, *, by_person: bool) -> None:
        """Note what the person did in one line."""
        session = self.session
        for part in parts:
            if by_person and not _is_word(part):
                session.typed(read_result(part, "").text, at)
        texts = [part for part in parts if part.get("type") == "text"]
        if any(is_interruption(text_at(part, "text")) for part in texts):
            session.did("interrupt", at=at, back=1)
        elif text := _words(texts):
            self._sent = [each for each in self._sent if _words([{"text": each[0]}]) != text]
            session.did("message", text, at, back=1)
        elif read_content([part for part in parts if part.get("type") == "image"]).image:
            session.did("message", "", at, back=1)


def _from_person(entry: Fields) -> bool:
    """True if a line with the role of the user may have come from the person."""
    own = entry.get("promptSource") == "system" or any(entry.get(m) is True for m in _FROM_CLIENT)
    return not own and mapping_at(entry, "origin").get("kind", "human") == "human"


def _sent(usage: Fields) -> list[int]:
    """The tokens of a prompt by kind."""
    return [as_int(usage.get(kind), 0) for kind in _SENT]


def _is_word(part: Fields) -> bool:
    return part.get("type") != "tool_result"


def _words(texts: list[Any]) -> str:
    """The words that the person typed in these text blocks."""
    found = []
    for part in texts:
        text = text_at(part, "text").strip()
        if command := _COMMAND.match(text):
            arguments = text.partition("<command-args>")[2].partition("</command-args>")[0]
            found.append(f"{command[1]} {arguments}".strip())
        else:
            found.append(typed_words(text))
    return joined(*found)
