"""Request bodies, clients that disconnect, and the answers that the gateway makes itself."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.config.settings import ServerSettings
from gateway.errors import BodyTooLarge, GatewayError, Overloaded
from gateway.exchange import Exchange
from gateway.tasks import spawn
from gateway.upstream.base import RawHeaders, header
from gateway.upstream.dispatch import PackedBody
from gateway.wire.codings import Unpacker, codings_of, unreadable

_RETRY_S = 5  # what a refused client is asked to wait: about what a body of 60 MB needs


class BodyRoom:
    """The bytes of all bodies that are held, from before they are read to the end of the request.
    Waiting bodies get room in the order of arrival, but one that fits does not wait for a larger
    one that does not. A body larger than all the room is let through when no other is held."""

    def __init__(self) -> None:
        self._held = 0
        self._waiting: dict[asyncio.Future[None], tuple[BodyShare, int]] = {}

    def share(self, settings: ServerSettings) -> BodyShare:
        """One request's part of the room; nothing yet. Use it as a context, which gives it back."""
        return BodyShare(self, settings)

    def _take(self, share: BodyShare, size: int) -> bool:
        """Let a share be `size` bytes if there is room for that."""
        others = self._held - share.size
        if others and others + size > share.limit:
            return False
        self._held = others + size
        share.size = size
        return True

    def _give_back(self, share: BodyShare) -> None:
        self._held -= share.size
        share.size = 0
        for turn, (waiting, size) in list(self._waiting.items()):
            if not turn.done() and self._take(waiting, size):
                turn.set_result(None)

    async def _grow(self, share: BodyShare, size: int) -> None:
        if not share.limit or self._take(share, size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = share, size
        try:
            async with asyncio.timeout(share.wait_s):
                await turn
        except TimeoutError:
            raise Overloaded(
                f"request bodies of {self._held / 2**20:.0f} MiB are in flight, of at most "
                f"{share.limit / 2**20:g} MiB (server.max_bytes_in_flight_mb)",
                status=503,
                headers=(("retry-after", str(_RETRY_S)),),
            ) from None
        finally:
            del self._waiting[turn]


class BodyShare:
    """The room that one request has; its limits are those of the config it began with."""

    def __init__(self, room: BodyRoom, settings: ServerSettings) -> None:
        self._room = room
        self.limit = int(settings.max_bytes_in_flight_mb * 2**20)
        self.wait_s = settings.body_wait_s
        self.size = 0

    async def grow(self, size: int) -> None:
        """Have room for `size` bytes, after waiting for it if need be. Raises: Overloaded: there
        was none within `server.body_wait_s`."""
        if size > self.size:
            await self._room._grow(self, size)

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(self, *_: object) -> None:
        self._room._give_back(self)


Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

WriteNow = Callable[[bytes], bool]
"""Writes a piece of an answer at once, and tells whether more may be written: not when the client
is slow or gone. b"" only asks; False for an answer that cannot be written so."""
OnGone = Callable[[Callable[[], None]], None]
"""Takes a function to call when the client has disconnected before its answer is complete; it calls
it at once for a client that has."""
WRITE_NOW, ON_GONE = "gateway.write_now", "gateway.on_gone"
"""Where a scope's extensions have its `WriteNow` and `OnGone`, if the server has them."""
SOCKET = "gateway.socket"
"""The key of a scope's extensions under which a message of a WebSocket has its connection."""


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
    Raises: BodyTooLarge: over the limit; before reading, when the length is declared. Overloaded:
    there was no room for it. ClientGone: the client disconnected before the end."""
    started = time.perf_counter()
    parts, size, more = list[bytes](), int(header(headers, b"content-length") or 0), True
    _check_size(size, limit)
    if share is not None:
        await share.grow(size)
    size = 0
    # Not by `_body_chunks`: an asynchronous generator is registered with the loop.
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


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    """A piece of the body, and whether more of it comes. Raises: ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), bool(message.get("more_body"))


