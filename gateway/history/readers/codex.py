"""Codex CLI's rollouts: one JSON object per line, in `~/.codex/sessions`.

A line is an item of the Responses API (`response_item`), an event that repeats it for the screen
(`event_msg`), or about the session. The first versions wrote bare items. An answer is several
items, between which the results of its calls may be. It ends where its usage, the settings of the
next request or a message of the user follows; in files that have none of these for each request,
where an item follows a result. Up to version 0.63 usage comes before the items of its answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.content import (
    images_sum,
    item_call,
    item_reasoning,
    item_result,
    read_content,
)
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.steering.transcript.user_words import user_words
from gateway.wire.coerce import as_int, as_list, as_mapping, as_text

AGENT = "codex"
_MARK = re.compile(
    rb'"type": ?"(?:session_meta|response_item|turn_context)"|"record_type": ?"state"'
    rb'|\A\s*\{"id": ?"[0-9a-f-]{36}", ?"timestamp": ?"[^"]*", ?"(?:instructions|git)"'
)
# fmt: off
_SILENT = frozenset((
    "dynamic_tools_update", "id_allocation", "inter_agent_communication_metadata", "realtime_item",
    "security_risk_score", "turn_context", "world_state",
))
_SILENT_ITEMS = frozenset((
    "additional_tools", "compaction", "compaction_summary", "compaction_trigger",
    "configuration_update", "context_compaction", "ghost_snapshot", "other",
))
# fmt: on
_EVENTS = re.compile(
    r"(?:agent_(?:message|reasoning)|auth_recovery|collab|context_compacted|dynamic_tool|elicitation"
    r"|environment|error|exec_(?:approval|command)|guardian|hook|image_generation|item_started"
    r"|mcp_(?:startup|tool)|model_(?:reroute|verification)|(?:apply_)?patch_a|plan_(?:delta|update)"
    r"|raw_response|realtime|reasoning|request_(?:permissions|user_input)|safety_buffering"
    r"|session_configured|shutdown_complete|stream_error|sub_agent_activity|task_complete"
    r"|terminal_interaction|thread_(?:goal|name|queue|rolled_back|settings)|turn_(?:complete|diff"
    r"|moderation)|undo|view_image|warning|web_search|background_event|deprecation_notice"
    r"|(?:enter|exit)ed_review_mode)"
)
"""Types without a message of their own. Source: the program of version 0.171 and earlier logs."""
_NOT_WORDS = re.compile(r"<(?:turn_aborted|skill|user_shell_command|\w*notification|\w+_mode)\b")
_CWD = re.compile(r"<cwd>(.*?)</cwd>|Current working directory: (.+)")


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    return name.endswith(".jsonl") and _MARK.search(head) is not None


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    rollout = _Rollout(log)
    lines = [(log.seen, record) for record in log.records()]
    rollout.survey(record for _, record in lines)
    for number, record in lines:
        if reason := rollout.add(record):
            log.skip(reason, number)
    yield rollout.session


class _Rollout:
    """The lines of one file, in their order."""

    def __init__(self, log: LogFile) -> None:
        self.session = Session(id=log.stem, agent=AGENT)
        self._model = ""
        self._known = False  # the line about the session was read; a fork holds those of others
        self._first = 0  # number of the first line that is no copy of the parent's
        self._is_open = False  # the newest answer may get further items
        self._has_result = False  # the newest answer has a result
        self._used = True  # the newest answer has its usage, or there is none
        self._follows = False  # usage comes after the items of its answer
        self._early: Mapping[str, Any] = {}  # usage of the next answer
        self._total: object = None  # tokens of the session up to here
        self._aborted = False
        self._is_marked = False  # the file marks where an answer ends
        self._has_records = self._has_events = False

    def survey(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Find out which of the lines that say the same this file has."""
        for record in records:
            payload = as_mapping(record.get("payload"))
            kind = payload.get("type")
            self._is_marked |= "record_type" in record or record.get("type") == "token_usage_record"
            self._is_marked |= kind == "token_count" and bool(payload.get("info"))
            self._has_events |= kind == "user_message" or _typed(payload) is not None

    def add(self, record: Mapping[str, Any]) -> str:
        """Read one line. Returns why it was not understood, "" if it was."""
        at = self.session.at(record.get("timestamp"))
        if self._known and as_int(record.get("ordinal"), self._first) < self._first:
            return ""
        payload = record.get("payload")
        kind = as_text(record.get("type"), "")
        if not isinstance(payload, dict):
            if "record_type" in record:
                self._is_open = False
                return ""
            if not kind and "id" in record:
                return self._meta(record)
            return self._item(record, at)
        if kind == "response_item":
            return self._item(payload, at)
        if kind == "event_msg":
            return self._event(payload, at)
        if kind == "session_meta":
            return self._meta(payload)
        if kind == "compacted":
            return self._compacted(payload)
        if kind == "token_usage_record":
            self._has_records = True
            self._usage(as_mapping(payload.get("usage")), as_text(payload.get("response_id"), ""))
            return ""
        if kind == "inter_agent_communication":
            return self._user(payload.get("content"), at)
        if kind == "turn_context":
            self._is_open = False
            self._model = as_text(payload.get("model"), "") or self._model
            self.session.project = self.session.project or as_text(payload.get("cwd"), "")
        return "" if kind in _SILENT else f"unknown type {kind!r}"

    def _meta(self, meta: Mapping[str, Any]) -> str:
        if self._known:
            return ""
        self._known, session = True, self.session
        session.id = as_text(meta.get("id"), "") or session.id
        session.version = as_text(meta.get("cli_version"), "")
        session.project = as_text(meta.get("cwd"), "")
        self._first = as_int(meta.get("subagent_history_start_ordinal"), 0)
        source = meta.get("source")
        spawn = source.get("subagent") if isinstance(source, dict) else None
        if spawn is None and meta.get("thread_source") != "subagent":
            return ""
        origin = as_mapping(as_mapping(spawn).get("thread_spawn"))
        names = [meta.get(name) for name in ("parent_thread_id", "forked_from_id", "session_id")]
        known = (as_text(name, "") for name in (origin.get("parent_thread_id"), *names, spawn))
        session.parent = next((name for name in known if name not in ("", session.id)), "subagent")
        return ""

    def _item(self, item: Mapping[str, Any], at: float | None) -> str:
        kind = as_text(item.get("type"), "")
        if kind == "message":
            return self._message(item, at)
        if kind == "agent_message":
            return self._user(item.get("content"), at)
        if kind == "reasoning":
            reply = self._reply(item, at)
            shown = (reply.get("reasoning_content"), item_reasoning(item))
            if text := "\n".join(filter(None, shown)):
                reply["reasoning_content"] = text
            return ""
        if (result := item_result(item)) is not None:
            output = item.get("output")
            content = output if isinstance(output, list) and images_sum(output) else result.text
            message = {"role": "tool", "tool_call_id": result.id, "content": content}
            self.session.messages.append(
                {**message, "is_error": True} if result.is_error else message
            )
            self._has_result = True
            if (said := rejection(result.text)) is not None:
                self.session.did("reject", said, at, back=1)
            return ""
        if (call := item_call(item)) is not None:
            function = {"name": call.name, "arguments": call.arguments}
            calls = self._reply(item, at).setdefault("tool_calls", [])
            calls.append({"id": call.id, "type": "function", "function": function})
            if call.observation:
                result_of = {"tool_call_id": call.id, "content": call.observation}
                self.session.messages.append({"role": "tool", **result_of})
            return ""
        return "" if kind in _SILENT_ITEMS else f"unknown item {kind!r}"

    def _message(self, item: Mapping[str, Any], at: float | None) -> str:
        role, content = as_text(item.get("role"), ""), item.get("content")
        if role == "assistant":
            reply = self._reply(item, at)
            said = (reply["content"], read_content(content).text)
            reply["content"] = "\n\n".join(filter(None, said))
            return ""
        if role != "user":
            self.session.messages.append({"role": role or "developer", "content": content})
            return ""
        self._user(content, at)
        read = read_content(content)
        if found := _CWD.search(read.text):
            self.session.project = self.session.project or (found[1] or found[2]).strip()
        if is_interruption(read.text):
            self._interrupted(at)
        elif not self._has_events and not self.session.parent:
            parts = as_list(content) or [{"text": content}]
            texts = [as_text(as_mapping(part).get("text"), "").strip() for part in parts]
            words = [user_words(text) for text in texts if not _NOT_WORDS.match(text)]
            if text := "\n".join(filter(None, words)):
                self._said(text, at)
        return ""

    def _user(self, content: object, at: float | None) -> str:
        self._is_open = False
        self.session.messages.append({"role": "user", "content": content})
        return ""

    def _reply(self, item: Mapping[str, Any], at: float | None) -> dict[str, Any]:
        """The answer that an item belongs to: the open one, or a new one."""
        session = self.session
        self._aborted = False
        if self._is_open and (self._is_marked or not self._has_result):
            return session.messages[session.calls[-1].position]
        reply: dict[str, Any] = {"role": "assistant", "content": ""}
        key = as_text(item.get("id"), "") or as_text(item.get("call_id"), "")
        call = ModelCall(position=len(session.messages), model=self._model, at=at, key=key)
        session.messages.append(reply)
        session.calls.append(call)
        self._is_open, self._has_result, self._used = True, False, False
        if self._early:
            session.calls[-1] = replace(call, usage=self._early)
            self._early, self._used = {}, True
        return reply

    def _usage(self, given: Mapping[str, Any], name: str = "") -> None:
        usage = _openai_usage(given)
        calls = self.session.calls
        self._is_open = False
        if not self._used:
            calls[-1] = replace(calls[-1], usage=usage, key=name or calls[-1].key)
            self._used = self._follows = True
        elif self._follows:  # that of a call for a summary, which has no items
            calls[-1] = replace(calls[-1], usage=_sum(calls[-1].usage, usage))
        else:
            self._early = _sum(self._early, usage)

    def _event(self, event: Mapping[str, Any], at: float | None) -> str:
        kind = as_text(event.get("type"), "")
        if kind == "token_count":
            info = as_mapping(event.get("info"))
            total = info.get("total_token_usage")
            if not self._has_records and total and total != self._total:
                self._usage(as_mapping(info.get("last_token_usage")))
            self._total = total or self._total
        elif kind == "turn_aborted":
            self._is_open = False
            if event.get("reason") in ("interrupted", None):
                self._interrupted(at)
        elif kind in ("task_started", "turn_started"):
            self._is_open = False
        elif kind == "user_message":
            if event.get("kind") in ("plain", None):
                self._said(user_words(as_text(event.get("message"), "")), at)
        elif (typed := _typed(event)) is not None:
            self._said(user_words(typed), at)
        elif kind != "item_completed" and not _EVENTS.match(kind):
            return f"unknown event {kind!r}"
        return ""

    def _said(self, text: str, at: float | None) -> None:
        """Note what a person typed; some versions write it as two events."""
        session, before = self.session, self.session.human[-1:]
        back = int(bool(session.messages) and session.messages[-1].get("role") == "user")
        same = [turn for turn in before if turn.kind == "message" and turn.text == text.strip()]
        if not session.parent and not (same and same[0].position == len(session.messages) - back):
            session.did("message", text, at, back=back)
        self._aborted = False

    def _interrupted(self, at: float | None) -> None:
        """Note an interruption, which is written as an event and as a message."""
        if not self._aborted and not self.session.parent:
            self.session.did("interrupt", "", at)
        self._aborted = True

    def _compacted(self, payload: Mapping[str, Any]) -> str:
        session = self.session
        session.compactions.append(len(session.messages))
        history = [item for item in as_list(payload.get("replacement_history")) if item]
        kept = [as_mapping(item).get("content") for item in history if _is_user(item)]
        for content in kept or [as_text(payload.get("message"), "")]:
            self._user(content, None)
            session.messages[-1]["compact"] = True
        return ""


def _typed(event: Mapping[str, Any]) -> str | None:
    """What a person typed, in the event of newer versions that a message was taken."""
    item = as_mapping(event.get("item"))
    if event.get("type") != "item_completed" or item.get("type") != "UserMessage":
        return None
    return read_content(item.get("content")).text


def _is_user(item: object) -> bool:
    return as_mapping(item).get("role") == "user"


def _openai_usage(given: Mapping[str, Any]) -> dict[str, Any]:
    """Codex's counts under the names of the Responses API; its input includes what was cached."""
    count = {name: as_int(value, 0) for name, value in given.items()}
    return {
        "input_tokens": count.get("input_tokens", 0),
        "input_tokens_details": {
            "cached_tokens": count.get("cached_input_tokens", 0),
            "cache_write_tokens": count.get("cache_write_input_tokens", 0),
        },
        "output_tokens": count.get("output_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": count.get("reasoning_output_tokens", 0)},
    }


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    if not one:
        return other
    return {
        name: _sum(value, other[name]) if isinstance(value, dict) else value + other[name]
        for name, value in one.items()
    }
