"""The ASGI application: its routes as one list, and its one middleware."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.routing import Route, Router

from gateway.auth.authenticator import Authenticator
from gateway.auth.other_sites import BrowserGuard
from gateway.buffered_bytes import Room
from gateway.config import Settings
from gateway.dialects import DIALECTS, RESPONSES
from gateway.embedding import EmbeddingError
from gateway.endpoints.body import Receive, Scope, Send
from gateway.endpoints.edge import Edge
from gateway.endpoints.health import HealthEndpoints
from gateway.endpoints.models import ModelsEndpoint
from gateway.endpoints.passthrough import PassThrough
from gateway.endpoints.realtime import PATHS as REALTIME_PATHS
from gateway.endpoints.realtime import RealtimeEndpoint
from gateway.endpoints.responses_socket import ResponsesSocket
from gateway.endpoints.steered import SteeredEndpoint
from gateway.endpoints.unknown_routes import OnlyMethods, front_door, not_found
from gateway.errors import ConfigError
from gateway.hooks import given
from gateway.pipeline import Pipeline
from gateway.runtime import Runtime
from gateway.stores.protocols import StoreError
from gateway.tasks import loading
from gateway.upstream.seats import PATHS as SEAT_PATHS

_CONTROL_PATHS = ("/api/{rest:path}", "/dashboard", "/dashboard/{rest:path}")


class _Endpoint:
    """A handler as an ASGI application: Starlette would take a bare function for a view."""

    def __init__(self, handler: Callable[[Scope, Receive, Send], Awaitable[None]]):
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


class _OnFirstUse:
    """An application that is built at its first request, off the event loop. The control plane and
    the dashboard need pydantic and jinja2: 80 ms and 6 MB that neither the start nor a gateway
    without visitors has to pay."""

    def __init__(self, build: Callable[[], Router]):
        self._build = build
        self._built: Router | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            if self._built is None:
                self._built = await loading(self._build)
        await self._built(scope, receive, send)


def _control_plane(runtime: Runtime, auth: Authenticator) -> Router:
    from gateway.api.routes import api_routes

    routes = api_routes(runtime, auth)
    for routes_of in given("routes"):
        routes += routes_of(runtime, auth)
    return Router(routes, default=not_found, redirect_slashes=False)


def build_app(settings: Settings) -> Edge:
    """The gateway as one ASGI application; its services are in `runtime` of the result."""
    runtime = Runtime(settings)
    auth = Authenticator(settings.auth, host=settings.server.host, keys=runtime.keys)
    guard = BrowserGuard(auth, settings.server)
    runtime.reloaded.append(lambda fresh: auth.update(fresh.auth))
    runtime.reloaded.append(lambda fresh: guard.update(fresh.server))
    pipeline = Pipeline(runtime)
    room = Room(runtime.waiting_bytes)
    anything = PassThrough(runtime, auth, room)
    endpoint = partial(SteeredEndpoint, runtime, pipeline, auth, room=room)
    steered = [
        Route(path, served, methods=["POST"])
        for dialect in DIALECTS.values()
        for served, paths in ((anything, dialect.passed_on), (endpoint(dialect), dialect.routes))
        for path in paths
    ]
    models = ModelsEndpoint(runtime, auth, anything)
    health = HealthEndpoints(runtime)
    control = _OnFirstUse(partial(_control_plane, runtime, auth))
    endpoints = [
        *steered,
        Route("/v1/models", models, methods=["GET"]),
        Route("/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", _Endpoint(models.one), methods=["GET"]),
        Route("/api/hello", _Endpoint(health.hello), methods=["GET"]),
        Route("/healthz", _Endpoint(health.healthz), methods=["GET"]),
        Route("/readyz", _Endpoint(health.readyz), methods=["GET"]),
        Route("/metrics", _Endpoint(health.metrics), methods=["GET"]),
    ]
    sockets = ResponsesSocket(runtime, auth, anything)
    sockets.room = room
    routes = [  # which are tried in this order: what most clients ask comes first
        *endpoints,
        *(Route(path, sockets, methods=["GET"]) for path in RESPONSES.routes),
        *(  # Answers 405 in OpenAI's error shape; below `/v1` other methods are passed through.
            Route(route.path, OnlyMethods(*sorted(route.methods or ())))
            for route in endpoints
            if not route.path.startswith("/v1/")
        ),
        Route("/", _Endpoint(front_door)),
        *(Route(path, control) for path in _CONTROL_PATHS),
        *(Route(path, RealtimeEndpoint(runtime, auth, anything)) for path in REALTIME_PATHS),
        *(Route(path, anything) for path in ("/v1/{path:path}", *SEAT_PATHS)),
    ]
    router = Router(routes, default=not_found, redirect_slashes=False)
    limit = settings.server.max_concurrent_requests
    lifespan = partial(_lifespan, runtime)
    sockets.app = edge = Edge(router, lifespan, runtime, guard=guard, max_concurrent=limit)
    return edge


async def _lifespan(runtime: Runtime, _scope: Scope, receive: Receive, send: Send) -> None:
    """Open the services before the first request and close them after the last. Not Starlette's
    own, because a failed start should report its reason in one line, without a traceback."""
    await receive()
    try:
        await runtime.start()
    except (StoreError, EmbeddingError, ConfigError) as exc:
        await runtime.aclose()
        runtime.failed = f"cannot start: {exc}"
        await send({"type": "lifespan.startup.failed", "message": runtime.failed})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    runtime.draining = True
    await runtime.aclose()
    await send({"type": "lifespan.shutdown.complete"})
