"""OpenHands' events: a folder with a file for each, or a list in one document. In a folder the file
to begin with is `base_state.json`, and before version 1.0 (the SDK) the first event, `0.json`."""

import re
from collections.abc import Iterable

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session, add_call, chat_usage, joined, own_id
from gateway.steering.transcript.content import json_text, read_content
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_list,
    as_mapping,
    as_number,
    as_text,
    list_at,
    mapping_at,
    mappings_at,
    text_at,
)

AGENT = "openhands"
_SILENT = re.compile(
    r"(?:ACPToolCall|Conversation(?:Error|StateUpdate)|HookExecution|LLMCompletionLog"
    r"|SecurityAnalysis|ServerError|StreamingDelta|Token)Event|CondensationRequest"
)
"""Events without a message of the model's. Source: the schema of version 1.58."""
_EARLY_SILENT = ("", "change_agent_state", "condensation", "null", "recall", "system")
_NO_REASON = "User rejected the action"
_COUNTS = ("prompt", "completion", "cache_read", "cache_write", "reasoning")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    folder = log.path.parent
    document = log.document()
    session = Session(id=log.stem, agent=AGENT)
    metrics: Fields = {}
    if log.name == "base_state.json":
        state = as_mapping(document)
        session.id = text_at(state, "id") or folder.name
        if folder.parent.name == "subagents":
            session.parent = folder.parent.parent.name
        session.project = text_at(mapping_at(state, "workspace"), "working_dir")
        metrics = mapping_at(mapping_at(state, "stats"), "usage_to_metrics")
        events = list(map(log.beside, sorted((folder / "events").glob("event-*.json"))))
    elif log.name == "0.json":
        session.id = folder.parent.name
        log.seen = 0
        numbered = sorted(folder.glob("[0-9]*.json"), key=lambda path: path.stem.zfill(9))
        events = list(map(log.beside, numbered))
    else:
        events = as_list(document)
        log.seen = len(events)
    reader = _Events(session, log, metrics.values())
    for event in filter(None, map(as_mapping, events)):
        reader.add(event)
    if session.messages:
        yield session


