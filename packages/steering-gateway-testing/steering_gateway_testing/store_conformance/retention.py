"""Checks of RunStore.prune."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import VersionConflict
from gateway.stores.records import StepContent
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check, raises

EVERY = RunFilter()


async def _ids(stores: Stores, runs: RunFilter = EVERY, **page: Any) -> list[str]:
    found = await stores.runs.list_runs(runs, PageRequest(**page))
    return [run.id for run in found.runs]


async def removes_what_is_old(stores: Stores) -> None:
    """Runs and conversations not updated since are removed, with all their rows and hashes."""
    whole = records.history("old", 3)
    for number in range(30):
        call = records.one_run(number, steps=(records.a_first_step(), records.a_step(1)))
        head = records.a_head(
            call.conversation.id, whole if number < 20 else records.history(f"n{number}", 3)
        )
        await stores.states.commit(replace(call, heads=(head,)))
    lively = records.a_call(
        conversation=records.a_conversation(
            "lively", created_at=records.START, updated_at=records.START + 100
        ),
        runs=(records.a_run("old-run"), records.a_run("new-run", updated_at=records.START + 100)),
        steps=(records.a_first_step("old-run"), records.a_first_step("new-run")),
        injections=(records.an_injection(0, "old-run"),),
    )
    await stores.states.commit(lively)
    report = await stores.runs.prune(older_than=records.START + 25)
    assert (report.conversations, report.runs) == (25, 26)
    assert report.bytes_after <= report.bytes_before
    assert set(await _ids(stores)) == {"new-run", *(f"r{number:04}" for number in range(25, 30))}
    assert await stores.states.find_prefix_hashes(records.TENANT, whole) == []
    assert await stores.states.load(records.TENANT, "c0003") is None
    assert await stores.states.load(records.TENANT, "lively") is not None
    assert await stores.runs.get_run("old-run", tenant=None) is None
    (kept,) = await stores.states.find_prefix_hashes(records.TENANT, records.history("n29", 3))
    assert kept.conversation_id == "c0029"


async def accepts_a_removed_conversation_again(stores: Stores) -> None:
    """A removed conversation is at version 0: a later version conflicts, a first save works."""
    await stores.states.commit(
        records.a_call(heads=(records.a_head("c1", records.history("a", 2)),))
    )
    await stores.runs.prune(older_than=records.START + 1)
    with raises(VersionConflict):
        await stores.states.commit(records.a_call(conversation=records.a_conversation(version=1)))
    assert await stores.states.commit(records.a_call()) == 1
    assert await stores.states.find_prefix_hashes(records.TENANT, records.history("a", 2)) == []
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    assert len(trace.steps) == 1


async def makes_room(stores: Stores) -> None:
    """Above the size limit the least recently updated are removed, but none that are in use."""
    text = "x" * 40_000
    for number in range(60):
        step = records.a_first_step(content=StepContent(thought=text))
        await stores.states.commit(records.one_run(number, steps=(step,)))
    idle = await stores.runs.prune(max_bytes=10**9)
    assert (idle.conversations, idle.runs) == (0, 0)
    report = await stores.runs.prune(max_bytes=idle.bytes_before // 2)
    assert 0 < report.conversations < 60
    assert report.runs == report.conversations
    assert report.bytes_after <= idle.bytes_before // 2
    left = await _ids(stores, descending=False, limit=100)
    assert left == [f"r{number:04}" for number in range(60 - len(left), 60)]
    active = records.START + 60 - 3
    await stores.runs.prune(max_bytes=0, active_since=active)
    assert await _ids(stores, descending=False) == ["r0057", "r0058", "r0059"]


async def keeps_what_is_named(stores: Stores) -> None:
    """Conversations in `keep` stay, whatever their age and the size."""
    for number in range(30):
        await stores.states.commit(records.one_run(number))
    keep = ["c0003", "c0028", "unknown"]
    report = await stores.runs.prune(older_than=records.START + 25, keep=keep)
    assert (report.conversations, report.runs) == (24, 24)
    assert set(await _ids(stores)) == {"r0003", *(f"r{number:04}" for number in range(25, 30))}
    await stores.runs.prune(max_bytes=0, keep=keep)
    assert await _ids(stores, descending=False) == ["r0003", "r0028"]


RETENTION_CHECKS: tuple[Check, ...] = (
    removes_what_is_old,
    accepts_a_removed_conversation_again,
    makes_room,
    keeps_what_is_named,
)
