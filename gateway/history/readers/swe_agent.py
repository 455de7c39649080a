"""Trajectories of the SWE-agent programs: mini-swe-agent's `*.traj.json` and SWE-agent's `*.traj`.

mini-swe-agent writes its messages with an `extra` of its own, where each answer has the response of
the provider. SWE-agent writes a `history` of messages and only the sum of the tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.content import item_call, item_reasoning, read_content
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.wire.coerce import as_bool, as_list, as_mapping, as_number, as_text

MINI, SWE = "mini-swe-agent", "swe-agent"
_NEW_TASK = "The user added a new task: "
_NO_COMMENT = "Temporary interruption caught."
_TASK = re.compile(r"\{\{\s*\w+\s*\}\}")


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    if not head.lstrip().startswith((b"{", b"[")):
        return False
    if name.endswith(".traj") or (b'"trajectory"' in head and b'"observation"' in head):
        return True
    mini = (b'"info"' in head and b'"model_stats"' in head) or b'"mini-swe-agent' in head
    return name.endswith(".traj.json") or (mini and name.endswith(".json"))


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    found = log.document()
    document = {"messages": found} if isinstance(found, list) else as_mapping(found)
    name = as_text(document.get("instance_id"), "") or log.name.removesuffix(".json")
    name = name.removesuffix(".traj")
    info = as_mapping(document.get("info"))
    mini = isinstance(document.get("messages"), list)
    session = Session(id=name, agent=MINI if mini else SWE)
    # A submission says nothing of success; only a grader that wrote its verdict here does.
    session.outcome = as_bool(info.get("resolved"), None)
    if mini:
        _Mini(session, info, log).read(as_list(document["messages"]))
    elif document:
        _swe_agent(session, document, info, log)
    if session.messages:
        yield session


class _Mini:
    """mini-swe-agent's messages, in their order."""

    def __init__(self, session: Session, info: Mapping[str, Any], log: LogFile) -> None:
        self._session, self._log = session, log
        config = as_mapping(info.get("config"))
        self._template = as_text(as_mapping(config.get("agent")).get("instance_template"), "")
        self._model = as_text(as_mapping(config.get("model")).get("model_name"), "")
        session.version = as_text(info.get("mini_version"), "")
        session.project = as_text(as_mapping(config.get("environment")).get("cwd"), "")

    def read(self, messages: list[Any]) -> None:
        """Read all messages."""
        for self._log.seen, message in enumerate(messages, 1):
            if not isinstance(message, dict):
                self._log.skip("expected an object")
                continue
            extra = as_mapping(message.get("extra"))
            self._session.at(extra.get("timestamp"))
            role = as_text(message.get("role"), "")
            kept = {key: value for key, value in message.items() if key != "extra"}
            if role == "assistant" or message.get("object") == "response":
                self._answer(kept, extra, as_mapping(extra.get("response")) or message)
            elif role == "user":
                self._user(kept, extra)
            elif role in ("system", "developer", "tool") or message.get("type") in _ITEMS:
                self._session.messages.append(kept)
            elif role != "exit":  # the harness's own note of how the run ended
                self._log.skip(f"unknown role {role!r}")

    def _answer(
        self, message: Mapping[str, Any], extra: Mapping[str, Any], response: Mapping[str, Any]
    ) -> None:
        session = self._session
        call = ModelCall(
            position=len(session.messages),
            model=as_text(response.get("model"), "") or self._model,
            usage=as_mapping(response.get("usage")),
            at=session.at(extra.get("timestamp")),
            key=as_text(response.get("id"), ""),
            cost_usd=as_number(extra.get("cost"), None) or None,
        )
        session.calls.append(call)
        output = message.get("output")
        found = _from_items(output) if isinstance(output, list) else dict(message)
        session.messages.append(found)

    def _user(self, message: dict[str, Any], extra: Mapping[str, Any]) -> None:
        session = self._session
        text = read_content(message.get("content")).text
        if extra.get("interrupt_type") == "FormatError":
            self._refused(extra)
        elif not any(each.get("role") == "user" for each in session.messages):
            session.did("message", self._task(text))
        elif is_interruption(text):
            comment = text.partition(": ")[2]
            session.did("interrupt", "" if comment.startswith(_NO_COMMENT) else comment)
        elif (said := rejection(text)) is not None:
            session.did("reject", said)
        elif text.startswith(_NEW_TASK):
            session.did("message", text.removeprefix(_NEW_TASK))
        session.messages.append(message)

    def _refused(self, extra: Mapping[str, Any]) -> None:
        """Read an answer that had no valid call: it is kept only beside the harness's complaint."""
        response = as_mapping(extra.get("response"))
        choice = as_mapping(next(iter(as_list(response.get("choices"))), None))
        message = as_mapping(choice.get("message"))
        if not message and isinstance(response.get("output"), list):
            message = response
        if not message and "model_response" in extra:
            message = {"content": as_text(extra.get("model_response"), "")}
        if message:
            self._answer({**message, "role": "assistant"}, extra, response)

    def _task(self, text: str) -> str:
        """The words of the person in the first message, which the template of the run surrounds."""
        before, *after = _TASK.split(self._template, maxsplit=1)
        if not after or not text.startswith(before):
            return text
        first_line = after[0].strip().partition("\n")[0]
        task = text.removeprefix(before)
        return task.partition(first_line)[0] if first_line else task


