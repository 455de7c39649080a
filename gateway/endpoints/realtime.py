"""`/v1/realtime`: a WebSocket to the model's upstream, whose frames are relayed untouched.

Nothing in it is steered or recorded: it is a live audio session, not a list of messages."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar
from urllib.parse import parse_qs, quote

from gateway.auth.authenticator import Authenticator
from gateway.auth.keys import Principal
from gateway.budget_interface import CallBody
from gateway.endpoints.body import Receive, Scope, Send, raw_path_of, send_whole
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.rights_without_keys import rights
from gateway.endpoints.unknown_routes import asks_for_websocket, refuse_websocket
from gateway.errors import NotFound
from gateway.exchange import Exchange
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.tasks import spawn
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall, outgoing_headers, refuse_loop, target_url
from gateway.upstream.websocket import Handshake, Streams, open_websocket
from gateway.wire.headers import RawHeaders, end_to_end

# The extension of an ASGI scope under which the server offers the client's connection itself.
HAND_OVER = "gateway.hand_over"
_PIECE_BYTES = 2**16
# After one side has ended, the other may finish for so long: a WebSocket is closed by a frame each
# way (RFC 6455 section 7.1.1), the second of which crosses the end of the first.
LAST_WORDS_S = 5.0


async def tunnel(one: Streams, other: Streams) -> tuple[int, int]:
    """Relay both ways; how many bytes went from `one` to `other`, and back. Both connections are
    closed at the end, also when the task is cancelled. A peer that vanished without a word is
    noticed by the kernel's keep-alive probes."""
    moved = [0, 0]
    ways = [
        spawn(_pipe(one[0], other[1], moved, way=0)),
        spawn(_pipe(other[0], one[1], moved, way=1)),
    ]
    try:
        _, unfinished = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if unfinished:
            await asyncio.wait(unfinished, timeout=LAST_WORDS_S)
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
    with suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            moved[way] += len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _probe(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


PATHS = ("/v1/realtime", "/realtime")

ASGIHandler = Callable[[Scope, Receive, Send], Awaitable[None]]
Talk = Callable[[Handshake, Streams], Awaitable[None]]


class RealtimeEndpoint:
    """Relays WebSockets; a request for anything else is passed through."""

    route = "passthrough"
    path = "/realtime"
    # statuses of a refusal after which the client is to use HTTP
    refused_as_http: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, runtime: Runtime, auth: Authenticator, anything: ASGIHandler):
        self._runtime = runtime
        self._auth = auth
        self._rights = rights()
        self._anything = anything

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hand_over = scope.get("extensions", {}).get(HAND_OVER)
        headers: RawHeaders = scope["headers"]
        if hand_over is None or not asks_for_websocket(headers):
            await self._anything(scope, receive, send)
            return
        exchange: Exchange = scope[EXCHANGE]
        exchange.route = self.route
        with self._runtime.services.in_use() as services:
            refuse_loop(headers, services.dispatcher.instance)
            principal = self._auth.principal(scope)
            exchange.request.tenant = principal.tenant
            exchange.request.key = principal.key
            seats = services.table.seats
            seat = seats.of(raw_path_of(scope), headers, exchange.request.path)
            call = UpstreamCall(
                method="GET",
                path=self.path if seat is None else seat.path,
                seat=seat,
                headers=headers,
                key_headers=principal.key_headers,
                query=scope["query_string"],
            )
            target, talk = await self._admit(services, scope, principal, call=call)
            answer = await _ask(services, exchange, call, target=target)
        if answer.status in self.refused_as_http:
            refuse_websocket(headers)
        if answer.streams is None:
            await _relay_refusal(answer, send)
        else:
            await talk(answer, hand_over())

    async def _admit(
        self, services: Services, scope: Scope, principal: Principal, call: UpstreamCall
    ) -> tuple[Target, Talk]:
        """The upstream of a client that may connect, asked for the model by the upstream's name,
        and what is done once it has accepted."""
        exchange: Exchange = scope[EXCHANGE]
        await self._rights.require_right(self._runtime, services, principal, call=call)
        exchange.request.model = model = parse_qs(call.query.decode("latin-1")).get("model", [""])[
            0
        ]
        self._rights.require_models(services, principal, {"model": model})
        native = [target for target in services.table.resolve(model) if target.lane == "native"]
        if not native:
            raise NotFound(
                f"no deployment of {model!r} is reached without translation, which /realtime needs"
            )
        if services.budgets is not None:
            body = CallBody(fields={}, raw=b"", answers=False, counted="", route=self.path)
            counted = await services.budgets.pass_on(services, exchange, call, body=body)
            if counted is not None:  # as one call: what crosses is not read
                await counted.count()
        target = native[0].for_client(None, "", call.seat)
        if target.model is not None:
            rest = [part for part in call.query.split(b"&") if not part.startswith(b"model=")]
            call.query = b"&".join([b"model=" + quote(target.model, safe="").encode(), *rest])
            exchange.upstream.model = target.model
        return target, partial(relay_frames, exchange)


async def _ask(
    services: Services, exchange: Exchange, call: UpstreamCall, target: Target
) -> Handshake:
    """The upstream's answer to the client's request for a WebSocket."""
    exchange.upstream.lane = "native"
    exchange.upstream.deployment = target.name
    url = target_url(target.api_base, call.path, call.query)
    out = outgoing_headers(call, target, services.dispatcher.instance)
    started = time.perf_counter()
    try:
        return await open_websocket(url, out, services.settings.timeouts)
    finally:
        exchange.timing.waited_s += time.perf_counter() - started


async def _relay_refusal(answer: Handshake, send: Send) -> None:
    """The upstream's own error, as an ordinary answer."""
    lower = [(name.lower(), value) for name, value in answer.headers]
    headers = [h for h in end_to_end(lower) if h[0] != b"content-length"]
    await send_whole(send, answer.status, headers, body=answer.body)


def accept(exchange: Exchange, answer: Handshake, client: Streams) -> Streams:
    """Give the client the upstream's consent; the frames of the upstream."""
    assert answer.streams is not None
    for _, writer in (client, answer.streams):
        _probe(writer)
    exchange.response.status = answer.status
    exchange.timing.stop_overhead()
    client[1].write(answer.head([(b"x-request-id", exchange.request.id.encode())]))
    return answer.streams


async def relay_frames(exchange: Exchange, answer: Handshake, client: Streams) -> None:
    """Pass all bytes on as they are."""
    upstream = accept(exchange, answer, client)
    started = time.perf_counter()
    try:
        sent, received = await tunnel(client, upstream)
        exchange.notes |= {"bytes_sent": sent, "bytes_received": received}
    finally:
        exchange.timing.waited_s += time.perf_counter() - started
