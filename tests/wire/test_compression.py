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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.buffered_bytes import Room, Share
from gateway.config.settings import ServerSettings
from gateway.endpoints import unpacking_threads
from gateway.endpoints.unpacking_threads import unpacked
from gateway.errors import Overloaded
from gateway.tasks import Threads, spawn
from gateway.upstream.dispatch import PackedBody
from gateway.wire import compression
from gateway.wire.compression import READABLE, Unpacker, codings_of, packed, unreadable, zstd
from steering_gateway_testing.patience import ANSWER_S

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
    got = asyncio.run(alone(content, coding, limit))
    return None if got is None else got.plain


async def alone(content: bytes, coding: bytes = b"gzip", limit: int = LIMIT) -> PackedBody | None:
    """A body with its plain bytes, in a room that has nothing else."""
    with Share(Room(), ServerSettings()) as share:
        return await unpacked(content, coding, limit, share)


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
    content = packed(b"\0" * 2**25, codings_of(coding))
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


EMPTY = {b"gzip": gzip.compress(b""), b"zstd": zstd.compress(b""), b"deflate": zlib.compress(b"")}


@pytest.mark.parametrize("coding", EMPTY)
def test_a_body_of_more_than_sixty_four_members_is_not_read(coding: bytes) -> None:
    """However little is in them: each costs a decompressor."""
    for filler in (EMPTY[coding], *([SKIPPABLE] if coding == b"zstd" else [])):
        assert read(filler * 63 + PACKERS[coding](BODY), coding) == BODY
        assert read(filler * 64 + PACKERS[coding](BODY), coding) is None
        assert read(filler * 300_000, coding) is None


