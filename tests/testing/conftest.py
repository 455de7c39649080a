"""The official clients, pointed at the scripted upstream, without retries of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from steering_gateway_testing import ScriptedUpstream

if TYPE_CHECKING:
    import anthropic
    import openai

# Every process of pytest reads this file, also the one that only hands out tests: the clients take
# 3 s of CPU to import, and are imported where they are needed.


@pytest.fixture
def openai_client(upstream: ScriptedUpstream) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    import openai

    with openai.OpenAI(base_url=upstream.base_url, api_key="key", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(upstream: ScriptedUpstream) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own client."""
    import anthropic

    with anthropic.Anthropic(base_url=upstream.url, api_key="key", max_retries=0) as client:
        yield client
