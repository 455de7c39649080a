"""Server-sent events come out the same, however the bytes were cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sse import DONE, SSEDecoder, SSEEvent, encode_event, parse_event
from tests.examples import examples

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.one_of(
    st.sampled_from(
        [b"data: x", b"data:y", b"data", b"data: ", b"data:  two", b": comment", b":", b"id: 7"]
    ),
    st.sampled_from([b"event: delta", b"retry: 5", b"nonsense", b"data: [DONE]", b"dta {", b""]),
    st.binary(max_size=6),
    st.text(max_size=6).map(lambda text: b"data: " + text.encode("utf-8", "replace")),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of lines with mixed ends, sometimes with a byte order mark in front."""
    lines = draw(st.lists(st.tuples(LINES, LINE_ENDS), max_size=12))
    start = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return start + b"".join(line + end for line, end in lines) + draw(st.sampled_from([b"", b"da"]))


@st.composite
def cut(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and the same bytes in any pieces."""
    stream = draw(streams())
    places = draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    edges = [0, *places, len(stream)]
    return stream, [stream[a:b] for a, b in pairwise(edges)]


def decoded(pieces: list[bytes]) -> list[SSEEvent]:
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.flush()


@examples(120)
@given(cut())
def test_any_split_gives_the_same_events(made: tuple[bytes, list[bytes]]) -> None:
    """Fed whole, in pieces or byte by byte, a stream has the same events with the same bytes."""
    stream, pieces = made
    whole = decoded([stream])
    assert decoded(pieces) == whole
    assert decoded([bytes([byte]) for byte in stream]) == whole


@examples(80)
@given(cut())
def test_the_raw_bytes_join_to_the_stream(made: tuple[bytes, list[bytes]]) -> None:
    """Nothing is lost, added or moved: the events' raw bytes are the stream."""
    stream, pieces = made
    assert b"".join(event.raw for event in decoded(pieces)) == stream


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    """Each of the three line ends, twice in a row, ends an event."""
    stream = end.join([b"event: a", b"data: 1", b"data: 2", b"", b"data: 3", b"", b""])
    assert [(e.event, e.data) for e in decoded([stream])] == [(b"a", b"1\n2"), (b"", b"3")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_event_is_given_out_as_soon_as_it_is_whole(end: bytes) -> None:
    """The last byte of the blank line brings the event out; nothing waits for the next one."""
    decoder = SSEDecoder()
    assert decoder.feed(b"data: 1" + end) == []
    assert [event.data for event in decoder.feed(end)] == [b"1"]
    assert decoder.flush() == []


def test_comments_and_unknown_fields_are_no_data() -> None:
    """Only `data` lines make the data; the raw bytes keep the rest."""
    raw = b": ping\nid: 1\nfoo: bar\nretry: 9\ndata: x\n\n"
    assert decoded([raw]) == [SSEEvent(raw=raw, data=b"x")]
    assert decoded([b": ping\n\n"])[0].data == b""


def test_one_space_after_the_colon_is_dropped() -> None:
    """`data:x`, `data: x` and `data:  x` differ by the second space only."""
    stream = b"data:x\n\ndata: x\n\ndata:  x\n\n"
    assert [event.data for event in decoded([stream])] == [b"x", b"x", b" x"]


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    """A stream that starts with a byte order mark loses no event."""
    assert [event.data for event in decoded([b"\xef\xbb\xbfdata: x\n\n"])] == [b"x"]


def test_what_stands_behind_the_last_blank_line_is_flushed() -> None:
    """An unfinished event comes out at the end, once."""
    decoder = SSEDecoder()
    assert decoder.feed(b"data: x") == []
    assert decoder.flush() == [SSEEvent(raw=b"data: x", data=b"x")]
    assert decoder.flush() == []


@pytest.mark.parametrize(
    ("raw", "done"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE] \r\n\r\n", True),
        (b'data: "[DONE]"\n\n', False),
        (b"event: [DONE]\n\n", False),
    ],
)
def test_the_end_marker(raw: bytes, done: bool) -> None:
    """`[DONE]` as the whole data ends a completion; anywhere else it is text."""
    assert parse_event(raw).done is done


@examples(30)
@given(st.recursive(st.text() | st.none() | st.floats(allow_nan=False), st.lists))
def test_an_encoded_event_is_decoded_to_itself(payload: object) -> None:
    """Whatever JSON goes in, one event with that JSON comes out."""
    (event,) = decoded([encode_event({"x": payload})])
    text = json.dumps({"x": payload}, ensure_ascii=False).encode("utf-8", "replace")
    assert json.loads(event.data) == json.loads(text)


def test_named_events_and_comments_are_encoded() -> None:
    """An event may have a name; a comment is no event for a client."""
    assert encode_event({"a": 1}, event="error") == b'event: error\ndata: {"a":1}\n\n'
    (comment,) = decoded([b": keep-alive\n\n"])
    assert (comment.data, comment.event, comment.done) == (b"", b"", False)
    assert DONE == b"[DONE]"
