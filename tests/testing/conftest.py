"""The official clients, pointed at the scripted upstream, without retries of their own."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from gateway.testing import ScriptedUpstream


@pytest.fixture
def openai_client(upstream: ScriptedUpstream) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=upstream.base_url, api_key="key", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(upstream: ScriptedUpstream) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own client."""
    with anthropic.Anthropic(base_url=upstream.url, api_key="key", max_retries=0) as client:
        yield client
