"""Finds the top-level members of a JSON body without reading the large ones.

A JSON parser reads a body in one call, during which nothing else runs in the process. A body for
which that would take too long is gone through here in short pieces instead: each is one match of a
pattern that covers a bounded part of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gateway.errors import BadRequest
from gateway.wire.parsing import BeyondParser, Loads, Span, parse_value

# Members up to this size are read: everything but the messages and large tool definitions.
SMALL_BYTES: Final = 16 * 2**10
_MOST_MEMBERS: Final = 10_000  # of a whole body; APIs know some fifty

COUNTED_BYTES: Final = 2**20
"""Bodies from this size on are looked at before they are read: a smaller one takes less than 50 ms,
whatever is in it."""

# Nanoseconds of orjson per byte and per object, array and comma, on one core of 2.8 GHz: the
# dearest of texts, images, many short messages, `{"a":1}` and `1` repeated to 10 MB.
_BYTE_NS: Final = 1.5
_TOKEN_NS: Final = {b"{": 250, b"[": 100, b",": 60}

_PLAIN: Final = rb'[^"\[\]{}]{1,200}+'
_SHORT: Final = rb'"[^"\\]{0,200}+"'
_FLAT: Final = rb"(?:" + _PLAIN + rb"|" + _SHORT + rb"){0,50}+"
_PIECE: Final = re.compile(
    rb"(?:" + _PLAIN + rb"|" + _SHORT + rb"|\{" + _FLAT + rb"\}|\[" + _FLAT + rb"\]){1,100}+"
)
_STRING_PART: Final = re.compile(rb'(?:[^"\\]{1,8192}+|\\.){1,100}+', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_SCALAR: Final = re.compile(rb"[^ \t\n\r,}]{1,10000}+")


def reading_ms(raw: bytes, start: int = 0) -> float:
    """About how long a JSON parser takes for the body from `start` on, in milliseconds.

    Texts with many commas are taken for dearer than they are."""
    spent_ns = 0.0
    for at in range(start, len(raw), COUNTED_BYTES):
        end = min(at + COUNTED_BYTES, len(raw))
        spent_ns += (end - at) * _BYTE_NS
        spent_ns += sum(raw.count(token, at, end) * ns for token, ns in _TOKEN_NS.items())
    return spent_ns / 1e6


def skim(raw: bytes, loads: Loads) -> tuple[dict[str, Any], dict[str, list[Span]]]:
    """The members of the object in `raw`, and (start, end) of the values of each key.

    Members above `SMALL_BYTES`, and those that no parser reads, are None and were not checked.
    Raises: BadRequest: not an object, or one with too many members."""
    body: dict[str, Any] = {}
    spans: dict[str, list[Span]] = {}
    try:
        for count, (name, start, end) in enumerate(_members(raw)):
            if count == _MOST_MEMBERS:
                raise BadRequest(f"the body has more than {_MOST_MEMBERS} members")
            key = str(parse_value(name, loads)) if len(name) <= SMALL_BYTES else ""
            body[key] = _value(raw[start:end], loads) if end - start <= SMALL_BYTES else None
            spans.setdefault(key, []).append((start, end))
    except IndexError:
        raise BadRequest("the body is not valid JSON: it ends too early") from None
    return body, spans


def _value(raw: bytes, loads: Loads) -> Any:
    try:
        return parse_value(raw, loads)
    except BeyondParser:
        return None


def _members(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(key in quotes, start, end) of each value of the object."""
    at = _expected(raw, _after_space(raw, 0), b"{")
    at = _after_space(raw, at)
    if raw[at] == ord("}"):
        return
    while True:
        key_end = _string_end(raw, _expected(raw, at, b'"'))
        start = _after_space(raw, _expected(raw, _after_space(raw, key_end), b":"))
        end = _value_end(raw, start)
        yield raw[at:key_end], start, end
        at = _after_space(raw, end)
        if raw[at] == ord("}"):
            return
        at = _after_space(raw, _expected(raw, at, b","))


def _value_end(raw: bytes, at: int) -> int:
    """End of the value that starts at `at`."""
    if raw[at] == ord('"'):
        return _string_end(raw, at + 1)
    if raw[at] not in b"[{":
        found = _SCALAR.match(raw, at)
        return found.end() if found else _refuse(at)
    depth = 0
    while True:
        if raw[at] in b"[{":
            depth, at = depth + 1, at + 1
        elif raw[at] in b"]}":
            depth, at = depth - 1, at + 1
            if not depth:
                return at
        elif found := _PIECE.match(raw, at):
            at = found.end()
        else:
            at = _string_end(raw, _expected(raw, at, b'"'))
        if found := _PIECE.match(raw, at):
            at = found.end()


def _string_end(raw: bytes, at: int) -> int:
    """End of the string whose first character is at `at`."""
    while raw[at] != ord('"'):
        found = _STRING_PART.match(raw, at)
        at = found.end() if found else _refuse(at)
    return at + 1


def _expected(raw: bytes, at: int, token: bytes) -> int:
    """The place behind the token that has to be at `at`."""
    return at + 1 if raw[at] == token[0] else _refuse(at)


def _refuse(at: int) -> int:
    raise BadRequest(f"the body is not valid JSON at byte {at}")


def _after_space(raw: bytes, at: int) -> int:
    found = _SPACE.match(raw, at)
    return found.end() if found else at
