"""Checks of ChangeStore."""

from __future__ import annotations

import asyncio

from gateway.backends import Stores
from gateway.stores.sql.changes import Change, ChangeStore
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START


def _changes(stores: Stores) -> ChangeStore:
    assert stores.changes is not None
    return stores.changes


def _a_change(number: int, kind: str = "policy") -> Change:
    return Change(
        id=f"{kind}-{number}",
        kind=kind,
        subject="é",
        tenant="t",
        at=START + number,
        author="someone",
        reason="a reason",
        body='{"n": 1}',
    )


async def lists_changes_newest_first(stores: Stores) -> None:
    """Each with every field as it was, of one kind or of all."""
    changes = _changes(stores)
    assert await changes.newest() == []
    first, second, other = _a_change(1), _a_change(2), _a_change(3, "pilot")
    assert await changes.put(first, after=None)
    assert await changes.put(second, after=first.id)
    assert await changes.put(other, after=None)
    assert await changes.newest() == [other, second, first]
    assert await changes.newest("policy") == [second, first]
    assert await changes.newest("policy", limit=1) == [second]


async def appends_to_what_its_author_knew(stores: Stores) -> None:
    """Of two changes that follow the same one, the second is refused, and nothing is stored."""
    changes = _changes(stores)
    assert not await changes.put(_a_change(1), after="unknown")
    asked = [changes.put(_a_change(number), after=None) for number in range(1, 6)]
    assert sorted(await asyncio.gather(*asked)) == [False] * 4 + [True]
    assert len(await changes.newest()) == 1


CHANGE_CHECKS: tuple[Check, ...] = (lists_changes_newest_first, appends_to_what_its_author_knew)
