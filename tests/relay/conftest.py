"""One upstream with one gateway before it, shared by all tests, and gateways to order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.gateways import RELAY_ONLY, Gateways, relaying, renewed

Pair = tuple[ScriptedUpstream, AppServer]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """An upstream, and a gateway with default settings that only relays; it has no keys and no
    deployments."""
    with relaying(tmp_path_factory.mktemp("relay")) as both:
        yield both


@pytest.fixture
def shared_gateway(pair: Pair) -> AppServer:
    """The gateway that tests share."""
    return pair[1]


@pytest.fixture
def there(pair: Pair) -> Iterator[ScriptedUpstream]:
    """The shared upstream with nothing scripted and nothing recorded yet."""
    with renewed(pair[0]) as upstream:
        yield upstream


@pytest.fixture
def here(shared_gateway: AppServer, there: ScriptedUpstream) -> Iterator[httpx.Client]:
    """A client of the shared gateway."""
    with httpx.Client(base_url=shared_gateway.base_url, timeout=120) as client:
        yield client


@pytest.fixture
def relay(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[Callable[..., httpx.Client]]:
    """Start a gateway of the test's own, before `upstream`; gives a client of it."""
    with contextlib.ExitStack() as opened:
        gateways = opened.enter_context(Gateways(upstream.base_url, tmp_path, RELAY_ONLY))

        def start(settings: Mapping[str, Any] | None = None, **client: Any) -> httpx.Client:
            server = gateways.start(settings, env={})
            made = httpx.Client(base_url=server.base_url, timeout=120, **client)
            return opened.enter_context(made)

        yield start
