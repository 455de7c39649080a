"""One operation of the control plane as a value, and the ASGI application that serves it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.api.access import Access, Gate
from gateway.api.params import Param, read_query
from gateway.api.schema import Schema
from gateway.endpoints.body import ClientGone, DisconnectWatch, Receive, Scope, Send, read_body
from gateway.endpoints.edge import EXCHANGE
from gateway.errors import BadRequest, GatewayError, MethodNotAllowed
from gateway.runtime import Runtime
from gateway.stores.base import StoreError, StoreUnavailable
from gateway.upstream.base import RawHeaders, header

JSON = "application/json"
_MAX_BODY_BYTES = 5 * 2**20  # Source: the reference's limit for bodies of its API


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an operation: the caller's access, its parameters, its body."""

    runtime: Runtime
    access: Access
    values: Mapping[str, Any]
    body: bytes = b""

    @property
    def tenant(self) -> str | None:
        """The tenant to look at, None for all. Raises: Forbidden; as Access.scope."""
        return self.access.scope(self.values.get("tenant"))

    def json_object(self) -> dict[str, Any]:
        """The body. Raises: BadRequest when it is not one JSON object."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"the body is not JSON: {error}", param="body") from None
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object", param="body")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: a value to be written as JSON, or chunks of another media type as they come."""

    payload: Any = None
    status: int = 200
    media: str = JSON
    chunks: AsyncIterator[bytes] | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A documented answer."""

    description: str
    schema: Schema = field(default_factory=dict)
    media: str = JSON


Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a route does with one method; the document and the server both read this."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    answers: Mapping[int, Answer]
    params: tuple[Param, ...] = ()
    body: Schema | None = None
    body_media: str = JSON
    errors: tuple[int, ...] = (400,)


class Resource:
    """Serves the operations of one path."""

    def __init__(self, runtime: Runtime, gate: Gate, operations: Sequence[Operation]) -> None:
        self._runtime = runtime
        self._gate = gate
        self._by_method = {operation.method: operation for operation in operations}
        if get := self._by_method.get("GET"):
            self._by_method["HEAD"] = get
        self._allowed = ", ".join(self._by_method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = scope[EXCHANGE]
        exchange.route = "api"
        access = self._gate.admit(scope)
        operation = self._by_method.get(scope["method"])
        if operation is None:
            raise MethodNotAllowed(
                f"{scope['path']} takes {self._allowed}", headers=(("allow", self._allowed),)
            )
        values = read_query(operation.params, scope["query_string"])
        values |= {p.name: p.read(scope["path_params"][p.name]) for p in _in_path(operation)}
        values |= _from_headers(operation, scope["headers"])
        body = b""
        if operation.body is not None:
            body = await read_body(scope["headers"], receive, exchange, _MAX_BODY_BYTES)
        call = Call(runtime=self._runtime, access=access, values=values, body=body)
        try:
            reply = await operation.handler(call)
        except StoreUnavailable as error:
            raise unavailable(error) from error
        except StoreError as error:
            raise GatewayError(f"the store failed: {error}", label=error.label) from error
        if reply.chunks is None:
            await _send_whole(send, reply)
        else:
            # A reader that leaves has read enough.
            with contextlib.suppress(ClientGone):
                async with DisconnectWatch(receive, exchange) as watch:
                    await _send_chunks(send, reply, reply.chunks)
                    watch.stop()


def unavailable(error: StoreError) -> GatewayError:
    """The answer to a request while the store cannot be reached."""
    return GatewayError(
        f"the store cannot answer now: {error}",
        status=503,
        type="server_error",
        code="store_unavailable",
        headers=(("retry-after", "1"),),
        label=error.label,
    )


def _in_path(operation: Operation) -> list[Param]:
    return [param for param in operation.params if param.in_path]


def _from_headers(operation: Operation, headers: RawHeaders) -> dict[str, Any]:
    found = {}
    for param in operation.params:
        if param.place == "header":
            text = header(headers, param.name.encode()).decode("latin-1")
            found[param.name] = param.read(text) if text else param.default
    return found


def _head(reply: Reply, length: int | None) -> dict[str, Any]:
    headers = [
        (b"content-type", reply.media.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *reply.headers,
    ]
    if length is not None and reply.status != 204:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": reply.status, "headers": headers}


async def _send_whole(send: Send, reply: Reply) -> None:
    body = b"" if reply.status == 204 else orjson.dumps(reply.payload)
    await send(_head(reply, len(body)))
    await send({"type": "http.response.body", "body": body})


async def _send_chunks(send: Send, reply: Reply, chunks: AsyncIterator[bytes]) -> None:
    await send(_head(reply, None))
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
