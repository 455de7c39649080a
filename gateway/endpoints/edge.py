"""The outermost layer: request id, error bodies, the canonical log line, metrics.

Plain ASGI: Starlette's `BaseHTTPMiddleware` loses context variables and costs a task per request.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import KW_ONLY, dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from unicodedata import normalize
from urllib.parse import unquote_to_bytes

from gateway.auth.other_sites import CONTROL, BrowserGuard
from gateway.dialects import BEDROCK, MESSAGES
from gateway.endpoints.body import ClientGone, Message, Receive, Scope, Send, send_whole
from gateway.errors import BadRequest, GatewayError, Overloaded, ShuttingDown
from gateway.exchange import Exchange, RequestInfo, ResponseInfo
from gateway.observability.logging import get_logger
from gateway.values import FieldDict
from gateway.wire.headers import RawHeaders, header

if TYPE_CHECKING:
    from gateway.runtime import Runtime

_MAX_AGE_S = 600  # how long a browser may keep the answer to a preflight
_OURS = (b"access-control-allow-origin", b"access-control-expose-headers")


def readable_by(send: Send, origin: str) -> Send:
    """`send`, with the headers that let pages of `origin` read the answer."""
    allowed = origin.encode("latin-1")

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            # The upstream's own are for pages that call it directly.
            kept = [h for h in message["headers"] if h[0].lower() not in _OURS]
            ours = [(_OURS[0], allowed), (_OURS[1], b"*"), (b"vary", b"origin")]
            message["headers"] = [*kept, *ours]
        await send(message)

    return sent


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if a page may send a request, before it sends that."""
    headers = scope["headers"]
    return scope["method"] == "OPTIONS" and bool(header(headers, b"access-control-request-method"))


async def answer_preflight(scope: Scope, send: Send) -> None:
    """Allow the method and the headers that the page wants to send."""
    asked = scope["headers"]
    method = header(asked, b"access-control-request-method")
    answer = [
        (b"access-control-allow-methods", method),
        (b"access-control-max-age", str(_MAX_AGE_S).encode()),
    ]
    if wanted := header(asked, b"access-control-request-headers"):
        answer.append((b"access-control-allow-headers", wanted))
    if header(asked, b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send_whole(send, 204, answer)


# Paths whose errors have Anthropic's form or, with the group, Bedrock's.
_OTHER_FORM = re.compile(r"/v1/messages(?:/|$)|/v1\w*/projects/|(/model/)")

_SUSPICIOUS = re.compile(rb"[%\\]|(?:^|/)\.")
_NOT_ENCODED = re.compile(rb"%(?![0-9A-Fa-f]{2})")  # `%u002e` is a dot for some servers
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f]")
_END = re.compile("[;?#]")  # where a path segment ends for a server that decodes before it splits
# A path that is still encoded after this many was encoded to hide something: servers in a row that
# each decode once are two or three.
_MOST_DECODINGS = 3

_VISIBLE = re.compile(rb"[\x21-\x7e]{1,255}")
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")
_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/metrics"})
_CLIENT_CLOSED = 499  # nginx's code for a client that disconnected; only logged and counted
_QUIET_ROUTES = frozenset({"healthz", "readyz", "metrics", "api", "dashboard"})

EXCHANGE = "gateway.exchange"


