"""The content codings of a provider's answer: those that were asked for, and those sent anyway."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import brotli
from backports import zstd

from gateway.upstream.base import RawHeaders, header
from gateway.wire.response_tee import READABLE, Inflater, Member, zlib_member

_NO_CODING = (b"", b"identity", b"none", b"utf-8")


def named(headers: RawHeaders) -> list[bytes]:
    """The codings in the order in which they were applied, without those that are none."""
    items = header(headers, b"content-encoding").lower().split(b",")
    return [name for item in items if (name := item.strip()) not in _NO_CODING]


def unknown(codings: list[bytes]) -> list[bytes]:
    """The codings that cannot be undone."""
    return [name for name in codings if name not in READABLE and name not in _OPENED]


def inflaters(codings: list[bytes]) -> list[Inflater]:
    """Decoders of the codings, the last one first."""
    return [Inflater(_OPENED.get(name, zlib_member)) for name in reversed(codings)]


class _BrotliMember:
    """Brotli's decompressor in the form of zlib's; what follows its end is not distinguished."""

    unused_data = b""

    def __init__(self, _: bytes) -> None:
        self._inner = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        try:
            return bytes(self._inner.process(data, output_buffer_limit=max_length))
        except brotli.error as exc:
            raise zlib.error(str(exc)) from exc


class _ZstdMember:
    """One frame of Zstandard, in the form of zlib's decompressor."""

    def __init__(self, _: bytes) -> None:
        self._inner = zstd.ZstdDecompressor()

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        try:
            return self._inner.decompress(data, max_length)
        except zstd.ZstdError as exc:
            raise zlib.error(str(exc)) from exc


def _deflate_member(start: bytes) -> Member:
    """Some servers leave out zlib's head (RFC 9110, section 8.4.1.2)."""
    headed = start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    if headed or start[:2] == b"\x1f\x8b":
        return zlib_member()
    return zlib.decompressobj(-zlib.MAX_WBITS)


_OPENED: Mapping[bytes, Callable[[bytes], Member]] = {
    b"br": _BrotliMember,
    b"zstd": _ZstdMember,
    b"deflate": _deflate_member,
}
