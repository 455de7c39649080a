"""From a request and a script entry to the answer: which route has which form."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from steering_gateway_testing import chat, faults, gemini, messages, plain, responses
from steering_gateway_testing.exchange import SSE_TYPE, Answer, FramedAnswer, frame, without_body
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.values import Fault, Reply

Entry = Reply | Fault | Callable[[ReceivedRequest], Reply | Fault]

CACHED_EXCHANGES = 64
"""Rendered replies kept, the oldest dropped first; a bench needs one or two."""


class ApiRoute(enum.Enum):
    """What a request is for."""

    CHAT = "/chat/completions"
    COMPLETIONS = "/completions"
    EMBEDDINGS = "/embeddings"
    MESSAGES = "/messages"
    RESPONSES = "/responses"
    GEMINI = "GenerateContent"
    COUNT_TOKENS = "/messages/count_tokens"
    STORED_RESPONSE = "/responses/"
    MODELS = "/models"
    ECHO = "echo"


_REPLYING = (
    ApiRoute.CHAT,
    ApiRoute.COMPLETIONS,
    ApiRoute.EMBEDDINGS,
    ApiRoute.MESSAGES,
    ApiRoute.RESPONSES,
    ApiRoute.GEMINI,
)
"""Routes that answer with a reply even when nothing is scripted; the first that fits wins."""


def route_of(request: ReceivedRequest) -> ApiRoute:
    """The API a request is for, whatever precedes it in the path."""
    path = request.path.rstrip("/")
    if request.method == "POST":
        fitting = (r for r in (ApiRoute.COUNT_TOKENS, *_REPLYING) if path.endswith(r.value))
        route = next(fitting, ApiRoute.ECHO)
        route = ApiRoute.GEMINI if path.endswith(":generateContent") else route
        cancels = ApiRoute.STORED_RESPONSE.value in path and path.endswith("/cancel")
        return ApiRoute.STORED_RESPONSE if cancels else route
    if ApiRoute.STORED_RESPONSE.value in path:
        return ApiRoute.STORED_RESPONSE
    listing = path.endswith(ApiRoute.MODELS.value) or f"{ApiRoute.MODELS.value}/" in path
    return ApiRoute.MODELS if listing and request.method == "GET" else ApiRoute.ECHO


class ReplyRouter:
    """Renders replies in the form of the route, applies faults, and caches what it rendered."""

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        self._responses = responses.ResponsesApi()
        self._rendered: dict[tuple[Any, ...], FramedAnswer] = {}

    def exchange(
        self, request: ReceivedRequest, entry: Entry | None, default: Entry
    ) -> FramedAnswer:
        """What to answer: the script's entry, or `default` where the route speaks."""
        exchange = self._exchange(request, route_of(request), entry, default)
        return without_body(exchange) if request.method == "HEAD" else exchange

    def _exchange(
        self, request: ReceivedRequest, route: ApiRoute, entry: Entry | None, default: Entry
    ) -> FramedAnswer:
        if request.header("upgrade") == "websocket":
            return frame(Answer(pieces=(b"",), status=426))
        if route is ApiRoute.RESPONSES:
            request.history = self._responses.history(request)
            if missing := self._responses.missing(request):
                return frame(missing)
        if entry is None and route not in _REPLYING:
            return frame(self._without_reply(request, route))
        chosen = _decided(default if entry is None else entry, request)
        if isinstance(chosen, Reply):
            return self._whole(chosen, request, route)
        return self._spoilt(chosen, request, route, default)

    def failed(self, request: ReceivedRequest, error: Exception) -> FramedAnswer:
        """What to answer when the script itself raised."""
        body = _shape(route_of(request)).error(500, "script_error", None, repr(error))
        return frame(Answer(pieces=(body,), status=500))

    def _whole(self, reply: Reply, request: ReceivedRequest, route: ApiRoute) -> FramedAnswer:
        if route not in (ApiRoute.CHAT, ApiRoute.MESSAGES) or reply.write_bytes:
            answer = self._answer(reply, request, route)
            return _framed(reply, answer.numbered(request.sequence))
        extra = chat.options(request) if route is ApiRoute.CHAT else ()
        key = (reply, route, request.stream, request.model, *extra)
        known = self._rendered.get(key)
        if known is None:
            known = _framed(reply, self._answer(reply, request, route))
            if len(self._rendered) >= CACHED_EXCHANGES:
                del self._rendered[next(iter(self._rendered))]
            self._rendered[key] = known
        return known

    def _spoilt(
        self, fault: Fault, request: ReceivedRequest, route: ApiRoute, default: Entry
    ) -> FramedAnswer:
        shape = _shape(route)
        if faults.is_error(fault):
            return frame(faults.error_answer(fault, shape))
        reply = fault.reply or _decided(default, request)
        if isinstance(reply, Fault):
            reply = reply.reply or Reply("Spoilt.")
        spoilt = faults.spoilt_reply(fault, reply)
        answer = self._answer(spoilt, request, route).numbered(request.sequence)
        return faults.spoil(fault, answer, shape)

    def _answer(self, reply: Reply, request: ReceivedRequest, route: ApiRoute) -> Answer:
        if reply.raw is not None:
            return _raw(reply, request)
        answer = self._rendered_reply(reply, request, route)
        return replace(
            answer,
            status=reply.status,
            content_type=reply.content_type or answer.content_type,
            headers=reply.headers,
        )

    def _rendered_reply(self, reply: Reply, request: ReceivedRequest, route: ApiRoute) -> Answer:
        match route:
            case ApiRoute.CHAT:
                return chat.answer(reply, request)
            case ApiRoute.MESSAGES:
                return messages.answer(reply, request)
            case ApiRoute.RESPONSES:
                return self._responses.answer(reply, request)
            case ApiRoute.GEMINI:
                return gemini.answer(reply, request)
            case ApiRoute.COMPLETIONS:
                return plain.completions(reply, request)
            case ApiRoute.EMBEDDINGS:
                return plain.embeddings(reply, request)
            case _:
                return self._without_reply(request, route)

    def _without_reply(self, request: ReceivedRequest, route: ApiRoute) -> Answer:
        match route:
            case ApiRoute.MODELS:
                return plain.models(self.models, request)
            case ApiRoute.COUNT_TOKENS:
                return messages.count_tokens(request)
            case ApiRoute.STORED_RESPONSE:
                return self._responses.stored(request)
            case _:
                return plain.echo(request)