class Upload:
    """A body that is forwarded while it arrives; raises like `read_body`. `ended` is set at its
    end; `error` is what cut it short, if anything did."""

    def __init__(self, headers: RawHeaders, receive: Receive, limit: int) -> None:
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
    _check_size(int(header(headers, b"content-length") or 0), limit)
    size, more = 0, True
    while more:
        chunk, more = await _next_chunk(receive)
        size += len(chunk)
        _check_size(size, limit)
        if chunk:
            yield chunk


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise BodyTooLarge(
            f"the body is larger than {limit / 2**20:g} MiB (server.max_body_mb)", param="body"
        )


@dataclass(eq=False)
class DisconnectWatch:
    """Cancels the block as soon as the client disconnects. Enter it when the body has been read;
    with `upload`, watching starts when the upload has ended, because two readers would take each
    other's messages. Without `on_gone` a task waits for the client's messages. Raises: ClientGone:
    instead of the cancellation."""

    receive: Receive
    exchange: Exchange
    upload: Upload | None = None
    on_gone: OnGone | None = None
    _task: asyncio.Task[Any] | None = field(default=None, init=False)
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


_CODING: Final = b"content-encoding"
_PIECE_BYTES: Final = 4096
"""So much is unpacked at a time to find the size: at most a thousand times as much (RFC 1951)."""
_FREE_BYTES: Final = 2**20
_MOST_RATIO: Final = 200
"""Histories of agents shrink to a fifth or a tenth, one of equal steps of 15 kB to an 80th, in zstd
to a 42nd if each has ids and reasoning of its own, as Codex's have, else to a 400th. What unpacks
to more was made to cost the reader a thousand times what it costs the sender."""


def coding_of(headers: RawHeaders) -> bytes:
    """The coding that compresses the body, in lower case; empty for a plain body."""
    values = [value for name, value in headers if name == _CODING]
    named = b", ".join(values).strip().lower() if values else b""
    return b"" if named == b"identity" else named


async def unpacked(
    content: bytes, coding: bytes, limit: int, share: BodyShare
) -> PackedBody | None:
    """The body with its plain bytes; None for one in another coding, one that is broken or cut, and
    one that would unpack to more than `limit` bytes or to 200 times its size. Raises: Overloaded:
    there was no room for the plain bytes beside the others."""
    codings = codings_of(coding) if coding else []
    if not codings:
        return PackedBody(content=content, coding=coding, plain=_as_utf8(content))
    if unreadable(codings):
        return None
    try:
        limit = min(limit, _FREE_BYTES + _MOST_RATIO * len(content))
        size = await asyncio.to_thread(_plain_size, content, codings, limit)
        if size is None:
            return None
        await share.grow(len(content) + size)
        plain = await asyncio.to_thread(Unpacker(codings).decompress, content, limit)
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


def _plain_size(content: bytes, codings: list[bytes], limit: int) -> int | None:
    """Bytes of the whole body when unpacked; None when it is cut, or larger than `limit`. Raises:
    zlib.error when it is something else."""
    unpacker, size = Unpacker(codings), 0
    for at in range(0, len(content), _PIECE_BYTES):
        size += len(unpacker.decompress(content[at : at + _PIECE_BYTES], limit + 1 - size))
        if size > limit:
            return None
    return None if unpacker.cut or not size else size


def raw_path_of(scope: Scope) -> str:
    """The path as the client sent it, percent-encoded and without the query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.split(b"?")[0].decode("ascii", "replace")


async def send_json(send: Send, status: int, payload: Any) -> None:
    """Send one JSON answer."""
    await send_bytes(send, status, orjson.dumps(payload), b"application/json")


async def send_bytes(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    """Send one answer of any media type."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def asks_for_websocket(headers: RawHeaders) -> bool:
    """Whether the client wants to speak WebSocket from here on."""
    asked = b",".join([value for name, value in headers if name == b"upgrade"]).lower()
    return b"websocket" in map(bytes.strip, asked.split(b","))


def refuse_websocket(headers: RawHeaders) -> None:
    """Refuse a request for a WebSocket; `Upgrade` names what is spoken instead. Source: RFC 9110
    sections 7.8 and 15.5.22. Raises: GatewayError: status 426."""
    if asks_for_websocket(headers):
        raise GatewayError(
            "WebSocket is not offered on this route; use HTTP",
            status=426,
            type="invalid_request_error",
            code="websocket_not_supported",
            headers=(("upgrade", "HTTP/1.1"), ("connection", "Upgrade")),
            label="upgrade_refused",
        )
