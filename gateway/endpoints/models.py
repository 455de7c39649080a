"""`GET /v1/models`: the configured names, then what the default upstream offers."""

from __future__ import annotations

import time
from typing import Any

import orjson

from gateway.endpoints.auth import Authenticator
from gateway.endpoints.body import Receive, Scope, Send
from gateway.endpoints.chat import refuse_loop
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.reply import send_json
from gateway.errors import UpstreamFailure
from gateway.exchange import Exchange
from gateway.services import Runtime, Services
from gateway.upstream.base import LaneResponse, RawHeaders, header
from gateway.upstream.dispatch import Call, outgoing_headers, target_url
from gateway.wire.watch import ResponseWatch

_MAX_LIST_BYTES = 2**23  # 8 MiB: the longest public list (a few hundred models) has under 1 MiB


class ModelsEndpoint:
    """Merges two lists; with no configured names the upstream's answer goes through as it is."""

    def __init__(self, runtime: Runtime, auth: Authenticator) -> None:
        self._runtime = runtime
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[EXCHANGE]
        exchange.route = "models"
        headers: RawHeaders = scope["headers"]
        with self._runtime.services.in_use() as services:
            refuse_loop(headers, services.dispatcher.instance)
            principal = self._auth.principal(headers)
            names = services.table.names
            started = time.perf_counter()
            try:
                status, raw_headers, body = await _upstream_list(
                    services, headers, scope["query_string"], principal.key_header
                )
            except UpstreamFailure:
                if not names:
                    raise
                status, raw_headers, body = 502, [], b""
            finally:
                exchange.waited_s += time.perf_counter() - started
        if not names:
            await send({"type": "http.response.start", "status": status, "headers": raw_headers})
            await send({"type": "http.response.body", "body": body})
            return
        theirs = _entries(body) if status < 300 else []
        await send_json(send, 200, {"object": "list", "data": _merged(names, theirs)})


async def _upstream_list(
    services: Services, headers: RawHeaders, query: bytes, key_header: bytes | None
) -> tuple[int, RawHeaders, bytes]:
    target = services.table.default
    call = Call(
        method="GET",
        path="/models",
        headers=[h for h in headers if h[0] != b"accept-encoding"],
        query=query,
        key_header=key_header,
        body=lambda _: b"",
        parsed=lambda _: {},
    )
    outgoing = outgoing_headers(call, target, services.dispatcher.instance)
    url = target_url(target.api_base, call.path, query)
    response: LaneResponse = await services.native.send("GET", url, outgoing, b"")
    watch = ResponseWatch(header(response.headers, b"content-encoding"), _MAX_LIST_BYTES)
    parts: list[bytes] = []
    try:
        async for chunk in response:
            watch.feed(chunk)
            parts.append(chunk)
    finally:
        await response.aclose()
    return response.status, response.headers, b"".join(parts)


def _entries(body: bytes) -> list[dict[str, Any]]:
    try:
        data = orjson.loads(body).get("data")
    except (ValueError, AttributeError):
        return []
    return [e for e in data if isinstance(e, dict)] if isinstance(data, list) else []


def _merged(names: list[str], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    configured = [n for n in names if "*" not in n]
    own = [{"id": n, "object": "model", "created": 0, "owned_by": "gateway"} for n in configured]
    return own + [e for e in theirs if e.get("id") not in set(configured)]
