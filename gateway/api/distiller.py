"""`/api/distiller`: the model that is asked about runs, its jobs and what they used."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.api.filters import TenantParameter, described
from gateway.api.lesson_views import distiller_view, job_view
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import DIGITS
from gateway.learning.distiller import KIND


class JobFilters(TenantParameter):
    """Whose jobs, and how many."""

    limit: Annotated[int, Field(ge=0, le=1000, description="Most jobs."), DIGITS] = 100


class DistillerJob(BaseModel):
    """One run that the model is asked about."""

    run_id: str
    tenant: str
    state: Literal["waiting", "done", "failed"]
    attempts: int
    tokens: Annotated[int, described("Used, or reserved for attempts that were cut off.")]
    cost_usd: float
    created_at: float
    done_at: float | None
    error: Annotated[str, described("Why nothing was learned; empty otherwise.")]


class Distiller(BaseModel):
    """The model, what it used today, and its newest jobs."""

    model: Annotated[str, described("Empty: no model is asked.")]
    tokens: Annotated[int, described("Used since midnight (UTC).")]
    tokens_per_day: Annotated[int, described("Most for one tenant.")]
    cost_usd: float
    usd_per_day: float
    counts: Annotated[dict[str, int], described("Jobs by state.")]
    jobs: list[DistillerJob]


async def get_distiller(request: ApiRequest[JobFilters]) -> ApiResponse:
    """The distiller, as far as the caller may see it."""
    store, settings = request.runtime.learning, request.runtime.settings.learning
    view = await distiller_view(store, settings, request.tenant, time.time())
    jobs = await store.jobs(KIND, request.tenant, limit=request.params.limit)
    return ApiResponse(payload={**view, "jobs": [job_view(job) for job in jobs]})


OPERATIONS = (
    Operation(
        name="getDistiller",
        method="GET",
        path="/api/distiller",
        summary="The model that is asked about runs: what it used today, and its newest jobs.",
        handler=get_distiller,
        params=JobFilters,
        responses={200: Content(Distiller, "The model and its jobs.")},
        errors=(400, 403),
    ),
)
