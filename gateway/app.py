"""The ASGI application: its routes and its one middleware, as lists one can read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import Route, Router

from gateway.config import Settings
from gateway.endpoints.auth import Authenticator
from gateway.endpoints.body import Receive, Scope, Send
from gateway.endpoints.chat import ChatEndpoint
from gateway.endpoints.edge import Edge
from gateway.endpoints.health import HealthEndpoints, method_not_allowed, not_found
from gateway.endpoints.models import ModelsEndpoint
from gateway.endpoints.passthrough import PassThrough
from gateway.pipeline import Pipeline
from gateway.services import Runtime

ASGIHandler = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Endpoint:
    """A handler as an ASGI app of its own: Starlette would take a bare function for a view."""

    def __init__(self, handler: ASGIHandler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


def build_app(settings: Settings) -> Edge:
    """The gateway as one ASGI application; `app.runtime` gives access to its services."""
    runtime = Runtime(settings)
    auth = Authenticator(settings.auth, host=settings.server.host, keys=runtime.keys)
    chat = ChatEndpoint(runtime, Pipeline(runtime), auth)
    models = ModelsEndpoint(runtime, auth)
    health = HealthEndpoints(runtime)
    anything = PassThrough(runtime, auth)
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/models", models, methods=["GET"]),
        Route("/healthz", _Endpoint(health.healthz), methods=["GET"]),
        Route("/readyz", _Endpoint(health.readyz), methods=["GET"]),
        Route("/metrics", _Endpoint(health.metrics), methods=["GET"]),
        Route("/v1/{path:path}", anything),
        Route("/chat/completions", _Endpoint(method_not_allowed)),
        Route("/models", _Endpoint(method_not_allowed)),
    ]
    router = Router(
        routes,
        default=not_found,
        redirect_slashes=False,
        lifespan=_lifespan(runtime),
    )
    return Edge(router, runtime, max_concurrent=settings.server.max_concurrent_requests)


def _lifespan(runtime: Runtime) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await runtime.start()
        try:
            yield
        finally:
            runtime.draining = True
            await runtime.aclose()

    return lifespan
