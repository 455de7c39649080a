"""Stores with a queue of alerts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.features.alerts.store import AlertStore
from steering_gateway_testing.store_conformance.check import kept_by


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    opened = await open_stores(StorageSettings(path=str(tmp_path / "alerts.db")))
    yield opened
    await opened.close()


def kept(stores: Stores) -> AlertStore:
    """The queue of these stores."""
    return kept_by(stores, AlertStore)
