"""`/v1/responses` over a WebSocket: each `response.create` is one request of the steered endpoint.

A message becomes a request to the application itself, whose upstream is the open connection and
whose answer goes back as messages: identity, rights, budgets, steering and records are those of
HTTP. Everything else crosses as it is.

Source: OpenAI's guide "WebSocket mode"; Codex, `codex-api/src/endpoint/responses_websocket.rs`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from wsproto.events import CloseConnection, TextMessage

from gateway.auth.keys import Principal
from gateway.buffered_bytes import Room, Share
from gateway.calls.call import Call
from gateway.calls.headers import ControlHeaders
from gateway.config import Settings
from gateway.dialects import RESPONSES, SteeredRequest
from gateway.endpoints.body import ON_GONE, SOCKET, Message, Receive, Scope, Send
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.passthrough import read_request
from gateway.endpoints.realtime import (
    LAST_WORDS_S,
    ASGIHandler,
    RealtimeEndpoint,
    Talk,
    accept,
    relay_frames,
)
from gateway.endpoints.unknown_routes import OnlyMethods, refuse_websocket
from gateway.errors import (
    BadRequest,
    NotFound,
    UpstreamMalformed,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.exchange import Exchange
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.tasks import spawn
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall
from gateway.upstream.websocket import BUFFER_BYTES, Handshake, MessageSide, Streams
from gateway.values import FieldDict
from gateway.wire.coerce import as_mapping, mapping_at, text_at
from gateway.wire.headers import RawHeaders, header
from gateway.wire.request import ChatRequest
from gateway.wire.sse import SSEDecoder
from gateway.wire.upstream_errors import refusal_of, status_of

_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
# Messages that ask for no tokens; where keys or budgets count those, no others pass.
_USES_NOTHING = ("response.cancel", "response.processed")
_MOST_WAITING = 4
_MOST_EVENTS = 64
_MOST_WARM = 2
_FIRST = asyncio.FIRST_COMPLETED
_LOOK_S = 1.0  # how often an idle connection looks whether the gateway is shutting down
_OF_HANDSHAKE = (b"connection", b"upgrade", b"sec-websocket-", b"content-", b"x-request-id")

_Events = asyncio.Queue[tuple[str, str]]  # types and texts; an empty type: the upstream is gone


class ResponsesSocket(RealtimeEndpoint):
    """Opens the connection at the upstream first, and answers as that answers."""

    route = RESPONSES.route
    path = RESPONSES.path
    # An upstream without this route is asked over HTTP, in chat completions if need be.
    refused_as_http = frozenset({404, 405})
    app: ASGIHandler  # the whole application, which has this endpoint as a part
    room: Room  # for the bytes of messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = not header(scope["headers"], b"upgrade") and not scope["path"].startswith("/v1/")
        await (OnlyMethods("POST") if plain else super().__call__)(scope, receive, send)

    async def _admit(
        self, services: Services, scope: Scope, principal: Principal, call: UpstreamCall
    ) -> tuple[Target, Talk]:
        self._rights.require_route(services, principal, self.path)
        exchange = scope[EXCHANGE]
        target = services.table.default.for_client(RESPONSES, "", call.seat)
        own = [name for name, _ in call.headers if name not in principal.key_headers]
        known = not principal.key or target.api_key is not None or b"authorization" in own
        if target.lane != "native" or not known or services.settings.router.fallbacks:
            # Over HTTP the model's own deployment can be asked, and its fallbacks.
            refuse_websocket(call.headers)
        counts = bool(principal.key) or services.budgets is not None
        workloads = self._runtime.opened.workloads
        pilot = None
        if workloads is not None:
            pilot = workloads.pilot
        if not counts and _is_off(services, call.headers, assigned=pilot is not None):
            return target, partial(relay_frames, exchange)
        # Extensions change the frames: only who relays those untouched may offer them.
        call.headers = [h for h in call.headers if h[0] != b"sec-websocket-extensions"]
        settings = services.settings
        connection = _Connection(
            self.app, scope, call, target=target, settings=settings, counts=counts
        )
        new_share = partial(Share, self.room, settings.server, principal.key)
        return target, partial(connection.talk, new_share, self._runtime, exchange)


def _is_off(services: Services, headers: RawHeaders, *, assigned: bool) -> bool:
    """Whether the client or the operator wants nothing steered. `assigned`: a pilot may give a
    conversation another mode than the config's. Raises: BadRequest."""
    named = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers}
    if assigned or services.settings.experiment.id:
        usual = ""
    else:
        usual = services.settings.steering.mode
    return (ControlHeaders.read(named).mode or usual) == "off"


