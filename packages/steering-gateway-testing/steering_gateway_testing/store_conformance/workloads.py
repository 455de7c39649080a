"""Checks of WorkloadStore."""

from __future__ import annotations

from typing import Any

from gateway.backends import Stores
from gateway.stores.learning import WorkloadRate, WorkloadRun
from gateway.stores.sql.workloads import WorkloadStore
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check

CHOICE = {"model": "small", "default": "big", "probabilities": {"small": 0.95, "big": 0.05}}


def a_workload_run(run_id: str, model: str = "small", **changes: Any) -> WorkloadRun:
    """A run of one workload."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "tenant": records.TENANT,
        "workload": "w1",
        "client": "agent",
        "requested": "big",
        "model": model,
        "at": records.START,
    }
    return WorkloadRun(**(values | changes))


async def _runs(stores: Stores, *ids: str) -> None:
    for name in ids:
        conversation = records.a_conversation(f"c-{name}")
        await stores.states.commit(
            records.a_call(
                conversation=conversation,
                heads=(),
                runs=(records.a_run(name),),
                steps=(),
                injections=(),
            )
        )


async def _end(stores: Stores, run_id: str, outcome: str) -> None:
    assert await stores.runs.set_outcome(run_id, outcome, source="test", tenant=None)


def _workloads(stores: Stores) -> WorkloadStore:
    assert stores.workloads is not None
    return stores.workloads


async def _settle(stores: Stores) -> int:
    return await _workloads(stores).settle()


def _rates(found: list[WorkloadRate]) -> dict[str, tuple[float, float]]:
    return {f"{rate.tenant} {rate.model}": (rate.solved, rate.failed) for rate in found}


async def counts_the_outcome_of_each_run_once(stores: Stores) -> None:
    """However often it is counted; a run without an outcome, or another one, counts nowhere."""
    await _runs(stores, "r1", "r2", "r3", "r4")
    noted = [a_workload_run("r1"), a_workload_run("r2"), a_workload_run("r3", "big")]
    await _workloads(stores).note([*noted, a_workload_run("r4")])
    await _workloads(stores).note([a_workload_run("r1", "big"), a_workload_run("gone")])
    assert await _settle(stores) == 0
    await _end(stores, "r1", "success")
    await _end(stores, "r2", "failure")
    await _end(stores, "r3", "success")
    await _end(stores, "r4", "other")
    assert await _settle(stores) == 4
    assert await _settle(stores) == 0
    found = await _workloads(stores).rates()
    assert _rates(found) == {"acme small": (1, 1), "acme big": (1, 0)}
    assert {(rate.workload, rate.client, rate.requested) for rate in found} == {
        ("w1", "agent", "big")
    }


async def fades_what_routing_reads(stores: Stores) -> None:
    """Each outcome of the workload takes a little off those before it, of all its models."""
    await _runs(stores, "r1", "r2", "r3")
    await _workloads(stores).note([a_workload_run("r1", "big"), a_workload_run("r2")])
    await _workloads(stores).note([a_workload_run("r3", workload="w2")])
    for name in ("r1", "r2", "r3"):
        await _end(stores, name, "success")
        await _settle(stores)
    found = await _workloads(stores).rates()
    recent = {f"{rate.workload} {rate.model}": rate.recent_solved for rate in found}
    faded = recent.pop("w1 big")
    assert abs(faded**200 - 0.5) < 1e-6
    assert recent == {"w1 small": 1, "w2 small": 1}
    await _end(stores, "r2", "failure")
    await _settle(stores)
    changed = {rate.model: rate for rate in await _workloads(stores).rates() if rate.solved}
    assert changed["big"].recent_solved == faded, "a correction is no new run"


async def takes_back_an_outcome_that_changes(stores: Stores) -> None:
    """The latest outcome of a run counts, in place of the one before."""
    await _runs(stores, "r1")
    await _workloads(stores).note([a_workload_run("r1")])
    await _end(stores, "r1", "failure")
    await _settle(stores)
    await _end(stores, "r1", "success")
    assert await _settle(stores) == 1
    assert _rates(await _workloads(stores).rates()) == {"acme small": (1, 0)}


async def settles_some_runs_at_a_time(stores: Stores) -> None:
    """A limit leaves the rest to the next call."""
    names = ("r1", "r2", "r3")
    await _runs(stores, *names)
    await _workloads(stores).note([a_workload_run(name) for name in names])
    for name in names:
        await _end(stores, name, "success")
    assert [await _workloads(stores).settle(limit=2) for _ in range(3)] == [2, 1, 0]
    assert _rates(await _workloads(stores).rates()) == {"acme small": (3, 0)}
    assert await _workloads(stores).rates(limit=0) == []


async def keeps_tenants_of_workloads_apart(stores: Stores) -> None:
    """A run of another tenant is not counted for a workload."""
    await _runs(stores, "r1")
    await _workloads(stores).note([a_workload_run("r1", tenant="other", choice=CHOICE)])
    await _end(stores, "r1", "success")
    assert await _settle(stores) == 0


async def keeps_the_counts_of_removed_runs(stores: Stores) -> None:
    """Retention removes runs; what they counted stays, and their rows go."""
    await _runs(stores, "r1")
    await _workloads(stores).note([a_workload_run("r1", choice=CHOICE)])
    await _end(stores, "r1", "success")
    await _settle(stores)
    await _workloads(stores).drop(before=records.START + 1)
    assert await _workloads(stores).workload_of("r1")
    await stores.runs.prune(older_than=records.START + 1e6)
    await _workloads(stores).drop(before=records.START + 1)
    assert not await _workloads(stores).workload_of("r1")
    assert await _settle(stores) == 0
    assert _rates(await _workloads(stores).rates()) == {"acme small": (1, 0)}


WORKLOAD_CHECKS: tuple[Check, ...] = (
    counts_the_outcome_of_each_run_once,
    fades_what_routing_reads,
    takes_back_an_outcome_that_changes,
    settles_some_runs_at_a_time,
    keeps_tenants_of_workloads_apart,
    keeps_the_counts_of_removed_runs,
)
