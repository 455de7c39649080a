"""Reading request bodies, and noticing clients that disconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

from gateway.endpoints.body_room import BodyShare
from gateway.errors import BodyTooLarge, GatewayError
from gateway.exchange import Exchange
from gateway.tasks import spawn
from gateway.upstream.base import RawHeaders, header

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

WriteNow = Callable[[bytes], bool]
"""Writes a piece of an answer at once, and tells whether more may be written: not when the client
is slow or gone. b"" only asks; False for an answer that cannot be written so."""

WRITE_NOW = "gateway.write_now"
"""Where a scope's extensions have its `WriteNow`, if the server has one."""


ON_GONE = "gateway.on_gone"
"""Where a scope's extensions have a function that takes what is to be called when the client has
disconnected before its answer is complete, if the server has one; it calls it at once for a client
that has."""

OnGone = Callable[[Callable[[], None]], None]


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


async def read_body(
    headers: RawHeaders,
    receive: Receive,
    exchange: Exchange,
    limit: int,
    share: BodyShare | None = None,
) -> bytes:
    """The whole body, at most `limit` bytes; `share` is where it has to find room, if anywhere.

    Room is taken for the declared length before anything is read, else for what has arrived.

    Raises:
        BodyTooLarge: over the limit; before reading, when the length is declared.
        Overloaded: there was no room for it.
        ClientGone: the client disconnected before the end.
    """
    started = time.perf_counter()
    parts, size, more = list[bytes](), int(header(headers, b"content-length") or 0), True
    _check_size(size, limit)
    if share is not None:
        await share.grow(size)
    size = 0
    # Not by `body_chunks`: an asynchronous generator is registered with the loop.
    while more:
        chunk, more = await _next_chunk(receive)
        size += len(chunk)
        _check_size(size, limit)
        if chunk:
            parts.append(chunk)
            if share is not None:
                await share.grow(size)
    exchange.timing.waited_s += time.perf_counter() - started
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_chunks(headers: RawHeaders, receive: Receive, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives; raises like `read_body`."""
    _check_size(int(header(headers, b"content-length") or 0), limit)
    size, more = 0, True
    while more:
        chunk, more = await _next_chunk(receive)
        size += len(chunk)
        _check_size(size, limit)
        if chunk:
            yield chunk


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    """A piece of the body, and whether more of it comes. Raises: ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), bool(message.get("more_body"))


class Upload:
    """A body that is forwarded while it arrives.

    `ended` is set at its end; `error` is what cut it short, if anything did.
    """

    def __init__(self, headers: RawHeaders, receive: Receive, limit: int) -> None:
        self._chunks = body_chunks(headers, receive, limit)
        self.ended = asyncio.Event()
        self.error: GatewayError | ClientGone | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._chunks)
        except BaseException as exc:
            if isinstance(exc, (GatewayError, ClientGone)):
                self.error = exc
            self.ended.set()
            raise


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise BodyTooLarge(
            f"the body is larger than {limit / 2**20:g} MiB (server.max_body_mb)", param="body"
        )


class DisconnectWatch:
    """Cancels the block as soon as the client disconnects.

    Enter it when the body has been read; with `upload`, watching starts when the upload has ended,
    because two readers would take each other's messages. `on_gone`: see `ON_GONE`; without it a
    task waits for the client's messages.

    Raises:
        ClientGone: instead of the cancellation.
    """

    def __init__(
        self,
        receive: Receive,
        exchange: Exchange,
        upload: Upload | None = None,
        on_gone: OnGone | None = None,
    ) -> None:
        self._receive = receive
        self._upload = upload
        self._on_gone = on_gone
        self._exchange = exchange
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> DisconnectWatch:
        self._task = asyncio.current_task()
        if self._on_gone is not None:
            self._on_gone(self._gone)
        else:
            self._watcher = spawn(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._exchange.response.client_gone and kind is asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise ClientGone from exc

    def stop(self) -> None:
        """Stop watching: the answer is about to end, so a disconnect need not cancel it."""
        self._task = None

    async def _watch(self) -> None:
        try:
            if self._upload is not None:
                await self._upload.ended.wait()
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._gone()
        except asyncio.CancelledError:
            pass

    def _gone(self) -> None:
        if self._task is not None:
            self._exchange.response.client_gone = True
            self._task.cancel()
