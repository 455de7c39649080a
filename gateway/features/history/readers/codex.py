"""Codex CLI's rollouts: one JSON object per line, in `~/.codex/sessions`.

A line is an item of the Responses API (`response_item`), an event that repeats it for the screen
(`event_msg`), or about the session. An answer is several items, between which the results of its
calls may be. It ends where its usage, the settings of the next request or a message of the user
follows; in files that have none of these for each request, where an item follows a result. Up to
version 0.63 usage comes before the items of its answer, before 0.30 there is none."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Origin, Session, add_call, chat_usage, joined, own_id
from gateway.steering.sub_agents import Order
from gateway.steering.transcript.client_texts import typed_words
from gateway.steering.transcript.content import (
    images_sum,
    item_call,
    item_reasoning,
    item_result,
    read_content,
)
from gateway.steering.transcript.interventions import is_interruption
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_int,
    as_list,
    as_mapping,
    as_text,
    mapping_at,
    mappings_at,
    text_at,
)

AGENT = "codex"
_SILENT = re.compile(
    r"dynamic_tools_update|id_allocation|inter_agent_communication_metadata|realtime_item"
    r"|security_risk_score|session_meta|world_state"
)
_SILENT_ITEMS = re.compile(
    r"additional_tools|(?:context_)?compaction\w*|configuration_update|ghost_snapshot|other"
)
_EVENTS = re.compile(
    r"agent_|apply_patch|auth_recovery|background_event|collab|context_compacted|deprecation_notice"
    r"|dynamic_tool|elicitation|(?:enter|exit)ed_review_mode|environment|error|exec_|guardian|hook"
    r"|image_generation|item_|mcp_|model_|patch_a|plan_|raw_response|realtime|reasoning|request_"
    r"|safety_buffering|session_configured|shutdown_complete|stream_error|sub_agent_activity"
    r"|task_|terminal_interaction|thread_|turn_|undo|view_image|warning|web_search"
)
"""Types without a message of their own. Source: the program of version 0.171 and earlier logs."""
_FOLDER = re.compile(r"(?:<cwd>|Current working directory: )([^<\n]{1,4096})")
# Address of a repository, around its owner and name.
_REMOTE = re.compile(r"^(?:[\w+]+://[^/]*/|[^/:]*:)?(.+?)(?:\.git)?/*$")
_NUMBERED = re.compile(r"^.*[\W_]\d{1,4}$")  # names such as `bash:0` are the same in all sessions
_COUNTS = ("input", "output", "cached_input", "cache_write_input", "reasoning_output")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    rollout = _Rollout(log)
    lines = [(log.seen, record) for record in _records(log)]
    rollout.survey(record for _, record in lines)
    for number, record in lines:
        if reason := rollout.add(record):
            log.skip(reason, number)
    yield rollout.session


def _records(log: LogFile) -> Iterator[Fields]:
    """The lines of a file in today's form. Before version 0.30 items stood alone, after a line
    about the session; in the first versions all stood in one document."""
    records: Iterable[Fields]
    if log.name.endswith(".json"):
        document = as_mapping(log.document())
        records = [mapping_at(document, "session"), *mappings_at(document, "items")]
    else:
        records = log.records()
    for record in records:
        kind = "response_item"
        if "instructions" in record:
            kind = "session_meta"
        if "payload" in record:
            yield record
        elif "record_type" not in record:  # a marker without content
            yield {"type": kind, "timestamp": record.get("timestamp"), "payload": record}


class _Form(Struct):
    """The habits of a file, which differ by version of the client."""

    is_marked: bool = False  # it marks where an answer ends
    follows: bool = False  # it tells usage after the items of its answer
    has_records: bool = False  # it records the usage of each answer in a line of its own
    has_events: bool = False  # it repeats what a person typed as an event


class _Answer(Struct):
    """The newest answer of a file."""

    is_open: bool = False  # it may get further items
    has_result: bool = False  # a call of it has a result
    used: bool = True  # it has its usage, or there is none
    spent: Counter[str] = field(default_factory=Counter)  # its tokens by kind


class _Rollout:
    """The lines of one file, in their order."""

    def __init__(self, log: LogFile) -> None:
        self.session = Session(id=log.stem, agent=AGENT)
        self._model = ""
        # id of the session that this is a fork of, else its own; "" before the line about it
        self._origin = ""
        self._first = 0  # number of the first line that is no copy of the parent's
        self._answer = _Answer()
        self._form = _Form()
        self._early: Counter[str] = Counter()  # tokens of the next answer
        self._total: object = None  # tokens of the session up to here

    def survey(self, records: Iterable[Fields]) -> None:
        """Find out which of the lines that say the same this file has."""
        for record in records:
            payload = mapping_at(record, "payload")
            kind = payload.get("type")
            self._form.is_marked |= record.get("type") == "token_usage_record"
            self._form.is_marked |= kind == "token_count" and bool(payload.get("info"))
            self._form.has_events |= kind == "user_message" or _typed(payload) is not None

    def add(self, record: Fields) -> str:
        """Read one line. Returns why it was not understood, "" if it was."""
        at = self.session.at(record.get("timestamp"))
        if self._origin and as_int(record.get("ordinal"), self._first) < self._first:
            return ""
        kind = text_at(record, "type")
        payload = mapping_at(record, "payload")
        if kind == "response_item":
            return self._item(payload, at)
        if kind == "event_msg":
            return self._event(payload, at)
        if kind == "session_meta":
            self._meta(payload)
        elif kind == "compacted":
            self._compacted(payload)
        elif kind == "token_usage_record":
            self._form.has_records = True
            self._usage(mapping_at(payload, "usage"), text_at(payload, "response_id"))
        elif kind == "inter_agent_communication":
            self._user(payload.get("content"), at)
        elif kind == "turn_context":
            self._answer.is_open = False
            self._model = text_at(payload, "model") or self._model
            self.session.project = self.session.project or text_at(payload, "cwd")
        elif not _SILENT.fullmatch(kind):
            return f"unknown type {kind!r}"
        return ""

    def _meta(self, meta: Fields) -> None:
        is_copy = bool(self._origin)  # from the session that was forked
        self._origin = own_id(meta.get("forked_from_id"), meta.get("id")) or self.session.id
        if is_copy:
            return
        session = self.session
        session.id = own_id(meta.get("id")) or session.id
        session.version = text_at(meta, "cli_version")
        session.project = text_at(meta, "cwd")
        remote = text_at(mapping_at(meta, "git"), "repository_url")
        session.origin = Origin(repository=_REMOTE.sub(r"\1", remote))
        self._first = as_int(meta.get("subagent_history_start_ordinal"), 0)
        spawn = mapping_at(meta, "source").get("subagent")
        if spawn is None and meta.get("thread_source") != "subagent":
            return
        spawned = mapping_at(as_mapping(spawn), "thread_spawn")
        origin = spawned.get("parent_thread_id")
        names = [meta.get(name) for name in ("parent_thread_id", "forked_from_id", "session_id")]
        known = (own_id(name) for name in (origin, *names))
        others = (name for name in known if name not in ("", session.id))
        session.parent = next(others, as_text(spawn, "") or "subagent")
        role = text_at(spawned, "agent_role") or as_text(spawn, "") or "default"
        session.order = Order(kind=role, task=text_at(spawned, "agent_path").rpartition("/")[2])

    def _item(self, item: Fields, at: float | None) -> str:
        kind = text_at(item, "type")
        if kind == "message":
            self._message(item, at)
        elif kind == "agent_message":
            self._user(item.get("content"), at)
        elif kind == "reasoning":
            reply = self._reply(item, at)
            if text := joined(reply.get("reasoning_content"), item_reasoning(item)):
                reply["reasoning_content"] = text
        elif (result := item_result(item)) is not None:
            output = item.get("output")
            content = output if isinstance(output, list) and images_sum(output) else result.text
            self.session.result(result.id, content, at, failed=result.is_error)
            self._answer.has_result = True
        elif (call := item_call(item)) is not None:
            add_call(self._reply(item, at), call.id, call.name, arguments=call.arguments)
            if call.observation:
                self.session.result(call.id, call.observation, at, rejected=False)
        elif not _SILENT_ITEMS.fullmatch(kind):
            return f"unknown item {kind!r}"
        return ""

    def _message(self, item: Fields, at: float | None) -> None:
        role = text_at(item, "role")
        content = item.get("content")
        text = read_content(content).text
        if role == "assistant":
            reply = self._reply(item, at)
            reply["content"] = joined(reply["content"], text, by="\n\n")
        elif role != "user":
            self.session.messages.append({"role": role or "developer", "content": content})
        else:
            self._user(content, at)
            if folder := _FOLDER.search(text):
                self.session.project = self.session.project or folder[1]
            if is_interruption(text):
                self.session.did("interrupt", at=at)
            elif not self._form.has_events:
                parts = as_list(content) or [{"text": content}]
                texts = [text_at(as_mapping(part), "text").strip() for part in parts]
                words = joined(*map(typed_words, texts))
                if words:
                    self._said(words, at)

    def _user(self, content: object, at: float | None) -> None:
        self._answer.is_open = False
        self.session.user(content, at=at)

    def _reply(self, item: Fields, at: float | None) -> FieldDict:
        """The answer that an item belongs to: the open one, or a new one."""
        session = self.session
        key = _NUMBERED.sub("", own_id(item.get("id"), item.get("call_id")))
        if self._answer.is_open and (self._form.is_marked or not self._answer.has_result):
            session.wrote(at)
            call = session.calls[-1]
            call.key = call.key or key
            return session.messages[call.position]
        if self._early and not key:
            key = f"{self._origin}:{self._total}"
        self._answer = _Answer(is_open=True, used=bool(self._early), spent=self._early)
        self._early = Counter()
        return session.reply(model=self._model, at=at, key=key, usage=_usage(self._answer.spent))

    def _usage(self, given: Fields, name: str = "") -> None:
        counts = Counter({kind: as_int(given.get(f"{kind}_tokens"), 0) for kind in _COUNTS})
        self._answer.is_open = False
        if self._answer.used and not self._form.follows:  # it comes before the items of its answer
            self._early += counts
            return
        # After an answer that has its own: that of a call for a summary, which has no items.
        self._answer.spent += counts
        call = self.session.calls[-1]
        call.usage = _usage(self._answer.spent)
        if not self._answer.used:
            call.key = own_id(name, call.key) or f"{self._origin}:{self._total}"
        self._answer.used = self._form.follows = True

    def _event(self, event: Fields, at: float | None) -> str:
        kind = text_at(event, "type")
        if kind == "token_count":
            info = mapping_at(event, "info")
            total = info.get("total_token_usage") or self._total
            grew = total != self._total
            self._total = total
            if grew and not self._form.has_records:
                self._usage(mapping_at(info, "last_token_usage"))
        elif kind == "turn_aborted":
            self._answer.is_open = False
            if event.get("reason") in ("interrupted", None):
                self.session.did("interrupt", at=at)
        elif kind in ("task_started", "turn_started"):
            self._answer.is_open = False
        elif kind == "user_message":
            if event.get("kind") in ("plain", None):
                self._said(text_at(event, "message"), at)
        elif (typed := _typed(event)) is not None:
            self._said(typed, at)
        elif not _EVENTS.match(kind):
            return f"unknown event {kind!r}"
        return ""

    def _said(self, text: str, at: float | None) -> None:
        """Note what a person typed; some versions write it as two events."""
        session = self.session
        words = typed_words(text)
        back = sum(message.get("role") == "user" for message in session.messages[-1:])
        place = ("message", words, len(session.messages) - back)
        last = [(turn.kind, turn.text, turn.position) for turn in session.human[-1:]]
        if last != [place]:
            session.did("message", text, at, back=back)

    def _compacted(self, payload: Fields) -> None:
        history = mappings_at(payload, "replacement_history")
        kept = [item.get("content") for item in history if item.get("role") == "user"]
        self.session.compact(*(kept or [text_at(payload, "message")]))
        self._answer.is_open = False


def _typed(event: Fields) -> str | None:
    """The words that a person typed, in the event of newer versions that a message was taken."""
    item = mapping_at(event, "item")
    if event.get("type") != "item_completed" or item.get("type") != "UserMessage":
        return None
    return read_content(item.get("content")).text


def _usage(counts: Counter[str]) -> FieldDict:
    return chat_usage(*(counts[kind] for kind in _COUNTS))