@dataclass(eq=False)
class Edge:
    """Middleware around the whole application."""

    app: Any  # the application inside
    lifespan: Any  # of ASGI, start and stop
    runtime: Runtime  # what lives as long as the process
    guard: BrowserGuard  # checks of browsers: host and origin
    _: KW_ONLY
    max_concurrent: int = 0  # most requests at one time; 0 = any number
    _in_flight: int = field(default=0, init=False)  # requests that have begun and not ended

    def __post_init__(self) -> None:
        self._metrics = self.runtime.metrics
        self._log = get_logger("gateway.access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(scope, receive, send)
            return
        found = _BEFORE.match(scope["raw_path"])
        asked = scope["path"]
        if found:
            for name in ("path", "raw_path"):  # what is cut off has no encoded letters
                scope[name] = scope[name][found.end() :]
        exchange, keeps_id = _begin(scope)
        exchange.request.path = asked
        scope[EXCHANGE] = exchange
        answer = _Answer(exchange, send, keeps_id=keeps_id)
        self._in_flight += 1
        self._metrics.in_flight.set(self._in_flight)
        try:
            if scope["path"] not in _ALWAYS_ANSWERED:
                self._admit()
            if not CONTROL.match(scope["path"]):  # whose paths are names, not forwarded
                refuse_ambiguous_path(scope["raw_path"])
            if origin := self.guard.admit(scope):
                answer.allow(origin)
                if is_preflight(scope):
                    await answer_preflight(scope, answer.send)
                    return
            await self.app(scope, receive, answer.send)
        except ClientGone:
            exchange.response.client_gone = True
            exchange.response.status = _CLIENT_CLOSED
            exchange.response.error = "client_gone"
        except GatewayError as exc:
            exchange.response.error = exc.label
            await answer.error(exc)
        except asyncio.CancelledError:
            # Only the end of the drain cancels a request; the client is sent an error.
            exchange.response.error = "shutdown"
            await answer.error(ShuttingDown())
        except Exception:
            exchange.response.error = "internal"
            self._log.exception("unhandled error", request_id=exchange.request.id)
            await answer.error(
                GatewayError("internal error of the gateway; its log has the details")
            )
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.set(self._in_flight)
            self._finish(exchange, scope["headers"])

    def refused(self, error: GatewayError) -> None:
        """Count and log a request whose head or framing was refused before it had a route."""
        self._metrics.errors.labels(error.label).inc()
        self._log.info("request refused", status=error.status, error=error.label)

    def _admit(self) -> None:
        if self.runtime.draining:
            raise ShuttingDown
        if self.max_concurrent and self._in_flight > self.max_concurrent:
            raise Overloaded(
                f"{self.max_concurrent} requests are in flight (server.max_concurrent_requests)",
                headers=(("retry-after", "1"),),
            )

    def _finish(self, exchange: Exchange, headers: RawHeaders) -> None:
        duration = time.perf_counter() - exchange.timing.started
        overhead = exchange.timing.own_s()
        self._metrics.observe(
            exchange.route,
            exchange.response.status,
            exchange.upstream.lane,
            duration_s=duration,
            overhead_s=overhead,
        )
        if exchange.response.error:
            self._metrics.errors.labels(exchange.response.error).inc()
        if exchange.upstream.usage:
            upstream = exchange.upstream
            self._metrics.count_tokens(upstream.tokens, estimated=upstream.usage_estimated)
        if self.runtime.telemetry is not None:
            parent = header(headers, b"traceparent").decode("latin-1")
            self.runtime.telemetry.finished(exchange, duration, parent)
        if exchange.route in _QUIET_ROUTES:
            log = self._log.debug
        else:
            log = self._log.info
        log("request", **_line(exchange, duration, overhead))


class _Answer:
    """Records the status, adds the gateway's headers, sends an error if nothing was sent yet.
    `keeps_id`: the client sent the request's id, and the answer repeats it."""

    def __init__(self, exchange: Exchange, send: Send, *, keeps_id: bool):
        self._exchange = exchange
        self._send = send
        self._keeps_id = keeps_id
        self._started = False

    def allow(self, origin: str) -> None:
        """Let the pages of `origin` read the answer."""
        self._send = readable_by(self._send, origin)

    async def send(self, message: Message) -> None:
        if not self._started and message["type"] == "http.response.start":
            self._started = True
            self._exchange.response.status = message["status"]
            message["headers"] = self._headers(message.get("headers", ()))
        await self._send(message)

    async def error(self, exc: GatewayError) -> None:
        if self._started:
            return
        write = self._exchange.response.error_body
        if write is not None:
            body = write(exc)
        else:
            body = exc.body()
        headers = [(k.lower().encode(), v.encode("latin-1", "replace")) for k, v in exc.headers]
        if not any(name == b"content-type" for name, _ in headers):
            headers.append((b"content-type", b"application/json"))
        headers = [h for h in headers if h[0] != b"content-length"]
        await send_whole(self.send, exc.status, headers, body=body)

    def _headers(self, headers: Any) -> list[tuple[bytes, bytes]]:
        exchange = self._exchange
        own = exchange.request.id.encode()
        out = list(headers)
        theirs = header(out, b"x-request-id")
        if not theirs:
            out.append((b"x-request-id", own))
        elif theirs != own:
            exchange.response.upstream_id = theirs.decode("latin-1")
            if self._keeps_id:
                out = [h for h in out if h[0] != b"x-request-id"]
                out += [(b"x-request-id", own), (b"x-upstream-request-id", theirs)]
        ours = {name for name, _ in exchange.response.headers}
        out = [h for h in out if h[0] not in ours]  # the upstream may be another gateway
        added = exchange.response.headers
        if _UNPRINTABLE.search(b"".join([value for _, value in added])):
            # Our own values may quote a client's text.
            added = [(n, _UNPRINTABLE.sub(lambda c: b"%%%02X" % c[0][0], v)) for n, v in added]
        return out + added


# What is before a path: the version, where a client adds it to an address that has it, or the host
# of a provider (`gateway/upstream/seats.py`). A path of the gateway's own is never behind a host.
_BEFORE = re.compile(
    rb"(?:/v1)+(?=/v1/)"
    rb"|/at/[A-Za-z0-9.-]+(?:/(?:openai|anthropic)(?=/v1/))?"
    rb"(?=/(?:v1(?:alpha|beta)?\d*|model|openai/deployments)/)"
)


def _begin(scope: Scope) -> tuple[Exchange, bool]:
    """The facts of a request so far, and whether its id is the client's."""
    client_id = header(scope["headers"], b"x-request-id")
    usable = bool(_VISIBLE.fullmatch(client_id))
    request = RequestInfo(
        method=scope["method"],
        path=scope["path"],
        id=client_id.decode() if usable else f"req-{token_hex(12)}",
    )
    other = _OTHER_FORM.match(scope["path"])
    error_body = None
    if other:
        if other[1]:
            error_body = BEDROCK.error_body
        else:
            error_body = MESSAGES.error_body
    return Exchange(request, response=ResponseInfo(error_body=error_body)), usable


def _line(exchange: Exchange, duration_s: float, overhead_s: float) -> FieldDict:
    request = exchange.request
    upstream = exchange.upstream
    line: FieldDict = {"request_id": request.id, "method": request.method}
    line |= {"path": request.path, "status": exchange.response.status}
    line |= {"duration_ms": round(duration_s * 1000, 2), "overhead_ms": round(overhead_s * 1000, 3)}
    if request.model:
        line |= {"model": request.model, "lane": upstream.lane, "stream": request.streamed}
        line |= {"deployment": upstream.deployment, "attempts": upstream.attempts}
    if upstream.model and upstream.model != request.model:
        line["model_asked"] = upstream.model
    if exchange.response.upstream_id:
        line["upstream_request_id"] = exchange.response.upstream_id
    if exchange.response.error:
        line["error"] = exchange.response.error
    return line | exchange.notes


def refuse_ambiguous_path(raw: bytes) -> None:
    """Refuse dot segments, backslashes and control characters, however they are encoded, and what
    is no percent-encoding. `raw` is the path as it was sent. `..;` counts as a dot segment: some
    servers cut parameters off before they resolve it. An encoded slash (`%2F`) is part of a name
    and is let through. Raises: BadRequest: names what is wrong."""
    if _SUSPICIOUS.search(raw) is None:
        return
    if _NOT_ENCODED.search(raw):
        raise BadRequest("the path has a '%' that encodes nothing")
    for _ in range(_MOST_DECODINGS):
        _refuse_text(raw)
        decoded = unquote_to_bytes(raw)
        if decoded == raw:
            return
        raw = decoded
    _refuse_text(raw)
    if unquote_to_bytes(raw) != raw:
        raise BadRequest(f"the path is percent-encoded more than {_MOST_DECODINGS} times")


def _refuse_text(path: bytes) -> None:
    try:
        # Some servers take look-alikes (a full-width dot) for the character itself.
        text = normalize("NFKC", path.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadRequest("the path is not percent-encoded UTF-8") from None
    if "\\" in text:
        raise BadRequest("the path may not have a backslash, also not as %5C")
    if _CONTROL_CHARACTER.search(text):
        raise BadRequest("the path may not have control characters, also not percent-encoded")
    if any(_END.split(segment)[0].strip() in (".", "..") for segment in text.split("/")):
        raise BadRequest("the path may not have '.' or '..' segments, also not percent-encoded")
