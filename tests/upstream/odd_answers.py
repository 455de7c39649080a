"""Answers as providers should not give them: each case is a change of one good answer.

`CASES` is a table of (class, name, change). A change is made to the JSON of the answer, to the
events of its stream or to the bytes of its body, and says what a client has of it: the same answer,
another one, or an error in words.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import brotli

from gateway.wire.codings import zstd

Json = dict[str, Any]
TEXT = "One two thrée \u4e09."
ARGUMENTS = '{"path":"a","n":[1,{"b":null}]}'


@dataclass(frozen=True)
class View:
    """The parts of an answer that must arrive: its text, its calls and how it ended."""

    text: str = TEXT
    calls: tuple[tuple[str, str], ...] = (("read", ARGUMENTS),)
    finish: str = "tool_calls"


@dataclass(frozen=True)
class Answer:
    """One answer on the wire. `parts` are events of a stream, or the JSON of a whole answer."""

    parts: list[Json]
    stream: bool
    wire: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    def encoded(self) -> list[bytes]:
        """The events, or the body."""
        if not self.stream:
            return [json.dumps(self.parts[0], ensure_ascii=False).encode("utf-8", "surrogatepass")]
        return [event(part) for part in self.parts] + (
            [b"data: [DONE]\n\n"] if self.wire == "chat" else []
        )


def event(part: Json) -> bytes:
    """An event of a stream, named where its type is part of it."""
    data = json.dumps(part, ensure_ascii=False).encode("utf-8", "surrogatepass")
    name = b"event: %b\n" % part["type"].encode() if "type" in part else b""
    return b"%bdata: %b\n\n" % (name, data)


def good(wire: str, *, stream: bool) -> list[Json]:
    """The JSON of the good answer, made new."""
    return {
        ("chat", False): _chat_whole,
        ("chat", True): _chat_stream,
        ("messages", False): _messages_whole,
        ("messages", True): _messages_stream,
    }[wire, stream]()


def _chat_whole() -> list[Json]:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read", "arguments": ARGUMENTS},
    }
    message = {"role": "assistant", "content": TEXT, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    usage = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
    return [{**head, "choices": [choice], "usage": usage}]


def _chat_stream() -> list[Json]:
    half = len(ARGUMENTS) // 2
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": ""}}
    deltas: list[Json] = [
        {"role": "assistant", "content": ""},
        {"content": TEXT[:7]},
        {"content": TEXT[7:]},
        {"tool_calls": [{"index": 0, **call}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[:half]}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[half:]}}]},
        {},
    ]
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[Json] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "tool_calls"
    usage = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
    return [*chunks, {**head, "choices": [], "usage": usage}]


def _messages_whole() -> list[Json]:
    blocks: list[Json] = [
        {"type": "text", "text": TEXT},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": json.loads(ARGUMENTS)},
    ]
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    usage = {"input_tokens": 12, "output_tokens": 8}
    return [{**head, "content": blocks, "stop_reason": "tool_use", "usage": usage}]


def _messages_stream() -> list[Json]:
    whole = _messages_whole()[0]
    half = len(ARGUMENTS) // 2

    def start(index: int, block: Json) -> Json:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, piece: Json) -> Json:
        return {"type": "content_block_delta", "index": index, "delta": piece}

    begun = {**whole, "content": [], "stop_reason": None}
    return [
        {"type": "message_start", "message": begun},
        start(0, {"type": "text", "text": ""}),
        delta(0, {"type": "text_delta", "text": TEXT[:7]}),
        delta(0, {"type": "text_delta", "text": TEXT[7:]}),
        {"type": "content_block_stop", "index": 0},
        start(1, {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}),
        delta(1, {"type": "input_json_delta", "partial_json": ARGUMENTS[:half]}),
        delta(1, {"type": "input_json_delta", "partial_json": ARGUMENTS[half:]}),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 8},
        },
        {"type": "message_stop"},
    ]


@dataclass(frozen=True)
class Sent:
    """What goes over the wire, and what the client must have of it; None: an error in words."""

    body: Sequence[bytes]
    headers: Mapping[str, str]
    content_type: str
    views: tuple[View | None, ...]


@dataclass(frozen=True)
class Case:
    """One change. `wires` and `forms` are those that it can be made to."""

    group: str
    name: str
    parts: Callable[[list[Json]], Any] | None = None
    body: Callable[[list[bytes]], Sequence[bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    views: tuple[View | None, ...] = (View(),)
    wires: tuple[str, ...] = ("chat", "messages")
    forms: tuple[bool, ...] = (False, True)

    def sent(self, wire: str, *, stream: bool) -> Sent:
        """The answer of this case."""
        parts = good(wire, stream=stream)
        if self.parts is not None:
            parts = self.parts(parts) or parts
        pieces: Sequence[bytes] = Answer(parts, stream, wire).encoded()
        if self.body is not None:
            pieces = self.body(list(pieces))
        kind = "text/event-stream" if stream else "application/json"
        return Sent(
            tuple(piece for piece in pieces if piece),
            self.headers,
            kind if self.content_type is None else self.content_type,
            self.views,
        )


def _deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def _joined(pack: Callable[[bytes], bytes]) -> Callable[[list[bytes]], list[bytes]]:
    return lambda pieces: [pack(b"".join(pieces))]


def _members(pack: Callable[[bytes], bytes]) -> Callable[[list[bytes]], list[bytes]]:
    def split(pieces: list[bytes]) -> list[bytes]:
        whole = b"".join(pieces)
        return [pack(whole[at : at + 90]) for at in range(0, len(whole), 90)]

    return split


def _bytewise(pack: Callable[[bytes], bytes]) -> Callable[[list[bytes]], list[bytes]]:
    def split(pieces: list[bytes]) -> list[bytes]:
        packed = pack(b"".join(pieces))
        return [packed[at : at + 7] for at in range(0, len(packed), 7)]

    return split


def _coded(name: str, coding: str, change: Any, **more: Any) -> Case:
    return Case("coding", name, body=change, headers={"content-encoding": coding}, **more)


ERROR = (None,)
EITHER = (View(), None)
CODINGS = [
    _coded("gzip", "gzip", _joined(gzip.compress)),
    _coded("x-gzip", "X-GZip", _joined(gzip.compress)),
    _coded("gzip members", "gzip", _members(gzip.compress)),
    _coded("gzip bytewise", "gzip", _bytewise(gzip.compress)),
    _coded("deflate", "deflate", _joined(zlib.compress)),
    _coded("deflate raw", "deflate", _joined(_deflate_raw)),
    _coded("br", "br", _joined(brotli.compress)),
    _coded("br bytewise", "br", _bytewise(brotli.compress)),
    _coded("zstd", "zstd", _joined(zstd.compress)),
    _coded("zstd frames", "zstd", _members(zstd.compress)),
    _coded("zstd bytewise", "zstd", _bytewise(zstd.compress)),
    _coded("two codings", "gzip, br", _joined(lambda d: brotli.compress(gzip.compress(d)))),
    _coded("gzip twice", "gzip, gzip", _joined(lambda d: gzip.compress(gzip.compress(d)))),
    _coded("identity", "identity", None),
    _coded("none", "none", None),
    _coded("utf-8", "utf-8", None),
    _coded("empty", "", None),
    _coded("gzip named, plain", "gzip", None, views=EITHER),
    _coded("br named, gzip", "br", _joined(gzip.compress), views=EITHER),
    _coded("unknown", "x-own", _joined(gzip.compress), views=EITHER),
    Case("coding", "gzip not named", body=_joined(gzip.compress), views=EITHER),
    _coded("gzip cut", "gzip", _joined(lambda d: gzip.compress(d)[:-30]), views=EITHER),
    _coded("br cut", "br", _joined(lambda d: brotli.compress(d)[:-30]), views=EITHER),
    _coded("zstd cut", "zstd", _joined(lambda d: zstd.compress(d)[:-30]), views=EITHER),
]


def _typed(kind: str, **more: Any) -> Case:
    return Case("content type", kind or "missing", content_type=kind, **more)


TYPES = [
    _typed(""),
    _typed("text/plain"),
    _typed("text/html"),
    _typed("application/octet-stream"),
    _typed("application/x-ndjson"),
    _typed("application/json", forms=(True,)),
    _typed("text/event-stream", forms=(False,)),
    _typed("application/json; charset=latin-1", forms=(False,)),
    _typed("application/json; charset=no-such", forms=(False,)),
    _typed("text/event-stream; charset=latin-1", forms=(True,)),
    _typed("TEXT/EVENT-STREAM;charset=utf-8", forms=(True,)),
]


def _usage(value: Any) -> Callable[[list[Json]], None]:
    """Every usage of the answer becomes `value`; `...` removes it."""

    def change(parts: list[Json]) -> None:
        for part in parts:
            for holder in (part, part.get("message") or {}):
                if "usage" in holder:
                    if value is ...:
                        del holder["usage"]
                    elif callable(value):
                        holder["usage"] = value(holder["usage"])
                    else:
                        holder["usage"] = value

    return change


def _counts(value: Any) -> Callable[[Json], Json]:
    return lambda usage: dict.fromkeys(usage, value)


_DETAILS: Json = {
    "prompt_tokens_details": None,
    "completion_tokens_details": {"reasoning_tokens": None, "text_tokens": "x", "more": {"a": []}},
    "cache_creation": None,
    "cache_read_input_tokens": None,
    "cache_creation_input_tokens": None,
    "server_tool_use": None,
}
USAGES = [
    Case("usage", "null", parts=_usage(None)),
    Case("usage", "missing", parts=_usage(...)),
    Case("usage", "empty", parts=_usage({})),
    Case("usage", "list", parts=_usage([])),
    Case("usage", "list of one", parts=_usage([{"a": 1}])),
    Case("usage", "text", parts=_usage("12 tokens")),
    Case("usage", "number", parts=_usage(12)),
    Case("usage", "true", parts=_usage(True)),
    Case("usage", "counts null", parts=_usage(_counts(None))),
    Case("usage", "counts text", parts=_usage(_counts("12"))),
    Case("usage", "counts words", parts=_usage(_counts("many"))),
    Case("usage", "counts float", parts=_usage(_counts(12.0))),
    Case("usage", "counts fraction", parts=_usage(_counts(12.5))),
    Case("usage", "counts negative", parts=_usage(_counts(-3))),
    Case("usage", "counts huge", parts=_usage(_counts(10**30))),
    Case("usage", "counts objects", parts=_usage(_counts({"n": 1}))),
    Case("usage", "counts lists", parts=_usage(_counts([1]))),
    Case("usage", "details null", parts=_usage(lambda usage: {**usage, **_DETAILS})),
    Case(
        "usage",
        "details list",
        parts=_usage(lambda usage: {**usage, **{name: [] for name in _DETAILS}}),
    ),
    Case(
        "usage",
        "details text",
        parts=_usage(lambda usage: {**usage, **dict.fromkeys(_DETAILS, "none")}),
    ),
    Case("usage", "one count", parts=_usage(lambda usage: dict(list(usage.items())[:1]))),
    Case("usage", "unknown", parts=_usage(lambda usage: {**usage, "queue_time": 0.1, "x": None})),
]


def _chat(group: str, name: str, change: Any, **more: Any) -> Case:
    return Case(group, name, parts=change, wires=("chat",), **more)


def _insert(at: int, *more: Json) -> Callable[[list[Json]], list[Json]]:
    return lambda parts: [*parts[:at], *more, *parts[at:]]


def _with_delta(delta: Any, **more: Any) -> Callable[[list[Json]], list[Json]]:
    """A chunk with that delta before the others, and once more in their middle."""

    def change(parts: list[Json]) -> list[Json]:
        choice = {"index": 0, "finish_reason": None, **more}
        if delta is not ...:
            choice["delta"] = delta
        odd = {**parts[0], "choices": [choice]}
        return [odd, *parts[:3], odd, *parts[3:]]

    return change


def _with_choices(choices: Any) -> Callable[[list[Json]], list[Json]]:
    def change(parts: list[Json]) -> list[Json]:
        odd = {**parts[0], "choices": choices}
        if choices is ...:
            del odd["choices"]
        return [odd, *parts[:3], odd, *parts[3:]]

    return change


def _choices_in(parts: list[Json]) -> list[Json]:
    return [choice for part in parts for choice in part.get("choices") or ()]


def _messages_in(parts: list[Json]) -> list[Json]:
    return [choice.get("message") or choice["delta"] for choice in _choices_in(parts)]


def _each(
    found: Callable[[list[Json]], list[Json]], fields: Mapping[str, Any]
) -> Callable[[list[Json]], None]:
    """Each object that is found gets the fields; `...` takes one away."""

    def change(parts: list[Json]) -> None:
        for holder in found(parts):
            for key, value in fields.items():
                if value is ...:
                    holder.pop(key, None)
                else:
                    holder[key] = value

    return change


def _each_choice(**fields: Any) -> Callable[[list[Json]], None]:
    return _each(_choices_in, fields)


def _each_part(**fields: Any) -> Callable[[list[Json]], None]:
    return _each(lambda parts: parts, fields)


def _each_message(**fields: Any) -> Callable[[list[Json]], None]:
    return _each(_messages_in, fields)


def _listed(parts: list[Json]) -> None:
    """Content in the form of a list."""
    for holder in _messages_in(parts):
        if holder.get("content"):
            holder["content"] = [{"type": "text", "text": holder["content"]}]


STREAM, WHOLE = (True,), (False,)
DELTAS = [
    _chat("delta", "null", _with_delta(None), forms=STREAM),
    _chat("delta", "missing", _with_delta(...), forms=STREAM),
    _chat("delta", "empty", _with_delta({}), forms=STREAM),
    _chat("delta", "list", _with_delta([]), forms=STREAM),
    _chat("delta", "text", _with_delta(""), forms=STREAM),
    _chat("delta", "role only", _with_delta({"role": "assistant"}), forms=STREAM),
    _chat("delta", "role null", _with_delta({"role": None, "content": None}), forms=STREAM),
    _chat("delta", "role odd", _with_delta({"role": "bot", "content": None}), forms=STREAM),
    _chat("delta", "content number", _with_delta({"content": 0}), forms=STREAM, views=EITHER),
    _chat("delta", "content empty list", _with_delta({"content": []}), forms=STREAM),
    _chat("delta", "calls null", _with_delta({"tool_calls": None}), forms=STREAM),
    _chat("delta", "calls empty", _with_delta({"tool_calls": []}), forms=STREAM),
    _chat("delta", "calls of null", _with_delta({"tool_calls": [None]}), forms=STREAM),
    _chat("delta", "calls object", _with_delta({"tool_calls": {}}), forms=STREAM),
    _chat("delta", "function_call null", _with_delta({"function_call": None}), forms=STREAM),
    _chat("delta", "audio null", _with_delta({"audio": None, "refusal": None}), forms=STREAM),
    _chat("delta", "reasoning null", _with_delta({"reasoning": None}), forms=STREAM),
    _chat("delta", "reasoning details", _with_delta({"reasoning_details": [None]}), forms=STREAM),
    _chat("delta", "annotations", _with_delta({"annotations": None, "images": None}), forms=STREAM),
    _chat("delta", "unknown", _with_delta({"x_own": {"a": [1]}}), forms=STREAM),
    _chat("delta", "message instead", _with_delta(..., message={"content": ""}), forms=STREAM),
    _chat("delta", "content listed", _listed),
    _chat("delta", "role missing", _each_message(role=...)),
    _chat("delta", "role null everywhere", _each_message(role=None)),
    _chat("delta", "role odd everywhere", _each_message(role="bot")),
    _chat("delta", "annotations odd", _each_message(annotations=None, audio=None, refusal=None)),
    _chat("delta", "annotations text", _each_message(annotations="x", images="y")),
    _chat("delta", "function_call odd", _each_message(function_call=None)),
    _chat("delta", "thinking odd", _each_message(thinking_blocks=None, reasoning_content=None)),
    _chat("delta", "reasoning object", _each_message(reasoning={"a": 1})),
    _chat("delta", "provider fields", _each_message(provider_specific_fields="x")),
]
CHOICES = [
    _chat("choices", "empty", _with_choices([]), forms=STREAM),
    _chat("choices", "null", _with_choices(None), forms=STREAM),
    _chat("choices", "missing", _with_choices(...), forms=STREAM),
    _chat("choices", "object", _with_choices({}), forms=STREAM),
    _chat("choices", "of null", _with_choices([None]), forms=STREAM),
    _chat("choices", "of empty", _with_choices([{}]), forms=STREAM),
    _chat("choices", "index missing", _each_choice(index=...)),
    _chat("choices", "index null", _each_choice(index=None)),
    _chat("choices", "index text", _each_choice(index="0")),
    _chat("choices", "index one", _each_choice(index=1)),
    _chat("choices", "index float", _each_choice(index=0.0)),
    _chat("choices", "logprobs odd", _each_choice(logprobs=[])),
    _chat("choices", "logprobs text", _each_choice(logprobs="none")),
    _chat("choices", "logprobs empty", _each_choice(logprobs={})),
    _chat("choices", "logprobs null in", _each_choice(logprobs={"content": None})),
    _chat("choices", "logprobs own form", _each_choice(logprobs={"tokens": ["a"], "top": None})),
    _chat("choices", "unknown fields", _each_choice(x_own={"a": None}, matched_stop=128009)),
    _chat("choices", "stop_reason null", _each_choice(stop_reason=None, token_ids=None)),
    _chat("choices", "empty whole", _each_part(choices=[]), forms=WHOLE, views=ERROR),
    _chat("choices", "null whole", _each_part(choices=None), forms=WHOLE, views=ERROR),
    _chat("choices", "missing whole", _each_part(choices=...), forms=WHOLE, views=ERROR),
]
HEADS = [
    _chat("head", "no id", _each_part(id=...)),
    _chat("head", "id null", _each_part(id=None)),
    _chat("head", "id number", _each_part(id=7)),
    _chat("head", "no object", _each_part(object=...)),
    _chat("head", "object odd", _each_part(object="thing")),
    _chat("head", "object null", _each_part(object=None)),
    _chat("head", "no created", _each_part(created=...)),
    _chat("head", "created null", _each_part(created=None)),
    _chat("head", "created float", _each_part(created=1.5)),
    _chat("head", "created text", _each_part(created="1")),
    _chat("head", "created date", _each_part(created="2026-01-01T00:00:00Z")),
    _chat("head", "model null", _each_part(model=None)),
    _chat("head", "no model", _each_part(model=...)),
    _chat("head", "model number", _each_part(model=3)),
    _chat("head", "fingerprint odd", _each_part(system_fingerprint=[1])),
    _chat("head", "service_tier odd", _each_part(service_tier={"a": 1})),
    _chat("head", "service_tier null", _each_part(service_tier=None)),
    _chat("head", "error null", _each_part(error=None)),
    _chat("head", "error empty", _each_part(error={})),
    _chat("head", "error text empty", _each_part(error="")),
    _chat("head", "unknown", _each_part(x_own={"a": [1]}, provider="P", type="x")),
    Case("head", "type only", parts=_each_part(x_own=None)),
    Case("head", "id of messages", parts=_each_part(id=None), wires=("messages",), forms=WHOLE),
    Case(
        "head",
        "no model of messages",
        parts=_each_part(model=...),
        wires=("messages",),
        forms=WHOLE,
    ),
    Case("head", "role of messages", parts=_each_part(role=None), wires=("messages",), forms=WHOLE),
]


def _replaced(old: str, new: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda pieces: [piece.replace(old.encode(), new) for piece in pieces]


def _cut_up(size: int) -> Callable[[list[bytes]], list[bytes]]:
    def split(pieces: list[bytes]) -> list[bytes]:
        whole = b"".join(pieces)
        return [whole[at : at + size] for at in range(0, len(whole), size)]

    return split


def _escaped(pieces: list[bytes]) -> list[bytes]:
    return [piece.replace("é".encode(), b"\\ud83d") for piece in pieces]


def _says(text: str) -> View:
    return View(text=text)


BYTES = [
    Case(
        "bytes",
        "bad UTF-8",
        body=_replaced("é", b"\xff\xfe"),
        views=(_says(TEXT.replace("é", "\ufffd\ufffd")),),
    ),
    Case(
        "bytes",
        "bad UTF-8 bytewise",
        body=lambda pieces: _cut_up(5)(_replaced("é", b"\xff")(pieces)),
        views=(_says(TEXT.replace("é", "\ufffd")),),
    ),
    Case(
        "bytes",
        "surrogate of bytes",
        body=_replaced("é", b"\xed\xa0\xbd"),
        views=(_says(TEXT.replace("é", "\ufffd\ufffd\ufffd")),),
    ),
    Case(
        "bytes",
        "half a character",
        body=_replaced("é", b"\xc3"),
        views=(_says(TEXT.replace("é", "\ufffd")),),
    ),
    Case("bytes", "split characters", body=_cut_up(1)),
    Case(
        "bytes",
        "lone surrogate",
        body=_escaped,
        views=tuple(_says(TEXT.replace("é", mark)) for mark in ("\ud83d", "?", "\ufffd")),
    ),
    Case("bytes", "BOM", body=lambda pieces: [b"\xef\xbb\xbf" + pieces[0], *pieces[1:]]),
    Case(
        "bytes",
        "white space around",
        body=lambda p: [b"\r\n \n" + p[0], *p[1:], b"\n\n  "],
        forms=WHOLE,
    ),
    *(
        Case(
            "bytes",
            f"U+{ord(mark):04X}",
            body=_replaced("é", mark.encode()),
            views=(_says(TEXT.replace("é", mark)),),
        )
        for mark in "\x7f\x85\u2028\u2029\ufeff"
    ),
    Case(
        "bytes",
        "control characters",
        body=_replaced("é", b"\\u000b\\u001c\\u0000"),
        views=(_says(TEXT.replace("é", "\x0b\x1c\0")),),
    ),
    Case(
        "bytes",
        "bare tab",
        body=_replaced("é", b"\t"),
        views=(_says(TEXT.replace("é", "\t")), None),
    ),
    *(
        Case(
            "bytes",
            f"text {said}",
            body=_replaced("é", said.encode()),
            views=(_says(TEXT.replace("é", said)),),
        )
        for said in ("[DONE]", "data: x", "event: error", " message_stop ", "<|x|>", "error")
    ),
    Case("bytes", "NaN", body=_replaced('"c1"', b"NaN"), wires=("chat",), views=EITHER),
    Case("bytes", "doubled keys", body=_replaced('"model": "m"', b'"model": "x", "model": "m"')),
]


def _arguments(value: Any) -> Callable[[list[Json]], list[Json]]:
    """The arguments of the call become `value`, in a stream in its first delta."""

    def change(parts: list[Json]) -> list[Json]:
        if "choices" not in parts[0]:
            return _arguments_of_messages(parts, value)
        if len(parts) == 1:
            call = parts[0]["choices"][0]["message"]["tool_calls"][0]["function"]
            call["arguments"] = value
            return parts
        call = parts[3]["choices"][0]["delta"]["tool_calls"][0]["function"]
        call["arguments"] = value
        return [*parts[:4], *parts[6:]]

    return change


def _arguments_of_messages(parts: list[Json], value: Any) -> list[Json]:
    if len(parts) == 1:
        parts[0]["content"][1]["input"] = value
        return parts
    piece = value if isinstance(value, str) else json.dumps(value)
    parts[6]["delta"]["partial_json"] = piece
    return [*parts[:7], *parts[8:]]


def _called(arguments: str) -> tuple[View, ...]:
    return (View(calls=(("read", arguments),)),)


def nested(depth: int) -> str:
    """JSON nested that deep."""
    return '{"a":' * depth + "1" + "}" * depth


def _deep(depth: int) -> Callable[[list[bytes]], list[bytes]]:
    """The arguments of the call, nested, put into the bytes: no encoder here reaches that deep."""
    text = nested(depth)
    quoted = json.dumps(text).encode()
    return lambda pieces: [
        piece.replace(b'"@@"', quoted).replace(b'{"@": 1}', text.encode()) for piece in pieces
    ]


def _marked(parts: list[Json]) -> list[Json]:
    whole_of_messages = len(parts) == 1 and "choices" not in parts[0]
    return _arguments({"@": 1} if whole_of_messages else "@@")(parts)


LONG = json.dumps({"path": "x" * 2**20})
ARGUMENT_CASES = [
    _chat("arguments", "object", _arguments(json.loads(ARGUMENTS))),
    _chat("arguments", "null", _arguments(None), views=_called("{}")),
    _chat("arguments", "empty", _arguments(""), views=_called("{}")),
    _chat("arguments", "list", _arguments([1]), views=(*_called("[1]"), None)),
    _chat("arguments", "list text", _arguments("[1]"), views=(*_called("[1]"), None)),
    _chat("arguments", "number", _arguments(5), views=(*_called("5"), None)),
    _chat("arguments", "not JSON", _arguments('{"path": a'), views=(*_called('{"path": a'), None)),
    Case(
        "arguments",
        "1 MB",
        parts=lambda parts: _arguments(_value(parts, LONG))(parts),
        views=_called(LONG),
    ),
    *(
        Case(
            *("arguments", f"nested {n}"),
            parts=_marked,
            body=_deep(n),
            views=(*_called(nested(n)), None),
        )
        for n in (400, 990, 1100, 20_000)
    ),
    _chat("arguments", "no id", lambda parts: _first_call(parts, id=...)),
    _chat("arguments", "id null", lambda parts: _first_call(parts, id=None)),
    _chat("arguments", "id number", lambda parts: _first_call(parts, id=9)),
    _chat("arguments", "no type", lambda parts: _first_call(parts, type=...)),
    _chat("arguments", "type null", lambda parts: _first_call(parts, type=None)),
    _chat("arguments", "no index", lambda parts: _all_calls(parts, index=...), forms=STREAM),
    _chat("arguments", "index null", lambda parts: _all_calls(parts, index=None), forms=STREAM),
    _chat("arguments", "index text", lambda parts: _all_calls(parts, index="0"), forms=STREAM),
    _chat("arguments", "index one", lambda parts: _all_calls(parts, index=1), forms=STREAM),
    _chat("arguments", "unknown in call", lambda parts: _all_calls(parts, x_own={"a": None})),
]


def _value(parts: list[Json], text: str) -> Any:
    """Arguments in the form of the wire."""
    return json.loads(text) if len(parts) == 1 and "choices" not in parts[0] else text


def _first_call(parts: list[Json], **fields: Any) -> None:
    _set(_calls(parts)[:1], fields)


def _all_calls(parts: list[Json], **fields: Any) -> None:
    _set(_calls(parts), fields)


def _calls(parts: list[Json]) -> list[Json]:
    return [
        call
        for part in parts
        for choice in part["choices"]
        for call in choice.get("message", choice.get("delta")).get("tool_calls") or ()
    ]


def _set(holders: list[Json], fields: Json) -> None:
    for holder in holders:
        for key, value in fields.items():
            if value is ...:
                holder.pop(key, None)
            else:
                holder[key] = value


def _finish(value: Any) -> Callable[[list[Json]], None]:
    def change(parts: list[Json]) -> None:
        for part in parts:
            if "stop_reason" in part:
                part["stop_reason"] = value
            if part.get("type") == "message_delta":
                part["delta"]["stop_reason"] = value
            for choice in part.get("choices") or ():
                if choice.get("finish_reason"):
                    choice["finish_reason"] = value

    return change


_ANY = tuple(View(finish=reason) for reason in ("tool_calls", "stop", "odd", "length", ""))
FINISHES = [
    Case("finish", "unknown", parts=_finish("odd"), views=_ANY),
    Case("finish", "stop", parts=_finish("stop"), wires=("chat",), views=_ANY),
    Case(
        "finish", "length", parts=_finish("length"), wires=("chat",), views=(View(finish="length"),)
    ),
    Case(
        "finish",
        "max_tokens",
        parts=_finish("max_tokens"),
        wires=("messages",),
        views=(View(finish="length"),),
    ),
    Case(
        "finish",
        "content_filter",
        parts=_finish("content_filter"),
        wires=("chat",),
        views=(View(finish="content_filter"), *_ANY),
    ),
    Case("finish", "empty", parts=_finish(""), views=(*_ANY, None)),
    Case("finish", "null", parts=_finish(None), views=(*_ANY, None)),
    Case("finish", "number", parts=_finish(3), views=(*_ANY, View(finish="3"), None)),
    _chat("finish", "upper case", _finish("TOOL_CALLS"), views=(*_ANY, View(finish="TOOL_CALLS"))),
    _chat("finish", "eos", _finish("eos"), views=_ANY),
    _chat("finish", "twice", lambda parts: [*parts[:-1], parts[-2], parts[-1]], forms=STREAM),
    _chat(
        "finish",
        "with usage",
        lambda parts: [*parts[:-2], {**parts[-2], "usage": parts[-1]["usage"]}],
        forms=STREAM,
    ),
    _chat(
        "finish",
        "text behind it",
        _insert(8, {"choices": [{"index": 0, "delta": {"content": ""}}]}),
        forms=STREAM,
    ),
]


def _events(name: str, change: Any, **more: Any) -> Case:
    return Case("framing", name, body=change, forms=STREAM, **more)


def _lines(pieces: list[bytes], change: Callable[[bytes], bytes]) -> list[bytes]:
    return [change(piece) for piece in pieces]


def _named(name: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda pieces: [b"event: %b\n%b" % (name, p[p.find(b"data:") :]) for p in pieces]


FRAMING = [
    _events("no DONE", lambda p: p[:-1], wires=("chat",)),
    _events("DONE twice", lambda p: [*p, p[-1]], wires=("chat",)),
    _events("data after DONE", lambda p: [*p, p[1]], wires=("chat",)),
    _events("junk after DONE", lambda p: [*p, b"data: {]\n\n\xff"], wires=("chat",)),
    _events("DONE in spaces", lambda p: [*p[:-1], b"data:   [DONE]  \n\n"], wires=("chat",)),
    _events("comments", lambda p: [b": hi\n\n", *(b": c\n" + piece + b":\n\n" for piece in p)]),
    _events("CRLF", lambda p: [piece.replace(b"\n", b"\r\n") for piece in p]),
    _events("CR", lambda p: [piece.replace(b"\n", b"\r") for piece in p]),
    _events("no space", lambda p: [piece.replace(b"data: ", b"data:") for piece in p]),
    _events("two spaces", lambda p: [piece.replace(b"data: ", b"data:  ") for piece in p]),
    _events("names", _named(b"chunk"), wires=("chat",)),
    _events("no names", lambda p: [x[x.find(b"data:") :] for x in p], wires=("messages",)),
    _events("ids and retry", lambda p: [b"id: 1\nretry: 10\n" + piece for piece in p]),
    _events("data lines", lambda p: [x.replace(b', "', b',\ndata: "') for x in p]),
    _events("empty data", lambda p: [y for x in p for y in (b"data:\n\n", b"data: \n\n", x)]),
    _events("many blank lines", lambda p: [b"\n\n\n" + piece + b"\n\n" for piece in p]),
    _events("no last blank line", lambda p: [*p[:-1], p[-1].rstrip(b"\n")]),
    _events("no last two", lambda p: [*p[:-1], p[-1].rstrip(b"\n")], wires=("messages",)),
    _events(
        "pings",
        lambda p: [y for x in p for y in (b'event: ping\ndata: {"type": "ping"}\n\n', x)],
        wires=("messages",),
    ),
    _events(
        "odd events",
        lambda p: (
            [
                y
                for x in p
                for y in (
                    x,
                    b"data: null\n\n",
                    b"data: 1\n\n",
                    b'data: "x"\n\n',
                    b"data: []\n\n",
                    b"data: {}\n\n",
                )
            ][:-5]
            if b"DONE" in p[-1]
            else [y for x in p for y in (b"data: null\n\n", b"data: []\n\n", b"data: {}\n\n", x)]
        ),
    ),
    _events(
        "unknown types",
        lambda p: [y for x in p for y in (b'event: new\ndata: {"type": "new", "a": 1}\n\n', x)],
        wires=("messages",),
    ),
    _events(
        "unknown objects",
        lambda p: [y for x in p for y in (b'data: {"object": "chat.ping", "a": 1}\n\n', x)],
        wires=("chat",),
    ),
    _events("in one write", lambda p: [b"".join(p)]),
    _events("bytewise", _cut_up(1)),
    _events(
        "1 MB event",
        lambda p: [x.replace("é".encode(), b"y" * 2**20) for x in p],
        views=(_says(TEXT.replace("é", "y" * 2**20)),),
    ),
    _events("cut", lambda p: p[:4], views=ERROR),
    _events("cut in an event", lambda p: [*p[:4], p[4][:-20]], views=ERROR),
]


def _error_event(message: str, *, wire: str = "chat") -> bytes:
    error = {"type": "overloaded_error", "message": message}
    if wire == "chat":
        return b"data: %b\n\n" % json.dumps({"error": {**error, "code": 529}}).encode()
    return event({"type": "error", "error": error})


WORDS = "Too many of you."
ERRORS = [
    Case(
        "errors",
        "first",
        body=lambda p: [_error_event(WORDS)],
        wires=("chat",),
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "in the middle",
        body=lambda p: [*p[:4], _error_event(WORDS)],
        wires=("chat",),
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "first, of messages",
        body=lambda p: [_error_event(WORDS, wire="m")],
        wires=("messages",),
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "in the middle, of messages",
        body=lambda p: [*p[:4], _error_event(WORDS, wire="m")],
        wires=("messages",),
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "text",
        body=lambda p: [json.dumps({"error": WORDS}).encode()],
        forms=WHOLE,
        views=ERROR,
    ),
    Case(
        "errors",
        "object",
        body=lambda p: [json.dumps({"error": {"message": WORDS, "code": 500}}).encode()],
        forms=WHOLE,
        views=ERROR,
    ),
    Case(
        "errors",
        "object for a stream",
        body=lambda p: [json.dumps({"error": {"message": WORDS, "code": 500}}).encode()],
        content_type="application/json",
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "code text",
        body=lambda p: [
            b"data: %b\n\n" % json.dumps({"error": {"message": WORDS, "code": "x"}}).encode()
        ],
        wires=("chat",),
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "text event",
        body=lambda p: [b"data: %b\n\n" % json.dumps({"error": WORDS}).encode()],
        wires=("chat",),
        forms=STREAM,
        views=ERROR,
    ),
    Case(
        "errors",
        "named event",
        body=lambda p: [
            *p[:4],
            b"event: error\ndata: %b\n\n" % json.dumps({"message": WORDS}).encode(),
        ],
        wires=("chat",),
        forms=STREAM,
        views=ERROR,
    ),
]
BODIES = [
    Case("body", "empty", body=lambda p: [], views=ERROR),
    Case("body", "blank", body=lambda p: [b"\n\n"], views=ERROR),
    Case("body", "HTML", body=lambda p: [b"<html><body>Welcome</body></html>"], views=ERROR),
    Case(
        "body",
        "HTML of its type",
        body=lambda p: [b"<html>Hi</html>"],
        content_type="text/html",
        views=ERROR,
    ),
    Case("body", "cut", body=lambda p: [b"".join(p)[:-20]], forms=WHOLE, views=ERROR),
    Case("body", "list", body=lambda p: [b"[]"], views=ERROR),
    Case("body", "null", body=lambda p: [b"null"], views=ERROR),
    Case("body", "number", body=lambda p: [b"1"], views=ERROR),
    Case("body", "empty object", body=lambda p: [b"{}"], views=ERROR),
    Case("body", "JSON twice", body=lambda p: [b"".join(p) * 2], forms=WHOLE, views=(View(), None)),
    Case(
        "body",
        "whole for a stream",
        body=lambda p: [
            json.dumps(
                good("messages" if b"message_start" in p[0] else "chat", stream=False)[0]
            ).encode()
        ],
        content_type="application/json",
        forms=STREAM,
    ),
    Case(
        "body",
        "whole for a stream, mislabelled",
        body=lambda p: [
            json.dumps(
                good("messages" if b"message_start" in p[0] else "chat", stream=False)[0]
            ).encode()
        ],
        forms=STREAM,
    ),
    Case(
        "body",
        "stream for whole",
        body=lambda p: Answer(
            good("messages" if b'"msg_1"' in p[0] else "chat", stream=True),
            True,
            "messages" if b'"msg_1"' in p[0] else "chat",
        ).encoded(),
        content_type="text/event-stream",
        forms=WHOLE,
        views=(View(), None),
    ),
]


def _blocks(name: str, change: Any, **more: Any) -> Case:
    return Case("blocks", name, parts=change, wires=("messages",), **more)


def _started(**fields: Any) -> Callable[[list[Json]], None]:
    def change(parts: list[Json]) -> None:
        if len(parts) == 1:
            _set(parts[0]["content"], fields)
        else:
            _set([part["content_block"] for part in parts if "content_block" in part], fields)

    return change


def _block_added(block: Json) -> Callable[[list[Json]], list[Json]]:
    def change(parts: list[Json]) -> list[Json]:
        if len(parts) == 1:
            parts[0]["content"].append(block)
            return parts
        start = {"type": "content_block_start", "index": 2, "content_block": block}
        return [*parts[:-2], start, {"type": "content_block_stop", "index": 2}, *parts[-2:]]

    return change


BLOCKS = [
    _blocks("unknown fields", _started(x_own={"a": 1}, citations=None)),
    _blocks("unknown kind", _block_added({"type": "new_kind", "data": [1]})),
    _blocks("text null", _block_added({"type": "text", "text": None})),
    _blocks("thinking empty", _block_added({"type": "thinking", "thinking": "", "signature": ""})),
    _blocks(
        "thinking null", _block_added({"type": "thinking", "thinking": None, "signature": None})
    ),
    _blocks("redacted", _block_added({"type": "redacted_thinking", "data": "x"})),
    _blocks(
        "delta unknown",
        lambda p: [
            *p[:4],
            {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "a": 1}},
            *p[4:],
        ],
        forms=STREAM,
    ),
    _blocks(
        "delta null",
        lambda p: [*p[:4], {"type": "content_block_delta", "index": 0, "delta": None}, *p[4:]],
        forms=STREAM,
    ),
    _blocks(
        "delta text null",
        lambda p: [
            *p[:4],
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": None},
            },
            *p[4:],
        ],
        forms=STREAM,
    ),
    _blocks("no index", _each_part(index=...), forms=STREAM),
    _blocks("no message_stop", lambda p: p[:-1], forms=STREAM, views=(View(), None)),
    _blocks(
        "no block stops",
        lambda p: [x for x in p if x["type"] != "content_block_stop"],
        forms=STREAM,
    ),
    _blocks("input null", lambda p: _started_input(p, None), views=_called("{}")),
    _blocks(
        "input text", lambda p: _started_input(p, ARGUMENTS), views=(*_called(ARGUMENTS), None)
    ),
    _blocks(
        "input list",
        lambda p: _started_input(p, [1]),
        views=(*_called("[1]"), *_called('{"arguments":[1]}'), None),
    ),
    _blocks(
        "message null", lambda p: [{"type": "message_start", "message": None}, *p[1:]], forms=STREAM
    ),
    _blocks("no message_start", lambda p: p[1:], forms=STREAM),
]


def _started_input(parts: list[Json], value: Any) -> list[Json]:
    """Input that comes with the start of the call, and no deltas."""
    if len(parts) == 1:
        parts[0]["content"][1]["input"] = value
        return parts
    parts[5]["content_block"]["input"] = value
    return [*parts[:6], *parts[8:]]


CASES: list[Case] = [
    *CODINGS,
    *TYPES,
    *USAGES,
    *DELTAS,
    *CHOICES,
    *HEADS,
    *BYTES,
    *ARGUMENT_CASES,
    *FINISHES,
    *FRAMING,
    *ERRORS,
    *BODIES,
    *BLOCKS,
]
