"""OpenTelemetry traces of model calls: OTLP as one document or as lines of JSON.

Calls are put together by `gen_ai.conversation.id`, else by trace. The messages of a call are in the
attributes of its span, and are either the whole history or, as this gateway writes them, what is
new. Messages in log records are not read: a collector writes these to another file."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gateway.features.history.log_file import LogFile
from gateway.features.history.readers.recordings import read_acts
from gateway.features.history.session import Session, chat_usage, joined, tool_call
from gateway.steering.transcript.content import json_text
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_int, as_list, as_mapping, as_text, list_at, mapping_at, text_at

AGENT = "opentelemetry"
_CALLS = ("chat", "generate_content", "text_completion", "completion")
_FAILED = (2, "STATUS_CODE_ERROR")
_VALUES = ("stringValue", "boolValue", "doubleValue", "bytesValue")

Span = FieldDict  # trace, id, parent, start, end, failed, service, attributes


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    is_json = name.endswith((".json", ".jsonl", ".ndjson", ".log")) and head.lstrip()[:1] == b"{"
    return is_json and b'"resourceSpans":' in head


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    spans: list[Span] = []
    is_lines = log.head().lstrip().partition(b"\n")[0].rstrip() != b"{"
    for document in log.records() if is_lines else [as_mapping(log.document())]:
        spans += _spans(document)
        if "resourceSpans" not in document:
            log.skip("no span")
    calls = [span for span in spans if _is_call(span["attributes"])]
    inner = {span["id"] for span in calls} - {""}
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(calls, key=lambda each: each["start"] or 0):
        if span["parent"] not in inner:  # else a client and a gateway report one call
            span["messages"] = _messages(span["attributes"])
            own = text_at(span["attributes"], "gen_ai.conversation.id")
            groups[own or span["trace"]].append(span)
    for name, group in groups.items():
        yield from _Conversation(name, group).sessions()


def _spans(document: Fields) -> Iterator[Span]:
    for resource in _mappings(document, "resourceSpans"):
        service = text_at(_attributes(resource.get("resource")), "service.name")
        service = "" if service.startswith("unknown_service") else service
        for scope in _mappings(resource, "scopeSpans"):
            for span in _mappings(scope, "spans"):
                yield {
                    "id": text_at(span, "spanId"),
                    "trace": text_at(span, "traceId"),
                    "parent": text_at(span, "parentSpanId"),
                    "start": _moment(span.get("startTimeUnixNano")),
                    "end": _moment(span.get("endTimeUnixNano")),
                    "failed": mapping_at(span, "status").get("code") in _FAILED,
                    "service": service,
                    "attributes": _attributes(span),
                }


def _is_call(values: Fields) -> bool:
    """True for a call of a model; spans of agents, tools and embeddings repeat its figures."""
    operation = values.get("gen_ai.operation.name", values.get("llm.request.type"))
    return operation in _CALLS or (operation is None and "gen_ai.request.model" in values)


def _messages(values: Fields) -> tuple[list[FieldDict], list[FieldDict]]:
    """The messages of a call as chat messages: its input, and the model's answer."""
    asked = [as_mapping(each) for each in _list(values, "gen_ai.input.messages")]
    if system := _list(values, "gen_ai.system_instructions"):
        asked.insert(0, {"role": "system", "parts": system})
    answered = [as_mapping(each) for each in _list(values, "gen_ai.output.messages")[:1]]
    answer = [m for each in answered for m in _chat({**each, "role": "assistant"})]
    return [m for each in asked for m in _chat(each)], answer


def _chat(message: Fields) -> Iterator[FieldDict]:
    """A message with `parts` as chat messages."""
    role = as_text(message.get("role"), "user")
    texts: dict[bool, list[Any]] = {False: [], True: []}  # True: those of reasoning
    calls: list[FieldDict] = []
    results = 0
    for part in map(as_mapping, list_at(message, "parts")):
        kind = part.get("type")
        name = part.get("id")
        if kind == "tool_call":
            calls.append(tool_call(name, part.get("name"), json_text(part.get("arguments"))))
        elif kind == "tool_call_response":
            results += 1
            content = json_text(part.get("response", part.get("result")))
            yield {"role": "tool", "tool_call_id": name, "content": content}
        else:
            texts[kind in ("reasoning", "thinking")].append(part.get("content"))
    text = joined(*texts[False])
    thought = joined(*texts[True])
    if calls or text or not results:
        more = {"tool_calls": calls, "reasoning_content": thought}
        found = {"role": role, "content": text}
        yield found | {name: value for name, value in more.items() if value}


