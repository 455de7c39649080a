"""Relays bytes between two connections until one of them ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from gateway.tasks import spawn

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HAND_OVER = "gateway.hand_over"
"""The extension of an ASGI scope under which the server offers the client's connection itself."""

_PIECE_BYTES = 2**16
_LAST_WORDS_S = 5.0
"""After one side has ended, the other may finish for so long: a WebSocket is closed by a frame
each way (RFC 6455 section 7.1.1), the second of which crosses the end of the first."""


async def tunnel(one: Streams, other: Streams) -> tuple[int, int]:
    """Relay both ways; how many bytes went from `one` to `other`, and back.

    Both connections are closed at the end, also when the task is cancelled. A peer that vanished
    without a word is noticed by the kernel's keep-alive probes.
    """
    moved = [0, 0]
    for _, writer in (one, other):
        _probe(writer)
    ways = [
        spawn(_pipe(one[0], other[1], moved, 0)),
        spawn(_pipe(other[0], one[1], moved, 1)),
    ]
    try:
        _, unfinished = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if unfinished:
            await asyncio.wait(unfinished, timeout=_LAST_WORDS_S)
    finally:
        for way in ways:
            way.cancel()
        for _, writer in (one, other):
            writer.close()
        await asyncio.gather(*ways, return_exceptions=True)
    return moved[0], moved[1]


async def _pipe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: list[int], way: int
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            moved[way] += len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _probe(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
