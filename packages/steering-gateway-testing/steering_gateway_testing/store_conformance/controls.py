"""Checks of ControlStore."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.errors import ON_TROUBLE
from gateway.stores.controls import GATEWAY, Control
from gateway.stores.filters import ANY, STOPPED_BY, RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.stopped_by import Stop
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START, TENANT, a_call


async def keeps_holds_until_they_are_released(stores: Stores) -> None:
    """One hold for each subject, the newest; oldest first in the list."""
    store = stores.controls
    assert store is not None
    stop = Control(
        subject="c1", tenant=TENANT, action="stop", reason="loops", at=START, author="ann"
    )
    pause = Control(subject="c0.1", tenant=TENANT, action="pause", at=START - 1)
    await store.hold(Control(subject="c1", tenant=TENANT, action="pause", at=START - 5))
    await store.hold(stop)
    await store.hold(pause)
    assert list(await store.list_controls()) == [pause, stop]
    await stores.states.commit(a_call())
    told: dict[str, Any] = {"name": "ann", "at": START, "go_on": "gateway runs resume c1"}
    assert await _stopped(stores, "operator") == Stop(
        action="stop", by="operator", why="loops", **told
    )
    assert await store.release("c1")
    assert not await store.release("c1")
    assert await _stopped(stores) is None
    (run,) = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    why = f"{ON_TROUBLE}loops"
    ended = Control(
        subject=run.id, tenant=TENANT, action="stop", reason=why, at=START, author=GATEWAY
    )
    for author in ("", "ann"):  # a person may write what the gateway writes
        await store.hold(replace(ended, author=author, reason=f"\t{GATEWAY}\t{why}"))
        assert (await _stopped(stores, "operator")) is not None
        await store.hold(replace(ended, author=author))
        found = await _stopped(stores, "operator")
        assert found is not None
        assert (found.by, found.why, found.name) == ("operator", why, author)
    await store.hold(ended)
    found = await _stopped(stores, "on_trouble")
    assert found is not None
    assert (found.by, found.why, found.name) == ("on_trouble", "loops", "")
    assert await store.release(run.id)
    assert list(await store.list_controls()) == [pause]


async def _stopped(stores: Stores, by: str = "") -> Stop | None:
    """Of the one run, as it is listed, filtered by and read."""
    (listed,) = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    for asked in STOPPED_BY:
        wanted = by != "" and asked in (by, ANY)
        assert await stores.runs.count_runs(RunFilter(stopped=asked)) == wanted, asked
    trace = await stores.runs.get_run(listed.id, tenant=None)
    assert trace is not None
    assert trace.run.stopped == listed.stopped
    return listed.stopped


CONTROL_CHECKS: tuple[Check, ...] = (keeps_holds_until_they_are_released,)
