"""Answers as providers should not give them: each case is a change of one good answer.

The cases are rows of `odd_answers.yaml`, which says how they are written. A step is a function of
this module: of the JSON of the answer or of its events (`JSON_STEPS`, and the setting of fields in
what `HOLDERS` finds), or of the pieces of its body (`BYTE_STEPS`).
"""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brotli
import yaml

from gateway.wire.compression import zstd

Json = dict[str, Any]
FILE: Json = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
GONE = "(gone)"
MEGABYTE = "(1 MB)"


@dataclass(frozen=True)
class View:
    """The parts of an answer that must arrive: its text, its calls and how it ended."""

    text: str = FILE["text"]
    calls: tuple[tuple[str, str], ...] = (("read", FILE["arguments"]),)
    finish: str = "tool_calls"


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
    row: Json

    @property
    def name(self) -> str:
        """What is odd."""
        return str(self.row["name"])

    @property
    def wires(self) -> tuple[str, ...]:
        """The dialects of the provider."""
        return self._among(("chat", "messages"))

    @property
    def forms(self) -> tuple[bool, ...]:
        """Whether the answer is a stream."""
        return tuple(form == "stream" for form in self._among(("whole", "stream")))

    def _among(self, known: tuple[str, ...]) -> tuple[str, ...]:
        named = self.row.get("for", "").split()
        return tuple(each for each in known if each in named) or known

    def sent(self, wire: str, *, stream: bool) -> Sent:
        """The answer of this case."""
        parts = good(wire, stream=stream)
        for name, value in self.row.items():
            if name in HOLDERS:
                _set(HOLDERS[name](parts), value)
            elif name in JSON_STEPS:
                parts = JSON_STEPS[name](parts, value) or parts
        pieces = encoded(parts, wire, stream=stream)
        for name, value in self.row.items():
            if name in BYTE_STEPS:
                pieces = BYTE_STEPS[name](pieces, value)
        usual = "text/event-stream" if stream else "application/json"
        coding = {"content-encoding": self.row["coding"]} if "coding" in self.row else {}
        body = tuple(filter(None, pieces))
        return Sent(body, coding, self.row.get("type", usual), self._views())

    def _views(self) -> tuple[View | None, ...]:
        row = self.row
        calls = [nested(row["nested"])] if "nested" in row else row.get("calls", ())
        views: list[View | None] = [View(calls=(("read", _filled(call)),)) for call in calls]
        views += [View(text=View.text.replace("é", _filled(said))) for said in row.get("says", ())]
        views += [View(finish=reason) for reason in row.get("ends", ())]
        if not views and row.get("error") != "only":
            views = [View()]
        return (*views, None) if "error" in row else tuple(views)


def good(wire: str, *, stream: bool) -> list[Json]:
    """The JSON of the good answer, made new: of its events, or of the whole."""
    made: list[Json] = copy.deepcopy(FILE["good"][f"{wire} {'stream' if stream else 'whole'}"])
    return made


def encoded(parts: list[Json], wire: str, *, stream: bool) -> list[bytes]:
    """The events as they are on the wire, or the body."""
    if not stream:
        return [_text_of(parts[0])]
    return [event(part) for part in parts] + ([b"data: [DONE]\n\n"] if wire == "chat" else [])


def event(part: Json) -> bytes:
    """An event of a stream, named where its type is part of it."""
    name = b"event: %b\n" % part["type"].encode() if "type" in part else b""
    return b"%bdata: %b\n\n" % (name, _text_of(part))


def nested(depth: int) -> str:
    """JSON nested that deep."""
    return '{"a":' * depth + "1" + "}" * depth


