"""The ASGI application: its routes and its one middleware, as lists one can read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.routing import Route, Router

from gateway.api.routes import api_routes
from gateway.config import Settings
from gateway.dashboard.routes import dashboard_routes
from gateway.dialects import CHAT, MESSAGES, RESPONSES
from gateway.embedding import EmbeddingError
from gateway.endpoints.auth import Authenticator
from gateway.endpoints.body import Receive, Scope, Send
from gateway.endpoints.edge import Edge
from gateway.endpoints.health import HealthEndpoints, OnlyMethods, not_found
from gateway.endpoints.models import ModelsEndpoint
from gateway.endpoints.passthrough import PassThrough
from gateway.endpoints.steered import SteeredEndpoint
from gateway.errors import ConfigError
from gateway.pipeline import Pipeline
from gateway.runtime import Runtime
from gateway.stores.base import StoreError

_READ_ONLY = ("/models", "/healthz", "/readyz", "/metrics", "/api/hello")

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
    runtime.reloaded.append(lambda fresh: auth.update(fresh.auth))
    pipeline = Pipeline(runtime)
    anything = PassThrough(runtime, auth)
    chat, responses, messages = (
        SteeredEndpoint(runtime, pipeline, auth, dialect, anything)
        for dialect in (CHAT, RESPONSES, MESSAGES)
    )
    models = ModelsEndpoint(runtime, auth, anything)
    health = HealthEndpoints(runtime)
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/responses", responses, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", _Endpoint(models.one), methods=["GET"]),
        Route("/api/hello", _Endpoint(health.hello), methods=["GET"]),
        Route("/healthz", _Endpoint(health.healthz), methods=["GET"]),
        Route("/readyz", _Endpoint(health.readyz), methods=["GET"]),
        Route("/metrics", _Endpoint(health.metrics), methods=["GET"]),
        *api_routes(runtime, auth),
        *dashboard_routes(runtime, auth),
        Route("/v1/{path:path}", anything),
        *(Route(path, OnlyMethods("POST")) for path in ("/chat/completions", "/responses")),
        *(Route(path, OnlyMethods("GET", "HEAD")) for path in _READ_ONLY),
    ]
    router = Router(routes, default=not_found, redirect_slashes=False)
    limit = settings.server.max_concurrent_requests
    return Edge(router, _Lifespan(runtime), runtime, max_concurrent=limit)


class _Lifespan:
    """Opens the services before the first request and closes them after the last.

    Written out, because a start that fails should say why in one line, not with a traceback.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._runtime.start()
        except (StoreError, EmbeddingError, ConfigError) as exc:
            await self._runtime.aclose()
            await send({"type": "lifespan.startup.failed", "message": f"cannot start: {exc}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._runtime.draining = True
        await self._runtime.aclose()
        await send({"type": "lifespan.shutdown.complete"})