class _Conversation:
    """The calls of one conversation or trace, in the order of time. Calls with other instructions
    are another agent's, and a session of their own."""

    def __init__(self, name: str, spans: Sequence[Span]) -> None:
        self._name = name
        self._spans = spans
        self._whole = any(m["role"] == "assistant" for s in spans for m in s["messages"][0])
        self._threads: dict[str, tuple[Session, int]] = {}  # and how much of it the model sees

    def sessions(self) -> Iterator[Session]:
        """Its sessions, of which the first is the conversation's."""
        latest = ""
        for span in self._spans:
            asked, _ = span["messages"]
            system = asked[0]["content"] if asked and asked[0]["role"] == "system" else ""
            latest = system if self._whole or system or not self._threads else latest
            if latest not in self._threads:
                number = f"/{len(self._threads) + 1}" if self._threads else ""
                session = Session(id=f"{self._name}{number}", agent=AGENT)
                session.parent = self._name if number else ""
                session.project = span["service"]
                self._threads[latest] = session, 0
            self._add(latest, span)
        yield from (session for session, _ in self._threads.values() if session.calls)

    def _add(self, thread: str, span: Span) -> None:
        session, start = self._threads[thread]
        asked, answer = span["messages"]
        at = session.at(span["start"])
        values = span["attributes"]
        seen = len(session.messages) - start
        continued = not self._whole or not asked or not seen or _continues(session, start, asked)
        new = asked[seen:] if self._whole and continued else asked
        if not continued:
            session.compactions.append(len(session.messages))
            self._threads[thread] = session, len(session.messages)
        for number, message in enumerate(new, 1):
            session.messages.append(message)
            if continued or number == len(new):
                read_acts(session, message, at)
        session.at(span["end"])
        if span["failed"] and not answer:
            return
        model = values.get("gen_ai.response.model") or values.get("gen_ai.request.model")
        key = text_at(values, "gen_ai.response.id") or f"{span['trace']}:{span['id']}"
        reply = session.reply(model=as_text(model, ""), usage=_usage(values), at=at, key=key)
        reply.update(*answer[-1:])


def _continues(session: Session, start: int, asked: Sequence[Fields]) -> bool:
    """True if a history is that of the session with more at its end."""
    seen = session.messages[start:]
    first = [next((m for m in each if m["role"] != "system"), None) for each in (seen, asked)]
    return len(asked) >= len(seen) and first[0] == first[1]


def _usage(values: Fields) -> FieldDict:
    """The tokens of a call. The conventions count cached ones in the input, as OpenAI does; some
    instrumentations pass on Anthropic's numbers, which do not."""
    given = _tokens(values, "input_tokens", "prompt_tokens")
    made = _tokens(values, "output_tokens", "completion_tokens")
    read = _tokens(values, "cache_read.input_tokens", "cache_read_input_tokens")
    written = _tokens(values, "cache_creation.input_tokens", "cache_creation_input_tokens")
    apart = read + written if read + written > given else 0
    return chat_usage(given + apart, made, read, written)


def _tokens(values: Fields, *names: str) -> int:
    given = (as_int(values.get(f"gen_ai.usage.{name}"), 0) for name in names)
    return next(filter(None, given), 0)


def _attributes(holder: object) -> FieldDict:
    return _pairs(as_mapping(holder).get("attributes"))


def _pairs(values: object) -> FieldDict:
    pairs = map(as_mapping, as_list(values))
    return {str(each.get("key")): _value(each.get("value")) for each in pairs}


def _value(value: object) -> Any:
    """A value of OTLP."""
    holder = as_mapping(value)
    if "intValue" in holder:
        return int(holder["intValue"]) if str(holder["intValue"]).lstrip("-").isdigit() else None
    if "arrayValue" in holder:
        return [_value(each) for each in list_at(as_mapping(holder["arrayValue"]), "values")]
    if "kvlistValue" in holder:
        return _pairs(as_mapping(holder["kvlistValue"]).get("values"))
    return next((holder[name] for name in _VALUES if name in holder), None)


def _mappings(holder: Fields, name: str) -> Iterator[Fields]:
    return map(as_mapping, list_at(holder, name))


def _list(values: Fields, name: str) -> list[Any]:
    """A list that may be written as a JSON text."""
    value = values.get(name)
    try:
        return as_list(json.loads(value) if isinstance(value, str) else value)
    except ValueError:
        return []


def _moment(nanoseconds: object) -> float | None:
    text = str(nanoseconds)[:20]
    return int(text) / 1e9 if text.isdecimal() else None
