"""`/api/routing`: what routing knows of each workload, and what its decisions are worth."""

from __future__ import annotations

import asyncio
from typing import Annotated

from gateway.api.filters import TenantParameter, described
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import Time
from gateway.errors import NotFound
from gateway.reporting.routing import RoutingReport, routing_report


class RoutingParameters(TenantParameter):
    """Whose workloads, and which decisions."""

    since: Annotated[Time | None, described("Only decisions after this time.")] = None


async def get_routing(request: ApiRequest[RoutingParameters]) -> ApiResponse:
    """What routing knows."""
    workloads, since = request.runtime.opened.workloads, request.params.since or 0.0
    if workloads is None:
        raise NotFound("this gateway's store keeps no workloads")
    rates = await workloads.store.rates()
    decided = await workloads.store.decided(tenant=request.tenant, since=since)
    found = await asyncio.to_thread(routing_report, rates, decided, tenant=request.tenant)
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
