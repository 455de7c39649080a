"""Answers to paths that no route has, and to methods and WebSockets that a route does not take."""

from gateway.endpoints.body import Receive, Scope, Send, send_whole
from gateway.endpoints.edge import EXCHANGE
from gateway.errors import GatewayError, MethodNotAllowed, NotFound
from gateway.wire.headers import RawHeaders, header

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Raises: NotFound, naming the routes that exist; MethodNotAllowed for TRACE."""
    scope[EXCHANGE].route = "unknown"
    refuse_trace(scope["method"])
    raise NotFound(
        f"no route {scope['method']} {scope['path']}: the OpenAI API is below /v1, the gateway's "
        "own API below /api, its pages at /dashboard, its health at /healthz, /readyz and /metrics"
    )


async def front_door(scope: Scope, receive: Receive, send: Send) -> None:
    """`/`: a browser is led to the dashboard; clients of the API get what any unknown path gets.
    Raises: NotFound, MethodNotAllowed."""
    if scope["method"] not in ("GET", "HEAD") or b"text/html" not in header(
        scope["headers"], b"accept"
    ):
        await not_found(scope, receive, send)
    scope[EXCHANGE].route = "dashboard"
    headers = [(b"location", b"/dashboard"), (b"cache-control", b"no-store"), (b"vary", b"accept")]
    await send_whole(send, 303, headers)


class OnlyMethods:
    """Refuses the methods that a route does not have, naming those it has."""

    def __init__(self, *methods: str) -> None:
        self._allow = ", ".join(methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: MethodNotAllowed; GatewayError for a WebSocket."""
        scope[EXCHANGE].route = "unknown"
        refuse_websocket(scope["headers"])
        raise MethodNotAllowed(
            f"{scope['path']} does not accept {scope['method']}, only {self._allow}",
            headers=(("allow", self._allow),),
        )


def asks_for_websocket(headers: RawHeaders) -> bool:
    """Whether the client wants to speak WebSocket from here on."""
    asked = b",".join([value for name, value in headers if name == b"upgrade"]).lower()
    return b"websocket" in map(bytes.strip, asked.split(b","))


def refuse_websocket(headers: RawHeaders) -> None:
    """Refuse a request for a WebSocket; `Upgrade` names what is spoken instead. Source: RFC 9110
    sections 7.8 and 15.5.22. Raises: GatewayError: status 426."""
    if asks_for_websocket(headers):
        raise GatewayError(
            "WebSocket is not offered on this route; use HTTP",
            status=426,
            type="invalid_request_error",
            code="websocket_not_supported",
            headers=(("upgrade", "HTTP/1.1"), ("connection", "Upgrade")),
            label="upgrade_refused",
        )


def refuse_trace(method: str) -> None:
    """Refuse to have a provider send back what the gateway added to a request, its key included.
    Raises: MethodNotAllowed: the method is TRACE (RFC 9110 section 9.3.8)."""
    if method == "TRACE":
        raise not_offered(method)


def not_offered(method: str) -> MethodNotAllowed:
    """The error for a method that no route has."""
    headers = (("allow", _METHODS),)
    return MethodNotAllowed(f"{method} is not offered, only {_METHODS}", headers=headers)
