"""Parses JSON bodies, with error messages that help a client, and finds the offsets of their values
without building these; of a body that is too large to parse at once, only the top-level members.

Offsets are those of bytes decoded as Latin-1: one character per byte, so that an offset in the text
is one in the body, whatever its encoding. JSON's grammar uses ASCII only, and no byte of a longer
UTF-8 sequence is ASCII; only keys outside ASCII come out garbled."""

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from json.decoder import JSONDecoder
from typing import Any

import msgspec

from gateway.errors import BadRequest
from gateway.values import FieldDict

Loads = Callable[[bytes], Any]


class BeyondParser(BadRequest):
    """A body that is not read, although it may be JSON, which has no limit of depth or digits."""


def parse_value(raw: bytes, loads: Loads) -> Any:
    """The JSON value in `raw`. A fast parser may be stricter than JSON's grammar (lone surrogates,
    big integers), so what it refuses is parsed again with the standard library before it counts as
    an error. Raises: BadRequest: not JSON, with line and column. BeyondParser: nested too deeply,
    or a number of thousands of digits."""
    try:
        return loads(raw)
    except (ValueError, RecursionError):
        return _loads(raw)


def parse_object(raw: bytes, loads: Loads) -> FieldDict:
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
    kinds = (
        (list, "an array"),
        (str, "a string"),
        (bool, "a boolean"),
        (type(None), "null"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a number")


_SPACE = " \t\n\r"
_scan_once = JSONDecoder().scan_once  # type: ignore[attr-defined]  # the C scanner: (text, index) -> (value, end)

# Strings are one token each, so that brackets inside them do not count; one without an end is the
# rest of the text, so that it is read once.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)

Span = tuple[int, int]


def scannable(raw: bytes) -> str:
    """The bytes of a body as text for scanning, one character per byte."""
    return raw.decode("latin-1")


def object_spans(
    text: str, lists: dict[str, list[Span]] | None = None
) -> Iterator[tuple[str, int, int]]:
    """(key, start, end) of each value in the object that `text` is, after white space or none. It
    must be valid JSON. `lists` takes the spans of the elements of each array whose
    key it has; of the last one, where a key is repeated."""
    at = skip_space(text, 0) + 1
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
            lists[key] = array_spans(text, at)
            end = skip_space(text, lists[key][-1][1] if lists[key] else at + 1) + 1
        else:
            end = _value_end(text, at)
        yield key, at, end
        at = end


def array_spans(text: str, start: int) -> list[Span]:
    """(start, end) of each element of the array that begins at `start` or after white space."""
    spans: list[Span] = []
    at = skip_space(text, start) + 1
    while True:
        at = skip_space(text, at)
        if text[at] == "]":
            return spans
        if text[at] == ",":
            at += 1
            continue
        end = _value_end(text, at)
        spans.append((at, end))
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


# A JSON parser reads a body in one call, during which nothing else runs in the process. A body for
# which that would take too long is gone through in short pieces instead (`skim`): each is one match
# of a pattern that covers a bounded part of the text, or a few searches of at most 32 kB.

# Members up to this size are read: everything but the messages and large tool definitions.
SMALL_BYTES = 16 * 2**10
_MOST_MEMBERS = 10_000  # of a whole body; APIs know some fifty

# Nanoseconds of orjson per object, array and comma, on one core of 2.8 GHz: the dearest of texts,
# images, many short messages, `{"a":1}` and `1` repeated to 10 MB. A megabyte takes 1.5 ms more.
_TOKEN_NS = {b"{": 250, b"[": 100, b",": 60}
# Longest time for which these may hold the interpreter, for one body: the parser does not let
# others run meanwhile. Definitions of tools, the densest of what agents send, take 8 ns for each
# byte, their histories at most 5, `{"a":1}` 44.
_MOST_NS = 10e6
_FREE_NS = 1e6
_DENSE_NS = 10
# Bytes that each of these nanoseconds stands for, with what steering keeps of them: 8,000 short
# messages take 5 MB.
_NS_BYTES = 2
# Nanoseconds of msgspec for each bracket and byte that it passes over: those of arrays in arrays
# and of `{"a":1}`, measured as above.
_BRACKET_NS = 25
_BYTE_NS = 0.5
_PIECE_BYTES = 2**20  # of which all bytes of one value are counted at once, in up to 1 ms

_STRING_PART = re.compile(rb'(?:[^"\\]{1,8192}+|\\.){1,100}+', re.DOTALL)
_SPACES = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb"[^ \t\n\r,}]{1,10000}+")


def parsed_bytes(raw: bytes, start: int = 0) -> int | None:
    """About the memory of the values that the body has from `start` on, which is not inside a
    string. Returns None if a JSON parser would hold the interpreter for too long with these."""
    size = len(raw) - start
    most_ns = min(_FREE_NS + size * _DENSE_NS, _MOST_NS)
    # First with what is in strings, too: few bodies have so much of that it must be left out, which
    # takes ten times as long.
    spent_ns = 0
    for at in range(start, len(raw), _PIECE_BYTES):
        end = at + _PIECE_BYTES
        spent_ns += sum([raw.count(token, at, end) * ns for token, ns in _TOKEN_NS.items()])
        if spent_ns > most_ns:
            break
    if spent_ns > most_ns:
        at = start
        in_string = 0
        spent_ns = 0
        while at < len(raw) and spent_ns <= most_ns:
            outside, at, in_string = _outside_strings(raw, at, in_string, size=_MOST_BYTES)
            spent_ns += sum([outside.count(token) * ns for token, ns in _TOKEN_NS.items()])
    if spent_ns > most_ns:
        return None
    return size + _NS_BYTES * spent_ns


def has_more_items(value: object, most: int) -> bool:
    """Whether there are more than `most` items in all lists of a value, however deep."""
    waiting = [value]
    while waiting and most >= 0:
        each = waiting.pop()
        if isinstance(each, list):
            most -= len(each)
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
    return most < 0


def skim(raw: bytes, loads: Loads) -> tuple[FieldDict, dict[str, list[Span]]]:
    """Returns the members of the object in `raw`, and (start, end) of the values of each key.
    Members above `SMALL_BYTES`, and those that no parser reads, are None and were not checked.
    Raises: BadRequest: `raw` is no object, or one with too many members."""
    body: FieldDict = {}
    spans: dict[str, list[Span]] = {}
    try:
        for name, start, end in _members(raw):
            key = ""
            if len(name) <= SMALL_BYTES:
                key = str(parse_value(name, loads))
            body[key] = None
            if end - start <= SMALL_BYTES:
                with contextlib.suppress(BeyondParser):
                    body[key] = parse_value(raw[start:end], loads)
            spans.setdefault(key, []).append((start, end))
    except IndexError:
        raise BadRequest("the body is not valid JSON: it ends too early") from None
    return body, spans


class _Member:
    """A key, while `_sizes` passes over all of them: two of one name stay apart."""


def refuse_repeated(raw: bytes) -> None:
    """Refuse an object in which two members have one name, case aside: each reader decides for
    itself which of them counts. Raises: BadRequest: it names the member; or there are too many."""
    seen = set()

    def note(name: str) -> None:
        if name.casefold() in seen:
            what = f"two members of the body are named {name[:80]!r}, case aside"
            raise BadRequest(what, param=name)
        seen.add(name.casefold())

    if _sizes(raw, note) is None:
        seen.clear()
        for key, _, _ in _members(raw):
            note(str(parse_value(key, json.loads)))


def _sizes(raw: bytes, note: Callable[[str], object] = id) -> list[int] | None:
    """The bytes of each value of the object, in order; `note` is called with each name. Passes over
    the values in one go, a megabyte in 1 ms, ten times as fast as piece by piece. Returns None if
    that would take too long, or if the JSON is only valid to the standard library."""
    brackets = 0
    for at in range(0, len(raw), _PIECE_BYTES):
        end = at + _PIECE_BYTES
        brackets += raw.count(b"[", at, end) + raw.count(b"{", at, end)
        if brackets * _BRACKET_NS + len(raw) * _BYTE_NS > _MOST_NS:
            return None

    members: list[_Member] = []

    def named(_: type, name: str) -> _Member:
        _check_count(len(members))
        members.append(_Member())
        note(name)
        return members[-1]

    try:
        values = msgspec.json.decode(raw, type=dict[_Member, msgspec.Raw], dec_hook=named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # stricter than JSON
        return None
    return [memoryview(value).nbytes for value in values.values()]


def _members(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(key in quotes, start, end) of each value of the object."""
    sizes = iter(_sizes(raw) or ())
    at = _expected(raw, after_space(raw, 0), b"{")
    at = after_space(raw, at)
    if raw[at] == ord("}"):
        return
    for count in itertools.count():
        _check_count(count)
        key_end = _string_end(raw, _expected(raw, at, b'"'))
        start = after_space(raw, _expected(raw, after_space(raw, key_end), b":"))
        size = next(sizes, 0)
        if size:
            end = start + size
        else:
            end = _member_end(raw, start)
        yield raw[at:key_end], start, end
        at = after_space(raw, end)
        if raw[at] == ord("}"):
            return
        at = after_space(raw, _expected(raw, at, b","))


def _check_count(members: int) -> None:
    """Raises: BadRequest: as many members as may be are there, and another one follows."""
    if members >= _MOST_MEMBERS:
        raise BadRequest(f"the body has more than {_MOST_MEMBERS} members")


def _member_end(raw: bytes, at: int) -> int:
    """End of the value that starts at `at`."""
    if raw[at] == ord('"'):
        return _string_end(raw, at + 1)
    if raw[at] not in b"[{":
        found = _SCALAR.match(raw, at)
        if found:
            return found.end()
        return _refuse(at)
    return _brackets_end(raw, at + 1)


_UNNESTED = bytes(set(range(256)).difference(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_FIRST_BYTES = 2**8
_MOST_BYTES = 2**15


def _brackets_end(raw: bytes, at: int) -> int:
    """End of the array or object whose first bracket is just before `at`. Looks at pieces that
    double in size, and halves the one with the end in it until that is found. Raises: IndexError:
    it has no end."""
    depth = 1
    in_string = 0
    size = _FIRST_BYTES
    is_near = False
    while True:
        outside, end, ends_in_string = _outside_strings(raw, at, in_string, size=size)
        if end == at:
            raise IndexError(at)
        brackets = outside.translate(_ALIKE, _UNNESTED)
        if _lowest(brackets, depth) > 0:
            at = end
            depth += 2 * brackets.count(b"[") - len(brackets)
            in_string = ends_in_string
            if not is_near:
                size = min(2 * size, _MOST_BYTES)
        elif size == 1:
            return end
        else:
            is_near = True
            size //= 2


def _outside_strings(raw: bytes, at: int, in_string: int, size: int) -> tuple[bytes, int, int]:
    """(what is outside of strings in the next `size` bytes, the end of these, whether that is in a
    string: 1 or 0). `in_string`: the same of their start."""
    piece = raw[at : at + size]
    if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape belongs to what follows it
        piece = raw[at : at + size + 1]
    texts = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__").split(b'"')
    outside = b"".join(texts[in_string::2])
    return outside, at + len(piece), (in_string + len(texts) - 1) % 2


def _lowest(brackets: bytes, depth: int) -> int:
    """The lowest depth within these brackets, or a positive number that it does not fall below."""
    closing = brackets.count(b"]")
    if closing < depth:
        return depth - closing
    import numpy as np  # most gateways never see such a body

    rises = 92 - np.frombuffer(brackets, np.int8)  # 1 for each "[", -1 for each "]"
    return depth + int(rises.cumsum(dtype=np.int32).min())


def _string_end(raw: bytes, at: int) -> int:
    """End of the string whose first character is at `at`."""
    while raw[at] != ord('"'):
        found = _STRING_PART.match(raw, at)
        if found:
            at = found.end()
        else:
            at = _refuse(at)
    return at + 1


def _expected(raw: bytes, at: int, token: bytes) -> int:
    """The place behind the token that has to be at `at`."""
    if raw[at] == token[0]:
        return at + 1
    return _refuse(at)


def _refuse(at: int) -> int:
    raise BadRequest(f"the body is not valid JSON at byte {at}")


def after_space(raw: bytes, at: int) -> int:
    """The place of the first byte at or after `at` that is not JSON white space."""
    found = _SPACES.match(raw, at)
    if found:
        return found.end()
    return at
