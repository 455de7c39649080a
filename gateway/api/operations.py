"""Operations of the control plane as values, and the ASGI application that serves them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_type_hints

import orjson
from msgspec import Struct
from pydantic import BaseModel, create_model

from gateway.api.params import Parameters, names_of, read_model, read_parameters, refuse_unknown
from gateway.auth.access import Access, Gate
from gateway.endpoints.body import (
    ClientGone,
    DisconnectWatch,
    Receive,
    Scope,
    Send,
    read_body,
    send_whole,
)
from gateway.endpoints.edge import EXCHANGE
from gateway.errors import BadRequest, GatewayError, MethodNotAllowed
from gateway.stores.protocols import StoreError, StoreUnavailable
from gateway.text.sanitize import without_folders
from gateway.values import FieldDict, Fields, T, frozen
from gateway.wire.coerce import as_json_value
from gateway.wire.headers import RawHeaders, header

if TYPE_CHECKING:
    from gateway.runtime import Runtime

JSON = "application/json"
_MAX_BODY_BYTES = 5 * 2**20  # Source: the reference's limit for bodies of its API
P = TypeVar("P", bound=Parameters)
M = TypeVar("M", bound=BaseModel)


@frozen
class ApiRequest(Generic[P]):
    """One request for an operation."""

    runtime: "Runtime"  # the process that answers
    access: Access  # rights of the caller
    params: P  # of path, query and headers, checked
    body: bytes = b""  # as sent; read by the operation that needs it

    @property
    def tenant(self) -> str | None:
        """The tenant whose data is asked for, None for all. Raises: Forbidden; as Access.scope."""
        return self.access.scope(getattr(self.params, "tenant", None))

    def read(self, model: type[M]) -> M:
        """The body as `model`; none is as good as an empty object. Raises: BadRequest, naming the
        key that is wrong."""
        values: FieldDict = {}
        if self.body:
            values = self.json_object()
        for name in values:
            refuse_unknown(name, names_of(model))
        return read_model(model, values)

    def json_object(self) -> FieldDict:
        """The body. Raises: BadRequest when it is not one JSON object."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"the body is not JSON: {error}", param="body") from None
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object", param="body")
        return value


class ApiResponse(Struct, frozen=True):
    """An answer."""

    payload: Any = None  # written as JSON; None with `chunks`
    status: int = 200  # of HTTP
    media: str = JSON  # content type
    noted: bool = False  # the audit log has an entry of the operation's own
    # of another media type, sent as they come; None for JSON
    chunks: AsyncIterator[bytes] | None = None


Handler = Callable[[ApiRequest[P]], Awaitable[ApiResponse]]


class Body(Struct, frozen=True):
    """A documented body."""

    type: Any  # any that pydantic can describe; None: there is no body
    description: str = ""  # for the API's document
    media: str = JSON  # content type
    also: tuple[str, ...] = ()  # further content types that a parameter chooses, as text


def shape(name: str, description: str, **fields: Any) -> type[BaseModel]:
    """Model of an answer whose fields need no words: their types by name."""
    described = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __doc__=description, **described)  # type: ignore[call-overload, no-any-return]


def like(stored: type, *names: str) -> Callable[[type[M]], type[M]]:
    """Decorator of a model of answers: it begins with these fields of a stored value, by default
    all that it does not declare itself."""

    def complete(model: type[M]) -> type[M]:
        hints = get_type_hints(stored)
        own = model.model_fields
        wanted = [name for name in names or hints if name not in own]
        fields: FieldDict = {name: (hints[name], ...) for name in wanted}
        known = getattr(model, "described", (model,))
        fields["described"] = (ClassVar[Any], (stored, *known))
        fields |= {name: (field.annotation, field) for name, field in own.items()}
        return create_model(model.__name__, __doc__=model.__doc__, **fields)  # type: ignore[return-value]

    return complete


Right = Literal["read", "report", "control"]


@frozen
class Operation(Generic[P]):
    """One method of a route."""

    method: str  # of HTTP
    path: str  # with `{name}` for parameters in it
    handler: Handler[P]  # gives the answer
    params: type[P]  # of path, query and headers
    responses: Mapping[int, Body]  # by status, those of success
    body: Body | None  # of the request; None: it has none
    errors: frozenset[int]  # possible statuses besides 401, 403 and 503
    # any key gives the rights `read` and `report` (of its own runs), the admin key also `control`
    needs: Right

    @property
    def name(self) -> str:
        """The handler's name in camel case."""
        first, *others = self.handler.__name__.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def summary(self) -> str:
        """The handler's docstring on one line."""
        return " ".join((self.handler.__doc__ or "").split())


