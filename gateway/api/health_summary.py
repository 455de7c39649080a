"""`/api/health-summary`: how the runs of a filter went, taken together."""

from __future__ import annotations

from gateway.api.filters import RUN_FILTERS, run_filter
from gateway.api.operations import Answer, Call, Operation, Reply
from gateway.api.schema import schema_of
from gateway.stores.queries import HealthSummary


async def get_summary(call: Call) -> Reply:
    """The figures of the runs chosen."""
    chosen = run_filter(call.values, call.tenant)
    return Reply(payload=await call.runtime.runs.health_summary(chosen))


OPERATIONS = (
    Operation(
        name="getHealthSummary",
        method="GET",
        path="/api/health-summary",
        summary="Clean-run rate, fires, severity, time in state, tokens, cost and savings.",
        handler=get_summary,
        params=RUN_FILTERS,
        answers={200: Answer("The figures.", schema_of(HealthSummary))},
        errors=(400, 403),
    ),
)
