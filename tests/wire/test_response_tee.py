"""Watching an answer neither changes it nor misses its end."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from itertools import pairwise

import brotli
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.compression import zstd
from gateway.wire.response_tee import ResponseWatch, UsageFilter

CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = CHUNK * 2 + USAGE + DONE


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(p, len(data)) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


cuts = st.lists(st.integers(0, len(STREAM)), max_size=8)
COMPRESSIONS = {
    b"": lambda data: data,
    b"identity": lambda data: data,
    b"gzip": gzip.compress,
    b"X-GZIP": gzip.compress,
    b"deflate": zlib.compress,
    b"br": brotli.compress,
    b"zstd": zstd.compress,
    b"gzip, br": lambda data: brotli.compress(gzip.compress(data)),
}


@given(cuts, st.sampled_from(sorted(COMPRESSIONS)))
def test_the_end_marker_is_seen_in_any_split(places: list[int], encoding: bytes) -> None:
    """However the bytes arrive and are compressed, the marker is seen and the content kept."""
    watch = ResponseWatch(encoding, 10_000)
    for piece in pieces(COMPRESSIONS[encoding](STREAM), places):
        watch.feed(piece)
    assert watch.ended
    assert watch.content == STREAM


def test_no_end_without_the_marker() -> None:
    """A stream without its marker has not ended."""
    watch = ResponseWatch(b"", 10_000)
    watch.feed(CHUNK + b"[DON")
    watch.feed(b"K]")
    assert not watch.ended


@pytest.mark.parametrize("encoding", [b"dcb", b"compress", b"gzip, dcb"])
def test_an_unknown_compression_is_opaque(encoding: bytes) -> None:
    """What cannot be undone is not looked at."""
    watch = ResponseWatch(encoding, 10_000)
    watch.feed(DONE)
    assert (watch.opaque, watch.ended, watch.content) == (True, False, b"")


def test_broken_compression_is_opaque() -> None:
    """Bytes that are not what the header says end the watching, not the answer."""
    watch = ResponseWatch(b"gzip", 10_000)
    watch.feed(b"plain text")
    watch.feed(DONE)
    assert (watch.opaque, watch.content) == (True, b"")


def test_a_large_answer_is_let_go() -> None:
    """Beyond the limit nothing is kept; decompressed bytes count."""
    watch = ResponseWatch(b"gzip", 1000)
    watch.feed(gzip.compress(b"x" * 2000))
    assert (watch.opaque, watch.content) == (True, b"")


def test_a_compression_bomb_is_not_unpacked() -> None:
    """A few kilobytes that unpack to many megabytes cost no more than the limit."""
    bomb = gzip.compress(b"\0" * 20_000_000, compresslevel=1)
    watch = ResponseWatch(b"gzip", 100_000)
    tracemalloc.start()
    watch.feed(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (watch.opaque, watch.content) == (True, b"")
    assert peak < 2_000_000


@given(cuts)
def test_the_usage_chunk_is_taken_out(places: list[int]) -> None:
    """In any split the usage chunk goes, and every other byte stays."""
    kept = UsageFilter()
    out = b"".join(kept.feed(piece) for piece in pieces(STREAM, places)) + kept.flush()
    assert out == STREAM.replace(USAGE, b"")


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices": [{"index": 0}], "usage": {"a": 1}}\n\n',
        b'data: {"choices": [], "usage": null}\n\n',
        b'data: {"choices": [], "usage": \n\n',
        b'data: [{"choices": [], "usage": {"a": 1}}]\n\n',
        b': "usage" "choices"\n\n',
    ],
)
def test_only_the_usage_chunk_is_taken_out(event: bytes) -> None:
    """A chunk with choices, without usage, or without sense stays."""
    kept = UsageFilter()
    assert kept.feed(event) + kept.flush() == event


EVENTS = (
    CHUNK,
    USAGE,
    DONE,
    b'data: {"choices": [], "usage": null}\n\n',
    b'data: {"choices": [{"index": 0}], "usage": {"a": 1}}\n\n',
    b'data: {"choices": [{"delta": {"content": "\\"choices\\": []"}}]}\n\n',
    b'data: {"usage": {"a": 1}, "choices" : [ ]}\n\n',
    b'data: {"x": {"choices": []}, "usage": {"a": 1}, "choices": []}\n\n',
    b'event: chunk\ndata: {"choices": [], "usage": {"a": 1}}\n\n',
    b'data: {"choices": [], "usage": {"a": 1}}\r\n\r\n',
    b'data:{"choices": [], "usage": {"a": 1}}\n\n',
    b": ping\n\n",
    b"\n",
)


@given(st.lists(st.lists(st.sampled_from(EVENTS), max_size=6), max_size=4))
@example(reads=[[CHUNK, b"\n"], [USAGE]])
@example(reads=[[CHUNK, b"\r\n"], [USAGE]])
@example(reads=[[b"\n", USAGE]])
def test_usage_is_taken_out_alike_of_whole_reads_and_of_single_bytes(
    reads: list[list[bytes]],
) -> None:
    """Many events in one read give the same bytes as events that arrive byte by byte."""
    whole, single = UsageFilter(), UsageFilter()
    joined = [b"".join(read) for read in reads]
    out = b"".join(whole.feed(read) for read in joined) + whole.flush()
    stream = b"".join(joined)
    slowly = b"".join(single.feed(stream[i : i + 1]) for i in range(len(stream))) + single.flush()
    assert out == slowly


def test_usage_in_an_unfinished_last_event() -> None:
    """A usage chunk without its blank line is taken out at the end too."""
    kept = UsageFilter(json.loads)
    assert kept.feed(CHUNK + USAGE.rstrip()) == CHUNK
    assert kept.flush() == b""
