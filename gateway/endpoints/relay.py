"""Relays the upstream's answer to the client, streamed or whole; a broken one is made visible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.config import ServerSettings
from gateway.dialects import Dialect
from gateway.endpoints.body import DisconnectWatch, Send
from gateway.errors import GatewayError, ShuttingDown, UpstreamFailure, UpstreamMalformed
from gateway.exchange import Exchange
from gateway.tasks import spawn
from gateway.upstream.base import LaneResponse, RawHeaders, header
from gateway.wire.parsing import parse_object
from gateway.wire.response_tee import READABLE, ResponseWatch, UsageFilter, stream_watch
from gateway.wire.sse import encode_comment


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """The upstream's complete answer; None for what could not be read."""

    completion: dict[str, Any] | None
    usage: dict[str, Any] | None
    pending_id: str | None = None
    """The id of an answer that is made in the background and not complete yet."""

    unread: bool = False
    """Whether it had an encoding or a size that the gateway does not read."""


Complete = Callable[[UpstreamReply], Awaitable[None]]
"""Called when the answer is complete, before the client gets its last byte."""

Delivered = Callable[[], None]
"""Called when the client has been sent the whole answer: of a stream, its end marker."""


class Relay:
    """Relays one answer. `complete` runs exactly once for an answer that arrived completely."""

    def __init__(
        self,
        send: Send,
        exchange: Exchange,
        watch: DisconnectWatch,
        complete: Complete,
        server: ServerSettings,
        dialect: Dialect,
        delivered: Delivered | None = None,
    ) -> None:
        self._send = send
        self._exchange = exchange
        self._disconnect = watch
        self._complete = complete
        self._delivered = delivered or _unnoted
        self._dialect = dialect
        self._limit = int(server.max_buffered_response_mb * 2**20)
        self._keepalive_s = server.sse_keepalive_s
        self._watch: ResponseWatch | None = None

    def seen(self) -> bytes:
        """The bytes of a stream so far, decompressed; empty when it cannot be read."""
        return self._watch.content if self._watch is not None else b""

    async def stream(self, response: LaneResponse, usage_filter: UsageFilter | None) -> None:
        """Relay an event stream, chunk by chunk.

        The chunk with the end marker waits for `complete`. A stream that breaks off, or ends with
        neither an end marker nor a finish reason, gets an error event and no proper end.
        """
        encoding = header(response.headers, b"content-encoding")
        watch = self._watch = stream_watch(encoding, self._limit, self._dialect.end)
        if plain := encoding in (b"", b"identity"):
            chunks = self._with_keepalive(response) if self._keepalive_s else response
        else:
            usage_filter, chunks = None, response  # compressed bytes cannot be edited
        await self._start(response, (b"content-length",))
        completed = False
        try:
            async for chunk in chunks:
                watch.feed(chunk)
                out = usage_filter.feed(chunk) if usage_filter else chunk
                if watch.ended and not completed:
                    completed = await self._try_complete(watch, response)
                if out:
                    await self._body(out)
                if completed:
                    self._delivered()
            if not completed:
                await self._finish_unmarked(watch, response)
        except UpstreamFailure as exc:
            if not completed:
                await self._break_off(exc, visible=plain)
                return
        except asyncio.CancelledError:
            if not (completed or self._exchange.response.client_gone):
                await self._break_off(ShuttingDown(), visible=plain)
            raise
        rest = usage_filter.flush() if usage_filter else b""
        await self._body(rest, last=True)
        self._delivered()

    async def whole(self, response: LaneResponse) -> None:
        """Relay a body that is not a stream; `complete` runs before its first byte is sent.

        Raises:
            UpstreamMalformed: the answer is successful but not a JSON object.
        """
        watch = ResponseWatch(header(response.headers, b"content-encoding"), self._limit)
        chunks: list[bytes] = []
        iterator = response.__aiter__()
        size = 0
        began = time.perf_counter()
        async for chunk in iterator:
            watch.feed(chunk)
            chunks.append(chunk)
            size += len(chunk)
            if size > self._limit:
                break
        else:
            self._exchange.timing.waited_s += time.perf_counter() - began
            if response.status < 300:
                await self._complete(_reply(self._dialect, response, watch))
            await self._start(response, ())
            await self._body(b"".join(chunks), last=True)
            self._delivered()
            return
        await self._complete(UpstreamReply(completion=None, usage=response.usage, unread=True))
        await self._relay_rest(response, chunks, iterator)

    async def _relay_rest(
        self, response: LaneResponse, chunks: list[bytes], rest: AsyncIterator[bytes]
    ) -> None:
        await self._start(response, ())
        await self._body(b"".join(chunks))
        async for chunk in rest:
            await self._body(chunk)
        await self._body(b"", last=True)

    async def _try_complete(self, watch: ResponseWatch, response: LaneResponse) -> bool:
        read = self._dialect.read_stream(watch.content, orjson.loads)
        if not read.ended:
            watch.ended = False
            return False
        usage = response.usage or read.usage
        await self._complete(UpstreamReply(completion=read.completion, usage=usage))
        return True

    async def _finish_unmarked(self, watch: ResponseWatch, response: LaneResponse) -> None:
        """Handle a stream without an end marker: a cut one, or an upstream that sends none."""
        if watch.opaque:
            await self._complete(UpstreamReply(completion=None, usage=response.usage, unread=True))
            return
        read = self._dialect.read_stream(watch.content, orjson.loads)
        if not (read.ended or read.accepted):
            raise UpstreamMalformed("the upstream's stream ended without a finish reason")
        usage = response.usage or read.usage
        await self._complete(UpstreamReply(completion=read.completion, usage=usage))

    async def _break_off(self, exc: GatewayError, *, visible: bool) -> None:
        """Send one error event, and close the connection without the end of the body.

        Many clients take a stream that simply ends for a complete one.
        """
        self._exchange.response.error = exc.label
        if visible:
            await self._body(b"\n\n" + self._dialect.error_event(exc))

    async def _with_keepalive(self, response: LaneResponse) -> AsyncIterator[bytes]:
        iterator = response.__aiter__()
        at_boundary = True
        while True:
            pending = spawn(_next(iterator))
            try:
                while not (await asyncio.wait({pending}, timeout=self._keepalive_s))[0]:
                    if at_boundary:
                        await self._body(encode_comment("keep-alive"))
            except BaseException:
                pending.cancel()
                await asyncio.wait(
                    {pending}
                )  # the response is closed next, which must not happen during a read
                raise
            chunk = pending.result()
            if not chunk:
                return
            at_boundary = chunk.endswith((b"\n\n", b"\r\n\r\n"))
            yield chunk

    async def _start(self, response: LaneResponse, drop: tuple[bytes, ...]) -> None:
        headers: RawHeaders = [h for h in response.headers if h[0] not in drop]
        self._exchange.start_response()
        await self._send(
            {"type": "http.response.start", "status": response.status, "headers": headers}
        )

    async def _body(self, body: bytes, *, last: bool = False) -> None:
        if last:
            self._disconnect.stop()
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})


