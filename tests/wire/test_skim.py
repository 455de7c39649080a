"""Bodies that are too much to read: their members are found in short pieces."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire import parsing as skimming
from gateway.wire.parsing import (
    SMALL_BYTES,
    object_spans,
    parsed_bytes,
    refuse_repeated,
    scannable,
    skim,
)

MB = 2**20
_TEXTS = st.text(st.sampled_from([*string.printable, "ü", "\\", '"', "\ud800", "😀"]), max_size=600)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(_TEXTS, _VALUES, max_size=6)


@pytest.fixture(params=["in one go", "in pieces"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way through the values: the second is that of what a parser refuses or would be long
    with."""
    if request.param == "in pieces":
        monkeypatch.setattr(skimming, "_sizes", lambda *_: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_OBJECTS, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_it_finds_what_a_parser_finds(
    body: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    """Every member at its place, whatever it contains."""
    written = json.dumps(body, indent=indent, ensure_ascii=ascii_only)
    raw = b" " + written.encode("utf-8", "surrogateescape" if ascii_only else "surrogatepass")
    found, spans = skim(raw, json.loads)
    assert [at for places in spans.values() for at in places] == [
        (start, end) for _, start, end in object_spans(scannable(raw))
    ]
    if ascii_only:
        assert found == json.loads(raw)


_MARKS = st.lists(
    st.sampled_from(
        [b"[", b"]", b"{", b"}", b'"', b'\\"', b"\\\\", b"\\n", b"a", b"[[[[", b"]]]]"]
    ),
    max_size=2000,
)


@given(marks=_MARKS, times=st.sampled_from([1, 40]))
def test_the_end_of_a_value_is_where_its_brackets_are_closed(
    marks: list[bytes], times: int
) -> None:
    """Whatever the value: seen byte by byte, brackets in strings do not count."""
    raw = b"".join(marks) * times
    depth, in_string, at, end = 1, False, 0, None
    while at < len(raw) and end is None:
        if raw[at : at + 2] in (b"\\\\", b'\\"'):
            at += 1
        elif raw[at : at + 1] == b'"':
            in_string = not in_string
        elif raw[at] in b"[]{}" and not in_string:
            depth += 1 if raw[at] in b"[{" else -1
            end = None if depth else at + 1
        at += 1
    if end is not None:
        assert skimming._brackets_end(raw, 0) == end
    else:
        with pytest.raises(IndexError):
            skimming._brackets_end(raw, 0)


@pytest.mark.parametrize(
    "value", [b"[[[]]],", b'{"a":[{"":1}]},', b"[" * 900 + b"]" * 900 + b",", b'"\\"[",', b'"]",']
)
def test_a_value_is_looked_at_four_times_at_most(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of bounded size, whatever brackets it has."""
    monkeypatch.setattr(skimming, "_sizes", lambda *_: None)
    sizes: list[int] = []
    lowest = skimming._lowest

    def measured(brackets: bytes, depth: int) -> int:
        sizes.append(len(brackets))
        return lowest(brackets, depth)

    monkeypatch.setattr(skimming, "_lowest", measured)
    for size in (100, 10_000, 2 * MB):
        sizes.clear()
        members = b'"a":[' + value * (size // len(value)) + b"1],"
        raw = b"{" + members * 3 + b'"b":1}'
        assert len(skim(raw, orjson.loads)[1]["a"]) == 3
        assert sum(sizes) <= 4 * len(raw)
        assert max(sizes) <= 2**15 + 1


def test_large_members_are_left_out_and_the_last_of_equal_keys_counts() -> None:
    """As with a parser; a large member is there, without its value."""
    large = "[" + ",".join(['{"a": "]}\\""}'] * SMALL_BYTES) + "]"
    raw = f'{{"model": "a", "messages": {large}, "model": "b", "n": 1e5}}'.encode()
    body, spans = skim(raw, orjson.loads)
    assert body == {"model": "b", "messages": None, "n": 1e5}
    assert [raw[s:e] for s, e in spans["model"]] == [b'"a"', b'"b"']
    start, end = spans["messages"][0]
    assert raw[start:end].decode() == large


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":1,',
        b'{"a":[1}',
        b'{"a":"\\',
        b'{"a":"\\"}',
        b'{"a" 1}',
        b"{a:1}",
        b'{"a":1 "b":2}',
        b'{"a":}',
        b"{" + b",".join(b'"%d":1' % n for n in range(10_001)) + b"}",
    ],
)
@pytest.mark.usefixtures("way")
def test_what_is_no_body_is_refused(raw: bytes) -> None:
    """With the same error as by the parser."""
    with pytest.raises(BadRequest):
        skim(raw, orjson.loads)


@pytest.mark.parametrize(
    "make",
    [
        lambda: b'"' + b"x" * 3 * MB + b'"',
        lambda: b'"' + b'\\"' * MB + b'"',
        lambda: b"[" + b'{"a":1},' * (MB // 4) + b"1]",
        lambda: b"[" + b"1," * MB + b"1]",
        lambda: b"[" + b"[" * MB + b"]" * MB + b"]",
        lambda: b"[" + b'"' + b"y" * 150 + b'",' + b'"a",' * MB + b"1]",
    ],
    ids=["string", "escapes", "objects", "numbers", "nested", "strings"],
)
def test_no_piece_is_long(make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """One match covers a bounded part of a text, so that others run between two of them."""
    monkeypatch.setattr(skimming, "_sizes", lambda *_: None)
    text = make()
    lengths: list[int] = []
    for name in ("_STRING_PART", "_SPACES", "_SCALAR"):
        monkeypatch.setattr(skimming, name, _Measured(getattr(skimming, name), lengths))
    _, spans = skim(b'{"a":' + text + b"}", orjson.loads)
    assert spans["a"] == [(5, 5 + len(text))]
    assert max(lengths) < MB


class _Measured:
    """A pattern that notes how much each match covers."""

    def __init__(self, pattern: Any, lengths: list[int]) -> None:
        self._pattern, self._lengths = pattern, lengths

    def match(self, raw: bytes, at: int) -> Any:
        found = self._pattern.match(raw, at)
        self._lengths.append(found.end() - at if found else 0)
        return found


@pytest.mark.parametrize(
    ("part", "size", "reads"),
    [
        (b'"' + b"The test fails, again. " * 40 + b'",', 10 * MB, True),
        (b"A", 10 * MB, True),
        (b'{"role":"user","content":"Go on, please."},', MB, True),
        (b'"' + b'{\\"a\\":1},{[[,,,\\\\' * 40 + b'",', 8 * MB, True),
        (b'{"a":1},', MB // 16, False),
        (b'{"a":1},', MB, False),
        (b"1,", MB // 2, False),
        (b"[],", MB // 4, False),
        (b'"",', MB // 4, False),
        (b'"' + b"A" * 100_000 + b'",' + b'{"a":1},' * 100_000, 8 * MB, False),
    ],
    ids=[
        "text",
        "image",
        "messages",
        "texts of JSON",
        "few objects",
        "objects",
        "numbers",
        "arrays",
        "empty texts",
        "objects between texts",
    ],
)
def test_the_number_of_values_counts_more_than_the_size(
    part: bytes, size: int, reads: bool
) -> None:
    """10 MiB of text are read, whatever is in it; 64 kB of tiny values are not."""
    text = part * (size // len(part))
    assert (parsed_bytes(text) is not None) is reads
    assert parsed_bytes(text, len(text)) == 0


@pytest.mark.parametrize(
    ("part", "times", "in_one_go"),
    [
        (b'{"a":1},', MB // 8, True),
        (b'"' + b"The test fails, again. " * 40 + b'",', 8 * MB // 1000, True),
        (b"[" * 900 + b"]" * 900 + b",", 8 * MB // 1800, False),
        (b'"' + b"x" * MB + b'",', 30, False),
    ],
)
def test_a_parser_passes_over_what_it_is_quick_with(
    part: bytes, times: int, in_one_go: bool
) -> None:
    """Nothing else runs meanwhile. Both ways find the same."""
    raw = b'{"model":"m","messages":[' + part * times + b"1]}"
    assert (skimming._sizes(raw) is not None) is in_one_go
    assert skim(raw, orjson.loads)[1] == {"model": [(9, 12)], "messages": [(24, len(raw) - 1)]}


@pytest.mark.usefixtures("way")
def test_a_repeated_name_is_refused_in_any_encoding() -> None:
    """Those outside UTF-8, too, which one parser reads and another does not."""
    refuse_repeated(b'{"\xed\xa0\x80":1,"a":2}')
    with pytest.raises(BadRequest, match="two members of the body are named 'A'"):
        refuse_repeated(b'{"\xed\xa0\x80":1,"a":2,"A":3}')
