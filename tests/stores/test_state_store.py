"""The conformance suite of StateStore, over every backend."""

from __future__ import annotations

import pytest

from tests.stores.conformance import STATE_CHECKS, Check
from tests.stores.conftest import Stores


@pytest.mark.parametrize("check", STATE_CHECKS, ids=lambda check: check.__name__)
async def test_state_store(check: Check, stores: Stores) -> None:
    """Each promise of the protocol holds on each backend."""
    await check(stores)
