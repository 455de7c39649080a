"""The store of conversations without a guard."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends import Stores
from gateway.stores.protocols import VersionConflict
from gateway.stores.watched import WatchedStates
from steering_gateway_testing.store_conformance.records import one_run


async def test_each_call_waits_for_the_store_and_gets_its_errors(stores: Stores) -> None:
    """What is kept is stored at once."""
    kind: Any = WatchedStates  # its methods are those of the store
    plain: WatchedStates = kind(stores.states)
    assert await plain.keep(one_run(1)) == 1
    newer = one_run(2)
    with pytest.raises(VersionConflict):
        await plain.commit(replace(newer, conversation=replace(newer.conversation, version=7)))
    await plain.read_beside(plain.ping)
    assert plain.health.incident is None
