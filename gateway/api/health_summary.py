"""`/api/health-summary`: totals and rates over the runs that a filter selects."""

from __future__ import annotations

from dataclasses import fields

from gateway.api.filters import RunFilters, run_filter
from gateway.api.models import Health
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation


async def get_summary(request: ApiRequest[RunFilters]) -> ApiResponse:
    """The summary of the selected runs."""
    tenant = request.tenant
    summary = await request.runtime.runs.health_summary(run_filter(dict(request.params), tenant))
    unrecorded = dict(request.runtime.unsteered.unrecorded) if tenant is None else {}
    values = {f.name: getattr(summary, f.name) for f in fields(summary)}
    return ApiResponse(payload=Health(**values, unrecorded_calls=unrecorded))


OPERATIONS = (
    Operation(
        name="getHealthSummary",
        method="GET",
        path="/api/health-summary",
        summary="Clean-run rate, fires, severity, time in state, tokens, cost, unsteered calls.",
        handler=get_summary,
        params=RunFilters,
        responses={200: Content(Health, "The summary.")},
        errors=(400, 403),
    ),
)
