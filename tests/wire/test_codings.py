"""Compressed bodies are unpacked as they were packed, or refused, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import brotli
import pytest
from backports import zstd

from gateway.config.settings import ServerSettings
from gateway.endpoints.body import BodyRoom, unpacked
from gateway.tasks import spawn
from gateway.wire.codings import READABLE, Unpacker, codings_of, packed, unreadable
from tests.patience import ANSWER_S

CODINGS = (b"gzip", b"x-gzip", b"deflate", b"br", b"zstd")
STACKED = b"gzip, zstd"
ROUND_TRIPS = 500
MANY = pytest.param(10_000, marks=pytest.mark.nightly)
LIMIT = 2**24
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"notes"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Hello."}]}'


def body_of(random_: random.Random) -> bytes:
    """Bytes of any kind and size: text that repeats, noise, and both."""
    size = random_.choice((0, 1, 2, 3, 100, 4095, 4096, 4097, random_.randrange(60_000)))
    noise = random_.randbytes(min(size, random_.choice((8, 300, size))) or 1)
    return (noise * (size // len(noise) + 1))[:size]


def read(content: bytes, coding: bytes, limit: int = LIMIT) -> bytes | None:
    """What the gateway reads in a request's body; None for one that it cannot read."""
    with BodyRoom().share(ServerSettings()) as share:
        got = asyncio.run(unpacked(content, coding, limit, share))
    return None if got is None else got.plain


@pytest.mark.parametrize("trips", [ROUND_TRIPS, MANY])
@pytest.mark.parametrize("coding", [*CODINGS, STACKED])
def test_random_bodies_come_back_as_they_were(coding: bytes, trips: int) -> None:
    """In one piece and in pieces of any size, as requests and answers arrive."""
    random_, codings = random.Random(7), codings_of(coding)
    for _ in range(trips):
        body = body_of(random_)
        content = packed(body, codings)
        unpacker = Unpacker(codings)
        assert unpacker.decompress(content, LIMIT) == body
        # Of Brotli's empty body there is one byte, which does not show its form yet.
        assert not unpacker.cut or len(content) < 2
        unpacker, size = Unpacker(codings), random_.choice((1, 7, 1000, 4096))
        size = max(size, len(content) // 200)
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        assert b"".join(unpacker.decompress(piece, LIMIT) for piece in pieces) == body


PACKERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"br": brotli.compress,
    b"zstd": zstd.compress,
}


@pytest.mark.parametrize("coding", PACKERS)
def test_a_body_that_is_cut_anywhere_is_not_read(coding: bytes) -> None:
    """Not one byte of a request is made up."""
    content = PACKERS[coding](BODY * 3)
    assert read(content, coding) == BODY * 3
    for end in range(len(content)):
        assert read(content[:end], coding) is None
        with contextlib.suppress(zlib.error):
            unpacker = Unpacker([coding])
            unpacker.decompress(content[:end], LIMIT)
            assert unpacker.cut or not end


@pytest.mark.parametrize("coding", PACKERS)
def test_a_body_with_something_behind_it_is_not_read(coding: bytes) -> None:
    """However far behind, and in whatever pieces it arrives."""
    for body in (BODY, random.Random(1).randbytes(9000)):
        assert read(PACKERS[coding](body) + b"more", coding) is None


@pytest.mark.parametrize("coding", [b"gzip", b"zstd"])
def test_members_that_follow_each_other_are_one_body(coding: bytes) -> None:
    """RFC 1952 section 2.2 and RFC 8878 section 3.1."""
    content = b"".join(PACKERS[coding](BODY[at : at + 9]) for at in range(0, len(BODY), 9))
    assert read(content, coding) == BODY
    assert read(content + b"\0" * 20, coding) == BODY
    assert read(content + content, coding) == BODY * 2


def test_two_streams_of_brotli_are_no_body() -> None:
    """The format has one stream."""
    content = brotli.compress(random.Random(1).randbytes(5000))
    assert read(content, b"br") is not None
    assert read(content + content, b"br") is None
    unpacker = Unpacker([b"br"])
    unpacker.decompress(content, LIMIT)
    with pytest.raises(zlib.error):
        unpacker.decompress(content, LIMIT)


def test_frames_to_skip_are_skipped() -> None:
    """Before, between and after the others, and empty ones; alone they are no body."""
    empty = struct.pack("<II", 0x184D2A5F, 0)
    halves = zstd.compress(BODY[:20]), zstd.compress(BODY[20:])
    content = SKIPPABLE + empty + halves[0] + SKIPPABLE + zstd.compress(b"") + halves[1] + SKIPPABLE
    assert read(content, b"zstd") == BODY
    assert read(SKIPPABLE, b"zstd") is None


def test_a_window_of_more_than_eight_megabytes_is_refused() -> None:
    """It would be memory that a few bytes ask for (RFC 9659)."""
    large: Mapping[int, int] = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=large)
    content = compressor.compress(BODY) + compressor.flush()
    assert read(content, b"zstd") is None
    allowed = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 23})
    assert read(allowed.compress(BODY) + allowed.flush(), b"zstd") == BODY


def test_what_is_not_known_or_packed_too_often_is_not_read() -> None:
    """Each coding has a window in memory."""
    for coding in (b"x-own", b"gzip, x-own", b"zstd, br, gzip, gzip", b"*", b"gzip;q=1"):
        assert unreadable(codings_of(coding))
        assert read(gzip.compress(BODY), coding) is None
    assert read(BODY, b"identity, identity") == BODY
    assert set(READABLE) == {b"identity", *CODINGS}


@pytest.mark.parametrize("coding", [*PACKERS, STACKED])
def test_a_bomb_costs_no_more_than_a_body(coding: bytes) -> None:
    """What unpacks to much more than it takes is given up at the limit."""
    content = packed(b"\0" * 2**28, codings_of(coding))
    tracemalloc.start()
    try:
        assert read(content, coding, 2**21) is None
        watch = Unpacker(codings_of(coding))
        with contextlib.suppress(zlib.error):
            watch.decompress(content, 2**21)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_garbage_is_refused() -> None:
    """Random bytes raise what a broken body raises, and nothing else."""
    random_ = random.Random(3)
    for _ in range(ROUND_TRIPS):
        for coding in CODINGS:
            with contextlib.suppress(zlib.error):
                Unpacker([coding]).decompress(random_.randbytes(random_.randrange(400)), LIMIT)
            damaged = bytearray(packed(BODY, [coding]))
            damaged[random_.randrange(len(damaged))] ^= 1 << random_.randrange(8)
            with contextlib.suppress(zlib.error):
                Unpacker([coding]).decompress(bytes(damaged), LIMIT)


@pytest.mark.parametrize("coding", PACKERS)
def test_the_loop_goes_on_while_a_body_is_unpacked(
    coding: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unpacked in a thread: here one that waits until the event loop has done something."""
    body = random.Random(5).randbytes(2**12) * 8
    content = PACKERS[coding](body)
    decompress, served = Unpacker.decompress, threading.Event()

    def waiting(self: Unpacker, *asked: Any) -> bytes:
        assert served.wait(ANSWER_S)
        return decompress(self, *asked)

    async def unpack() -> bytes | None:
        with BodyRoom().share(ServerSettings()) as share:
            task = spawn(unpacked(content, coding, LIMIT, share))
            await asyncio.sleep(0)  # in which it begins
            served.set()
            got = await task
        return got and got.plain

    monkeypatch.setattr(Unpacker, "decompress", waiting)
    assert asyncio.run(unpack()) == body
