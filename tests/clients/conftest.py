"""The gateway that clients talk to: steering off and on, with nothing else changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.gateways import a_gateway, renewed
from steering_gateway_testing.official import openai


@pytest.fixture(scope="package")
def provider() -> Iterator[ScriptedUpstream]:
    """The provider behind the gateways."""
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture(scope="package", params=["off", "on"])
def gateway(
    request: pytest.FixtureRequest,
    provider: ScriptedUpstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AppServer]:
    """A gateway before the provider, with steering off and on."""
    settings = {"steering": {"mode": request.param}, "router": {"num_retries": 0}}
    with a_gateway(provider.base_url, tmp_path_factory.mktemp("clients"), settings) as server:
        yield server


@pytest.fixture
def upstream(provider: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """The provider with nothing scripted and nothing recorded yet."""
    with renewed(provider) as upstream:
        yield upstream


@pytest.fixture
def client(gateway: AppServer, upstream: ScriptedUpstream) -> Iterator[openai.OpenAI]:
    """The official client with only `base_url` changed."""
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-mine", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(
    gateway: AppServer, upstream: ScriptedUpstream
) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same, asynchronous."""
    async with openai.AsyncOpenAI(
        base_url=gateway.base_url, api_key="sk-mine", max_retries=0
    ) as made:
        yield made
