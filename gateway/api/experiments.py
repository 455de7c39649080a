"""`/api/experiments`: which there are, and what each shows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.api.filters import TENANT
from gateway.api.operations import Answer, Call, Operation, Reply
from gateway.api.params import Param
from gateway.api.schema import schema_of
from gateway.errors import BadRequest, NotFound
from gateway.reporting import ExperimentReport, report
from gateway.reporting.experiment import STRATA
from gateway.reporting.shares import read_shares
from gateway.runtime import Runtime
from gateway.steering.experiments import ARMS
from gateway.stores.queries import RunFilter

EXPERIMENT_ID = Param(name="experiment_id", description="The experiment's id.", in_path=True)
_STRATUM = Param(
    name="stratum",
    description="What tells like runs from unlike.",
    choices=tuple(STRATA),
    default="profile",
)
_SHARES = Param(
    name="shares",
    description="Shares the arms were to get, such as `on:0.5,off:0.5`; the running experiment's "
    "own by default.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """One experiment: its runs by arm, and whether units are being assigned to it now."""

    id: str
    running: bool
    runs: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentList:
    """Every experiment that has runs, and the one that is running."""

    experiments: tuple[ExperimentSummary, ...]


async def list_experiments(call: Call) -> Reply:
    """Every experiment."""
    return Reply(payload=await experiments(call.runtime, call.tenant))


async def experiments(runtime: Runtime, tenant: str | None) -> ExperimentList:
    """Every experiment a tenant has runs of, None for all, and the one that is running."""
    running = runtime.settings.experiment.id
    known = (await runtime.runs.facets(tenant=tenant)).experiments
    names = sorted({*known, *([running] if running else [])})
    found = []
    for name in names:
        runs = {
            arm: await runtime.runs.count_runs(RunFilter(tenant=tenant, experiment=name, arm=arm))
            for arm in ARMS
        }
        found.append(ExperimentSummary(id=name, running=name == running, runs=runs))
    return ExperimentList(experiments=tuple(found))


async def get_report(call: Call) -> Reply:
    """One experiment's report."""
    found = await experiment_report(
        call.runtime,
        call.values["experiment_id"],
        tenant=call.tenant,
        stratum=call.values["stratum"],
        shares=shares_of(call.values["shares"]),
    )
    return Reply(payload=found)


async def experiment_report(
    runtime: Runtime,
    experiment: str,
    *,
    tenant: str | None,
    stratum: str = "profile",
    shares: Mapping[str, float] | None = None,
) -> ExperimentReport:
    """The report over a tenant's runs, None for all.

    Raises:
        NotFound: no such experiment.
    """
    runs = await runtime.runs.experiment_runs(experiment, tenant=tenant)
    current = runtime.settings.experiment
    if not runs and experiment != current.id:
        raise NotFound(f"there is no experiment {experiment[:80]!r}", param="experiment_id")
    if shares is None and experiment == current.id:
        shares = current.arms
    return await asyncio.to_thread(report, experiment, runs, shares=shares, stratum=stratum)


def shares_of(text: str | None) -> dict[str, float] | None:
    """Shares as a parameter gives them. Raises: BadRequest."""
    try:
        return read_shares(text) if text else None
    except ValueError as error:
        raise BadRequest(str(error), param="shares") from None


OPERATIONS = (
    Operation(
        name="listExperiments",
        method="GET",
        path="/api/experiments",
        summary="Every experiment, with its runs by arm.",
        handler=list_experiments,
        params=(TENANT,),
        answers={200: Answer("The experiments.", schema_of(ExperimentList))},
        errors=(400, 403),
    ),
    Operation(
        name="getReport",
        method="GET",
        path="/api/experiments/{experiment_id}/report",
        summary="Success, cost, tokens and steps per arm, compared, with 95 % intervals; the "
        "sample-ratio check, strata, daily figures and caveats.",
        handler=get_report,
        params=(EXPERIMENT_ID, TENANT, _STRATUM, _SHARES),
        answers={200: Answer("The report.", schema_of(ExperimentReport))},
        errors=(400, 403, 404),
    ),
)
