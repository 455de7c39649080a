"""Strategies for JSON as clients may write it: every number form, escape and spacing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
from hypothesis import strategies as st

from gateway.dialects import CHAT, SteeredRequest
from gateway.wire.body_prefix import BodyPrefix
from gateway.wire.message_identity import MessageReader, fold
from gateway.wire.parsing import Loads

Member = tuple[str, str]
"""A key and its value, both as JSON text."""


def parsed(
    raw: bytes, loads: Loads = orjson.loads, known: BodyPrefix | None = None
) -> SteeredRequest:
    """A chat request, read whole or behind a known prefix."""
    return CHAT.parse(raw, loads, known)


def message_digest(message: object, call_ids: Sequence[str] = ()) -> bytes | None:
    """The digest of one message alone; `call_ids`: of the calls that a tool message may answer."""
    return fold(MessageReader(call_ids).atoms(message))


def standard(raw: bytes) -> Any:
    """The standard library's parser, of text."""
    return json.loads(raw.decode("utf-8", "surrogateescape"))


SPACES = st.sampled_from(["", "", " ", "\n  ", "\t", "\r\n"])
NUMBERS = st.one_of(
    st.sampled_from(["0", "-0", "1.0", "1e5", "1E+2", "0.10", "-1.5e-7", "1e400", "NaN"][:-1]),
    st.integers().map(str),
    st.integers(min_value=2**64, max_value=2**200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
_ESCAPES = ['"\\ud800"', '"\\udc00 x"', '"\\u00e9"', '"a\\/b"', '"\\u0000"', '"\\"}],{[\\\\"']


def _string(text: str, ascii_only: bool) -> str:
    # A lone surrogate has no UTF-8 form: it can be on the wire as an escape only.
    return json.dumps(text, ensure_ascii=ascii_only or any("\ud800" <= c <= "\udfff" for c in text))


strings = st.one_of(
    st.builds(_string, st.text(max_size=12), st.booleans()), st.sampled_from(_ESCAPES)
)
scalars = st.one_of(NUMBERS, strings, st.sampled_from(["null", "true", "false"]))


def _joined(opening: str, items: Sequence[str], closing: str, gaps: Sequence[str]) -> str:
    inner = ",".join(f"{gaps[0]}{item}{gaps[1]}" for item in items)
    return f"{opening}{inner or gaps[0]}{closing}"


def array(items: Sequence[str], gaps: Sequence[str]) -> str:
    """An array of JSON texts; `gaps` stand before and after each."""
    return _joined("[", items, "]", gaps)


def members(pairs: Sequence[Member], gaps: Sequence[str]) -> str:
    """An object of JSON texts; `gaps` stand before, after, and at the colons."""
    return _joined("{", [f"{k}{gaps[1]}:{gaps[2]}{v}" for k, v in pairs], "}", gaps)


gaps = st.tuples(SPACES, SPACES, SPACES)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects with distinct keys."""
    pairs = st.lists(
        st.tuples(st.text(max_size=6), values), max_size=4, unique_by=lambda pair: pair[0]
    )
    written = pairs.map(lambda found: [(_string(k, True), v) for k, v in found])
    return st.builds(members, written, gaps)


values = st.recursive(
    scalars,
    lambda inner: st.builds(array, st.lists(inner, max_size=4), gaps) | objects(inner),
    max_leaves=12,
)


@st.composite
def messages(draw: st.DrawFn) -> str:
    """One message as JSON text: any role and content, sometimes further keys."""
    part = draw(st.sampled_from(["text", "input_text"])), draw(strings)
    content = draw(
        st.one_of(
            strings,
            st.sampled_from(["null", '""', "[]"]),
            st.just(f'[{{"type": "{part[0]}", "text": {part[1]}}}]'),
            st.just(f'["bare", {{"type":"text" , "text":{part[1]} }}, {{}}]'),
            st.just(None),
        )
    )
    pairs = [('"role"', draw(st.sampled_from(['"system"', '"user"', '"assistant"'])))]
    if content is not None:
        pairs.append(('"content"', content))
    if draw(st.booleans()):
        pairs.append(('"x"', draw(values)))
    return members(draw(st.permutations(pairs)), draw(gaps))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[Member], tuple[str, str, str]]:
    """The members of a chat body, in any order, and the gaps between them."""
    model = draw(st.one_of(st.text(min_size=1, max_size=8), st.just("m")))
    chat = draw(st.lists(messages(), max_size=4))
    pairs = [
        ('"model"', _string(model, draw(st.booleans()))),
        ('"messages"', array(chat, draw(gaps))),
    ]
    known = {"model", "messages", "stream"}
    for key in draw(st.lists(st.text(max_size=6), max_size=4, unique=True)):
        if key not in known:
            pairs.append((_string(key, True), draw(values)))
    if draw(st.booleans()):
        pairs.append(('"stream"', draw(st.sampled_from(["true", "false", "null"]))))
    return draw(st.permutations(pairs)), draw(gaps)


def rendered(pairs: Sequence[Member], spaces: Sequence[str]) -> bytes:
    """A body's bytes."""
    return members(pairs, spaces).encode()
