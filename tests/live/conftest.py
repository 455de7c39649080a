"""Fixtures of the tests of a running gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.patience import ANSWER_S


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps no connection open, so that a gateway may stop."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=ANSWER_S, limits=limits) as client:
        yield client
