"""Trajectories of the SWE-agent programs: mini-swe-agent's `*.traj.json` and SWE-agent's `*.traj`.

mini-swe-agent writes its messages with an `extra` of its own, where each answer has the response of
the provider; answers of the Responses API are not read. SWE-agent writes its steps in a
`trajectory`, and only the sum of the tokens."""

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session, chat_usage, tool_call
from gateway.steering.transcript.content import read_content
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_bool,
    as_list,
    as_mapping,
    as_number,
    list_at,
    mapping_at,
    text_at,
)

_NEW_TASK = "The user added a new task: "
_NO_COMMENT = "Temporary interruption caught."
_MODEL = re.compile(r'"model": ?\{"name": ?"([^"]+)"')
_TASK = re.compile(r"\{\{\s*\w+\s*\}\}")


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    mini = (b'"info"' in head and b'"model_stats"' in head) or b'"mini-swe-agent' in head
    swe = b'"trajectory"' in head and b'"observation"' in head
    named = name.endswith((".traj", ".traj.json")) or (mini and name.endswith(".json"))
    return head.lstrip().startswith((b"{", b"[")) and (named or swe)


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    found = log.document()
    document = {"messages": found} if isinstance(found, list) else as_mapping(found)
    name = text_at(document, "instance_id") or log.name.removesuffix(".json")
    info = mapping_at(document, "info")
    mini = isinstance(document.get("messages"), list)
    agent = "mini-swe-agent" if mini else "swe-agent"
    session = Session(id=name.removesuffix(".traj"), agent=agent)
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

    def __init__(self, session: Session, info: Fields, log: LogFile) -> None:
        self._session = session
        self._log = log
        config = mapping_at(info, "config")
        self._template = text_at(mapping_at(config, "agent"), "instance_template")
        self._model = text_at(mapping_at(config, "model"), "model_name")
        session.version = text_at(info, "mini_version")
        session.project = text_at(mapping_at(config, "environment"), "cwd")

    def read(self, messages: list[Any]) -> None:
        """Read all messages."""
        for self._log.seen, message in enumerate(map(as_mapping, messages), 1):
            extra = mapping_at(message, "extra")
            self._session.at(extra.get("timestamp"))
            role = text_at(message, "role")
            kept = {key: value for key, value in message.items() if key != "extra"}
            if role == "assistant":
                self._answer(kept, extra, mapping_at(extra, "response"))
            elif role == "user":
                self._user(kept, extra)
            elif role in ("system", "developer", "tool"):
                self._session.messages.append(kept)
            elif role != "exit":  # the harness's own note of how the run ended
                self._log.skip(f"unknown role {role!r}")

    def _answer(self, message: Fields, extra: Fields, response: Fields) -> None:
        self._session.reply(
            model=text_at(response, "model") or self._model,
            usage=mapping_at(response, "usage"),
            at=self._session.at(extra.get("timestamp")),
            key=text_at(response, "id"),
            cost_usd=as_number(extra.get("cost"), None) or None,
        ).update(message)

    def _user(self, message: FieldDict, extra: Fields) -> None:
        session = self._session
        text = read_content(message.get("content")).text
        if extra.get("interrupt_type") == "FormatError":
            self._refused(extra)
        elif not any(each.get("role") == "user" for each in session.messages):
            session.did("message", self._task(text))
        elif text.startswith(_NEW_TASK):
            session.did("message", text.removeprefix(_NEW_TASK))
        elif is_interruption(text):
            comment = text.partition(": ")[2]
            session.did("interrupt", "" if comment.startswith(_NO_COMMENT) else comment)
        session.messages.append(message)
        if rejection(text) is not None:
            session.typed(text, None)

    def _refused(self, extra: Fields) -> None:
        """Read an answer that had no valid call: it is kept only beside the harness's complaint."""
        response = mapping_at(extra, "response")
        choice = as_mapping(next(iter(list_at(response, "choices")), None))
        message = mapping_at(choice, "message")
        if not message and "model_response" in extra:
            message = {"content": text_at(extra, "model_response")}
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


def _swe_agent(session: Session, document: Fields, info: Fields, log: LogFile) -> None:
    """Read the messages before the first answer, and the steps. A call is written into the text;
    the program has taken it out already."""
    session.version = text_at(info, "swe_agent_version")
    session.project = text_at(document, "environment")
    model = _MODEL.search(text_at(document, "replay_config"))
    history = [as_mapping(entry) for entry in list_at(document, "history")]
    own = [entry for entry in history if entry.get("is_demo") is not True]
    for entry in takewhile(lambda each: each.get("role") in ("system", "user"), own):
        session.messages.append({"role": entry["role"], "content": entry.get("content")})
        if entry["role"] == "user" and not session.human:
            session.did("message", read_content(entry.get("content")).text, back=1)
    for log.seen, step in enumerate(map(as_mapping, list_at(document, "trajectory")), 1):
        thought, text = (text_at(step, name) for name in ("thought", "response"))
        reply = session.reply(thought or text, model=model[1] if model else "")
        if action := text_at(step, "action").strip():
            reply["tool_calls"] = [tool_call(f"action_{log.seen}", "bash", action)]
            session.result(f"action_{log.seen}", step.get("observation"), rejected=False)
    stats = mapping_at(info, "model_stats")
    if session.calls:
        # Only the sums are known; they are given once, with the last answer.
        usage = chat_usage(stats.get("tokens_sent"), stats.get("tokens_received"))
        cost = as_number(stats.get("instance_cost"), None) or None
        session.calls[-1] = replace(session.calls[-1], usage=usage, cost_usd=cost)
