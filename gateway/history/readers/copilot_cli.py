"""Copilot CLI's sessions: one event per line, in `~/.copilot/session-state/*/events.jsonl`.

Sub-agents' events are between those of the session, marked with their id, or in older versions with
that of the call that began them. Versions before 0.0.342 wrote one JSON document with OpenAI's chat
messages, without any usage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.interventions import rejection
from gateway.steering.transcript.user_words import user_words
from gateway.wire.coerce import as_int, as_list, as_mapping, as_text

AGENT = "copilot-cli"
_EVENT = re.compile(
    rb'"type": ?"(?:session\.(?:start|resume)|user\.message|assistant\.turn_start|hook\.start)"'
)
_SILENT = re.compile(
    r"(?:abort|(?:agent|auto_mode_switch|capabilities|commands?|elicitation|exit_plan_mode"
    r"|external_tool|hook|human_response|mcp|mcp_app|model|pending_messages|permission"
    r"|prompt_cache_break|sampling|sandbox|session|session_limits_exhausted|skill|subagent|system"
    r"|tool_search|ui|user_input|workflow)(?:\.\w+)*"
    r"|assistant\.(?:fusion\w+|idle|intent|message_(?:start|delta)|reasoning(?:_delta)?"
    r"|server_tool_progress|streaming_delta|tool_call_delta|turn_\w+)"
    r"|tool\.(?:execution_(?:start|progress|partial_result)|shell_output|user_requested))"
)
"""Types without a message of their own. Source: the event schema of version 1.0.102."""
_BY_PERSON = ("user_initiated", "user initiated", "remote_command", "user_abort", None)


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    if name.endswith(".json"):
        return b'"chatMessages"' in head and b'"sessionId"' in head
    return name.endswith(".jsonl") and _EVENT.search(head) is not None and b'"data"' in head


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    if log.name.endswith(".json"):
        yield from _document(log)
        return
    events = _Events(log)
    for record in log.records():
        if not events.add(record):
            log.skip(f"unknown type {record.get('type')!r}")
    yield from events.finished()


class _Events:
    """The events of one file, by the agent they belong to."""

    def __init__(self, log: LogFile) -> None:
        folder = log.path.parent.name
        self._main = Session(
            id=folder if log.stem == "events" and folder else log.stem, agent=AGENT
        )
        self._sessions = {"": self._main}
        self._usages: dict[str, Mapping[str, Any]] = {}  # by the id of the API call
        self._counted = False  # the newest versions write a record of the usage of each call
        self._calls: list[tuple[Session, int, int]] = []  # each with its index and its output
        self._began: object = None
        self._first = self._next = 0  # calls since the program was started, since it was shut down

    def add(self, record: Mapping[str, Any]) -> bool:
        """Read one event. False if it is of no known type."""
        kind, data = as_text(record.get("type"), ""), as_mapping(record.get("data"))
        at = self._main.at(record.get("timestamp"))
        agent = as_text(record.get("agentId"), "") or as_text(data.get("parentToolCallId"), "")
        session = self._sessions.setdefault(agent, Session(id=agent, agent=AGENT))
        session.at(record.get("timestamp"))
        if kind == "user.message":
            self._user(session, data, at)
        elif kind == "assistant.message":
            self._answer(session, data, at)
        elif kind == "tool.execution_complete":
            self._result(session, data, at)
        elif kind == "system.message":
            session.messages.append({"role": "system", "content": data.get("content")})
        elif kind in ("session.usage_record", "assistant.usage"):
            self._counted = True
            usage = as_mapping(data.get("usage")) or data
            self._usages[as_text(usage.get("apiCallId"), "")] = usage
        elif kind == "abort":
            if data.get("reason") in _BY_PERSON:
                self._main.did("interrupt", "", at)
        elif kind == "session.compaction_complete":
            if data.get("success") is not False:
                session.compactions.append(len(session.messages))
                text = as_text(data.get("summaryContent"), "")
                session.messages.append({"role": "user", "content": text, "compact": True})
        elif kind == "session.context_cleared":
            session.compactions.append(len(session.messages))
        elif kind == "session.shutdown":
            if not self._counted:
                self._totals(data)
        elif kind in ("session.start", "session.resume"):
            self._start(data)
        else:
            return _SILENT.fullmatch(kind) is not None
        return True

    def finished(self) -> Iterable[Session]:
        """The session and those of its sub-agents."""
        for agent, session in self._sessions.items():
            session.calls = [self._priced(call) for call in session.calls]
            count = len(session.messages)
            session.compactions = [at for at in session.compactions if at < count]
            if agent:
                session.version, session.project = self._main.version, self._main.project
                session.parent, session.id = self._main.id, f"{self._main.id}/{agent}"
            if session.messages or not agent:
                yield session

    def _start(self, data: Mapping[str, Any]) -> None:
        main = self._main
        main.id = as_text(data.get("sessionId"), "") or main.id
        main.version = as_text(data.get("copilotVersion"), "") or main.version
        folder = as_mapping(data.get("context")).get("cwd")
        main.project = main.project or as_text(folder, "")

    def _user(self, session: Session, data: Mapping[str, Any], at: float | None) -> None:
        typed = as_text(data.get("content"), "")
        is_own = session is self._main and not data.get("isAutopilotContinuation")
        if is_own and data.get("source") in (None, "", "user") and (words := user_words(typed)):
            session.did("message", words, at)
        text = as_text(data.get("transformedContent"), "") or typed
        session.messages.append({"role": "user", "content": text})

    def _answer(self, session: Session, data: Mapping[str, Any], at: float | None) -> None:
        name = as_text(data.get("apiCallId"), "")
        text, thought = (as_text(data.get(key), "") for key in ("content", "reasoningText"))
        if name and session.calls and session.calls[-1].key == name:  # a part of the same answer
            reply = session.messages[session.calls[-1].position]
            text = "\n\n".join(filter(None, (reply["content"], text)))
            thought = "\n".join(filter(None, (reply.get("reasoning_content"), thought)))
        else:
            reply = {"role": "assistant"}
            output = as_int(data.get("outputTokens"), 0)
            model, position = as_text(data.get("model"), ""), len(session.messages)
            usage = {"completion_tokens": output}
            call = ModelCall(position=position, model=model, usage=usage, at=at, key=name)
            self._calls.append((session, len(session.calls), output))
            session.calls.append(call)
            session.messages.append(reply)
        reply["content"] = text
        if thought:
            reply["reasoning_content"] = thought
        for asked in map(as_mapping, as_list(data.get("toolRequests"))):
            function = {"name": asked.get("name"), "arguments": asked.get("arguments")}
            call_of = {"id": asked.get("toolCallId"), "type": "function", "function": function}
            reply.setdefault("tool_calls", []).append(call_of)

    def _result(self, session: Session, data: Mapping[str, Any], at: float | None) -> None:
        if data.get("isUserRequested") is True:
            return  # a command that the person ran
        error = as_mapping(data.get("error"))
        failed = as_text(error.get("message"), "")
        text = as_text(as_mapping(data.get("result")).get("content"), "") or failed
        result = {"role": "tool", "tool_call_id": data.get("toolCallId"), "content": text}
        is_error = data.get("success") is False
        session.messages.append({**result, "is_error": True} if is_error else result)
        said = rejection(failed or text)
        if said is not None or error.get("code") == "rejected":
            self._main.did("reject", said or "", at, back=int(session is self._main))

    def _totals(self, shutdown: Mapping[str, Any]) -> None:
        """Give the newest call of each model what all calls before a shutdown used, less the output
        of the others: older versions noted nothing else of each call."""
        began = shutdown.get("sessionStartTime")
        if began != self._began:  # the sums begin with a start of the program
            self._began, self._first = began, self._next
        self._next = len(self._calls)
        for model, metric in as_mapping(shutdown.get("modelMetrics")).items():
            usage = _openai_usage(as_mapping(as_mapping(metric).get("usage")))
            calls = self._calls[self._first :]
            mine = [each for each in calls if each[0].calls[each[1]].model == model]
            rest = usage["completion_tokens"] - sum(output for _, _, output in mine[:-1])
            shares = [{"completion_tokens": output} for _, _, output in mine[:-1]]
            shares.append({**usage, "completion_tokens": max(0, rest)})
            for (session, at, _), share in zip(mine, shares, strict=False):
                session.calls[at] = replace(session.calls[at], usage=share)

    def _priced(self, call: ModelCall) -> ModelCall:
        usage = self._usages.get(call.key)
        return call if usage is None else replace(call, usage=_openai_usage(usage))


def _openai_usage(given: Mapping[str, Any]) -> dict[str, Any]:
    """Copilot's counts in the form of Chat Completions; its input includes what was cached."""
    count = {name: as_int(value, 0) for name, value in given.items()}
    return {
        "prompt_tokens": count.get("inputTokens", 0),
        "prompt_tokens_details": {
            "cached_tokens": count.get("cacheReadTokens", 0),
            "cache_write_tokens": count.get("cacheWriteTokens", 0),
        },
        "completion_tokens": count.get("outputTokens", 0),
        "completion_tokens_details": {"reasoning_tokens": count.get("reasoningTokens", 0)},
    }


def _document(log: LogFile) -> Iterable[Session]:
    """The session of a file of the first versions."""
    document = as_mapping(log.document())
    if not document:
        return
    model = as_text(document.get("selectedModel"), "")
    session = Session(id=as_text(document.get("sessionId"), "") or log.stem, agent=AGENT)
    session.at(document.get("startTime"))
    for entry in map(as_mapping, as_list(document.get("timeline"))):
        session.at(entry.get("timestamp"))
    for message in map(dict, map(as_mapping, as_list(document.get("chatMessages")))):
        role, text = message.get("role"), as_text(message.get("content"), "")
        if role == "assistant":
            session.calls.append(ModelCall(position=len(session.messages), model=model))
        elif role == "user" and (words := user_words(text)):
            session.did("message", words)
        session.messages.append(message)
        if role == "tool" and (said := rejection(text)) is not None:
            session.did("reject", said, back=1)
    yield session
