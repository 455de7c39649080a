"""Operations of the control plane as values, and the ASGI application that serves them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import orjson
from pydantic import BaseModel

from gateway.api.params import Parameters, names_of, read_model, read_parameters, refuse_unknown
from gateway.auth.access import Access, Gate
from gateway.endpoints.body import ClientGone, DisconnectWatch, Receive, Scope, Send, read_body
from gateway.endpoints.edge import EXCHANGE
from gateway.errors import BadRequest, GatewayError, MethodNotAllowed
from gateway.runtime import Runtime
from gateway.stores.protocols import StoreError, StoreUnavailable
from gateway.upstream.base import header
from gateway.wire.coerce import as_json_value

JSON = "application/json"
_MAX_BODY_BYTES = 5 * 2**20  # Source: the reference's limit for bodies of its API

P = TypeVar("P", bound=Parameters)
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[P]):
    """One request for an operation: the caller's access, its parameters, its body."""

    runtime: Runtime
    access: Access
    params: P
    body: bytes = b""

    @property
    def tenant(self) -> str | None:
        """The tenant whose data is asked for, None for all. Raises: Forbidden; as Access.scope."""
        return self.access.scope(getattr(self.params, "tenant", None))

    def read(self, model: type[M]) -> M:
        """The body as `model`. Raises: BadRequest, naming the key that is wrong."""
        values, known = self.json_object(), names_of(model)
        for name in values:
            refuse_unknown(name, known)
        return read_model(model, values)

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
class ApiResponse:
    """An answer: a value to be written as JSON, or chunks of another media type as they come."""

    payload: Any = None
    status: int = 200
    media: str = JSON
    chunks: AsyncIterator[bytes] | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[ApiRequest[P]], Awaitable[ApiResponse]]


@dataclass(frozen=True, slots=True)
class Content:
    """A documented body: a type that pydantic can describe, and its media type.

    `type` None: there is no body. `also`: further media types that a parameter chooses, as text.
    """

    type: Any
    description: str = ""
    media: str = JSON
    also: tuple[str, ...] = ()


Right = Literal["read", "report", "control"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[P]):
    """One method of a route, read by the document and the server.

    `responses` by status; `errors`: possible error statuses, besides 401, 403 and 503.
    `needs`: the right of the caller. `read` and `report` (of its own runs) go with any key,
    `control` with the admin key only.
    """

    name: str
    method: str
    path: str
    summary: str
    handler: Handler[P]
    params: type[P]
    responses: Mapping[int, Content]
    body: Content | None
    errors: frozenset[int]
    needs: Right


class Operations(list[Operation[Any]]):
    """The operations of one module."""

    def add(
        self,
        name: str,
        route: str,
        params: type[P],
        answer: Content | Mapping[int, Content],
        *,
        body: Content | type[BaseModel] | None = None,
        errors: tuple[int, ...] = (),
        needs: Right | None = None,
        summary: str = "",
    ) -> Callable[[Handler[P]], Handler[P]]:
        """Decorator of the handler of `route` (`GET /api/...`); its docstring is the summary.

        `errors`: statuses besides 400, 404 of a path with parameters, and 413 of a body.
        `needs`: by default `read` for a GET and `control` for all others.
        """
        method, _, path = route.partition(" ")
        usual = (400, *((404,) if "{" in path else ()), *((413,) if body is not None else ()))

        def add(handler: Handler[P]) -> Handler[P]:
            operation = Operation(
                name=name,
                method=method,
                path=path,
                summary=summary or " ".join((handler.__doc__ or "").split()),
                handler=handler,
                params=params,
                responses={200: answer} if isinstance(answer, Content) else answer,
                body=body if body is None or isinstance(body, Content) else Content(body),
                errors=frozenset((*usual, *errors)),
                needs=needs or ("read" if method == "GET" else "control"),
            )
            self.append(operation)
            return handler

        return add


class Resource:
    """Serves the operations of one path."""

    def __init__(self, runtime: Runtime, gate: Gate, operations: Sequence[Operation[Any]]) -> None:
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
        if operation.needs == "control":
            access.require_control()
        elsewhere = scope["path_params"] | {
            name: header(scope["headers"], name.encode()).decode("latin-1") or None
            for name in operation.params.in_headers
        }
        params = read_parameters(operation.params, scope["query_string"], elsewhere)
        body = b""
        if operation.body is not None:
            body = await read_body(scope["headers"], receive, exchange, _MAX_BODY_BYTES)
        request = ApiRequest(runtime=self._runtime, access=access, params=params, body=body)
        try:
            response = await operation.handler(request)
        except StoreUnavailable as error:
            raise unavailable(error) from error
        except StoreError as error:
            raise GatewayError(f"the store failed: {error}", label=error.label) from error
        if response.chunks is None:
            await _send_whole(send, response)
        else:
            # A client that leaves the stream is no error.
            with contextlib.suppress(ClientGone):
                async with DisconnectWatch(receive, exchange) as watch:
                    await _send_chunks(send, response, response.chunks)
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


def _head(response: ApiResponse, length: int | None) -> dict[str, Any]:
    headers = [
        (b"content-type", response.media.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *response.headers,
    ]
    if length is not None and response.status != 204:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": response.status, "headers": headers}


async def _send_whole(send: Send, response: ApiResponse) -> None:
    body = b"" if response.status == 204 else orjson.dumps(response.payload, default=as_json_value)
    await send(_head(response, len(body)))
    await send({"type": "http.response.body", "body": body})


async def _send_chunks(send: Send, response: ApiResponse, chunks: AsyncIterator[bytes]) -> None:
    await send(_head(response, None))
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
