"""Parses JSON bodies, with error messages that help a client, and finds the offsets of their values
without building these.

Offsets are those of bytes decoded as Latin-1: one character per byte, so that an offset in the text
is one in the body, whatever its encoding. JSON's grammar uses ASCII only, and no byte of a longer
UTF-8 sequence is ASCII; only keys outside ASCII come out garbled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from json.decoder import JSONDecoder
from typing import Any, Final

from gateway.errors import BadRequest

Loads = Callable[[bytes], Any]


class BeyondParser(BadRequest):
    """A body that is not read, although it may be JSON, which has no limit of depth or digits."""


def parse_value(raw: bytes, loads: Loads) -> Any:
    """The JSON value in `raw`.

    A fast parser may be stricter than JSON's grammar (lone surrogates, big integers), so what it
    refuses is parsed again with the standard library before it counts as an error. Raises:
    BadRequest: not JSON, with line and column. BeyondParser: nested too deeply, or a number of
    thousands of digits."""
    try:
        return loads(raw)
    except (ValueError, RecursionError):
        return _loads(raw)


def parse_object(raw: bytes, loads: Loads) -> dict[str, Any]:
    """The JSON object in `raw`, as `parse_value` reads it. Raises: BadRequest: not JSON (with line
    and column), or not an object."""
    body = parse_value(raw, loads)
    if not isinstance(body, dict):
        raise BadRequest(f"the body must be a JSON object, got {_json_kind(body)}")
    return body


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise BadRequest(f"the body is not valid JSON: {exc.msg} at {where}") from exc
    except (ValueError, RecursionError) as exc:
        raise BeyondParser(
            "the body is not valid JSON: nested too deeply or too long a number"
        ) from exc


def _json_kind(value: Any) -> str:
    kinds: Sequence[tuple[Any, str]] = (
        (list, "an array"),
        (str, "a string"),
        (bool, "a boolean"),
        (type(None), "null"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a number")


_SPACE: Final = " \t\n\r"
_scan_once = JSONDecoder().scan_once  # type: ignore[attr-defined]  # the C scanner: (text, index) -> (value, end)

# Strings are one token each, so that brackets inside them do not count; one without an end is the
# rest of the text, so that it is read once.
_TOKENS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)

Span = tuple[int, int]


def scannable(raw: bytes) -> str:
    """The bytes of a body as text for scanning, one character per byte."""
    return raw.decode("latin-1")


def object_spans(
    text: str, start: int, lists: dict[str, list[Span]] | None = None
) -> Iterator[tuple[str, int, int]]:
    """(key, start, end) of each value in the object that begins at `start` or after white space.

    `text` must hold valid JSON there. `lists` takes the spans of the elements of each array whose
    key it has; of the last one, where a key is repeated."""
    at = skip_space(text, start) + 1
    while True:
        at = skip_space(text, at)
        if text[at] == "}":
            return
        if text[at] == ",":
            at += 1
            continue
        key, at = _scan_once(text, at)
        at = skip_space(text, skip_space(text, at) + 1)
        if lists is not None and key in lists and text[at] == "[":
            lists[key] = list(array_spans(text, at))
            end = skip_space(text, lists[key][-1][1] if lists[key] else at + 1) + 1
        else:
            end = _value_end(text, at)
        yield key, at, end
        at = end


def array_spans(text: str, start: int) -> Iterator[Span]:
    """(start, end) of each element of the array that begins at `start` or after white space."""
    at = skip_space(text, start) + 1
    while True:
        at = skip_space(text, at)
        if text[at] == "]":
            return
        if text[at] == ",":
            at += 1
            continue
        end = _value_end(text, at)
        yield at, end
        at = end


def _value_end(text: str, at: int) -> int:
    """End of the value that starts at `at`."""
    try:
        end: int = _scan_once(text, at)[1]
    except RecursionError:
        return _nested_end(text, at)
    return end


def _nested_end(text: str, at: int) -> int:
    """The same for an array or object nested deeper than the scanner's recursion goes."""
    depth = 0
    for token in _TOKENS.finditer(text, at):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError(f"the value at character {at} does not end")


def skip_space(text: str, at: int) -> int:
    """The index of the first character at or after `at` that is not JSON white space."""
    while text[at] in _SPACE:
        at += 1
    return at