def _text_of(part: Json) -> bytes:
    return json.dumps(part, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _filled(text: str) -> str:
    return text.replace(MEGABYTE, "x" * 2**20)


def _set(holders: list[Json], fields: Mapping[str, Any]) -> None:
    for holder in holders:
        for key, value in fields.items():
            if value == GONE:
                holder.pop(key, None)
            else:
                holder[key] = value


def _with_usage(parts: list[Json]) -> list[Json]:
    """What has a usage: a part, or the message in it."""
    nested_too = [*parts, *(part["message"] for part in parts if part.get("message"))]
    return [holder for holder in nested_too if "usage" in holder]


def _usages(parts: list[Json]) -> list[Json]:
    return [holder["usage"] for holder in _with_usage(parts)]


def _choices(parts: list[Json]) -> list[Json]:
    return [choice for part in parts for choice in part.get("choices") or ()]


def _messages(parts: list[Json]) -> list[Json]:
    return [choice.get("message") or choice["delta"] for choice in _choices(parts)]


def _calls(parts: list[Json]) -> list[Json]:
    return [call for message in _messages(parts) for call in message.get("tool_calls") or ()]


def _blocks(parts: list[Json]) -> list[Json]:
    if len(parts) == 1:
        return list(parts[0]["content"])
    return [part["content_block"] for part in parts if "content_block" in part]


HOLDERS: dict[str, Callable[[list[Json]], list[Json]]] = {
    "part": lambda parts: parts,
    "part 0": lambda parts: parts[:1],
    "part 6": lambda parts: parts[6:7],
    "with usage": _with_usage,
    "usage": _usages,
    "choice": _choices,
    "message": _messages,
    "call": _calls,
    "first call": lambda parts: _calls(parts)[:1],
    "block": _blocks,
}
"""Finds the objects whose fields a step of this name sets."""


def _count(parts: list[Json], value: Any) -> None:
    """Every count of tokens becomes `value`."""
    for usage in _usages(parts):
        usage.update(dict.fromkeys(usage, value))


def _one_count(parts: list[Json], _: Any) -> None:
    """Every usage keeps its first count alone."""
    for usage in _usages(parts):
        _set([usage], dict.fromkeys(list(usage)[1:], GONE))


def _odd_choices(parts: list[Json], choices: Any) -> list[Json]:
    """A chunk with those choices before the others, and once more in their middle."""
    odd = dict(parts[0])
    _set([odd], {"choices": choices})
    return [odd, *parts[:3], odd, *parts[3:]]


def _odd_delta(parts: list[Json], delta: Any) -> list[Json]:
    return _odd_choices(parts, [{"index": 0, "finish_reason": None, "delta": delta}])


def _listed(parts: list[Json], _: Any) -> None:
    """Content in the form of a list."""
    for message in _messages(parts):
        if message.get("content"):
            message["content"] = [{"type": "text", "text": message["content"]}]


def _end(parts: list[Json], reason: Any) -> None:
    """The reason of the end, where there is one."""
    _set([part for part in parts if "stop_reason" in part], {"stop_reason": reason})
    deltas = [part["delta"] for part in parts if part.get("type") == "message_delta"]
    _set(deltas, {"stop_reason": reason})
    ended = [choice for choice in _choices(parts) if choice.get("finish_reason")]
    _set(ended, {"finish_reason": reason})


def _arguments(parts: list[Json], value: Any) -> list[Json]:
    """The arguments of the call become `value`, in a stream in its first delta."""
    if isinstance(value, str):
        value = _filled(value)
    if "choices" in parts[0]:
        carries_call = 0 if len(parts) == 1 else 3
        _calls(parts[carries_call:])[0]["function"]["arguments"] = value
        return [*parts[:4], *parts[6:]]
    if len(parts) == 1:
        return _input(parts, json.loads(value))
    parts[6]["delta"]["partial_json"] = value
    return [*parts[:7], *parts[8:]]


def _input(parts: list[Json], value: Any) -> list[Json]:
    """Input that comes with the start of the call, and no deltas."""
    _blocks(parts)[1]["input"] = value
    return [*parts[:6], *parts[8:]]


def _marked(parts: list[Json], _: Any) -> list[Json]:
    """Arguments in whose place `_deep` puts others."""
    return _arguments(parts, '{"@": 1}')


def _block_added(parts: list[Json], block: Json) -> list[Json]:
    if len(parts) == 1:
        parts[0]["content"].append(block)
        return parts
    start = {"type": "content_block_start", "index": 2, "content_block": block}
    return [*parts[:-2], start, {"type": "content_block_stop", "index": 2}, *parts[-2:]]


def _picked(items: Sequence[Any], indexes: list[int]) -> list[Any]:
    return [items[index] for index in indexes]


JSON_STEPS: dict[str, Callable[[list[Json], Any], list[Json] | None]] = {
    "counts": _count,
    "one count": _one_count,
    "odd choices": _odd_choices,
    "odd delta": _odd_delta,
    "listed": _listed,
    "end": _end,
    "arguments": _arguments,
    "input": _input,
    "nested": _marked,
    "block added": _block_added,
    "parts": _picked,
    "part at 4": lambda parts, part: [*parts[:4], part, *parts[4:]],
    "part at 8": lambda parts, part: [*parts[:8], part, *parts[8:]],
}


def _deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate raw": _deflate_raw,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


def _packed(pieces: list[bytes], packers: list[str]) -> list[bytes]:
    for name in packers:
        pieces = [PACKERS[name](piece) for piece in pieces]
    return pieces


def _cut(pieces: list[bytes], size: int) -> list[bytes]:
    """The body in pieces of so many bytes."""
    whole = b"".join(pieces)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _replaced(pieces: list[bytes], changes: Mapping[str, str]) -> list[bytes]:
    """With other bytes, each written as the character of its number."""
    for old, new in changes.items():
        pieces = [piece.replace(old.encode(), _raw(new)) for piece in pieces]
    return pieces


def _said(pieces: list[bytes], text: str) -> list[bytes]:
    """With this text, in UTF-8, in place of the é."""
    return [piece.replace("é".encode(), _filled(text).encode()) for piece in pieces]


def _each(pieces: list[bytes], templates: list[str]) -> list[bytes]:
    """Pieces made of each piece."""
    return [_raw(form).replace(b"@", piece) for piece in pieces for form in templates]


def _between(pieces: list[bytes], between: list[str]) -> list[bytes]:
    """Further pieces between two, in a stream of chat."""
    if b"DONE" not in pieces[-1]:
        return pieces
    return _each(pieces, ["@", *between])[: -len(between)]


def _before(pieces: list[bytes], before: list[str]) -> list[bytes]:
    """Further pieces before each, in a stream of messages."""
    return pieces if b"DONE" in pieces[-1] else _each(pieces, [*before, "@"])


def _deep(pieces: list[bytes], depth: int) -> list[bytes]:
    """The arguments of the call, nested, put into the bytes: no encoder here reaches that deep."""
    quoted = json.dumps(nested(depth)).encode()
    whole = nested(depth).encode()
    marks = {b'"{\\"@\\": 1}"': quoted, b'{"@": 1}': whole}
    for mark, text in marks.items():
        pieces = [piece.replace(mark, text) for piece in pieces]
    return pieces


def _other_form(pieces: list[bytes], _: Any) -> list[bytes]:
    """The good answer as a stream where it was whole, and the other way round."""
    wire = "messages" if b"msg_1" in pieces[0] else "chat"
    stream = len(pieces) == 1
    return encoded(good(wire, stream=stream), wire, stream=stream)


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


BYTE_STEPS: dict[str, Callable[[list[bytes], Any], list[bytes]]] = {
    "join": lambda pieces, _: [b"".join(pieces)],
    "cut": _cut,
    "pack": _packed,
    "bytes": _replaced,
    "text": _said,
    "each": _each,
    "between chat": _between,
    "before messages": _before,
    "unnamed": lambda pieces, _: [re.sub(rb"^event: \w+\n", b"", piece) for piece in pieces],
    "pieces": _picked,
    "body": lambda _, texts: list(map(_raw, texts)),
    "ahead": lambda pieces, texts: [*map(_raw, texts), *pieces],
    "behind": lambda pieces, texts: [*pieces, *map(_raw, texts)],
    "first": lambda pieces, form: [*_each(pieces[:1], [form]), *pieces[1:]],
    "drop": lambda pieces, count: [*pieces[:-1], pieces[-1][:-count]],
    "nested": _deep,
    "other form": _other_form,
}

CASES = [Case(group, row) for group, rows in FILE["cases"].items() for row in rows]
_STEPS = {*HOLDERS, *JSON_STEPS, *BYTE_STEPS}
_TERMS = {"name", "for", "coding", "type", "says", "calls", "ends", "error"}
_UNKNOWN = set(itertools.chain(*(case.row for case in CASES))) - _STEPS - _TERMS
assert not _UNKNOWN, f"odd_answers.yaml: no step is called {sorted(_UNKNOWN)}"