class Operations(list[Operation[Any]]):
    """The operations of one module."""

    def add(
        self,
        route: str,
        answer: Any,
        description: str = "",
        *,
        body: Body | type[BaseModel] | None = None,
        errors: tuple[int, ...] = (),
        needs: Right | None = None,
    ) -> Callable[[Handler[P]], Handler[P]]:
        """Decorator of the handler of `route` (`GET /api/...`); its name, its docstring and the
        `ApiRequest[...]` that it takes give the operation's name, summary and parameters. `answer`:
        a Body by status, or the type of the answer 200, which is described here. `errors`:
        statuses besides 400, 404 of a path with parameters, and 413 of a body. `needs`: by default
        `read` for a GET and `control` for all others."""
        method, _, path = route.partition(" ")
        usual = (400, *((404,) if "{" in path else ()), *((413,) if body is not None else ()))
        if not isinstance(answer, Body | dict):
            answer = Body(answer, description)

        def add(handler: Handler[P]) -> Handler[P]:
            request, *_ = get_type_hints(handler).values()
            operation = Operation(
                method=method,
                path=path,
                handler=handler,
                params=get_args(request)[0],
                responses={200: answer} if isinstance(answer, Body) else answer,
                body=body if body is None or isinstance(body, Body) else Body(body),
                errors=frozenset((*usual, *errors)),
                needs=needs or ("read" if method == "GET" else "control"),
            )
            self.append(operation)
            return handler

        return add


class Resource:
    """Serves the operations of one path."""

    def __init__(self, runtime: "Runtime", gate: Gate, operations: Sequence[Operation[Any]]):
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
            body = await read_body(scope["headers"], receive, exchange, limit=_MAX_BODY_BYTES)
        request = ApiRequest(runtime=self._runtime, access=access, params=params, body=body)
        try:
            response = await operation.handler(request)
        except StoreUnavailable as error:
            raise unavailable(error) from error
        except StoreError as error:
            message = f"the store failed: {without_folders(str(error))}"
            raise GatewayError(message, label=error.label) from error
        if operation.needs == "control" and operation.method != "GET" and not response.noted:
            await _note_operation(operation, request, response)
        if response.chunks is not None:
            # A client that leaves the stream is no error.
            with suppress(ClientGone):
                async with DisconnectWatch(receive, exchange) as watch:
                    head = {"status": response.status, "headers": _headers(response)}
                    await send({"type": "http.response.start", **head})
                    async for chunk in response.chunks:
                        more = {"type": "http.response.body", "body": chunk, "more_body": True}
                        await send(more)
                    await send({"type": "http.response.body", "body": b""})
                    watch.stop()
            return
        payload = response.payload
        if response.status == 204:
            body = b""
        else:
            body = orjson.dumps(payload, default=as_json_value)
        await send_whole(send, response.status, _headers(response), body=body)


_WORDS = {"POST": "add", "PUT": "replace", "PATCH": "change", "DELETE": "delete"}


async def _note_operation(
    operation: Operation[Any], request: ApiRequest[Any], response: ApiResponse
) -> None:
    said = {}
    last = operation.path.rpartition("/")[2]
    with suppress(BadRequest):
        said = request.json_object()
    if isinstance(response.payload, dict):
        made = response.payload
    else:
        made = {}
    names = [value for name, value in request.params if f"{{{name}}}" in operation.path]
    names += [said.get("subject"), made.get("id"), made.get("pattern_id")]
    act = ""
    if operation.path.count("/") > 2 and "{" not in last:
        act = last.removesuffix("s")
    subject = next((str(name) for name in names if name), "")
    what = (kind_of(operation.path), act or _WORDS[operation.method], subject)
    await note(request.runtime, request.access, *what, said)


def kind_of(path: str) -> str:
    """`pattern` of `/api/patterns.jsonl` and `/dashboard/patterns`."""
    return path.split("/")[2].partition(".")[0].removesuffix("s")


async def note(
    runtime: "Runtime", access: Access, kind: str, act: str, subject: str, said: Fields
) -> None:
    """Append to the audit log what the caller has done."""
    if (changes := runtime.opened.stores.changes) is not None:
        await changes.note(kind, act, subject, said=said, author=access.author)


def publish_change(
    runtime: "Runtime", kind: str, what: str, *, tenant: str | None, **details: Any
) -> None:
    """Log a change of lessons or patterns, and publish an event to their tenant; None or empty: to
    operators alone, as what all tenants share."""
    runtime.events.publish({"type": kind, "tenant": tenant or None, "result": what})
    runtime.log.info(f"{kind}s changed", result=what, **details)


def unusable(message: str, code: str | None, label: str | None, *headers: Any) -> GatewayError:
    """The answer while a part of the gateway is off or fails."""
    kind = "server_error"
    return GatewayError(message, status=503, type=kind, code=code, label=label, headers=headers)


def usable(part: T | None, otherwise: str) -> T:
    """A part of the store that is there. Raises: GatewayError (503), which says `otherwise`."""
    if part is None:
        raise unusable(otherwise, None, None)
    return part


def unavailable(error: StoreError) -> GatewayError:
    """The answer to a request while the store cannot be reached."""
    message = f"the store cannot answer now: {without_folders(str(error))}"
    return unusable(message, "store_unavailable", error.label, ("retry-after", "1"))


def _headers(response: ApiResponse) -> RawHeaders:
    return [
        (b"content-type", response.media.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