def _decided(entry: Entry, request: ReceivedRequest) -> Reply | Fault:
    return entry if isinstance(entry, Reply | Fault) else entry(request)


def _raw(reply: Reply, request: ReceivedRequest) -> Answer:
    streamed = request.stream or isinstance(reply.raw, tuple)
    raw = reply.raw if isinstance(reply.raw, tuple) else (reply.raw or b"",)
    usual = SSE_TYPE if streamed else "application/json"
    return Answer(
        pieces=raw,
        streamed=streamed,
        finish_at=len(raw),
        status=reply.status,
        content_type=reply.content_type or usual,
        headers=reply.headers,
    )


def _framed(reply: Reply, answer: Answer) -> FramedAnswer:
    delay_s = reply.chunk_delay_s
    if reply.write_bytes and answer.streamed:
        whole, size = b"".join(answer.pieces), reply.write_bytes
        cut = tuple(whole[i : i + size] for i in range(0, len(whole), size))
        answer, delay_s = replace(answer, pieces=cut), delay_s or 0.0
    return frame(answer, delay_s=delay_s, first_s=reply.first_byte_delay_s)


def _shape(route: ApiRoute) -> faults.ErrorShape:
    match route:
        case ApiRoute.MESSAGES | ApiRoute.COUNT_TOKENS:
            return messages
        case ApiRoute.RESPONSES:
            return responses
        case ApiRoute.GEMINI:
            return gemini
        case _:
            return chat