class _Events:
    """The events of one session, in their order."""

    def __init__(self, session: Session, log: LogFile, metrics: Iterable[object]) -> None:
        self._session = session
        self._log = log
        self._usage: dict[str, Fields] = {}  # by the id of the response
        for each in map(as_mapping, metrics):
            usages = mappings_at(each, "token_usages")
            costs = mappings_at(each, "costs")
            if len(costs) != len(usages):
                costs = [{}] * len(usages)
            for usage, cost in zip(usages, costs, strict=True):
                name = own_id(usage.get("response_id")) or f"#{len(self._usage)}"
                self._usage[name] = {**usage, "cost": cost.get("cost")}
        self._answers: dict[str, FieldDict] = {}  # id of the response -> its message
        self._asked: set[str] = set()  # ids of calls

    def add(self, event: Fields) -> None:
        """Read one event."""
        session = self._session
        at = session.at(event.get("timestamp"))
        kind = text_at(event, "kind")
        if text_at(event, "action") or text_at(event, "observation"):
            self._early(event, at)
        elif kind == "SystemPromptEvent":
            text = text_at(mapping_at(event, "system_prompt"), "text")
            session.messages.append({"role": "system", "content": text})
        elif kind == "MessageEvent":
            self._message(event, at)
        elif kind == "ActionEvent":
            self._action(event, at)
        elif kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
            rejected = kind == "UserRejectObservation" and event.get("rejection_source") != "hook"
            call_id = text_at(event, "tool_call_id")
            text, failed = _outcome(event)
            if call_id in self._asked:  # else of a command that the person ran
                session.result(call_id, text, at, failed=failed, rejected=rejected)
        elif kind in ("PauseEvent", "InterruptEvent"):
            if event.get("source") == "user":
                session.did("interrupt", at=at)
        elif kind == "Condensation":
            # A summary in the place of older messages; a few of the first ones are kept beside it.
            if text := text_at(event, "summary"):
                session.compact(text)
        elif not _SILENT.fullmatch(kind):
            self._log.skip(f"unknown kind {kind!r}")

    def _early(self, event: Fields, at: float | None) -> None:
        """Read an event of versions before 1.0, which holds the model's answer as it came."""
        session = self._session
        text = _shown(
            text_at(event, "content"), mapping_at(mapping_at(event, "extras"), "metadata")
        )
        called = mapping_at(event, "tool_call_metadata")
        answer = mapping_at(called, "model_response")
        arguments = dict(mapping_at(event, "args"))
        action = text_at(event, "action")
        cause = str(event.get("cause"))
        if cause in self._asked:
            failed = event.get("observation") == "error"
            rejected = event.get("observation") == "user_rejected"
            session.result(cause, text, at, failed=failed, rejected=rejected)
        elif action == "message" and event.get("source") == "user":
            session.user(text_at(arguments, "content"), text_at(arguments, "content"), at)
        elif action not in _EARLY_SILENT and event.get("source") == "agent":
            usage = mapping_at(answer, "usage")
            cached = mapping_at(usage, "prompt_tokens_details").get("cached_tokens")
            name = own_id(answer.get("id"))
            place = name or f"#{len(session.calls)}"
            self._usage[place] = {
                **usage,
                "cache_read_tokens": cached,
                "model": answer.get("model"),
            }
            said = arguments.pop("content" if action == "message" else "thought", "")
            reply = self._answer({"llm_response_id": name}, as_text(said, ""), at)
            if action != "message":
                self._asked.add(str(event.get("id")))
                name = text_at(called, "function_name") or action
                add_call(reply, str(event.get("id")), name, arguments=json_text(arguments))

    def _message(self, event: Fields, at: float | None) -> None:
        message = mapping_at(event, "llm_message")
        content = list_at(message, "content")
        text = read_content(content).text
        if message.get("role") == "assistant":
            self._answer(event, text, at)
            return
        self._session.user([*content, *list_at(event, "extended_content")])
        if event.get("source") == "user" and not event.get("sender"):
            self._session.did("message", text, at, back=1)

    def _action(self, event: Fields, at: float | None) -> None:
        message = self._answer(event, read_content(event.get("thought")).text, at)
        if thought := text_at(event, "reasoning_content"):
            message["reasoning_content"] = thought
        call = mapping_at(event, "tool_call")
        inner = mapping_at(call, "function") or call
        call_id = text_at(event, "tool_call_id")
        name = text_at(event, "tool_name") or text_at(inner, "name")
        self._asked.add(call_id)
        add_call(message, call_id, name, arguments=json_text(inner.get("arguments")))

    def _answer(self, event: Fields, text: str, at: float | None) -> FieldDict:
        """The message of an answer, whose calls come as events of their own."""
        name = own_id(event.get("llm_response_id"))
        known = self._answers.get(name)
        if known and (name or self._session.messages[-1] is known):
            return known
        found = self._usage.get(name or f"#{len(self._session.calls)}", {})
        usage = chat_usage(*(found.get(f"{kind}_tokens") for kind in _COUNTS))
        cost = as_number(found.get("cost"), None) or None
        model = text_at(found, "model")
        message = self._session.reply(
            text, model=model, usage=usage, at=at, key=name, cost_usd=cost
        )
        self._answers[name] = message
        return message


def _outcome(event: Fields) -> tuple[str, bool]:
    """The text of a result, as the model gets it, and whether it is an error."""
    if "error" in event:
        return text_at(event, "error"), True
    if "rejection_reason" in event:
        return f"Action rejected: {as_text(event.get('rejection_reason'), _NO_REASON)}", False
    observation = mapping_at(event, "observation")
    text = read_content(observation.get("content")).text
    text = _shown(text, mapping_at(observation, "metadata"))
    added = read_content(event.get("extended_content")).text
    return joined(text, added), observation.get("is_error") is True


def _shown(text: str, metadata: Fields) -> str:
    """The result of a command with what the shell said of it."""
    shown = text_at(metadata, "prefix") + text + text_at(metadata, "suffix")
    folder = metadata.get("working_dir")
    python = metadata.get("py_interpreter_path")
    code = as_number(metadata.get("exit_code"), -1.0)
    return joined(
        shown,
        folder and f"[Current working directory: {folder}]",
        python and f"[Python interpreter: {python}]",
        f"[Command finished with exit code {code:.0f}]" if code != -1 else "",
    )
