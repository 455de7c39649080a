"""Copilot CLI's sessions: one event per line, in `~/.copilot/session-state/*/events.jsonl`.

Events of sub-agents stand between those of the session. They are marked with the sub-agent's id,
in older versions with the id of the call that began it. The JSON documents of versions 0.0 are
not read."""

import re
from collections.abc import Iterable

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import (
    ModelCall,
    Origin,
    Session,
    add_call,
    chat_usage,
    family,
    joined,
    own_id,
)
from gateway.steering.sub_agents import Order
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_int, as_mapping, mapping_at, mappings_at, text_at

AGENT = "copilot-cli"
_SILENT = re.compile(
    r"abort|assistant\.\w+|tool\.(?:execution_(?:start|progress|partial_result)|shell_output"
    r"|user_requested)|(?:agent|auto_mode_switch|capabilities|commands?|elicitation|exit_plan_mode"
    r"|external_tool|hook|human_response|mcp|mcp_app|model|pending_messages|permission"
    r"|prompt_cache_break|sampling|sandbox|session|session_limits_exhausted|skill|subagent|system"
    r"|tool_search|ui|user_input|workflow)(?:\.\w+)*"
)
"""Types without a message of their own. Source: the event schema of version 1.0.102."""
_ASKED = re.compile(r"(?:permission|user_input|elicitation|exit_plan_mode)\.(requested|completed)")
_BY_PERSON = ("user_initiated", "user initiated", "remote_command", "user_abort", None)
_COUNTS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    events = _Events(log)
    for record in log.records():
        if not events.add(record):
            log.skip(f"unknown type {record.get('type')!r}")
    yield from events.finished()


