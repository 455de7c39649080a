"""`/api/experiments` and `/api/routing`: reports on experiments, and outcomes by workload."""

from collections.abc import Mapping

from gateway.api.operations import ApiRequest, ApiResponse, Operations, shape
from gateway.api.params import PathText, TenantParameter
from gateway.errors import NotFound
from gateway.features.reports.experiment import report
from gateway.features.reports.pilot import PilotReport, current_pilot
from gateway.features.reports.results import ExperimentReport
from gateway.runtime import Runtime
from gateway.steering.experiments import MODES
from gateway.stores.learning import WorkloadRate
from gateway.tasks import off_loop
from gateway.values import frozen

OPERATIONS = Operations()


class ReportParameters(TenantParameter):
    """Id of an experiment."""

    experiment_id: PathText  # the experiment's id


@frozen
class ExperimentSummary:
    """One experiment."""

    id: str  # as the config names it
    running: bool  # units are being assigned to it now
    runs: Mapping[str, int]  # number by arm


ExperimentList = shape(
    "ExperimentList",
    "Every experiment that has runs, and the running one.",
    experiments=list[ExperimentSummary],
)


@OPERATIONS.add("GET /api/experiments", ExperimentList, "The experiments.")
async def list_experiments(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Every experiment, with its runs by arm."""
    return ApiResponse({"experiments": await experiments(request.runtime, request.tenant)})


async def experiments(runtime: Runtime, tenant: str | None) -> list[ExperimentSummary]:
    """The experiments that a tenant (None: any) has runs of, and the running one."""
    running = runtime.settings.experiment.id
    runs: dict[str, dict[str, int]] = {}
    if running:
        runs[running] = {}
    if runtime.opened.stores.attribution is not None:
        for name, arm, number in await runtime.opened.stores.attribution.arms(tenant):
            runs.setdefault(name, {})[arm] = number
    return [
        ExperimentSummary(
            id=name, running=name == running, runs={arm: arms.get(arm, 0) for arm in MODES}
        )
        for name, arms in sorted(runs.items())
    ]


@OPERATIONS.add("GET /api/experiments/{experiment_id}/report", ExperimentReport, "The report.")
async def get_report(request: ApiRequest[ReportParameters]) -> ApiResponse:
    """Success, cost, tokens and steps per arm, compared, with 95 % intervals; the sample-ratio
    check and caveats."""
    wanted = request.params.experiment_id
    return ApiResponse(await experiment_report(request.runtime, wanted, request.tenant))


async def experiment_report(
    runtime: Runtime, experiment: str, tenant: str | None
) -> ExperimentReport:
    """The report over a tenant's runs, None for all. Raises: NotFound."""
    runs = await runtime.runs.experiment_runs(experiment, tenant=tenant)
    current = runtime.settings.experiment
    if not runs and experiment != current.id:
        raise NotFound(f"there is no experiment {experiment[:80]!r}", param="experiment_id")
    return await off_loop(report, experiment, runs, shares=current.shares_of(experiment))


@OPERATIONS.add("GET /api/pilot", PilotReport, "The pilot.", errors=(404,))
async def get_pilot(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """The newest pilot with its verdict, and the results of the runs in which steering acted."""
    found = await current_pilot(request.runtime, request.tenant)
    if found is None:
        raise NotFound("there is no pilot; `gateway pilot start` begins one")
    return ApiResponse(found)


RoutingReport = shape(
    "RoutingReport", "Outcomes by workload, last changed first.", workloads=list[WorkloadRate]
)


@OPERATIONS.add("GET /api/routing", RoutingReport, "The report.", errors=(404,))
async def get_routing(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Outcomes by workload and model, from which the learned policy chooses."""
    store = request.runtime.opened.stores.workloads
    if store is None:
        raise NotFound("this gateway's store keeps no workloads")
    return ApiResponse({"workloads": await store.rates(tenant=request.tenant)})
