"""Every other `/v1/*` route: forwarded unchanged in both directions, streaming included."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator

import orjson
from msgspec import Struct

from gateway.auth.authenticator import Authenticator
from gateway.auth.keys import Principal
from gateway.budget_interface import CallBody
from gateway.buffered_bytes import SMALL_BYTES, Room, Share
from gateway.calls.recorder import Recorder
from gateway.dialects import DIALECTS, RESPONSES
from gateway.endpoints.body import (
    DisconnectWatch,
    Receive,
    Scope,
    Send,
    Upload,
    raw_path_of,
    read_body,
)
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.relay import Relay
from gateway.endpoints.rights_without_keys import rights
from gateway.endpoints.unknown_routes import refuse_trace, refuse_websocket
from gateway.errors import BadRequest, NotFound, UpstreamFailure
from gateway.exchange import Exchange, UpstreamReply
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.identity import conversation_id, identify
from gateway.tasks import reading
from gateway.upstream.base import LaneResponse
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall, outgoing_headers, refuse_loop, target_url
from gateway.upstream.native import StaleConnection
from gateway.wire.echo import EchoFilter
from gateway.wire.headers import RawHeaders, header, readable
from gateway.wire.parsing import parse_object, skim
from gateway.wire.request import BIG_BYTES, ChatRequest

_MEDIA_BYTES = 25  # of a picture or sound, for one of a text of as many tokens
_NAMES = (b'name="model"', b"name=model")
# What follows the name: a part of a form may have more headers before its text.
_AFTER_NAME = re.compile(rb"[^\r\n]*+\r?\n(?:[^\r\n]++\r?\n)*+\r?\n([^\r\n]{1,200}+)")
# Commas of a body that is read at once: reading a million of them takes 60 ms.
_MOST_COMMAS = 10_000
_MOST_NAMED = 16  # places of a name in a form; one with more names no model
_MOST_BYTES = 4096  # from a name to the end of the model; a form with a longer part names none

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_BELOW_ANSWER = re.compile(r"(?:/v1)?/responses/(?!compact$)([^/]+)")
_ABOUT_ANSWER = re.compile(r"(?:/v1)?/responses/([^/]+)(/cancel)?")


class PassThrough:
    """Forwards to the default upstream, or, for a JSON body naming one, to its deployment."""

    def __init__(self, runtime: Runtime, auth: Authenticator, room: Room):
        self._runtime = runtime
        self._room = room
        self._auth = auth
        self._rights = rights()
        self._answers = Recorder(runtime).answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[EXCHANGE]
        exchange.route = "passthrough"
        headers: RawHeaders = scope["headers"]
        refuse_trace(scope["method"])
        refuse_websocket(headers)
        in_use = self._runtime.services.in_use()
        with in_use as services, Share(self._room, services.settings.server) as share:
            refuse_loop(headers, services.dispatcher.instance)
            principal = self._auth.principal(scope)
            exchange.request.tenant = principal.tenant
            exchange.request.key = principal.key
            share.key = principal.key
            if principal.terms is not None:
                exchange.request.labels = principal.terms.labels()
            call = _call(services, scope, principal, exchange=exchange)
            limit = int(services.settings.server.max_body_mb * 2**20)
            if about := _BELOW_ANSWER.match(scope["path"]):
                await self._answers.learn(services, principal.tenant, about[1])
                call.at = self._runtime.stored_answers.targets.find(principal.tenant, about[1])
                if call.at is not None:
                    exchange.upstream.deployment = call.at.name
                else:
                    exchange.upstream.deployment = ""
            await self._rights.require_right(self._runtime, services, principal, call=call)
            asked, echo = self._stored_answer(principal.tenant, scope)
            if asked is not None or echo is not None:
                call.headers = readable(headers, plain=echo is not None)
            answering = _Answering(
                self._runtime, services, exchange, send=send, asked=asked, echo=echo
            )
            budgets = services.budgets
            how = ""
            if budgets is not None:
                how = budgets.counted_how(call.method, call.path, headers)
            content_type = header(headers, b"content-type")
            as_json = scope["method"] == "POST" and content_type.startswith(b"application/json")
            raw = b""
            upload = None
            if as_json or how not in ("", "free"):
                raw = await read_body(headers, receive, exchange, limit=limit, share=share)
            elif _has_body(headers):
                upload = Upload(headers, receive, limit)
            async with DisconnectWatch(receive, exchange, upload) as watch:
                read = await read_request(raw)
                if read is not None and call.seat is not None and call.seat.model:
                    read.model = read.body["model"] = call.seat.model  # not the body's
                if as_json:
                    await self._rights.require_own(
                        self._runtime, services, principal, call=call, request=read
                    )
                elif _has_body(headers):
                    self._rights.require_models(services, principal, None)
                named = None
                if read and isinstance(read.body.get("model"), str):
                    named = read
                if as_json and named is not None and call.dialect is not None:
                    call.conversation = _conversation(
                        services, principal.tenant, call, request=named
                    )
                if named:
                    exchange.request.model = named.model
                elif raw and not as_json:
                    exchange.request.model = await reading(form_model, raw)
                sent = CallBody(
                    fields=named.body if named else {},
                    raw=raw[: len(raw) // _MEDIA_BYTES] if how == "media" else raw,
                    answers=how != "input",
                    counted=how,
                    route=call.path,
                )
                counted = None
                if budgets is not None:
                    counted = await budgets.pass_on(services, exchange, call, body=sent)
                if upload is None:
                    request = None
                    if as_json:
                        request = named
                    sending = _send_json(services, exchange, call, raw=raw, request=request)
                else:
                    sending = _send_stream(services, exchange, call, upload=upload)
                if len(raw) > SMALL_BYTES:
                    await share.give_way()
                started = time.perf_counter()
                try:
                    response = await (counted.answer_of(sending, share) if counted else sending)
                finally:
                    exchange.timing.waited_s += time.perf_counter() - started
                await answering.relay(response, watch)

    def _stored_answer(self, tenant: str, scope: Scope) -> tuple[Asked | None, EchoFilter | None]:
        """The background answer that a request polls, cancels or deletes, and the filter that
        removes the guidance from a stored answer; None where there is none."""
        found = _ABOUT_ANSWER.fullmatch(scope["path"])
        if found is None:
            return None, None
        stored = self._runtime.stored_answers
        asked = (tenant, found[1])
        polls = (scope["method"] == "POST") == bool(found[2]) and asked in stored.pending
        return asked if polls else None, stored.echoes.find(*asked)


class _Answering(Struct):
    """Relays the answer to one request."""

    runtime: Runtime  # what lives as long as the process
    services: Services  # of the config that was in force when the request came
    exchange: Exchange  # the record of the request
    send: Send  # of ASGI
    # the background answer that the request polls, which is then recorded; None for others
    asked: Asked | None
    # puts the client's own instructions in place of those that the answer repeats; None: it repeats
    # none
    echo: EchoFilter | None

    async def relay(self, response: LaneResponse, watch: DisconnectWatch) -> None:
        """Give an answer to the client, and close it."""
        self.exchange.upstream.lane = "native"
        self.exchange.upstream.deployment = self.exchange.upstream.deployment or "default"
        try:
            concerned = self.asked is not None or self.echo is not None
            if concerned and response.status < 300 and self.exchange.request.method != "DELETE":
                settings = self.services.settings.server
                given = self.send, self.exchange, watch, self._complete, settings, RESPONSES
                await Relay(*given).answer(response, False, False, echo=self.echo)
            else:
                await self._pass_on(response, watch)
        finally:
            await response.aclose()

    async def _pass_on(self, response: LaneResponse, watch: DisconnectWatch) -> None:
        """Relay an answer unchanged."""
        if self.asked is not None and response.status < 300:
            # On record before the client has the last byte, like every call.
            await self.runtime.stored_answers.pending.settle(*self.asked, UpstreamReply())
        await _relay(response, self.send, self.exchange, watch=watch)

    async def _complete(self, reply: UpstreamReply) -> None:
        """Record the complete answer to a poll, before the client has its last byte."""
        if self.asked is not None and reply.pending_id is None and not reply.unread:
            self.exchange.upstream.bill(reply.usage)
            await self.runtime.stored_answers.pending.settle(*self.asked, reply)
            if reply.failure is not None:
                self.exchange.response.error = UpstreamFailure.label


Asked = tuple[str, str]  # tenant and id of a background answer


def _conversation(services: Services, tenant: str, call: UpstreamCall, request: ChatRequest) -> str:
    """Returns the id of the conversation that a call is about; its deployment answers the call."""
    named = {k.decode("latin-1"): v.decode("latin-1") for k, v in call.headers}
    known = identify(named, request.body, services.resolver.settings)
    if known.value is not None:
        return conversation_id(tenant, known.value)
    return ""


async def _send_json(
    services: Services,
    exchange: Exchange,
    call: UpstreamCall,
    raw: bytes,
    request: ChatRequest | None,
) -> LaneResponse:
    """Send a JSON body; it was read whole, to select a deployment by `model` and to retry."""
    model = request.model if request else ""

    def body(target: Target) -> bytes:
        if request is None or target.model is None:
            return raw
        exchange.upstream.model = target.model
        return request.render(request.with_model(target.model))

    call.body = body
    known = services.table.resolve(model)
    native = [t for t in known if t.for_dialect(call.dialect).lane == "native"]
    of_model = call.dialect and (not call.dialect.stores_answers or call.path.endswith("/compact"))
    if of_model and not native:
        raise NotFound(f"the upstream of {model!r} does not have {call.path}")
    alone = request is None or not native or native == [services.table.default]
    if alone or call.seat is not None:
        return await _to_keeper(services, exchange, call, content=raw)
    delivery = await services.dispatcher.send(call, model, native_only=True)
    target = delivery.target
    exchange.upstream.lane = target.lane
    exchange.upstream.deployment = target.name
    return delivery.response


async def _send_stream(
    services: Services, exchange: Exchange, call: UpstreamCall, upload: Upload
) -> LaneResponse:
    try:
        return await _to_keeper(services, exchange, call, content=upload)
    except UpstreamFailure:
        if upload.error is not None:
            raise upload.error from None  # to the transport it looks like a broken connection
        raise


async def _to_keeper(
    services: Services,
    exchange: Exchange,
    call: UpstreamCall,
    content: bytes | AsyncIterator[bytes],
) -> LaneResponse:
    """Returns the answer of the upstream that stores the object of the call. It is asked once. A
    call whose connection was closed while it was sent is repeated only if doing it twice has no
    further effect (RFC 9110, section 9.2.2)."""
    target = (call.at or services.table.default).for_client(call.dialect, call.api, call.seat)
    headers = outgoing_headers(call, target, services.dispatcher.instance)
    length = header(call.headers, b"content-length")
    if length and not isinstance(content, bytes):
        headers.append((b"content-length", length))
    url = target_url(target.api_base, call.path, call.query)
    if target.seat:
        sign = services.dispatcher.signer.signed
        refusal = call.instead_of_operator_key
        headers = await sign(target, call.method, url, headers, content, refusal)
    try:
        return await services.native.send(call.method, url, headers, content=content)
    except StaleConnection:
        # It was closed as the request was sent, which may have been executed all the same.
        if call.method not in _IDEMPOTENT or not isinstance(content, bytes):
            raise
    exchange.response.headers.append((b"x-gateway-attempts", b"2"))
    return await services.native.send(call.method, url, headers, content=content, fresh=True)


async def _relay(
    response: LaneResponse, send: Send, exchange: Exchange, watch: DisconnectWatch
) -> None:
    exchange.timing.stop_overhead()
    try:
        await send(
            {"type": "http.response.start", "status": response.status, "headers": response.headers}
        )
        async for chunk in response:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        watch.stop()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except UpstreamFailure as exc:
        # The status has been sent; the connection is closed early, as the upstream closed its own.
        exchange.response.error = exc.label
    finally:
        await response.aclose()


async def read_request(raw: bytes) -> ChatRequest | None:
    """The body if it is a JSON object; of a large one, only the small members are read."""
    try:
        if len(raw) < BIG_BYTES and raw.count(b",") < _MOST_COMMAS:
            return ChatRequest(raw, parse_object(raw, orjson.loads))
        body, spans = await reading(skim, raw, orjson.loads)
        return ChatRequest(raw, body, skimmed=spans)
    except BadRequest:
        return None  # the upstream decides what its own routes accept


def _has_body(headers: RawHeaders) -> bool:
    return header(headers, b"content-length") not in (b"", b"0") or bool(
        header(headers, b"transfer-encoding")
    )


def _call(
    services: Services, scope: Scope, principal: Principal, exchange: Exchange
) -> UpstreamCall:
    raw = raw_path_of(scope)
    seat = services.table.seats.of(raw, scope["headers"], exchange.request.path)
    place = scope["path"].removeprefix("/v1") + "/"
    return UpstreamCall(
        method=scope["method"],
        path=raw.removeprefix("/v1") if seat is None else seat.path,
        seat=seat,
        headers=scope["headers"],
        # The one with a route at or above this path: its upstreams serve the path.
        dialect=next((d for d in DIALECTS.values() if place.startswith(d.path + "/")), None),
        query=scope["query_string"],
        key_headers=principal.key_headers,
        attempts=exchange.upstream.attempts,
    )


def form_model(raw: bytes) -> str:
    """The model that a form names; empty where it names none, or several. Takes linear time: from
    each place of the name only so many bytes are read."""
    found = set()
    for name in _NAMES:
        at = 0
        for _ in range(_MOST_NAMED):
            at = raw.find(name, at) + len(name)
            if at < len(name):
                break
            part = _AFTER_NAME.match(raw, at, at + _MOST_BYTES)
            found.add(part[1] if part else b"")
        else:
            return ""
    return found.pop().decode("utf-8", "replace") if len(found) == 1 else ""