def _unnoted() -> None:
    """Nobody asks whether this answer was delivered."""


async def _next(iterator: AsyncIterator[bytes]) -> bytes:
    return await anext(iterator, b"")


def _reply(dialect: Dialect, response: LaneResponse, watch: ResponseWatch) -> UpstreamReply:
    if watch.opaque:
        return UpstreamReply(completion=None, usage=response.usage, unread=True)
    try:
        body = parse_object(watch.content, orjson.loads)
    except Exception as exc:
        raise UpstreamMalformed(
            f"the upstream answered {response.status} with a body that is not a JSON object"
        ) from exc
    usage = body.get("usage")
    return UpstreamReply(
        completion=dialect.read_answer(body),
        usage=response.usage or (usage if isinstance(usage, dict) else None),
        pending_id=dialect.pending_id(body),
    )


def readable(headers: RawHeaders, *, plain: bool) -> RawHeaders:
    """`headers` with an `accept-encoding` that the gateway can read, or, with `plain`, edit."""
    out = []
    for name, value in headers:
        if name == b"accept-encoding":
            offers = [] if plain else value.split(b",")
            kept = [o.strip() for o in offers if o.split(b";")[0].strip().lower() in READABLE]
            value = b", ".join(kept) or b"identity"
        out.append((name, value))
    return out


async def answer(
    relay: Relay, response: LaneResponse, asked_for_stream: bool, asked_usage: bool
) -> None:
    """Relay an answer as a stream or as a whole body, whichever it is.

    `asked_usage`: whether the gateway asked for the usage chunk, which the client does not expect.
    """
    if is_event_stream(response, asked_for_stream):
        await relay.stream(response, UsageFilter(orjson.loads) if asked_usage else None)
    else:
        await relay.whole(response)


def is_event_stream(response: LaneResponse, asked: bool) -> bool:
    """Whether a successful answer consists of server-sent events.

    An answer to a streaming request that is not labelled JSON counts as such, as for clients.
    """
    kind = header(response.headers, b"content-type").lower()
    if response.status >= 300:
        return False
    return kind.startswith(b"text/event-stream") or (asked and b"json" not in kind)
