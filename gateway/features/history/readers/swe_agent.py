"""Trajectories of mini-swe-agent: `*.traj.json`.

It writes its messages with an `extra` of its own, where each answer has the response of the
provider; answers of the Responses API are not read."""

import re
from collections.abc import Iterable
from typing import Any

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.steering.transcript.content import read_content
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_bool,
    as_mapping,
    as_number,
    list_at,
    mapping_at,
    text_at,
)

_NEW_TASK = "The user added a new task: "
_NO_COMMENT = "Temporary interruption caught."
_TASK = re.compile(r"\{\{\s*\w+\s*\}\}")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    found = log.document()
    document = {"messages": found} if isinstance(found, list) else as_mapping(found)
    name = text_at(document, "instance_id") or log.name.removesuffix(".json")
    info = mapping_at(document, "info")
    session = Session(id=name.removesuffix(".traj"), agent="mini-swe-agent")
    # A submission says nothing of success; only a grader that wrote its verdict here does.
    session.outcome = as_bool(info.get("resolved"), None)
    _Mini(session, info, log).read(list_at(document, "messages"))
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
        if first_line:
            return task.partition(first_line)[0]
        return task
