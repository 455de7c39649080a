"""`/api/health-summary`: totals and rates over the runs that a filter selects."""

from __future__ import annotations

from gateway.api.filters import RunFilters, run_filter
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.stores.queries import HealthSummary


async def get_summary(request: ApiRequest[RunFilters]) -> ApiResponse:
    """The summary of the selected runs."""
    chosen = run_filter(dict(request.params), request.tenant)
    return ApiResponse(payload=await request.runtime.runs.health_summary(chosen))


OPERATIONS = (
    Operation(
        name="getHealthSummary",
        method="GET",
        path="/api/health-summary",
        summary="Clean-run rate, fires, severity, time in state, tokens, cost and savings.",
        handler=get_summary,
        params=RunFilters,
        responses={200: Content(HealthSummary, "The summary.")},
        errors=(400, 403),
    ),
)
