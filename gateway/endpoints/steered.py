"""The steered endpoint: chat completions, Responses and Messages, each in its own dialect."""

from __future__ import annotations

import orjson

from gateway.dialects import Dialect
from gateway.endpoints.auth import Authenticator
from gateway.endpoints.body import DisconnectWatch, Receive, Scope, Send, read_body
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.loops import refuse_loop
from gateway.endpoints.passthrough import PassThrough
from gateway.endpoints.relay import Relay, answer, readable
from gateway.exchange import Exchange
from gateway.pipeline import Pipeline
from gateway.runtime import Runtime
from gateway.upstream.base import RawHeaders, header

_ROUTES = {"chat": "chat_completions"}
"""Dialect -> its label in metrics, where that is not its name."""


class SteeredEndpoint:
    """Reads one request, lets the pipeline prepare and send it, relays the answer."""

    def __init__(
        self,
        runtime: Runtime,
        pipeline: Pipeline,
        auth: Authenticator,
        dialect: Dialect,
        unread: PassThrough,
    ) -> None:
        self._runtime = runtime
        self._pipeline = pipeline
        self._auth = auth
        self._unread = unread
        self._dialect = dialect
        self._route = _ROUTES.get(dialect.name, dialect.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[EXCHANGE]
        exchange.error_body = self._dialect.error_body
        headers: RawHeaders = scope["headers"]
        if header(headers, b"content-encoding").lower() not in (b"", b"identity"):
            await self._unread(scope, receive, send)  # the upstream may know how to read it
            return
        exchange.route = self._route
        with self._runtime.services.in_use() as services:
            refuse_loop(headers, services.dispatcher.instance)
            principal = self._auth.principal(headers)
            exchange.tenant = principal.tenant
            limit = int(services.settings.server.max_body_mb * 2**20)
            raw = await read_body(headers, receive, exchange, limit)
            known = services.index.known_prefix(exchange.tenant, raw, self._dialect.list_key)
            request = self._dialect.parse(raw, orjson.loads, known)
            exchange.model, exchange.streamed = request.model, request.stream
            async with DisconnectWatch(receive, exchange) as watch:
                prepared = await self._pipeline.prepare(services, exchange, request, headers)
                outgoing = headers
                if prepared.hides_usage or (prepared.steered and prepared.steered.applies):
                    outgoing = readable(headers, plain=prepared.hides_usage)
                call = prepared.call(outgoing, scope["query_string"], principal.key_headers)
                server = services.settings.server
                relay = Relay(send, exchange, watch, prepared.complete, server, self._dialect)
                try:
                    response = await self._pipeline.send(services, exchange, prepared, call)
                    try:
                        await answer(relay, response, request.stream, prepared.hides_usage)
                    finally:
                        await response.aclose()
                finally:
                    prepared.abandon(relay.seen)
