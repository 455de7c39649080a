"""`AppServer`: an ASGI application on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from steering_gateway_testing import AppServer


async def hello(request: Request) -> PlainTextResponse:
    """Answer with the path."""
    return PlainTextResponse(request.url.path)


def test_an_application_is_served_between_start_and_stop() -> None:
    """The lifespan is entered before the first request and left at the end."""
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    app = Starlette(routes=[Route("/v1/hello", hello)], lifespan=lifespan)
    with AppServer(app) as server:
        assert seen == ["in"]
        answer = httpx.get(f"{server.base_url}/hello")
        assert answer.text == "/v1/hello"
        assert "server" not in answer.headers
    assert seen == ["in", "out"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_a_failing_start_up_is_an_error() -> None:
    """An application whose lifespan raises is not served."""

    async def fail() -> None:
        raise RuntimeError("no store")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await fail()
        yield

    app = Starlette(lifespan=lifespan)
    with pytest.raises(RuntimeError, match="did not start"):
        AppServer(app, config=uvicorn.Config(app, log_level="critical")).start()
