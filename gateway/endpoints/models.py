"""`GET /v1/models` and `/v1/models/{id}`: configured names, then the default upstream's models."""

import asyncio
import time

import orjson

from gateway.auth.authenticator import Authenticator
from gateway.endpoints.body import DisconnectWatch, Receive, Scope, Send, send_json
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.passthrough import PassThrough
from gateway.endpoints.rights_without_keys import rights
from gateway.errors import NotFound, UpstreamFailure
from gateway.exchange import Exchange
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.upstream.base import LaneResponse
from gateway.upstream.dispatch import UpstreamCall, outgoing_headers, refuse_loop, target_url
from gateway.values import FieldDict
from gateway.wire.coerce import objects
from gateway.wire.headers import RawHeaders

_MAX_LIST_BYTES = 2**23  # 8 MiB; the longest public list (a few hundred models) is below 1 MiB
_LIST_WAIT_S = 5.0  # an upstream that hangs counts as down here


class ModelsEndpoint:
    """Merges the two lists; without configured names the upstream's answer is passed through."""

    def __init__(self, runtime: Runtime, auth: Authenticator, passthrough: PassThrough):
        self._runtime = runtime
        self._auth = auth
        self._rights = rights()
        self._passthrough = passthrough

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[EXCHANGE]
        if exchange.request.path[:4] == "/at/" or not self._runtime.services.table.names:
            await self._passthrough(scope, receive, send)
            return
        exchange.route = "models"
        headers: RawHeaders = scope["headers"]
        with self._runtime.services.in_use() as services:
            refuse_loop(headers, services.dispatcher.instance)
            principal = self._auth.principal(scope)
            self._rights.require_route(services, principal, "/models")
            call = UpstreamCall(
                method="GET",
                path="/models",
                headers=[h for h in headers if h[0] != b"accept-encoding"],
                query=scope["query_string"],
                key_headers=principal.key_headers,
            )
            started = time.perf_counter()
            try:
                async with DisconnectWatch(receive, exchange), asyncio.timeout(_LIST_WAIT_S):
                    body = await _upstream_list(services, call)
            except (UpstreamFailure, TimeoutError):
                body = b""
            exchange.timing.waited_s += time.perf_counter() - started
            own = {name: _own(name) for name in _configured(services)}
            listed = [*own.values(), *(e for e in _entries(body) if e.get("id") not in own)]
            usable = [
                e
                for e in listed
                if self._rights.may_use_model(services, principal, str(e.get("id")))
            ]
        await send_json(send, 200, {"object": "list", "data": usable})

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /v1/models/{id}`: answers for configured names and forwards other names."""
        model = scope["path_params"]["model"]
        services = self._runtime.services
        principal = self._auth.principal(scope)
        self._rights.require_route(services, principal, f"/models/{model}")
        if not self._rights.may_use_model(services, principal, model):
            raise NotFound(f"there is no model {model[:80]!r}")
        if model not in _configured(services):
            await self._passthrough(scope, receive, send)
            return
        scope[EXCHANGE].route = "models"
        await send_json(send, 200, _own(model))


async def _upstream_list(services: Services, call: UpstreamCall) -> bytes:
    """The body of the upstream's list; empty for an error or a body that is too long."""
    target = services.table.default.for_client(None, call.api)
    outgoing = outgoing_headers(call, target, services.dispatcher.instance)
    url = target_url(target.api_base, call.path, call.query)
    response: LaneResponse = await services.native.send("GET", url, outgoing, content=b"")
    body = bytearray()
    try:
        async for chunk in response:
            body += chunk
            if len(body) > _MAX_LIST_BYTES:
                return b""
    finally:
        await response.aclose()
    if response.status < 300:
        return bytes(body)
    return b""


def _entries(body: bytes) -> list[FieldDict]:
    try:
        return objects(orjson.loads(body).get("data"))
    except (ValueError, AttributeError):
        return []


def _configured(services: Services) -> list[str]:
    return [name for name in services.table.names if "*" not in name]


def _own(name: str) -> FieldDict:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gateway"}
