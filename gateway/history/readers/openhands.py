"""OpenHands' events: a folder with a file for each, a list in one document, or the `output.jsonl`
of its evaluations, which has a list in each line.

Versions from 1.0 (its SDK) name an event by `kind`, versions before by `action` or `observation`.
In a folder of the first the file to begin with is `base_state.json`, in one of the second `0.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.content import json_text, read_content
from gateway.steering.transcript.interventions import rejection
from gateway.wire.coerce import as_bool, as_list, as_mapping, as_number, as_text, first_mapping

AGENT = "openhands"
# fmt: off
_SILENT = frozenset((
    "ACPToolCallEvent", "CondensationRequest", "ConversationErrorEvent",
    "ConversationStateUpdateEvent", "HookExecutionEvent", "LLMCompletionLogEvent",
    "SecurityAnalysisEvent", "ServerErrorEvent", "StreamingDeltaEvent", "TokenEvent",
    "agent_state_changed", "change_agent_state", "condensation_request", "condense",
    "loop_detection", "loop_recovery", "null", "pause", "push", "recall", "resume", "send_pr",
    "start", "stop", "success",
))
# fmt: on
"""Events without a message of the model's. Source: schemas of versions 0.62 and 1.58."""
_NO_REASON = "User rejected the action"
_STOPS = ("paused", "stopped")
_OWN_ARGUMENTS = ("thought", "wait_for_response", "security_risk", "confirmation_state", "blocking")
_OF_EVALUATIONS = (b'"instruction"', b'"test_result"', b'"attempt"')


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    if name == "base_state.json":
        return b'"workspace"' in head or b'"agent"' in head
    old = b'"action"' in head or b'"observation"' in head
    if name == "0.json":
        return old and b'"source"' in head
    start = head.lstrip()[:1]
    if start == b"[":
        return b'"source"' in head and (old or b'"kind"' in head) and b'"timestamp"' in head
    record = head.partition(b"\n")[0]
    task = b'"instance_id"' in record or b'"issue"' in record
    done = any(mark in record for mark in _OF_EVALUATIONS)
    return start == b"{" and name.endswith(".jsonl") and task and done


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    for session in _sessions(log):
        if session.messages:
            yield session


def _sessions(log: LogFile) -> Iterator[Session]:
    folder = log.path.parent
    if log.name == "base_state.json":
        state = as_mapping(log.document())
        paths = sorted((folder / "events").glob("event-*.json"))
        above = folder.parent
        session = Session(id=as_text(state.get("id"), "") or folder.name, agent=AGENT)
        session.parent = above.parent.name if above.name == "subagents" else ""
        session.project = as_text(as_mapping(state.get("workspace")).get("working_dir"), "")
        metrics = as_mapping(as_mapping(state.get("stats")).get("usage_to_metrics"))
        yield _read(session, map(log.beside, paths), log, [*metrics.values()])
    elif log.name == "0.json":
        numbered = [path for path in folder.glob("*.json") if path.stem.isdecimal()]
        paths = sorted(numbered, key=lambda path: int(path.stem))
        yield _read(Session(id=folder.parent.name, agent=AGENT), map(log.beside, paths), log)
    elif log.name.endswith(".jsonl"):
        for record in log.records():
            yield _evaluation(record, log)
    else:
        events = as_list(log.document())
        log.seen = len(events)
        yield _read(Session(id=log.stem, agent=AGENT), map(as_mapping, events), log)


def _evaluation(record: Mapping[str, Any], log: LogFile) -> Session:
    """The session of one task; after its first message the harness answers, not a person."""
    name = as_text(record.get("instance_id"), "") or f"{log.stem}:{log.seen}"
    session = Session(id=name, agent=AGENT)
    events: list[Mapping[str, Any]] = []
    for entry in as_list(record.get("history")):
        # The oldest versions wrote pairs of an action and its observation.
        events += map(as_mapping, entry) if isinstance(entry, list) else [as_mapping(entry)]
    _read(session, events, log, [record.get("metrics")])
    said = [turn for turn in session.human if turn.kind == "message"]
    session.human = [turn for turn in session.human if turn not in said[1:]]
    verdict = first_mapping(as_mapping(record.get("test_result")), "report")
    session.outcome = as_bool(verdict.get("resolved"), as_bool(record.get("resolved"), None))
    return session


def _read(
    session: Session,
    events: Iterable[Mapping[str, Any]],
    log: LogFile,
    metrics: Iterable[object] = (),
) -> Session:
    reader = _Events(session, log, metrics)
    for event in events:
        if event:
            reader.add(event)
    return session


