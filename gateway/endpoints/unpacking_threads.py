"""Compressed bodies are unpacked in threads of their own, a slice at a time, within bounds of work.

The first slice of a body, which is enough for most, waits only for other first slices. A body whose
client has left, or that has had its time, gets no further slice: nothing has to be stopped."""

import asyncio
import json
import os
import time
import zlib
from collections.abc import Iterator
from io import BytesIO

from gateway.buffered_bytes import RETRY_S, Share
from gateway.errors import Overloaded
from gateway.tasks import Threads, ThreadsBusy, off_loop
from gateway.upstream.dispatch import PackedBody
from gateway.wire.compression import Unpacker, codings_of, unreadable

# So much is unpacked at a time, and between two of these a slice may end.
_PIECE_BYTES = 2**12
_FREE_BYTES = 2**20
# A piece may give so much, or the body is not read: it would be memory before it has room.
_BURST_BYTES = 2**22
# Histories of agents shrink to a fifth or a tenth, one of equal steps of 15 kB to an 80th, in zstd
# to a 42nd if each has ids and reasoning of its own, as Codex's have, else to a 400th. What unpacks
# to more was made to cost the reader a thousand times what it costs the sender.
_MOST_RATIO = 200

_SLICE_S = 0.005
# Time between two looks at the thread's processor time, which take up to 11 us on a virtual
# machine: as long as the unpacking of a piece.
_LOOK_S = 0.001
_SLICE_BYTES = 2**20
_FREE_COST_S = 0.1
# Processor time for each byte before and after unpacking. Measured on a core of 2.8 GHz: text in
# gzip 3.5 ns, in br 3, in zstd 1.3.
_BYTE_COST_S = 15e-9
_MOST_COST_S = 1.0
_MOST_BODIES = 256
_MOST_WAIT_S = 30.0


_first = Threads("unpacking", 1, _MOST_BODIES).run
_further = Threads("unpacking large", max(1, (os.cpu_count() or 1) // 2), _MOST_BODIES).run


async def unpacked(content: bytes, coding: bytes, limit: int, share: Share) -> PackedBody | None:
    """Returns the body with its plain bytes, or None if it cannot be unpacked: another coding,
    broken or cut, more than 64 members, plain bytes above `limit` or above 200 times its size,
    or far more processor time than other bodies of its size. Raises: Overloaded: 256 bodies wait
    to be unpacked, this one took more than 30 s, or there was no room for the plain bytes."""
    codings = codings_of(coding)
    if not codings:
        plain = await off_loop(_as_utf8, content)
        return PackedBody(content=content, coding=coding, plain=plain)
    if unreadable(codings):
        return None
    packed = len(content)
    limit = min(limit, _FREE_BYTES + _MOST_RATIO * packed)
    slices = _slices(content, codings, limit)
    size = 0
    whole: bytes | None = b""
    try:
        async with asyncio.timeout(_MOST_WAIT_S):
            while whole == b"":
                await share.grow(packed + min(limit, size + _SLICE_BYTES + _BURST_BYTES))
                run = _first
                if size:
                    run = _further
                size, whole = await run(next, slices, (0, None))
    except (TimeoutError, ThreadsBusy):
        raise Overloaded(
            f"more compressed bodies came than can be unpacked within {_MOST_WAIT_S:g} s",
            status=503,
            headers=(("retry-after", str(RETRY_S)),),
        ) from None
    finally:
        share.shrink(packed + size)
    if whole is None:
        return None
    return PackedBody(content=content, coding=coding, plain=whole)


def _slices(content: bytes, codings: list[bytes], limit: int) -> Iterator[tuple[int, bytes]]:
    """Unpack for some milliseconds at a time; the size so far, and at last the plain bytes. Ends
    without these when the body is cut, too large, too dear, or something else: an error would keep
    what was unpacked until the next search for garbage."""
    unpacker = Unpacker(codings)
    plain = BytesIO()  # not parts, which would be there twice in the end
    size = 0
    given = 0
    cost_s = 0.0
    spent_s = 0.0
    began = time.thread_time()
    looked = time.perf_counter()
    for at in range(0, len(content), _PIECE_BYTES):
        most = min(limit, size + _BURST_BYTES)
        piece = content[at : at + _PIECE_BYTES]
        try:
            size += plain.write(unpacker.decompress(piece, most + 1 - size))
        except zlib.error:
            return
        if time.perf_counter() - looked > _LOOK_S:
            spent_s = time.thread_time() - began
            looked = time.perf_counter()
        allowed_s = min(_FREE_COST_S + _BYTE_COST_S * (at + size), _MOST_COST_S)
        if size > most or cost_s + spent_s > allowed_s:
            return
        is_long = spent_s > _SLICE_S or size > given + _SLICE_BYTES
        if is_long and at + _PIECE_BYTES < len(content):
            cost_s += time.thread_time() - began
            given = size
            yield size, b""
            spent_s = 0.0
            began = time.thread_time()  # it may be another thread's
    if size and not unpacker.cut:
        yield size, _as_utf8(plain.getvalue())


def _as_utf8(content: bytes) -> bytes:
    """The same JSON in UTF-8 without a mark; `content` itself where it is that, or no text."""
    encoding = json.detect_encoding(content)
    try:
        if encoding == "utf-8":
            return content
        return content.decode(encoding).encode()
    except UnicodeError:
        return content
