"""Stores of the tests of what is learned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings


@pytest.fixture
async def stores(either_store: dict[str, Any]) -> AsyncIterator[Stores]:
    """Of either database."""
    found = await open_stores(StorageSettings(**either_store))
    yield found
    await found.close()
