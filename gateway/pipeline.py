"""THE MAP: one request from its parsed body to its last byte."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from gateway.exchange import Exchange
from gateway.services import Services
from gateway.upstream.base import LaneResponse, RawHeaders
from gateway.upstream.dispatch import Call
from gateway.wire.request import ChatRequest, Splice


class ReplyView(Protocol):
    """A finished answer, as the relay hands it over."""

    @property
    def completion(self) -> dict[str, Any] | None: ...

    @property
    def usage(self) -> dict[str, Any] | None: ...


class Prepared:
    """A request with everything decided about it."""

    def __init__(self, exchange: Exchange, request: ChatRequest, path: str) -> None:
        self._exchange = exchange
        self._request = request
        self._path = path
        self.model = request.model
        self.hides_usage = False
        self._splices: list[Splice] = []

    def call(self, headers: RawHeaders, query: bytes, key_header: bytes | None) -> Call:
        """The request on its way out."""
        return Call(
            method="POST",
            path=self._path,
            headers=headers,
            query=query,
            key_header=key_header,
            body=self._body,
            parsed=self._parsed,
            attempts=self._exchange.attempts,
        )

    async def complete(self, reply: ReplyView) -> None:
        """The answer is whole, and the client has not had its last byte yet."""
        self._exchange.usage = reply.usage

    def _body(self, model: str | None) -> bytes:
        wanted = model or self.model
        self._exchange.model_asked = wanted
        return self._request.render(self._request.with_model(wanted) + self._splices)

    def _parsed(self, model: str | None) -> Mapping[str, Any]:
        self._exchange.model_asked = model or self.model
        return self._request.body


class Pipeline:
    """Prepares requests and sends them."""

    async def prepare(
        self,
        services: Services,
        exchange: Exchange,
        request: ChatRequest,
        headers: RawHeaders,
    ) -> Prepared:
        """Everything that is decided before the request goes out."""
        return Prepared(exchange, request, "/chat/completions")

    async def send(
        self, services: Services, exchange: Exchange, prepared: Prepared, call: Call
    ) -> LaneResponse:
        """The upstream's answer, its headers read and its body still to come.

        Raises:
            UpstreamFailure: no answer.
        """
        started = time.perf_counter()
        try:
            delivery = await services.dispatcher.send(call, prepared.model)
        finally:
            exchange.waited_s += time.perf_counter() - started
        exchange.first_byte_s = time.perf_counter() - exchange.started
        exchange.lane, exchange.deployment = delivery.target.lane, delivery.target.name
        exchange.headers += [
            (b"x-gateway-model", exchange.model_asked.encode("utf-8", "replace")),
            (b"x-gateway-attempts", str(len(call.attempts)).encode()),
        ]
        return delivery.response
