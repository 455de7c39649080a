"""`/api/routing`: what routing knows of each workload, and what its decisions are worth."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from gateway.api.filters import TenantParameter, described
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import Time
from gateway.errors import NotFound
from gateway.reporting.routing import PolicyValue, policy_values
from gateway.stores.workloads import WorkloadRate, WorkloadStore


class RoutingParameters(TenantParameter):
    """Whose workloads, and which decisions."""

    since: Annotated[Time | None, described("Only decisions after this time.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingReport:
    """`workloads`: the outcomes by workload and model, those that changed last first; `values`: the
    policy that was followed against others, from its logged probabilities."""

    workloads: tuple[WorkloadRate, ...]
    decided: int
    values: tuple[PolicyValue, ...]


async def routing_report(
    store: WorkloadStore, *, tenant: str | None, since: float = 0.0
) -> RoutingReport:
    """The report over a tenant's workloads, None for all."""
    rates = await store.rates()
    decided = await store.decided(tenant=tenant, since=since)
    values = await asyncio.to_thread(policy_values, decided)
    own = [rate for rate in rates if tenant is None or rate.tenant == tenant]
    return RoutingReport(workloads=tuple(own), decided=len(decided), values=tuple(values))


async def get_routing(request: ApiRequest[RoutingParameters]) -> ApiResponse:
    """What routing knows."""
    workloads, since = request.runtime.workloads, request.params.since or 0.0
    if workloads is None:
        raise NotFound("this gateway's store keeps no workloads")
    found = await routing_report(workloads.store, tenant=request.tenant, since=since)
    return ApiResponse(payload=found)


OPERATIONS = (
    Operation(
        name="getRouting",
        method="GET",
        path="/api/routing",
        summary="Outcomes by workload and model, and what the learned policy is worth against "
        "others, by inverse propensity.",
        handler=get_routing,
        params=RoutingParameters,
        responses={200: Content(RoutingReport, "The report.")},
        errors=(400, 403, 404),
    ),
)
