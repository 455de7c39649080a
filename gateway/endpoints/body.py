"""Request bodies, clients that disconnect, and the answers that the gateway makes itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.buffered_bytes import ARRIVAL_BYTES_S, SMALL_BYTES, Share
from gateway.errors import BodyTooLarge, GatewayError, RequestTooSlow
from gateway.exchange import Exchange
from gateway.tasks import spawn
from gateway.wire.headers import RawHeaders, header

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Writes a piece of an answer at once, and tells whether more may be written: not when the client is
# slow or gone. b"" only asks; False for an answer that cannot be written so.
WriteNow = Callable[[bytes], bool]
# Takes a function to call when the client has disconnected before its answer is complete; it calls
# it at once for a client that has.
OnGone = Callable[[Callable[[], None]], None]
WRITE_NOW = "gateway.write_now"
# Where a scope's extensions have its `WriteNow` and `OnGone`, if the server has them.
ON_GONE = "gateway.on_gone"
# The key of a scope's extensions under which a message of a WebSocket has its connection.
SOCKET = "gateway.socket"


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


async def read_body(
    headers: RawHeaders,
    receive: Receive,
    exchange: Exchange,
    limit: int,
    share: Share | None = None,
) -> bytes:
    """The whole body, at most `limit` bytes; `share` is where it has to find room, if anywhere.
    Room is taken for the declared length before anything is read, else for what has arrived.
    Raises: BodyTooLarge: over the limit; before reading, when the length is declared. Overloaded:
    there was no room for it. RequestTooSlow: it took too long to arrive. ClientGone: the client
    disconnected before the end."""
    started = time.perf_counter()
    declared = int(header(headers, b"content-length") or 0)
    if declared > limit:
        raise _too_large(limit)
    if share is not None:
        await share.grow(declared)
    # Not by `_body_chunks`: an asynchronous generator is registered with the loop.
    content, more = await _next_chunk(receive)
    if len(content) > limit:
        raise _too_large(limit)
    if more:
        content = await _with_rest(content, receive, limit, share=share)
    elif share is not None and len(content) > declared:
        await share.grow(len(content))
    exchange.timing.waited_s += time.perf_counter() - started
    return content


async def _with_rest(first: bytes, receive: Receive, limit: int, share: Share | None) -> bytes:
    """A body of which `first` has arrived. Raises: RequestTooSlow, and what `read_body` raises."""
    began = asyncio.get_running_loop().time()
    parts = [first]
    size = len(first)
    more = True
    try:
        async with asyncio.timeout(None) as late:
            while more:
                if share is not None:
                    await share.grow(size)
                    if size > SMALL_BYTES:
                        await share.give_way()
                    late.reschedule(began + share.settings.max_body_s + size / ARRIVAL_BYTES_S)
                chunk, more = await _next_chunk(receive)
                parts.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
    except TimeoutError:
        text = "the body did not arrive in server.max_body_s, nor at 16 KiB a second since then"
        raise RequestTooSlow(text) from None
    if share is not None:
        await share.grow(size)
    return b"".join(parts)


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    """A piece of the body, and whether more of it comes. Raises: ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), bool(message.get("more_body"))


class Upload:
    """A body that is forwarded while it arrives; raises like `read_body`. `ended` is set at its
    end; `error` is what cut it short, if anything did."""

    def __init__(self, headers: RawHeaders, receive: Receive, limit: int):
        self._chunks = _body_chunks(headers, receive, limit)
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


async def _body_chunks(headers: RawHeaders, receive: Receive, limit: int) -> AsyncIterator[bytes]:
    if int(header(headers, b"content-length") or 0) > limit:
        raise _too_large(limit)
    size = 0
    more = True
    while more:
        chunk, more = await _next_chunk(receive)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        if chunk:
            yield chunk


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit / 2**20:g} MiB (server.max_body_mb)", param="body"
    )


@dataclass(eq=False)
class DisconnectWatch:
    """Cancels the block as soon as the client disconnects. Enter it when the body has been read.
    Raises: ClientGone: instead of the cancellation."""

    receive: Receive  # of ASGI; gives the client's messages
    exchange: Exchange  # notes that the client has gone
    # watching starts when it has ended, because two readers would take each other's messages; None:
    # at once
    upload: Upload | None = None
    # registers a callback for the disconnect; None: a task waits for the client's messages
    on_gone: OnGone | None = None
    _task: asyncio.Task[Any] | None = field(default=None, init=False)  # the one that is cancelled
    # reads the client's messages; None with `on_gone`
    _watcher: asyncio.Task[None] | None = field(default=None, init=False)

    async def __aenter__(self) -> DisconnectWatch:
        self._task = asyncio.current_task()
        if self.on_gone is not None:
            self.on_gone(self._gone)
        else:
            self._watcher = spawn(self._watch())
        return self

    async def __aexit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        self.stop()
        if self._watcher is not None:
            self._watcher.cancel()
        if self.exchange.response.client_gone and isinstance(exc, asyncio.CancelledError):
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            raise ClientGone from exc

    def stop(self) -> None:
        """Stop watching: the answer is about to end, so a disconnect need not cancel it."""
        self._task = None

    async def _watch(self) -> None:
        try:
            if self.upload is not None:
                await self.upload.ended.wait()
            while (await self.receive())["type"] != "http.disconnect":
                pass
            self._gone()
        except asyncio.CancelledError:
            pass

    def _gone(self) -> None:
        if self._task is not None:
            self.exchange.response.client_gone = True
            self._task.cancel()


def raw_path_of(scope: Scope) -> str:
    """The path as the client sent it, percent-encoded and without the query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.split(b"?")[0].decode("ascii", "replace")


async def send_json(send: Send, status: int, payload: Any) -> None:
    """Send one JSON answer."""
    await send_bytes(send, status, orjson.dumps(payload), content_type=b"application/json")


async def send_bytes(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    """Send one answer of any media type."""
    await send_whole(send, status, [(b"content-type", content_type)], body=body)


async def send_whole(send: Send, status: int, headers: RawHeaders, body: bytes = b"") -> None:
    """Send one answer with the length of its body, which is all there."""
    if status != 204:  # RFC 9110 section 8.6: such an answer has no length
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
