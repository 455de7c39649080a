"""Checks of RawStore."""

from __future__ import annotations

from dataclasses import replace

from gateway.backends import Stores
from gateway.stores.raw_calls_and_answers import RawCall, RawStore
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START, TENANT, one_run

PLENTY = 10**9


def _raw(stores: Stores) -> RawStore:
    assert stores.raw is not None
    return stores.raw


def a_raw_call(run_id: str = "r0001", step: int = 1, at: float = START) -> RawCall:
    """A call of a hundred bytes."""
    return RawCall(
        tenant=TENANT,
        run_id=run_id,
        step_index=step,
        at=at,
        dialect="chat",
        request=b"\x00\xff" * 30,
        response=b"answer to" * 4 + b"that",
    )


async def keeps_the_newest_raw_call_of_a_step(stores: Stores) -> None:
    """It comes back byte for byte, to its tenant and an operator; a later one replaces it."""
    if stores.raw is None:
        return
    await stores.states.commit(one_run(1))
    first = a_raw_call()
    for call in (first, replace(first, at=START + 1, request=b"again")):
        assert await _raw(stores).put_raw(call, most_bytes=PLENTY)
        for tenant in (TENANT, None):
            assert await _raw(stores).find_raw("r0001", 1, tenant=tenant) == call
    assert await _raw(stores).find_raw("r0001", 1, tenant="other") is None
    assert await _raw(stores).find_raw("r0001", 2, tenant=None) is None


async def keeps_no_raw_call_of_an_unknown_run(stores: Stores) -> None:
    """Neither of a run that is not stored nor of another tenant's."""
    if stores.raw is None:
        return
    await stores.states.commit(one_run(1))
    for call in (a_raw_call("r0002"), replace(a_raw_call(), tenant="other")):
        assert not await _raw(stores).put_raw(call, most_bytes=PLENTY)
        assert await _raw(stores).find_raw(call.run_id, 1, tenant=None) is None


async def makes_room_for_raw_calls(stores: Stores) -> None:
    """The oldest ones go until the rest fits, and all of a run with the run."""
    if stores.raw is None:
        return
    await stores.states.commit(one_run(1))
    for step in range(5):
        call = a_raw_call(step=step, at=START + step)
        assert await _raw(stores).put_raw(call, most_bytes=250)
    found = [await _raw(stores).find_raw("r0001", step, tenant=None) for step in range(5)]
    assert [call is not None for call in found] == [False, False, False, True, True]
    await stores.runs.prune(max_bytes=0)
    assert await _raw(stores).find_raw("r0001", 4, tenant=None) is None


async def keeps_tries_beside_the_calls_of_a_run(stores: Stores) -> None:
    """A call that was sent again has a place below 0 and replaces none; it goes with the run."""
    if stores.raw is None:
        return
    await stores.states.commit(one_run(1))
    calls = [a_raw_call(step=step) for step in (1, -1, -(2**31) + 1)]
    for call in calls:
        assert await _raw(stores).put_raw(call, most_bytes=PLENTY)
    places = [call.step_index for call in calls]
    found = [await _raw(stores).find_raw("r0001", place, tenant=TENANT) for place in places]
    assert found == calls
    await stores.runs.prune(max_bytes=0)
    assert await _raw(stores).find_raw("r0001", -1, tenant=None) is None


RAW_CHECKS: tuple[Check, ...] = (
    keeps_the_newest_raw_call_of_a_step,
    keeps_no_raw_call_of_an_unknown_run,
    makes_room_for_raw_calls,
    keeps_tries_beside_the_calls_of_a_run,
)
