"""Checks of AlertStore."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.backends import Stores
from gateway.features.alerts.records import AlertRecord, QueuedAlert, Settled
from gateway.features.alerts.store import AlertStore
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START, TENANT


def an_alert(id: str = "a1", **changes: Any) -> AlertRecord:
    """An alert about one run."""
    values: dict[str, Any] = {
        "id": id,
        "key": "run_stuck:r1",
        "rule": "run_stuck",
        "severity": "danger",
        "title": "A run is stuck",
        "raised_at": START,
        "tenant": TENANT,
        "facts": {"steps": 7, "cost_usd": 0.25},
        "path": "/dashboard/runs/r1",
    }
    return AlertRecord(**(values | changes))


def _kept(stores: Stores) -> AlertStore:
    found = stores.of(AlertStore)
    assert found is not None
    return found


async def keeps_alerts_with_their_deliveries(stores: Stores) -> None:
    """Every field comes back, newest first; a tenant sees its own only."""
    own, other = an_alert("a1"), an_alert("a2", key="k2", raised_at=START + 1, tenant=None)
    for alert in (own, other):
        assert await _kept(stores).raise_alert(alert, {"ops": START + 9}, cooldown_s=60)
    listed = await _kept(stores).list_alerts(tenant=None)
    assert [found.alert for found in listed] == [other, own]
    (state,) = listed[0].deliveries
    assert (state.sink, state.attempts, state.next_at) == ("ops", 0, START + 9)
    assert (state.done_at, state.error) == (None, "")
    assert [f.alert for f in await _kept(stores).list_alerts(tenant=TENANT)] == [own]
    assert [f.alert.id for f in await _kept(stores).list_alerts(tenant=None, limit=1)] == ["a2"]


async def raises_a_flapping_condition_once(stores: Stores) -> None:
    """A key that was seen within the cooldown is the same alert; after a quiet one it is new."""
    for moment in range(0, 300, 50):
        alert = an_alert(f"a{moment}", raised_at=START + moment)
        assert await _kept(stores).raise_alert(alert, {}, cooldown_s=60) == (moment == 0)
    (only,) = await _kept(stores).list_alerts(tenant=None)
    assert (only.alert.id, only.seen_at) == ("a0", START + 250)
    assert await _kept(stores).raise_alert(
        an_alert("late", raised_at=START + 310), {}, cooldown_s=60
    )
    assert len(await _kept(stores).list_alerts(tenant=None)) == 2


async def gives_a_delivery_to_one_gateway(stores: Stores) -> None:
    """What is due is claimed once, at most so many per sink; a lease that ends frees it."""
    sinks = {"ops": START, "chat": START, "later": START + 900}
    for name in ("a1", "a2", "a3"):
        await _kept(stores).raise_alert(an_alert(name, key=name), sinks, cooldown_s=60)
    assert not await _kept(stores).is_due(START - 1)
    assert await _kept(stores).is_due(START)

    async def claim(owner: str, now: float) -> list[QueuedAlert]:
        return await _kept(stores).claim(owner, now, lease_s=30, limit=2)

    mine, theirs = await asyncio.gather(claim("one", START), claim("two", START))
    taken = [(d.alert.id, d.sink) for d in (*mine, *theirs)]
    assert len(taken) == len(set(taken))
    for claimed in (mine, theirs):
        sent_to = [delivery.sink for delivery in claimed]
        assert all(sent_to.count(sink) <= 2 for sink in sent_to)
    rest = [(d.alert.id, d.sink) for d in await claim("three", START + 29)]
    assert len({*taken, *rest}) == len(taken) + len(rest) == 6
    assert len(await claim("three", START + 31)) == 4


async def settles_deliveries(stores: Stores) -> None:
    """A failed one is due again at its time with its attempts counted; one that is done is not.
    A result of somebody whose lease has ended is ignored."""
    await _kept(stores).raise_alert(an_alert(), {"ops": START}, cooldown_s=60)
    (first,) = await _kept(stores).claim("one", START, lease_s=10, limit=5)
    assert first.attempts == 0
    failed = Settled(alert_id="a1", sink="ops", done=False, next_at=START + 100, error="status 500")
    await _kept(stores).settle("one", [failed], START + 1)
    assert not await _kept(stores).is_due(START + 99)
    (again,) = await _kept(stores).claim("two", START + 100, lease_s=10, limit=5)
    assert again.attempts == 1
    done = Settled(alert_id="a1", sink="ops", done=True, next_at=START + 100)
    await _kept(stores).settle("one", [done], START + 101)
    assert await _kept(stores).is_due(START + 111)
    await _kept(stores).claim("two", START + 111, lease_s=10, limit=5)
    await _kept(stores).settle("two", [done], START + 112)
    assert not await _kept(stores).is_due(START + 999)
    (state,) = (await _kept(stores).list_alerts(tenant=None))[0].deliveries
    assert (state.done_at, state.attempts, state.error) == (START + 112, 1, "")


async def prunes_old_alerts(stores: Stores) -> None:
    """Old ones go with their deliveries; one whose condition is still seen stays."""
    for name in ("old", "seen"):
        await _kept(stores).raise_alert(an_alert(name, key=name), {"ops": START}, cooldown_s=60)
    await _kept(stores).raise_alert(
        an_alert("again", key="seen", raised_at=START + 50), {}, cooldown_s=60
    )
    assert await _kept(stores).prune_alerts(START + 40) == 1
    assert [f.alert.id for f in await _kept(stores).list_alerts(tenant=None)] == ["seen"]
    assert len(await _kept(stores).claim("one", START + 60, lease_s=9, limit=9)) == 1


CHECKS: tuple[Check, ...] = (
    keeps_alerts_with_their_deliveries,
    raises_a_flapping_condition_once,
    gives_a_delivery_to_one_gateway,
    settles_deliveries,
    prunes_old_alerts,
)
