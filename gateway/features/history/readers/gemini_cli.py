"""Gemini CLI's sessions in `~/.gemini/tmp/*/chats`, and those that early versions of Qwen Code
wrote in the same form.

Older versions wrote one JSON document, newer ones lines: about the session, a message (again each
time it grows), changes of either (`$set`) and returns to an earlier message (`$rewindTo`). Calls
are written into the answer that made them, with their results. What was undone stays a part of the
session, because it was done and paid for."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import (
    Origin,
    Session,
    add_call,
    chat_usage,
    joined,
    own_id,
    token_counts,
)
from gateway.steering.transcript.content import json_text
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_list,
    as_mapping,
    list_at,
    mapping_at,
    mappings_at,
    text_at,
)

_ANSWERS = ("gemini", "qwen")
_NOTICES = ("info", "error", "warning")
_ENDED = ("success", "error", "cancelled")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    chat = _Chat(log)
    for record in _records(log):
        if not chat.add(record):
            log.skip(f"unknown type {record.get('type')!r}")
    chat.close()
    if chat.is_known or chat.session.messages:
        yield chat.session


def _records(log: LogFile) -> Iterator[Fields]:
    if log.name.endswith(".jsonl"):
        yield from log.records()
    elif document := as_mapping(log.document()):
        yield document
        for log.seen, message in enumerate(mappings_at(document, "messages"), 2):
            yield message


class _Chat:
    """The records of one session, each in its newest form at the place of its first."""

    def __init__(self, log: LogFile) -> None:
        self.session = Session(id=log.stem, agent="gemini-cli", project=_project(log.path))
        self._folder = log.path.parent.name
        self._messages: dict[str, Fields] = {}
        self.is_known = False  # the file says that it is a session
        self._recorded: set[str] = set()  # ids of calls
        self._summaries: set[str] = set()  # messages that replaced all earlier ones

    def add(self, record: Fields) -> bool:
        """Read one record. False if it is of no known type."""
        kind = record.get("type")
        if isinstance(record.get("$set"), dict):
            self._change(record["$set"])
        elif "sessionId" in record and "projectHash" in record:
            self._change({key: record[key] for key in record if key != "messages"})
        elif kind in (*_ANSWERS, *_NOTICES, "user"):
            name = self._name(record)
            self._messages[name] = {**self._messages.get(name, {}), **record}
            if kind == "qwen":
                self.session.agent = "qwen-code"
        else:
            return "$rewindTo" in record
        return True

    def _change(self, fields: Fields) -> None:
        session = self.session
        session.id = own_id(fields.get("sessionId")) or session.id
        self.is_known |= "sessionId" in fields
        session.at(fields.get("startTime"))
        session.title = text_at(fields, "summary") or session.title
        if digest := text_at(fields, "projectHash"):
            session.origin = Origin(digest=digest)
        folders = [each for each in list_at(fields, "directories") if isinstance(each, str)]
        session.project = session.project or next(iter(folders), "")
        if fields.get("kind") == "subagent":
            session.parent = "unknown" if self._folder in ("", "chats") else self._folder
        history = mappings_at(fields, "messages")
        is_shorter = not self._messages.keys() <= set(map(self._name, history))
        for message in history:
            name = self._name(message)
            is_new = message.get("type") == "user" and name not in self._messages
            if is_new and parts_text(message.get("content")):
                self._messages[name] = message
                if is_shorter:  # the summary of what is left out
                    self._summaries.add(name)
                    break

    def _name(self, message: Fields) -> str:
        """The id of a message; of one without an id its time, which stays when it grows."""
        time = text_at(message, "timestamp") or f"#{len(self._messages)}"
        return own_id(message.get("id")) or f"{message.get('type')} {time}"

    def close(self) -> None:
        """Write the session's messages."""
        for message in self._messages.values():
            self._recorded |= {text_at(call, "id") for call in mappings_at(message, "toolCalls")}
        for name, message in self._messages.items():
            at = self.session.at(message.get("timestamp"))
            if message.get("type") in _ANSWERS:
                self._answer(message, at)
            elif message.get("type") == "user":
                self._user(name, message, at)
            else:
                self.session.typed(parts_text(message.get("content")), at)

    def _user(self, name: str, message: Fields, at: float | None) -> None:
        session = self.session
        content = message.get("content")
        text = parts_text(content)
        responses = [as_mapping(part) for part in as_list(content)]
        responses = [part for part in responses if part.get("functionResponse")]
        for part in responses:
            self._response(part, at)
        if name in self._summaries:
            session.compact(text)
        elif text or not responses:
            typed = parts_text(message.get("displayContent")) or text
            session.user(text, typed, at)

    def _answer(self, message: Fields, at: float | None) -> None:
        session = self.session
        tokens = mapping_at(message, "tokens")
        model = text_at(message, "model")
        calls = mappings_at(message, "toolCalls")
        if not (tokens or model or calls):
            return  # written by the program, such as that a picture was received
        text = parts_text(message.get("content"))
        thoughts = mappings_at(message, "thoughts")
        thought = joined(
            *(each.get(key) for each in thoughts for key in ("subject", "description"))
        )
        last = next(reversed(session.messages), {})
        is_rest = not (text or thought or tokens.get("total"))
        if is_rest and last.get("role") == "assistant" and "tool_calls" not in last:
            reply = last  # a notice of the program came between an answer and its calls
        else:
            reply = session.reply(
                text,
                thought,
                model=model,
                usage=_usage(tokens),
                at=at,
                key=own_id(message.get("id")),
            )
        for each in calls:
            self._call(reply, each)

    def _response(self, part: Fields, at: float | None) -> None:
        """Read the result of a call; a refused call is written nowhere else."""
        response = as_mapping(part["functionResponse"])
        calls = self.session.calls
        if calls and text_at(response, "id") not in self._recorded:
            call = {"id": response.get("id"), "name": response.get("name"), "result": [part]}
            self._call(self.session.messages[calls[-1].position], {**call, "timestamp": at})

    def _call(self, reply: FieldDict, call: Fields) -> None:
        name = text_at(call, "id")
        add_call(reply, name, text_at(call, "name"), arguments=call.get("args"))
        at = self.session.at(call.get("timestamp"))
        if call.get("result") is not None or call.get("status") in _ENDED:
            text, failed = response_text(call.get("result"))
            self.session.result(name, text, at, failed=failed, rejected=False)
            self.session.typed(text, at)


