"""Request bodies in another form than UTF-8: made readable, and sent on as they came.

A client may compress its body. JSON with a byte order mark, in UTF-16 or UTF-32 is no JSON by
RFC 8259, but servers in Python read it.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Final

from gateway.endpoints.body_room import BodyShare
from gateway.upstream.base import RawHeaders
from gateway.upstream.dispatch import PackedBody
from gateway.wire.response_tee import READABLE, Inflater

_CODING: Final = b"content-encoding"
_PIECE_BYTES: Final = 4096
"""So much is unpacked at a time to find the size: at most a thousand times as much (RFC 1951)."""

_FREE_BYTES: Final = 2**20
_MOST_RATIO: Final = 200
"""Histories of agents shrink to a fifth or a tenth, one of equal steps of 15 kB to an 80th. What
unpacks to more was made to cost the reader a thousand times what it costs the sender."""


def coding_of(headers: RawHeaders) -> bytes:
    """What the body is compressed with, in lower case; empty for a plain body."""
    values = [value for name, value in headers if name == _CODING]
    named = b", ".join(values).strip().lower() if values else b""
    return b"" if named == b"identity" else named


async def unpacked(
    content: bytes, coding: bytes, limit: int, share: BodyShare
) -> PackedBody | None:
    """The body with its plain bytes; None for one that cannot be read here.

    That is one in another coding, one that is broken or cut, and one that would unpack to more than
    `limit` bytes or to 200 times its size.

    Raises:
        Overloaded: there was no room for the plain bytes beside the others.
    """
    if not coding:
        return PackedBody(content=content, coding=coding, plain=_as_utf8(content))
    if coding not in READABLE:
        return None
    try:
        limit = min(limit, _FREE_BYTES + _MOST_RATIO * len(content))
        size = await asyncio.to_thread(_plain_size, content, limit)
        if size is None:
            return None
        await share.grow(len(content) + size)
        plain = await asyncio.to_thread(Inflater().decompress, content, size)
    except zlib.error:
        return None
    return PackedBody(content=content, coding=coding, plain=_as_utf8(plain))


def without_coding(headers: RawHeaders) -> RawHeaders:
    """`headers` of the plain body."""
    return [(name, value) for name, value in headers if name != _CODING]


def _as_utf8(content: bytes) -> bytes:
    """The same JSON in UTF-8 without a mark; `content` itself where it is that, or no text."""
    if content[:1] == b"{" and content[1:2] != b"\0":
        return content
    encoding = json.detect_encoding(content)
    try:
        return content if encoding == "utf-8" else content.decode(encoding).encode()
    except UnicodeError:
        return content


def _plain_size(content: bytes, limit: int) -> int | None:
    """Bytes of the whole body when unpacked; None when it is cut, or larger than `limit`.

    Raises: zlib.error when it is something else.
    """
    inflater, size = Inflater(), 0
    for at in range(0, len(content), _PIECE_BYTES):
        size += len(inflater.decompress(content[at : at + _PIECE_BYTES], limit + 1 - size))
        if size > limit:
            return None
    return None if inflater.cut or not size else size