class _Events:
    """The events of one file, by the agent they belong to."""

    def __init__(self, log: LogFile) -> None:
        name = log.stem
        if name == "events":
            name = log.path.parent.name or name
        self._main = Session(id=name, agent=AGENT)
        self._sessions = {"": self._main}
        self._usages: dict[str, Fields] = {}  # by the id of the API call, or agent and number
        self._counted = False  # the newest versions write a record of the usage of each call
        self._calls: list[tuple[ModelCall, int]] = []  # each with its output
        self._began: object = None
        self._first = self._next = 0  # calls since the program was started, since it was shut down

    def add(self, record: Fields) -> bool:
        """Read one event. False if it is of no known type."""
        kind = text_at(record, "type")
        data = mapping_at(record, "data")
        at = self._main.at(record.get("timestamp"))
        agent = text_at(record, "agentId") or text_at(data, "parentToolCallId")
        if kind == "subagent.started":
            agent = agent or text_at(data, "toolCallId")
        session = self._sessions.setdefault(agent, Session(id=agent, agent=AGENT, parent=agent))
        session.at(record.get("timestamp"))
        if kind == "user.message":
            self._user(session, data, at)
        elif kind == "assistant.message":
            self._answer(session, data, at)
        elif kind == "tool.execution_complete":
            if data.get("isUserRequested") is not True:  # else a command that the person ran
                self._result(session, data, at)
        elif kind == "system.message":
            session.messages.append({"role": "system", "content": data.get("content")})
        elif kind in ("session.usage_record", "assistant.usage"):
            self._counted = True
            usage = mapping_at(data, "usage") or data
            name = own_id(usage.get("apiCallId"))
            # Without ids they stand in the order of the answers.
            number = sum(known.startswith(f"{agent}#") for known in self._usages)
            self._usages[name or f"{agent}#{number}"] = usage
        else:
            return self._of_session(session, kind, data, at=at)
        return True

    def _of_session(self, session: Session, kind: str, data: Fields, at: float | None) -> bool:
        main = self._main
        if asked := _ASKED.fullmatch(kind):
            session.took("tool" if asked[1] == "requested" else "person", at)
        elif kind == "abort" and data.get("reason") in _BY_PERSON:
            main.did("interrupt", at=at)
        elif kind == "subagent.started":
            session.order = Order(kind=text_at(data, "agentName"))
        elif kind == "session.compaction_complete" and data.get("success") is not False:
            session.compact(text_at(data, "summaryContent"))
        elif kind == "session.context_cleared":
            session.compact()
        elif kind == "session.shutdown" and not self._counted:
            self._totals(data)
        elif kind in ("session.start", "session.resume"):
            main.id = own_id(data.get("sessionId")) or main.id
            main.version = text_at(data, "copilotVersion") or main.version
            context = mapping_at(data, "context")
            folder = text_at(context, "gitRoot") or text_at(context, "cwd")
            main.project = main.project or folder
            main.origin = Origin(repository=text_at(context, "repository"))
        return _SILENT.fullmatch(kind) is not None

    def finished(self) -> Iterable[Session]:
        """The session and those of its sub-agents."""
        main = self._main
        for agent, session in self._sessions.items():
            for at, call in enumerate(session.calls):
                usage = self._usages.get(call.key) or self._usages.get(f"{agent}#{at}")
                if usage:
                    call.usage = _usage(usage)
            session.compactions = [at for at in session.compactions if at < len(session.messages)]
            session.id = main.id
            session.version = main.version
            session.project = main.project
        yield from family(self._sessions)

    def _user(self, session: Session, data: Fields, at: float | None) -> None:
        typed = text_at(data, "content")
        is_own = data.get("source") in (None, "", "user")
        is_own = is_own and not data.get("isAutopilotContinuation")
        text = text_at(data, "transformedContent") or typed
        session.user(text, typed if is_own else "", at)

    def _answer(self, session: Session, data: Fields, at: float | None) -> None:
        name = own_id(data.get("apiCallId"))
        text, thought = (text_at(data, key) for key in ("content", "reasoningText"))
        last = session.calls[-1:]
        is_part = as_int(data.get("chunkIndex"), 0) > 0
        if name:
            is_part = [call.key for call in last] == [name]
        if is_part and last:
            reply = session.messages[session.calls[-1].position]
            reply["content"] = joined(reply["content"], text, by="\n\n")
            if thought:
                reply["reasoning_content"] = joined(reply.get("reasoning_content"), thought)
        else:
            output = as_int(data.get("outputTokens"), 0)
            model = text_at(data, "model")
            key = own_id(name, data.get("messageId"))
            usage = chat_usage(0, output)
            reply = session.reply(text, thought, model=model, usage=usage, at=at, key=key)
            self._calls.append((session.calls[-1], output))
        for asked in mappings_at(data, "toolRequests"):
            add_call(
                reply, asked.get("toolCallId"), asked.get("name"), arguments=asked.get("arguments")
            )

    def _result(self, session: Session, data: Fields, at: float | None) -> None:
        error = mapping_at(data, "error")
        failed = text_at(error, "message")
        text = text_at(mapping_at(data, "result"), "content") or failed
        refused = error.get("code") == "rejected" or None
        is_error = data.get("success") is False
        session.result(data.get("toolCallId"), text, at, failed=is_error, rejected=refused)

    def _totals(self, shutdown: Fields) -> None:
        """Give the newest call of each model what all calls before a shutdown used, less the output
        of the others: older versions noted nothing else of each call."""
        began = shutdown.get("sessionStartTime")
        if began != self._began:  # the sums begin with a start of the program
            self._began = began
            self._first = self._next
        self._next = len(self._calls)
        for model, metric in mapping_at(shutdown, "modelMetrics").items():
            usage = _usage(mapping_at(as_mapping(metric), "usage"))
            mine = [each for each in self._calls[self._first :] if each[0].model == model]
            for call, output in mine[:-1]:
                call.usage = chat_usage(0, output)
                usage["completion_tokens"] -= output
            usage["completion_tokens"] = max(0, usage["completion_tokens"])
            for call, _ in mine[-1:]:
                call.usage = usage


def _usage(given: Fields) -> FieldDict:
    return chat_usage(*(given.get(name) for name in _COUNTS))
