"""Content codings: compressed bodies are unpacked in bounded pieces, and packed again.

One table serves the requests of clients and the answers of both lanes. Sources: RFC 9110 section
8.4.1, RFC 1952 (gzip), RFC 7932 (br), RFC 8878 and RFC 9659 (zstd)."""

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import brotli

from gateway.values import Value

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

# zlib's window argument that accepts both gzip and zlib headers.
_ANY_ZLIB_HEADER = 47
_LEAST_BETWEEN = 2**20
# Members of one body. Programs that pack in parallel write one for each core or megabyte; an empty
# one has nine bytes in zstd and twenty in gzip, and costs a decompressor of its own.
MOST_MEMBERS = 64
# A decompressor is given so much at a time, because it copies what follows the end of a member.
_AT_ONCE_BYTES = 2**16
# 8 MiB, the most that a sender may ask for (RFC 9659 section 3.1); a window is memory.
_ZSTD_WINDOW: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
_MOST_CODINGS = 3  # on top of each other: each has a window in memory
_NO_CODING = (b"", b"identity", b"none", b"utf-8")


class Coding(Value):
    """One content coding."""

    # makes a decompressor of one member, chosen by its first two bytes, in the form of zlib's
    opened: Callable[[bytes], Any]
    packed: Callable[[bytes], bytes]  # compresses a whole body
    several: bool = True  # members may follow each other


class Inflater:
    """Decompresses a body, which may consist of several members (RFC 1952 section 2.2). Whatever is
    in it, a decompressor is given each byte once, and at most 64 kB a second time for each further
    member."""

    def __init__(self, coding: Coding):
        self._coding = coding
        self._first = b""
        self._member: Any = None
        self._members = 0
        self._begun = False

    @property
    def cut(self) -> bool:
        """Whether the last member has no end yet."""
        return self._begun and (self._member is None or not self._member.eof)

    def decompress(self, data: bytes, limit: int) -> bytes:
        """At most about `limit` bytes of what `data` adds. Raises: zlib.error when it is something
        else, or has more than 64 members. What is beyond the limit is lost: whoever asks reads no
        further then."""
        out = []
        self._begun = self._begun or bool(data)
        for at in range(0, len(data), _AT_ONCE_BYTES):
            rest = data[at : at + _AT_ONCE_BYTES]
            while rest and limit > 0:
                rest = self._opened(rest)
                if self._member is None or not rest:
                    break
                try:
                    out.append(self._member.decompress(rest, limit))
                except (brotli.error, zstd.ZstdError) as exc:
                    raise zlib.error(str(exc)) from exc
                limit -= len(out[-1])
                rest = self._member.unused_data
        return b"".join(out)

    def _opened(self, data: bytes) -> bytes:
        """`data` for the member that it belongs to, which is opened if it begins here; no member is
        open as long as its beginning is not there."""
        if self._member is not None and self._member.eof and self._coding.several:
            data = data.lstrip(b"\0")  # padding, which gzip's own tools skip
            if not data:
                return data
            self._member = None
        if self._member is None:
            data = self._first + data
            if len(data) < 2:
                self._first = data
            else:
                self._first = b""
            if not self._first:
                self._members += 1
                if self._members > MOST_MEMBERS:
                    raise zlib.error(f"more than {MOST_MEMBERS} members")
                self._member = self._coding.opened(data)
        return data


class Unpacker:
    """Undoes the codings of one body, the last one first."""

    def __init__(self, codings: Sequence[bytes]):
        """`codings`: one or more, in the order in which they were applied, all of them readable."""
        self._inflaters = [Inflater(_CODINGS[name]) for name in reversed(codings)]

    @property
    def cut(self) -> bool:
        """Whether the bytes so far end in the middle of a compressed body."""
        return any(inflater.cut for inflater in self._inflaters)

    def decompress(self, data: bytes, limit: int) -> bytes:
        """See `Inflater`. Between two codings, too, a piece may be no larger than the limit."""
        between = max(limit, _LEAST_BETWEEN)  # near its limit a body is still read
        for inflater in self._inflaters[:-1]:
            data = inflater.decompress(data, between)
            if len(data) >= between:
                raise zlib.error("what is packed twice is larger than allowed")
        return self._inflaters[-1].decompress(data, limit)


class _BrotliMember:
    """Brotli's decompressor in the form of zlib's."""

    unused_data = b""  # what follows its end is an error

    def __init__(self, _: bytes):
        self._inner = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        return bytes(self._inner.process(data, output_buffer_limit=max_length))


def _deflate_member(start: bytes) -> Any:
    """Some servers leave out zlib's head (RFC 9110, section 8.4.1.2)."""
    headed = start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    if headed or start[:2] == b"\x1f\x8b":
        return zlib.decompressobj(_ANY_ZLIB_HEADER)
    return zlib.decompressobj(-zlib.MAX_WBITS)


_GZIP = Coding(
    opened=lambda _: zlib.decompressobj(_ANY_ZLIB_HEADER), packed=partial(zlib.compress, wbits=31)
)
_CODINGS = {
    b"gzip": _GZIP,
    b"x-gzip": _GZIP,
    b"deflate": Coding(opened=_deflate_member, packed=zlib.compress),
    # The quality that servers take for answers: the best one takes fifty times as long.
    b"br": Coding(opened=_BrotliMember, packed=partial(brotli.compress, quality=5), several=False),
    b"zstd": Coding(
        opened=lambda _: zstd.ZstdDecompressor(options=_ZSTD_WINDOW), packed=zstd.compress
    ),
}
# Content codings that can be decoded here.
READABLE = (b"identity", *_CODINGS)


def codings_of(named: bytes) -> list[bytes]:
    """Returns the codings that a header names, in the order in which they were applied, without
    `identity`."""
    items = named.lower().split(b",")
    return [name for item in items if (name := item.strip()) not in _NO_CODING]


def unreadable(codings: Sequence[bytes]) -> list[bytes]:
    """Returns the codings that cannot be undone here; all of them if there are too many."""
    few = len(codings) <= _MOST_CODINGS
    return [name for name in codings if not few or name not in _CODINGS]


def packed(content: bytes, codings: Sequence[bytes]) -> bytes:
    """The content in these codings."""
    for name in codings:
        content = _CODINGS[name].packed(content)
    return content