def parts_text(content: object, thought: bool = False) -> str:
    """The text of Gemini's content: a string, a part, or a list of them; the model's thoughts are
    left out, or are all that is read."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    read = [{"text": part} if isinstance(part, str) else as_mapping(part) for part in parts]
    kept = [part.get("text") for part in read if (part.get("thought") is True) is thought]
    return joined(*kept, by="\n" if thought else "")


def response_text(parts: object) -> tuple[str, bool]:
    """The text of a call's `functionResponse` parts, and whether it failed."""
    texts = []
    failed = False
    for part in map(as_mapping, parts if isinstance(parts, list) else [parts]):
        response = mapping_at(part, "functionResponse").get("response")
        fields = as_mapping(response)
        failed = failed or bool(fields.get("error"))
        texts.append(json_text(fields.get("error") or fields.get("output", response)))
    return joined(*texts), failed


def _usage(tokens: Fields) -> FieldDict:
    """Gemini's input includes what was cached, its output does not include the thoughts."""
    count = token_counts(tokens)
    prompt = count["input"] + count["tool"]
    thoughts = count["thoughts"]
    completion = count["output"] + thoughts
    return chat_usage(prompt, completion, count["cached"], thoughts=thoughts)


def _project(path: Path) -> str:
    """The working directory, which newer versions keep in a file beside the folder of chats."""
    for folder in path.parents[1:3]:
        try:
            return (folder / ".project_root").read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            continue
    return ""
