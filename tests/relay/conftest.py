"""One upstream with one gateway before it, shared by all tests, and gateways to order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.relay.gateways import a_gateway, renewed


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[ScriptedUpstream]:
    """The upstream of the shared gateway."""
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture(scope="session")
def shared_gateway(
    shared_upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppServer]:
    """A gateway with default settings that only relays; it has no keys and no deployments."""
    with a_gateway(shared_upstream.base_url, tmp_path_factory.mktemp("relay")) as server:
        yield server


@pytest.fixture
def there(shared_upstream: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """The shared upstream with nothing scripted and nothing recorded yet."""
    with renewed(shared_upstream) as upstream:
        yield upstream


@pytest.fixture
def here(shared_gateway: AppServer, there: ScriptedUpstream) -> Iterator[httpx.Client]:
    """A client of the shared gateway."""
    with httpx.Client(base_url=shared_gateway.base_url, timeout=120) as client:
        yield client


@pytest.fixture
def relay(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[Callable[..., httpx.Client]]:
    """Start a gateway of the test's own, before `upstream`; gives a client of it."""
    opened: list[tuple[AppServer, httpx.Client]] = []

    def start(settings: Mapping[str, Any] | None = None, **client: Any) -> httpx.Client:
        directory = tmp_path / f"gateway-{len(opened)}"
        directory.mkdir()
        server = a_gateway(upstream.base_url, directory, settings)
        server.start()
        made = httpx.Client(base_url=server.base_url, timeout=120, **client)
        opened.append((server, made))
        return made

    yield start
    for server, made in reversed(opened):
        made.close()
        server.stop()
