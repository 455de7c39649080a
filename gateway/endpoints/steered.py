"""The steered endpoint: chat completions, Responses and Messages, each in its own dialect."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import orjson
from msgspec.structs import replace

from gateway.auth.authenticator import Authenticator
from gateway.buffered_bytes import SMALL_BYTES, Room, Share
from gateway.calls.call import Call
from gateway.dialects import Dialect, SteeredRequest
from gateway.dialects.base import Addressed
from gateway.dialects.envelopes import AnswerEnvelope, opened
from gateway.endpoints.body import (
    ON_GONE,
    SOCKET,
    WRITE_NOW,
    DisconnectWatch,
    Receive,
    Scope,
    Send,
    raw_path_of,
    read_body,
)
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.relay import Relay
from gateway.endpoints.rights_without_keys import Rights, rights
from gateway.endpoints.unpacking_threads import unpacked
from gateway.errors import GatewayError, NotFound, Overloaded
from gateway.exchange import Exchange
from gateway.pipeline import Pipeline
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.tasks import reading
from gateway.upstream.dispatch import PackedBody, UpstreamCall, refuse_loop
from gateway.wire.body_prefix import BodyPrefix
from gateway.wire.headers import RawHeaders, coding_of, without
from gateway.wire.parsing import has_more_items, parsed_bytes
from gateway.wire.request import BIG_BYTES

# New messages, parts and tools that are always read, and the bytes of a body for each further one:
# to steer one costs 5 us of the event loop and 250 bytes, though two bytes are enough to send it.
# 3,500 take 18 ms; a model that reads a million tokens reads fewer.
_MOST_ITEMS = 2000
_ITEM_BYTES = 64
_MOST_FURTHER = 1500
# Pause between two parts of a long history: as long as a part takes, in seconds.
_PAUSE_S = 0.002


@dataclass(eq=False)
class SteeredEndpoint:
    """Reads one request, has the pipeline prepare and send it, and relays the answer."""

    runtime: Runtime  # what lives as long as the process
    pipeline: Pipeline  # steers and sends
    auth: Authenticator  # who the caller is
    dialect: Dialect  # API of the route
    room: Room  # for the bytes of bodies
    rights: Rights = field(default_factory=rights)  # of the caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[EXCHANGE]
        exchange.route = self.dialect.route
        exchange.response.error_body = self.dialect.error_body
        headers: RawHeaders = scope["headers"]
        in_use = self.runtime.services.in_use()
        with in_use as services, Share(self.room, services.settings.server) as share:
            refuse_loop(headers, services.dispatcher.instance)
            principal = self.auth.principal(scope)
            tenant = principal.tenant
            exchange.request.tenant = tenant
            exchange.request.key = principal.key
            if principal.terms is not None:
                exchange.request.labels = principal.terms.labels()
            share.key = principal.key
            path = raw_path_of(scope)
            seat = services.table.seats.of(path, headers, exchange.request.path)
            query = scope["query_string"]
            asked = self.dialect.addressed(path)
            asked = asked and replace(asked, query=query)
            if asked is None and ("{" in self.dialect.path or scope["path_params"]):
                raise NotFound("letters of this path are percent-encoded: its model is not read")
            self.rights.require_route(
                services, principal, self.dialect.path if asked is None else path
            )
            limit = int(services.settings.server.max_body_mb * 2**20)
            offers = scope.get("extensions", {})
            socket = offers.get(SOCKET)  # which has the room of its messages
            raw = await read_body(
                headers, receive, exchange, limit=limit, share=None if socket else share
            )
            coding = coding_of(headers)
            packed: PackedBody | None = PackedBody(content=raw, coding=coding, plain=raw)
            if coding or raw[:1] != b"{" or raw[1:2] == b"\0":  # not simply JSON in UTF-8
                packed = await unpacked(raw, coding, limit, share=share)
            if packed is None:
                request = self.dialect.opaque(raw, asked)  # the upstream may know the coding
            else:
                if packed.coding:
                    headers = without(headers, (b"content-encoding",))
                request = await self._parse(
                    services, tenant, packed.plain, asked=asked, share=share, waits=socket is None
                )
            request.pause = partial(share.give_way, _PAUSE_S)
            if socket is not None:
                socket.prepare(request)
            exchange.request.model = request.model
            exchange.request.streamed = request.stream
            async with DisconnectWatch(receive, exchange, on_gone=offers.get(ON_GONE)) as watch:
                call = Call(request=request, services=services, tenant=tenant, exchange=exchange)
                await self.pipeline.prepare(call, headers, principal.terms)
                sending = call.upstream_call(headers, query, principal.key_headers, seat=seat)
                sending.packed = packed
                if socket is not None:
                    socket.bind(call, sending)
                await self.rights.require_own(
                    self.runtime, services, principal, call=sending, request=request
                )
                recorder = self.pipeline.recorder
                relay = Relay(
                    send=send,
                    exchange=exchange,
                    disconnect=watch,
                    complete=partial(recorder.complete, call),
                    server=services.settings.server,
                    dialect=self.dialect,
                    delivered=call.note_delivered,
                    write=offers.get(WRITE_NOW),
                    share=share,
                )
                if request.stream and socket is None and self.dialect.ping:
                    exchange.response.begin = relay.begin
                if len(raw) > SMALL_BYTES:
                    await share.give_way()
                try:
                    await self._answer(call, sending, relay)
                except GatewayError as exc:
                    if not exchange.response.begun:
                        raise
                    await relay.break_off(exc)
                finally:  # however the call ends, it is recorded
                    relay.stop_pings()
                    recorder.end(call, relay.seen)
                    if call.sent:
                        recorder.keep_raw(call, relay.received)

    async def _answer(self, call: Call, sending: UpstreamCall, relay: Relay) -> None:
        response = await self.pipeline.send(call, sending)
        echo = call.echo()
        if sending.enveloped and call.target is not None and not call.target.seat:
            echo = AnswerEnvelope()
        try:
            await relay.answer(response, call.request.stream, call.asked_usage, echo=echo)
        finally:
            await response.aclose()

    async def _parse(
        self,
        services: Services,
        tenant: str,
        raw: bytes,
        *,
        asked: Addressed | None,
        share: Share,
        waits: bool,
    ) -> SteeredRequest:
        """The request; without its messages, where these are too much to read, or their values find
        no room: it waits for that at most `steering.max_wait_ms`, since answers may hold it for
        minutes, and not at all where the room of a socket's message is held meanwhile."""
        if asked is not None and asked.enveloped:
            asked = inside = await reading(partial(opened, asked), raw, orjson.loads)
            raw = inside.body
        known = services.index.bodies.longest(tenant, raw, self.dialect.list_key)
        new_from = 0
        if known is not None:
            new_from = known.end
        size = len(raw)
        steering = services.settings.steering
        fits = size - new_from <= steering.max_new_mb * 2**20
        if fits and size < BIG_BYTES and raw.count(b",", new_from) < _MOST_ITEMS:
            return self.dialect.read(raw, orjson.loads, known, addressed=asked)
        memory = None
        if fits:
            memory = await reading(parsed_bytes, raw, new_from)
        if memory is not None:
            try:
                async with asyncio.timeout(waits * steering.max_wait_ms / 1000):
                    await share.grow(share.size + memory)
            except (TimeoutError, Overloaded):
                memory = None
        if memory is None:
            return await reading(self.dialect.skim, raw, orjson.loads, asked)
        return await reading(self._parse_big, raw, known, asked)

    def _parse_big(
        self, raw: bytes, known: BodyPrefix | None, asked: Addressed | None
    ) -> SteeredRequest:
        request = self.dialect.read(raw, orjson.loads, known, addressed=asked)
        request.large = True
        rest = dict(request.body)
        listed = rest.pop(self.dialect.list_key, None)
        most = _MOST_ITEMS + min(len(raw) // _ITEM_BYTES, _MOST_FURTHER)
        # Of the other lists nothing is gone through but their items: of tools, not their schemas.
        most -= sum([len(value) for value in rest.values() if isinstance(value, list)])
        if has_more_items(getattr(listed, "new", listed), most):
            return self.dialect.skim(raw, orjson.loads, asked)
        # What fails here fails again while the request is steered, where that is handled.
        with suppress(Exception):
            _ = request.prefix
        return request
