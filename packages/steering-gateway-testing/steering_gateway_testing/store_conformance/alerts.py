"""Checks of AlertStore."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.features.alerts.records import AlertRecord, QueuedAlert, Settled
from gateway.features.alerts.store import AlertStore
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.attribution import below
from steering_gateway_testing.store_conformance.check import Check, kept_by
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
    return kept_by(stores, AlertStore)


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


async def joins_alerts_of_one_trouble(stores: Stores) -> None:
    """What follows in a thread names the alert that opened it. At a receiver without threads it
    waits, but for the first danger and the end, and goes with what is due; a thread that was quiet
    for the cooldown is over."""
    store = _kept(stores)

    async def raised(id: str, after: float, **changes: Any) -> None:
        alert = an_alert(id, key=id, thread="s1", raised_at=START + after, **changes)
        sinks = {"ops": START + after, "chat": START + after}
        held = {"chat": START + after + 60}
        assert await store.raise_alert(alert, sinks, cooldown_s=60, held=held)

    async def due(at: float) -> list[tuple[str, str]]:
        claimed = await store.claim("one", START + at, lease_s=5, limit=9)
        settled = [
            Settled(alert_id=d.alert.id, sink=d.sink, done=True, next_at=0.0) for d in claimed
        ]
        await store.settle("one", settled, START + at)
        return [(d.sink, d.alert.id) for d in claimed]

    await raised("a", 0, severity="warn")
    assert await due(0) == [("chat", "a"), ("ops", "a")]
    await raised("b", 1, severity="warn")
    assert await due(2) == [("ops", "b")]
    await raised("c", 3)
    assert await due(4) == [("chat", "b"), ("chat", "c"), ("ops", "c")]
    await raised("d", 5)
    assert await due(6) == [("ops", "d")]
    await raised("e", 7, rule="run_stopped")
    assert await due(8) == [("chat", "d"), ("chat", "e"), ("ops", "e")]
    await raised("f", 9)
    assert await due(68) == [("ops", "f")]
    assert await due(69) == [("chat", "f")]
    await raised("g", 70)
    assert await due(71) == [("chat", "g"), ("ops", "g")]
    listed = {each.alert.id: each.alert.update_of for each in await store.list_alerts(tenant=None)}
    assert listed == {"a": "", **dict.fromkeys("bcdef", "a"), "g": ""}


async def opens_a_thread_once(stores: Stores) -> None:
    """Two gateways that raise alerts of one session at one time open one thread."""
    both = (an_alert(id, key=id, thread="s1") for id in ("a", "b"))
    await asyncio.gather(*(_kept(stores).raise_alert(a, {}, cooldown_s=60) for a in both))
    first, second = await _kept(stores).list_alerts(tenant=None)
    assert sorted((first.alert.update_of, second.alert.update_of)) in (["", "a"], ["", "b"])


async def names_the_session_of_a_run(stores: Stores) -> None:
    """The root of its conversation's tree; nothing for a run that is not stored."""
    root, child = records.one_run(1), records.one_run(2)
    session = root.conversation.id
    await stores.states.commit(root)
    await stores.states.commit(below(child, session, session))
    for call in (root, child):
        assert await _kept(stores).session_of(call.runs[0].id) == session
    assert await _kept(stores).session_of("none.0") == ""


async def keeps_an_address(stores: Stores) -> None:
    """The last one."""
    assert await _kept(stores).address() == ""
    for address in ("one", "two"):
        await _kept(stores).keep_address(address)
    assert await _kept(stores).address() == "two"


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


async def brings_what_a_message_has_said(stores: Stores) -> None:
    """What a receiver can change comes with what is new in its thread and no other; not with a
    question, and not with what could not be changed."""
    kept = _kept(stores)

    async def comes(name: str, at: float, **changes: Any) -> list[tuple[str, str]]:
        alert = an_alert(name, key=name, raised_at=at, **{"thread": "t", **changes})
        await kept.raise_alert(alert, {"chat": at}, cooldown_s=60)
        return await settled(name, at, f"m-{name}")

    async def settled(name: str, at: float, message: str) -> list[tuple[str, str]]:
        claimed = await kept.claim("one", at, lease_s=9, limit=9)
        done = bool(message)
        end = Settled(alert_id=name, sink="chat", done=done, next_at=at + 9, message=message)
        await kept.settle("one", [replace(end, error="" if done else "status 404")], at)
        return [(d.alert.id, d.message) for d in claimed]

    assert await comes("a1", START) == [("a1", "")]
    assert await comes("b1", START + 1, thread="u") == [("b1", "")]
    assert await comes("a2", START + 2) == [("a1", "m-a1"), ("a2", "")]
    assert await comes("q", START + 3, rule="approval_asked") == [("q", "")]
    last = an_alert("a3", key="a3", thread="t", raised_at=START + 4)
    await kept.raise_alert(last, {"chat": START + 4}, cooldown_s=60)
    assert ("a2", "m-a2") in await settled("a3", START + 4, "")
    assert await settled("a3", START + 13, "m-a3") == [("a3", "")]


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
    joins_alerts_of_one_trouble,
    opens_a_thread_once,
    keeps_an_address,
    names_the_session_of_a_run,
    gives_a_delivery_to_one_gateway,
    settles_deliveries,
    brings_what_a_message_has_said,
    prunes_old_alerts,
)