class _Events:
    """The events of one session, in their order."""

    def __init__(self, session: Session, log: LogFile, metrics: Iterable[object]) -> None:
        self._session, self._log = session, log
        self._usage: dict[str, Mapping[str, Any]] = {}  # by the id of the response
        for each in map(as_mapping, metrics):
            usages, costs = as_list(each.get("token_usages")), as_list(each.get("costs"))
            costs = costs if len(costs) == len(usages) else [{}] * len(usages)
            for usage, cost in zip(map(as_mapping, usages), map(as_mapping, costs), strict=True):
                name = as_text(usage.get("response_id"), "")
                self._usage[name] = {**usage, "cost": cost.get("cost")}
        self._answers: dict[str, dict[str, Any]] = {}  # id of the response -> its message
        self._asked: set[str] = set()  # ids of calls
        self._total: Mapping[str, Any] = {}  # tokens of the session so far (before 1.0)

    def add(self, event: Mapping[str, Any]) -> None:
        """Read one event."""
        at = self._session.at(event.get("timestamp"))
        kind = as_text(event.get("kind"), "")
        if kind:
            self._event(event, kind, at)
        elif "action" in event:
            self._action(event, as_text(event.get("action"), ""), at)
        elif "observation" in event:
            self._observation(event, as_text(event.get("observation"), ""), at)
        else:
            self._log.skip("an event of no known kind")

    def _event(self, event: Mapping[str, Any], kind: str, at: float | None) -> None:
        session = self._session
        if kind == "SystemPromptEvent":
            text = as_text(as_mapping(event.get("system_prompt")).get("text"), "")
            session.messages.append({"role": "system", "content": text})
        elif kind == "MessageEvent":
            self._message(event, at)
        elif kind == "ActionEvent":
            call = as_mapping(event.get("tool_call"))
            inner = as_mapping(call.get("function")) or call
            text = read_content(event.get("thought")).text
            message = self._answer(as_text(event.get("llm_response_id"), ""), text, at)
            if thought := as_text(event.get("reasoning_content"), ""):
                message["reasoning_content"] = thought
            self._ask(
                message,
                as_text(event.get("tool_call_id"), ""),
                as_text(event.get("tool_name"), "") or as_text(inner.get("name"), ""),
                inner.get("arguments"),
            )
        elif kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
            text, failed = _outcome(event)
            rejected = kind == "UserRejectObservation" and event.get("rejection_source") != "hook"
            self._result(as_text(event.get("tool_call_id"), ""), text, at, failed, rejected)
        elif kind in ("PauseEvent", "InterruptEvent"):
            if event.get("source") == "user":
                session.did("interrupt", at=at)
        elif kind == "Condensation":
            self._condensed(event.get("summary"))
        elif kind not in _SILENT:
            self._log.skip(f"unknown kind {kind!r}")

    def _message(self, event: Mapping[str, Any], at: float | None) -> None:
        message = as_mapping(event.get("llm_message"))
        content = as_list(message.get("content"))
        if message.get("role") == "assistant":
            self._answer(as_text(event.get("llm_response_id"), ""), read_content(content).text, at)
            return
        session = self._session
        added = as_list(event.get("extended_content"))
        session.messages.append({"role": "user", "content": [*content, *added]})
        if event.get("source") == "user" and not (event.get("sender") or session.parent):
            session.did("message", read_content(content).text, at, back=1)

    def _action(self, event: Mapping[str, Any], kind: str, at: float | None) -> None:
        session = self._session
        arguments = as_mapping(event.get("args"))
        # The oldest versions name no source: all but the first message are the agent's.
        source = as_text(event.get("source"), "") or ("agent" if session.messages else "user")
        text = as_text(arguments.get("content"), "") or as_text(event.get("content"), "")
        if kind == "change_agent_state" and source == "user":
            if arguments.get("agent_state") in _STOPS:
                session.did("interrupt", at=at)
        elif kind == "system":
            session.messages.append({"role": "system", "content": text})
        elif kind == "condensation":
            self._condensed(arguments.get("summary"))
        elif kind == "message" and source == "user":
            session.messages.append({"role": "user", "content": text})
            session.did("message", text, at, back=1)
        elif kind not in _SILENT and source == "agent":
            self._old_answer(event, kind, arguments, at)

    def _old_answer(
        self, event: Mapping[str, Any], kind: str, arguments: Mapping[str, Any], at: float | None
    ) -> None:
        metadata = as_mapping(event.get("tool_call_metadata"))
        response = as_mapping(metadata.get("model_response"))
        choice = as_mapping(next(iter(as_list(response.get("choices"))), None))
        answer = as_mapping(choice.get("message"))
        total = first_mapping(as_mapping(event.get("llm_metrics")), "accumulated_token_usage")
        used = as_mapping(response.get("usage")) or _difference(total, self._total)
        self._total = total or self._total
        name = as_text(response.get("id"), "")
        if name:
            self._usage.setdefault(name, {"model": response.get("model"), **used})
        text = arguments.get("content" if kind == "message" else "thought")
        text = as_text(answer.get("content"), "") or as_text(text, "")
        message = self._answer(name, text, at, used)
        if calls := as_list(answer.get("tool_calls")):
            message["tool_calls"] = calls
            self._asked.update(as_text(as_mapping(call).get("id"), "") for call in calls)
        elif kind != "message":
            own = {key: arguments[key] for key in arguments if key not in _OWN_ARGUMENTS}
            call_id = as_text(metadata.get("tool_call_id"), "")
            call_id = call_id or str(event.get("id", len(self._asked)))
            self._ask(message, call_id, as_text(metadata.get("function_name"), kind), own)

    def _observation(self, event: Mapping[str, Any], kind: str, at: float | None) -> None:
        if kind in _SILENT:
            return
        metadata = as_mapping(event.get("tool_call_metadata"))
        cause = event.get("cause", len(self._asked) - 1)
        name = as_text(metadata.get("tool_call_id"), "") or str(cause)
        text = as_text(event.get("content"), "")
        extras = as_mapping(event.get("extras"))
        text = _shown(text, as_mapping(extras.get("metadata")))
        self._result(name, text, at, kind == "error", kind == "user_rejected")

    def _answer(
        self, name: str, text: str, at: float | None, usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The message of an answer, whose calls come as events of their own."""
        if name and name in self._answers:
            return self._answers[name]
        session = self._session
        found = self._usage.get(name, usage or {}) if name else usage or {}
        call = ModelCall(
            position=len(session.messages),
            model=as_text(found.get("model"), ""),
            usage=_usage(found),
            at=at,
            key=name,
            cost_usd=as_number(found.get("cost"), None) or None,
        )
        session.calls.append(call)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        session.messages.append(message)
        if name:
            self._answers[name] = message
        return message

    def _ask(self, message: dict[str, Any], call_id: str, name: str, arguments: object) -> None:
        self._asked.add(call_id)
        function = {"name": name, "arguments": json_text(arguments)}
        call = {"id": call_id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)

    def _result(
        self, call_id: str, text: str, at: float | None, failed: bool, rejected: bool
    ) -> None:
        session = self._session
        if call_id not in self._asked:
            return  # of a command that the person ran, or of the program itself
        if rejected:
            session.did("reject", rejection(text) or "", at)
        message = {"role": "tool", "tool_call_id": call_id, "content": text, "is_error": failed}
        session.messages.append(message)

    def _condensed(self, summary: object) -> None:
        """A summary in the place of older messages; a few of the first ones are kept beside it."""
        if text := as_text(summary, ""):
            session = self._session
            session.compactions.append(len(session.messages))
            session.messages.append({"role": "user", "content": text})


def _outcome(event: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of a result and whether it is an error (from version 1.0)."""
    if "error" in event:
        return as_text(event.get("error"), ""), True
    if "rejection_reason" in event:
        return f"Action rejected: {as_text(event.get('rejection_reason'), _NO_REASON)}", False
    observation = as_mapping(event.get("observation"))
    text = read_content(observation.get("content")).text
    for name in ("output", "message", "error"):  # of versions before 1.3
        text = text or as_text(observation.get(name), "")
    text = _shown(text, as_mapping(observation.get("metadata")))
    added = read_content(event.get("extended_content")).text
    return "\n".join(filter(None, (text, added))), observation.get("is_error") is True


def _shown(text: str, metadata: Mapping[str, Any]) -> str:
    """The result of a command as the model gets it: with what the shell said of it."""
    shown = [as_text(metadata.get("prefix"), "") + text + as_text(metadata.get("suffix"), "")]
    if folder := as_text(metadata.get("working_dir"), ""):
        shown.append(f"[Current working directory: {folder}]")
    if python := as_text(metadata.get("py_interpreter_path"), ""):
        shown.append(f"[Python interpreter: {python}]")
    code = as_number(metadata.get("exit_code"), -1.0)
    if code != -1:
        shown.append(f"[Command finished with exit code {code:.0f}]")
    return "\n".join(shown)


def _difference(total: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tokens of one answer, from the sums after it and before it."""
    used = {key: value for key, value in total.items() if not isinstance(value, int | float)}
    for key in total.keys() - used.keys():
        used[key] = total[key] - as_number(before.get(key), 0.0)
    return used


def _usage(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tokens in the provider's form; OpenHands has names of its own for cached ones."""
    if "cache_read_tokens" not in found:
        return {key: value for key, value in found.items() if key not in ("model", "cost")}
    return {
        "prompt_tokens": found.get("prompt_tokens"),
        "completion_tokens": found.get("completion_tokens"),
        "prompt_tokens_details": {
            "cached_tokens": found.get("cache_read_tokens"),
            "cache_creation_tokens": found.get("cache_write_tokens"),
        },
        "completion_tokens_details": {"reasoning_tokens": found.get("reasoning_tokens")},
    }