class _Answer:
    """`LaneResponse` over the events of an answer; a refusal is an error of HTTP."""

    usage: FieldDict | None = None  # None: it is in the events

    def __init__(self, status: int, first: str, events: AsyncGenerator[bytes, None]):
        self.status = status
        self._first = first.encode()
        self.headers: RawHeaders = [(b"content-type", b"text/event-stream")]
        self._events = events

    async def beginning(self, _limit_s: float, _is_enough: Callable[[bytes], bool]) -> bytes:
        """The first event of the answer."""
        return self._first

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events

    async def aclose(self) -> None:
        await self._events.aclose()


@dataclass(eq=False)
class _Connection:
    """One connection, on which one request after the other is answered (`OpenConnection`)."""

    app: ASGIHandler  # the whole application, which answers each message like a request
    scope: Scope  # of the handshake
    call: UpstreamCall  # the handshake at the upstream
    target: Target  # the upstream
    settings: Settings  # of the config in force at the handshake
    counts: bool  # keys or budgets limit the client
    answer_id: str = ""  # by which a later request can continue the newest answer; "" for none
    # items of requests that only prepared a later one, with their bytes, by the ids of their
    # answers
    warm: dict[str, tuple[list[Any], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._host = self.target
        self._waiting = asyncio.Queue[tuple[bytes, ChatRequest]](_MOST_WAITING)
        self._events: _Events | None = None  # of the answer that is under way
        self._has_end = self._is_saying = False
        self._shown = b"", ""  # the newest event as a stream has it, and its message
        self._prepares: list[Any] | None = None
        self._on_gone: Callable[[], None] = lambda: None
        self._is_left = self._is_lost = self._is_silent = False
        self._idle = asyncio.Event()

    async def talk(
        self,
        new_share: Callable[[], Share],
        runtime: Runtime,
        exchange: Exchange,
        answer: Handshake,
        client: Streams,
    ) -> None:
        """Serve until both sides have closed; a shutdown ends what is idle at once. `new_share`
        gives a part of the room for each side's messages."""
        upstream = accept(exchange, answer, client)
        limits = self.settings.server
        with new_share() as asked, new_share() as answered:
            self._client = MessageSide(client, limits.max_body_mb, asked)
            most_mb = limits.max_buffered_response_mb
            self._upstream = MessageSide(upstream, most_mb, answered, asks=True)
            await self._serve(runtime)

    async def _serve(self, runtime: Runtime) -> None:
        self._worker = spawn(self._answer_all())
        ways = [spawn(self._from_client()), spawn(self._from_upstream())]
        try:
            done = set[asyncio.Task[None]]()
            unfinished = set(ways)
            while not done:
                done, unfinished = await asyncio.wait(ways, timeout=_LOOK_S, return_when=_FIRST)
                if runtime.draining and self._idle.is_set():
                    return
            if unfinished:
                await asyncio.wait(unfinished, timeout=LAST_WORDS_S)
            for way in done:
                way.result()
        finally:
            self._is_left = True
            for task in (*ways, self._worker):
                task.cancel()
            await asyncio.gather(*ways, self._worker, return_exceptions=True)
            self._client.close()
            self._upstream.close()

    async def _from_client(self) -> None:
        closing = None
        async for event in self._client.events():
            if isinstance(event, CloseConnection):
                closing = event
            elif isinstance(event, TextMessage):
                await self._take(event)
            else:
                await self._upstream.send(event)
        self._is_left = True
        self._on_gone()
        await self._upstream.end(closing)

    async def _from_upstream(self) -> None:
        closing = None
        async for event in self._upstream.events():
            if isinstance(event, CloseConnection):
                closing = event
            elif not isinstance(event, TextMessage) or not await self._belongs(event.data):
                if (events := self._events) is not None:
                    await events.join()  # what came before it
                await self._client.send(event)
        self._is_lost = True
        if self._events is not None:
            await self._events.put(("", ""))
        await self._idle.wait()  # the client gets all that came before
        await self._client.end(closing)

    async def _take(self, event: TextMessage) -> None:
        """Pass a message of the client on, or answer it as a request."""
        raw = event.data.encode()
        request = await read_request(raw)
        kind = None
        if request is not None:
            kind = request.body.get("type")
        if request is not None and kind == "response.create":
            self._idle.clear()
            self._client.keep(len(raw))
            await self._waiting.put((raw, request))
        elif not self.counts:
            await self._upstream.send(event)
        elif request is not None and kind in _USES_NOTHING:
            # Written again, so that it cannot be read as anything else.
            await self._upstream.send(TextMessage(orjson.dumps(request.whole).decode()))
        else:
            error = BadRequest("with a gateway key or budgets: `response.create`, `.cancel`")
            await self._say(_error_event(error.status, error.body(), []))

    async def _belongs(self, text: str) -> bool:
        """Whether a message of the upstream is part of an answer, which then has it."""
        events = self._events
        try:
            data = as_mapping(orjson.loads(text))
        except ValueError:
            return False
        kind = text_at(data, "type")
        belongs = kind == "error" or kind.startswith("response.")
        if events is None or self._has_end or not belongs:
            return False
        if kind in _ENDS:
            self._has_end = True
            self.answer_id = text_at(mapping_at(data, "response"), "id")
        await events.put((kind, text))
        if len(text) > BUFFER_BYTES:
            await events.join()  # or all of the queue might be as large
        return True

    async def _answer_all(self) -> None:
        while not self._is_left:
            if self._waiting.empty():
                self._idle.set()
            raw, request = await self._waiting.get()
            self.answer_id = ""
            self._prepares = None
            await self._answer(raw, request)
            self._on_gone = lambda: None
            events = self._events
            self._events = None
            if events is not None:
                self._said(events)
                while not events.empty():
                    events.get_nowait()  # lets go whoever waits to put more, or for what was put
                    events.task_done()
            self._keep_warm(len(raw))
        self._idle.set()

    def _keep_warm(self, size: int) -> None:
        """Keep what a request of `size` bytes has only prepared, for the next one; give back the
        room of any other."""
        if self._prepares is None or not self.answer_id:
            self._client.keep(-size)
            return
        self.warm[self.answer_id] = self._prepares, size
        if len(self.warm) > _MOST_WARM:
            self._client.keep(-self.warm.pop(next(iter(self.warm)))[1])

    async def _answer(self, raw: bytes, request: ChatRequest) -> None:
        """Have the application answer a message."""
        decoder = SSEDecoder()
        start = FieldDict()
        refusal = b""

        async def receive() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal refusal
            start.update(message)
            refused = start["status"] >= 300
            body = message.get("body", b"")
            refusal += body if refused else b""
            if self._is_silent or message["type"] == "http.response.start":
                return
            if refused and not message.get("more_body"):
                text = self._shown[1]
                if refusal != self._shown[0]:
                    text = _error_event(start["status"], refusal, start["headers"])
                await self._say(text)
            elif body and body is self._shown[0]:
                await self._say(self._shown[1])
            elif not refused:
                for event in decoder.feed(body):
                    if event.data:
                        await self._say(event.data.decode())

        self._is_silent = False
        self._shown = (b"", "")
        await self.app(self._as_http(request), receive, send)

    async def _say(self, text: str) -> None:
        await self._client.send(TextMessage(text))

    def _as_http(self, request: ChatRequest) -> Scope:
        """The message as a request: with the headers of the handshake, except where Codex says in
        the message what it says over HTTP in a header."""
        said = mapping_at(request.body, "client_metadata")
        own = {
            name.lower().encode(): value.encode("latin-1", "replace")
            for name, value in said.items()
            if name.lower().startswith("x-codex-") and isinstance(value, str)
        }
        drop = (*_OF_HANDSHAKE, *own)
        kept = [h for h in self.scope["headers"] if not h[0].startswith(drop)]
        headers = [*kept, *own.items(), (b"content-type", b"application/json")]
        offers = {SOCKET: self, ON_GONE: self._watch}
        return {**self.scope, "method": "POST", "headers": headers, "extensions": offers}

    def _watch(self, call: Callable[[], None]) -> None:
        self._on_gone = call
        if self._is_left:
            call()

    def prepare(self, request: SteeredRequest) -> None:
        """Complete a request with what a client says in other ways over HTTP: that the answer is
        a stream. If the request continues one that only prepared it, add the items of that one."""
        request.body["stream"] = True
        earlier = self.warm.get(request.previous_response_id or "")
        if earlier is not None and not request.unread:
            request.previous_response_id = None
            request.own_messages = request.transcript = [*earlier[0], *request.own_messages]
        if RESPONSES.is_side_request(request) and not request.unread:
            self._prepares = list(request.own_messages)

    def bind(self, call: Call, sending: UpstreamCall) -> None:
        """Send a request over this connection. Raises: NotFound: its model is served elsewhere."""
        services = call.services
        asked = call.request.model
        routed = call.delivery.model
        own = self._target_of(services, asked)
        if own is None:
            raise NotFound(f"{asked!r} is not served on this WebSocket; use HTTP", status=426)
        other = own if routed == asked else self._target_of(services, routed)
        if other is None:
            call.use_requested_model("it is not served on this WebSocket")
        self.target = other or own
        sending.connection = call.connection = self

    def _target_of(self, services: Services, model: str) -> Target | None:
        """Returns the deployment of a model at this very host with this very key; None if the
        model has no such deployment."""
        seat = self.call.seat
        for each in services.table.resolve(model) if seat is None else services.table.seated(model):
            target = each.for_client(RESPONSES, "", seat)
            same = target.api_base == self._host.api_base and target.api_key == self._host.api_key
            if same and target.lane == "native":
                return target
        return None

    async def ask(self, body: bytes) -> _Answer:
        """The answer to a message; its first event is in the place of a status."""
        self._events = events = _Events(_MOST_EVENTS)
        self._has_end = self._is_saying = False
        sent = not self._is_lost and await self._upstream.send(TextMessage(body.decode()))
        if not sent:
            raise UpstreamUnreachable("the upstream has closed the WebSocket")
        first = await self._next(events, "first_byte_s")
        refused = None
        if first[0] == "error":
            refused = refusal_of(orjson.loads(first[1]))
        if refused is None:
            status = 200
        else:
            status = status_of(refused)
        return _Answer(status, first[1], self._stream(events, first, refused=status != 200))

    async def _stream(
        self, events: _Events, said: tuple[str, str], *, refused: bool
    ) -> AsyncGenerator[bytes, None]:
        while True:
            kind, text = said
            # Line breaks in JSON are white space.
            data = text.replace("\r", " ").replace("\n", "\ndata: ")
            event = (text if refused else f"event: {kind}\ndata: {data}\n\n").encode()
            self._shown = event, text
            yield event
            if kind in _ENDS:
                return
            said = await self._next(events, "idle_s")

    def _said(self, events: _Events) -> None:
        """Note that the client has the event that was taken last."""
        if self._is_saying:
            events.task_done()
            self._is_saying = False

    async def _next(self, events: _Events, limit: str) -> tuple[str, str]:
        limit_s = getattr(self.settings.timeouts, limit)
        self._said(events)
        try:
            async with asyncio.timeout(limit_s or None):
                said = await events.get()
                self._is_saying = True
        except TimeoutError:
            self._upstream.close()  # what comes now belongs to no request any more
            raise UpstreamTimeout(f"no event within {limit_s:g} s (timeouts.{limit})") from None
        if not said[0]:
            self._is_silent = True  # the end of the connection says it
            raise UpstreamMalformed("the upstream closed the WebSocket in the middle of an answer")
        return said


def _error_event(status: int, body: bytes, headers: RawHeaders) -> str:
    """An error of the gateway's own as the event that clients take for an answer of HTTP."""
    kept = (b"retry-after", b"x-should-retry")
    given = {k.decode(): v.decode("latin-1") for k, v in headers if k in kept}
    event = {"type": "error", "status": status, **orjson.loads(body), "headers": given}
    return orjson.dumps(event).decode()
