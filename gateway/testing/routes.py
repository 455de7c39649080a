"""From a request and a script entry to the exchange: which route speaks which dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gateway.testing import chat, faults, plain
from gateway.testing.exchange import SSE_TYPE, Answer, Exchange, frame
from gateway.testing.received import ReceivedRequest
from gateway.testing.values import Fault, Reply

Decide = Callable[[ReceivedRequest], Reply | Fault]
Entry = Reply | Fault | Decide

CACHED_ANSWERS = 64
"""Rendered replies kept, the oldest dropped first; a bench needs one or two."""


def route_of(request: ReceivedRequest) -> str | None:
    """The name of the API a request is for, or None for the echo."""
    path = request.path.rstrip("/")
    for suffix in ("/chat/completions", "/completions", "/embeddings"):
        if path.endswith(suffix):
            return suffix
    if path.removeprefix("/v1").split("/")[1:2] == ["models"] and request.method == "GET":
        return "/models"
    return None


class Router:
    """Renders replies in the dialect of the route, spoils them, and keeps what it rendered."""

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        self._rendered: dict[tuple[Any, ...], Exchange] = {}

    def exchange(self, request: ReceivedRequest, entry: Entry | None, default: Entry) -> Exchange:
        """What to answer: the script's entry, or `default` where the route has a conversation."""
        route = route_of(request)
        if route in (None, "/models") and entry is None:
            return frame(self._without_reply(request, route))
        chosen = _decided(entry if entry is not None else default, request)
        if isinstance(chosen, Reply):
            return self._whole(chosen, request, route)
        return self._spoilt(chosen, request, route, default)

    def failed(self, request: ReceivedRequest, error: Exception) -> Exchange:
        """What to answer when the script itself raised."""
        body = _shape(route_of(request)).error(500, "script_error", None, repr(error))
        return frame(Answer(pieces=(body,), status=500))

    def _whole(self, reply: Reply, request: ReceivedRequest, route: str | None) -> Exchange:
        if route != "/chat/completions":
            return _framed(reply, self._answer(reply, request, route))
        key = (reply, request.stream, request.model, *chat.options(request))
        known = self._rendered.get(key)
        if known is None:
            known = _framed(reply, self._answer(reply, request, route))
            if len(self._rendered) >= CACHED_ANSWERS:
                del self._rendered[next(iter(self._rendered))]
            self._rendered[key] = known
        return known

    def _spoilt(
        self, fault: Fault, request: ReceivedRequest, route: str | None, default: Entry
    ) -> Exchange:
        shape = _shape(route)
        if faults.is_error(fault):
            return frame(faults.error_answer(fault, shape))
        reply = fault.reply or _decided(default, request)
        while isinstance(reply, Fault):
            reply = reply.reply or Reply("Spoilt.")
        spoilt = faults.spoilt_reply(fault, reply)
        return faults.spoil(fault, self._answer(spoilt, request, route), shape)

    def _answer(self, reply: Reply, request: ReceivedRequest, route: str | None) -> Answer:
        if reply.raw is not None:
            return _raw(reply, request)
        match route:
            case "/chat/completions":
                answer = chat.answer(reply, request)
            case "/completions":
                answer = plain.completions(reply, request)
            case "/embeddings":
                answer = plain.embeddings(reply, request)
            case _:
                answer = self._without_reply(request, route)
        kind = reply.content_type or answer.content_type
        return replace(answer, status=reply.status, content_type=kind, headers=reply.headers)

    def _without_reply(self, request: ReceivedRequest, route: str | None) -> Answer:
        if route == "/models":
            return plain.models(self.models, request)
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


def _framed(reply: Reply, answer: Answer) -> Exchange:
    if reply.write_bytes and answer.streamed:
        whole, size = b"".join(answer.pieces), reply.write_bytes
        cut = tuple(whole[i : i + size] for i in range(0, len(whole), size))
        return frame(
            replace(answer, pieces=cut),
            delay_s=reply.chunk_delay_s or 0.0,
            first_s=reply.first_byte_delay_s,
        )
    return frame(answer, delay_s=reply.chunk_delay_s, first_s=reply.first_byte_delay_s)


def _shape(route: str | None) -> faults.ErrorShape:
    return chat