_MEMBERS = st.lists(
    st.sampled_from([*EMPTY.values(), SKIPPABLE, gzip.compress(BODY), zstd.compress(BODY * 2000)])
    | st.sampled_from([b"\0", b"\0" * 70_000, b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
    | st.binary(max_size=60)
    | st.binary(min_size=3000, max_size=3000).map(lambda noise: gzip.compress(noise * 30, 1)),
    max_size=90,
)


@given(members=_MEMBERS, times=st.sampled_from([1, 3, 5000]), coding=st.sampled_from(CODINGS))
def test_a_decompressor_is_given_no_byte_often(
    members: list[bytes], times: int, coding: bytes
) -> None:
    """Whatever the body: each byte once, and a piece again for each of at most 64 members."""
    joined = b"".join(members)
    content = (joined * min(times, 2**21 // max(1, len(joined)) + 1))[: 2**21]
    given_, calls = 0, 0
    opened = compression._CODINGS[coding].opened

    class Counted:
        def __init__(self, start: bytes) -> None:
            self._inner = opened(start)

        def decompress(self, data: bytes, limit: int) -> Any:
            nonlocal given_, calls
            given_, calls = given_ + len(data), calls + 1
            return self._inner.decompress(data, limit)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    counted = structs.replace(compression._CODINGS[coding], opened=Counted)
    inflater = compression.Inflater(counted)
    with contextlib.suppress(zlib.error):
        inflater.decompress(content, 2**40)
    piece = compression._AT_ONCE_BYTES
    assert given_ <= len(content) + compression.MOST_MEMBERS * piece
    assert calls <= len(content) // piece + 1 + compression.MOST_MEMBERS


Slices = list[bytes]


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    """The body of each slice that was unpacked; a slice is one piece here. The threads are new."""
    seen: Slices = []
    own = unpacking_threads._slices

    def noted(content: bytes, *about: Any) -> Iterator[tuple[int, bytes]]:
        for done in own(content, *about):
            seen.append(content)
            yield done

    monkeypatch.setattr(unpacking_threads, "_slices", noted)
    monkeypatch.setattr(unpacking_threads, "_SLICE_S", 0.0)
    monkeypatch.setattr(unpacking_threads, "_LOOK_S", -1.0)
    monkeypatch.setattr(unpacking_threads, "_first", Threads("test", 1, 2).run)
    monkeypatch.setattr(unpacking_threads, "_further", Threads("test", 1, 2).run)
    return seen


LARGE = gzip.compress(random.Random(5).randbytes(2**20))
PIECES = len(LARGE) // unpacking_threads._PIECE_BYTES


def test_a_body_that_costs_more_than_others_of_its_size_is_given_up(
    slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processor time for each byte, and in all."""
    assert read(LARGE, b"gzip") == gzip.decompress(LARGE)
    assert len(slices) > PIECES
    monkeypatch.setattr(unpacking_threads, "_FREE_COST_S", 0.0)
    monkeypatch.setattr(unpacking_threads, "_BYTE_COST_S", 1e-15)
    assert read(LARGE, b"gzip") is None
    monkeypatch.setattr(unpacking_threads, "_BYTE_COST_S", 1.0)
    monkeypatch.setattr(unpacking_threads, "_MOST_COST_S", 1e-15)
    assert read(LARGE, b"gzip") is None
    assert len(slices) <= PIECES + 4


async def until(happened: Callable[[], bool]) -> None:
    """Return when something has happened; others run meanwhile."""
    while not happened():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)


async def test_the_loop_goes_on_while_a_body_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unpacked in a thread: here one that waits until the event loop has done something."""
    loop, decompress = asyncio.get_running_loop(), Unpacker.decompress

    def waiting(self: Unpacker, *asked: Any) -> bytes:
        served = threading.Event()
        loop.call_soon_threadsafe(served.set)
        assert served.wait(ANSWER_S)
        return decompress(self, *asked)

    monkeypatch.setattr(Unpacker, "decompress", waiting)
    got = await alone(LARGE)
    assert got is not None
    assert got.plain == gzip.decompress(LARGE)


async def test_nothing_is_unpacked_for_a_client_that_left(slices: Slices) -> None:
    """At most the slice that is in work is finished."""
    reading = spawn(alone(LARGE))
    await until(lambda: len(slices) > 2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await unpacking_threads._further(bool)  # it has done all that it was given
    begun = len(slices)
    assert begun < PIECES
    assert await alone(gzip.compress(BODY))
    assert len(slices) == begun + 1


async def test_a_small_body_waits_for_no_large_one(slices: Slices) -> None:
    """Its first slice comes before the further ones of others, however many came before."""
    large = spawn(alone(LARGE))
    await until(lambda: len(slices) > 2)
    gate = threading.Event()
    gated = spawn(unpacking_threads._further(gate.wait, ANSWER_S))
    assert await alone(gzip.compress(BODY))
    assert not large.done()
    gate.set()
    assert await gated
    assert await large


async def test_more_bodies_than_there_are_places_for_are_refused(slices: Slices) -> None:
    """With 503 and when to come again; the others are read."""
    gate = threading.Event()
    gated = spawn(unpacking_threads._first(gate.wait, ANSWER_S))
    await asyncio.sleep(0)
    waiting = [spawn(alone(LARGE)) for _ in range(8)]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    refused = done.pop().exception()
    assert isinstance(refused, Overloaded)
    assert (refused.status, dict(refused.headers)) == (503, {"retry-after": "5"})
    gate.set()
    assert await gated
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(outcome, PackedBody) for outcome in outcomes)


async def test_a_body_that_has_had_its_time_is_refused(
    slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no slice of it is unpacked any more."""
    monkeypatch.setattr(unpacking_threads, "_MOST_WAIT_S", 0.0)
    gate = threading.Event()
    gated = spawn(unpacking_threads._first(gate.wait, ANSWER_S))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="within 0 s"):
        await alone(LARGE)
    gate.set()
    assert await gated
    await unpacking_threads._first(bool)
    assert not slices


async def test_a_slice_has_room_for_what_it_gives(
    slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is unpacked: of a body that unpacks to 200 times its size, too."""
    monkeypatch.setattr(unpacking_threads, "_SLICE_S", 60.0)
    random_ = random.Random(1)
    body = b"".join([random_.randbytes(2**13) + b" " * 2**20 for _ in range(8)])
    for coding in PACKERS:
        share = Share(Room(), ServerSettings())
        held: list[int] = []
        own = unpacking_threads._slices

        def noted(
            *about: Any, own: Any = own, held: list[int] = held, share: Share = share
        ) -> Iterator[tuple[int, bytes]]:
            for size, plain in own(*about):
                held.append(share.size - size)
                yield size, plain

        with monkeypatch.context() as patch:
            patch.setattr(unpacking_threads, "_slices", noted)
            content = PACKERS[coding](body)
            got = await unpacked(content, coding, LIMIT, share)
        assert got is not None
        assert got.plain == body
        assert len(held) > 1
        assert min(held) >= len(content)
        assert share.size == len(content) + len(body)
    assert await alone(zstd.compress(random_.randbytes(2**18) + b" " * 2**23), b"zstd") is None


async def test_plain_bytes_wait_for_room(slices: Slices) -> None:
    """From one slice to the next."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=8)
    share, other = Share(room, settings), Share(room, settings)
    await other.grow(3 * 2**19)
    reading = spawn(unpacked(LARGE, b"gzip", LIMIT, share))
    await until(lambda: bool(room._waiting))
    assert 0 < len(slices) <= PIECES
    other.shrink(0)
    got = await reading
    assert got is not None
    assert got.plain == gzip.decompress(LARGE)
    assert share.size == len(LARGE) + len(got.plain)
