"""The LiteLLM lane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.config import TimeoutSettings
from gateway.features.litellm.lane import LiteLLMLane
from tests.features.litellm.lane import a_lane


@pytest.fixture
def limits() -> TimeoutSettings:
    """Limits of time; a module of tests may have its own."""
    return TimeoutSettings()


@pytest.fixture
async def lane(limits: TimeoutSettings) -> AsyncIterator[LiteLLMLane]:
    """The lane over a pool of its own."""
    async with a_lane(limits, headers={"x-gateway-instance": "me"}) as made:
        yield made