_ITEMS = ("function_call_output", "message")


def _from_items(items: list[Any]) -> dict[str, Any]:
    """The items of a response of the Responses API as one message."""
    calls, texts, thoughts = [], [], []
    for item in map(as_mapping, items):
        if call := item_call(item):
            function = {"name": call.name, "arguments": call.arguments}
            calls.append({"id": call.id, "type": "function", "function": function})
        elif item.get("type") == "reasoning":
            thoughts.append(item_reasoning(item))
        else:
            texts.append(read_content(item.get("content")).text)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(filter(None, thoughts))
    return {**message, "tool_calls": calls} if calls else message


def _swe_agent(
    session: Session, document: Mapping[str, Any], info: Mapping[str, Any], log: LogFile
) -> None:
    session.version = as_text(info.get("swe_agent_version"), "")
    session.project = as_text(document.get("environment"), "")
    model = _model(document)
    for log.seen, message in enumerate(_history(document), 1):
        role = as_text(message.get("role"), "")
        if role not in ("system", "user", "assistant", "tool"):
            log.skip(f"unknown role {role!r}")
        elif message.get("is_demo") is not True:  # an example of the harness's
            _entry(session, message, role, model)
    stats = as_mapping(info.get("model_stats"))
    if session.calls:
        # Only the sums are known; they are given once, with the last answer.
        last = session.calls[-1]
        usage = {
            "prompt_tokens": as_number(stats.get("tokens_sent"), 0.0),
            "completion_tokens": as_number(stats.get("tokens_received"), 0.0),
        }
        cost = as_number(stats.get("instance_cost"), None) or None
        session.calls[-1] = ModelCall(
            position=last.position,
            model=model,
            usage=usage if any(usage.values()) else {},
            cost_usd=cost,
        )


def _entry(session: Session, message: Mapping[str, Any], role: str, model: str) -> None:
    messages = session.messages
    kept: dict[str, Any] = {"role": role, "content": message.get("content")}
    waiting = as_list(messages[-1].get("tool_calls")) if messages else []
    if role == "assistant":
        session.calls.append(ModelCall(position=len(messages), model=model))
        action = as_text(message.get("action"), "").strip()
        if calls := message.get("tool_calls"):
            kept["tool_calls"] = calls
        elif action:
            # The call is written into the text; the program has taken it out already.
            function = {"name": "bash", "arguments": action}
            kept["content"] = as_text(message.get("thought"), "") or kept["content"]
            name = f"action_{len(messages)}"
            kept["tool_calls"] = [{"id": name, "type": "function", "function": function}]
    elif role == "tool" or (role == "user" and waiting):
        listed = as_list(message.get("tool_call_ids")) or [as_mapping(c).get("id") for c in waiting]
        kept["role"], kept["tool_call_id"] = "tool", next(iter(listed), "")
    elif role == "user" and not any(each["role"] == "user" for each in messages):
        session.did("message", read_content(message.get("content")).text)
    messages.append(kept)


def _history(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages, with the steps at the end that only the trajectory has, such as the last."""
    history = [as_mapping(entry) for entry in as_list(document.get("history"))]
    steps = [as_mapping(step) for step in as_list(document.get("trajectory"))]
    answers = [as_text(entry.get("content"), "") for entry in history if "action" in entry]
    if not history and steps:
        query = as_list(steps[0].get("query") or steps[0].get("messages"))
        history = [as_mapping(entry) for entry in query]
    elif answers:
        known = [at for at, step in enumerate(steps) if step.get("response") == answers[-1]]
        steps = steps[known[-1] + 1 :] if known else []
    for step in steps:
        answer = {key: step.get(key) for key in ("action", "thought")}
        history.append({"role": "assistant", "content": step.get("response"), **answer})
        if step.get("observation"):
            history.append({"role": "user", "content": step["observation"]})
    return history


def _model(document: Mapping[str, Any]) -> str:
    """The name of the model in the settings, which are written as JSON in a string."""
    settings = document.get("replay_config")
    try:
        found = json.loads(settings) if isinstance(settings, str) else settings
    except ValueError:
        return ""
    agent = as_mapping(as_mapping(found).get("agent"))
    return as_text(as_mapping(agent.get("model")).get("name"), "")
