"""Compressed bodies are unpacked in threads of their own, a slice at a time, within bounds of work.

The body that has cost least so far gets the next slice, so that a small one waits for no large one,
however many of those there are. A body whose client has left, or that has had its time, gets no
further slice: nothing has to be stopped."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, TypeVar

from gateway.errors import Overloaded
from gateway.room import Share
from gateway.tasks import Threads
from gateway.upstream.base import RawHeaders
from gateway.upstream.dispatch import PackedBody
from gateway.wire.codings import Unpacker, codings_of, unreadable

T = TypeVar("T")
_CODING: Final = b"content-encoding"
_PIECE_BYTES: Final = 2**14
"""So much is unpacked at a time, to at most a thousand times as much (RFC 1951)."""
_FREE_BYTES: Final = 2**20
_MOST_RATIO: Final = 200
"""Histories of agents shrink to a fifth or a tenth, one of equal steps of 15 kB to an 80th, in zstd
to a 42nd if each has ids and reasoning of its own, as Codex's have, else to a 400th. What unpacks
to more was made to cost the reader a thousand times what it costs the sender."""

_SLICE_S: Final = 0.005
_FREE_COST_S: Final = 0.1
_BYTE_COST_S: Final = 15e-9
"""Processor time for each byte before and after unpacking. Measured on a core of 2.8 GHz: text in
gzip 3.5 ns, in br 3, in zstd 1.3."""
_MOST_COST_S: Final = 1.0
_MOST_BODIES: Final = 256
_MOST_WAIT_S: Final = 30.0
_RETRY_S: Final = 5
_AT_ONCE_BYTES: Final = 2**20  # decoded at once on the event loop: 2 ms


def coding_of(headers: RawHeaders) -> bytes:
    """The coding that compresses the body, in lower case; empty for a plain body."""
    values = [value for name, value in headers if name == _CODING]
    named = b", ".join(values).strip().lower() if values else b""
    return b"" if named == b"identity" else named


def without_coding(headers: RawHeaders) -> RawHeaders:
    """`headers` of the plain body."""
    return [(name, value) for name, value in headers if name != _CODING]


@dataclass(eq=False)
class Unpacking:
    """The threads that unpack bodies, and the bodies that wait for them. A process needs one."""

    threads: int = max(1, (os.cpu_count() or 1) // 2)
    """Fewer than cores: the event loop needs one, too."""

    most_bodies: int = _MOST_BODIES
    """Bodies that are unpacked or wait for it at one time; the next one is refused."""

    most_wait_s: float = _MOST_WAIT_S
    """Seconds after which a body is refused, waits for a thread and for room included."""

    _waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _bodies: int = 0
    _busy: int = 0

    def __post_init__(self) -> None:
        self._threads = Threads("unpacking", self.threads)
        self._arrivals = itertools.count()

    async def body(
        self, content: bytes, coding: bytes, limit: int, share: Share
    ) -> PackedBody | None:
        """The body with its plain bytes; None for one in another coding, one that is broken or cut,
        one of more than 64 members, one that would unpack to more than `limit` bytes or to 200
        times its size, and one that takes far more processor time than others of its size. Raises:
        Overloaded: too many bodies are unpacked, or this one was not within 30 s, or there was no
        room for the plain bytes."""
        codings = codings_of(coding) if coding else []
        if not codings:
            big = len(content) > _AT_ONCE_BYTES and not _is_plain(content)
            plain = await self._slice(0.0, lambda: _as_utf8(content)) if big else _as_utf8(content)
            return PackedBody(content=content, coding=coding, plain=plain)
        if unreadable(codings):
            return None
        if self._bodies >= self.most_bodies:
            raise _overloaded(f"{self._bodies} compressed bodies are being unpacked")
        self._bodies += 1
        try:
            async with asyncio.timeout(self.most_wait_s):
                plain = await self._unpacked(_Body(content, codings, limit), share)
        except TimeoutError:
            text = f"the body was not unpacked within {self.most_wait_s:g} s"
            raise _overloaded(text) from None
        except zlib.error:
            return None
        finally:
            self._bodies -= 1
        return PackedBody(content=content, coding=coding, plain=plain)

    async def _unpacked(self, body: _Body, share: Share) -> bytes:
        """The plain bytes of a body. Raises: zlib.error: there are none. A body that finds no room
        on its way gives up what it has, goes on to its end for the size, and begins again when
        there is room for all of it: bodies that wait for each other's room would wait for ever."""
        packed = len(body.content)
        while not await self._slice(body.cost_s, body.go_on):
            if body.keeps and not share.take(packed + body.size):
                body.forget()
                share.shrink(packed)
        await share.grow(packed + body.size)
        if not body.keeps:
            body.begin_again()
            while not await self._slice(body.cost_s, body.go_on):
                pass
        return await self._slice(body.cost_s, body.plain)

    async def _slice(self, cost_s: float, work: Callable[[], T]) -> T:
        """Do `work` in a thread, after the slices of all bodies that have cost less."""
        if self._busy >= self.threads:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (cost_s, next(self._arrivals), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake_next()
                raise
        self._busy += 1
        try:
            return await self._threads.run(work)
        finally:
            self._busy -= 1
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting and self._busy < self.threads:
            _, _, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return


@dataclass(eq=False)
class _Body:
    """One body on its way from packed to plain."""

    content: bytes
    codings: list[bytes]
    limit: int
    """Plain bytes at most."""

    size: int = 0
    """Plain bytes so far."""

    work: int = 0
    """Bytes that went into the decompressor and came out of it, in all passes."""

    cost_s: float = 0.0
    """Processor time for that, in seconds."""

    keeps: bool = True
    """Whether the plain bytes are kept, or only counted."""

    def __post_init__(self) -> None:
        self.limit = min(self.limit, _FREE_BYTES + _MOST_RATIO * len(self.content))
        self._start()

    def _start(self) -> None:
        self._unpacker = Unpacker(self.codings)
        self._parts: list[bytes] = []
        self._at = 0
        self.size = 0

    def go_on(self) -> bool:
        """Unpack for some milliseconds; whether the end was reached. Raises: zlib.error: the body
        is cut, too large, too dear, or something else."""
        began = time.thread_time()
        spent_s = 0.0
        while self._at < len(self.content) and spent_s < _SLICE_S:
            piece = self.content[self._at : self._at + _PIECE_BYTES]
            plain = self._unpacker.decompress(piece, self.limit + 1 - self.size)
            self._at += len(piece)
            self.size += len(plain)
            self.work += len(piece) + len(plain)
            if self.size > self.limit:
                raise zlib.error("too large")
            if self.keeps and plain:
                self._parts.append(plain)
            spent_s = time.thread_time() - began
        self.cost_s += spent_s
        allowed_s = _FREE_COST_S + _BYTE_COST_S * self.work
        if self.cost_s > min(allowed_s, _MOST_COST_S):
            raise zlib.error("too dear")
        if self._at < len(self.content):
            return False
        if self._unpacker.cut or not self.size:
            raise zlib.error("cut, or empty")
        return True

    def forget(self) -> None:
        """Keep nothing any more."""
        self.keeps = False
        self._parts = []

    def begin_again(self) -> None:
        """Unpack once more, and keep it."""
        self.keeps = True
        self._start()

    def plain(self) -> bytes:
        """All plain bytes, as UTF-8."""
        parts = self._parts
        return _as_utf8(parts[0] if len(parts) == 1 else b"".join(parts))


def _overloaded(text: str) -> Overloaded:
    return Overloaded(text, status=503, headers=(("retry-after", str(_RETRY_S)),))


def _is_plain(content: bytes) -> bool:
    return content[:1] == b"{" and content[1:2] != b"\0"


def _as_utf8(content: bytes) -> bytes:
    """The same JSON in UTF-8 without a mark; `content` itself where it is that, or no text."""
    if _is_plain(content):
        return content
    encoding = json.detect_encoding(content)
    try:
        return content if encoding == "utf-8" else content.decode(encoding).encode()
    except UnicodeError:
        return content
