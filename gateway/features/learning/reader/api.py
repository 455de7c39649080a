"""`/api/reader`: the model that reads language for the gateway, and what it was asked."""

import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.api.operations import ApiRequest, ApiResponse, like
from gateway.api.params import DIGITS, TenantParameter, described
from gateway.features.learning.api import OPERATIONS
from gateway.features.learning.settings import ReaderSettings
from gateway.features.learning.views import job_view, reader_view
from gateway.stores import learning
from gateway.stores.learning import JOBS


class JobFilters(TenantParameter):
    """Filter of jobs."""

    limit: Annotated[int, Field(ge=0, le=1000, description="Most jobs."), DIGITS] = 100


@like(learning.ReaderJob, "tenant", "attempts", "cost_usd", "created_at", "done_at")
class ReaderJob(BaseModel):
    """One thing that the model is asked about a run."""

    run_id: str  # the run that is asked about
    question: Literal["kind", "title", "trouble"] = described("What is asked.")
    state: Literal["waiting", "done", "failed"]  # waiting, or how it ended
    tokens: int = described("Used, or reserved for attempts that were cut off.")
    error: str = described("Why nothing was read; empty otherwise.")


class ReaderState(BaseModel):
    """The model, what it used today, and its newest jobs."""

    model: str = described("Empty: no model is asked.")
    tokens: int = described("Used since midnight (UTC).")
    tokens_per_day: int = described("Most for one tenant.")
    cost_usd: float  # US dollars used since midnight (UTC)
    usd_per_day: float  # most US dollars for one tenant
    counts: dict[str, int] = described("Jobs by state.")
    jobs: list[ReaderJob]  # newest first


@OPERATIONS.add("GET /api/reader", ReaderState, "The model and its jobs.")
async def get_reader(request: ApiRequest[JobFilters]) -> ApiResponse:
    """The model that reads what people typed: what it used today, and its newest jobs."""
    store = request.runtime.lessons
    settings = request.runtime.settings.of(ReaderSettings)
    view = await reader_view(store, settings, request.tenant, now=time.time())
    jobs = await store.jobs(JOBS, request.tenant, limit=request.params.limit)
    return ApiResponse({**view, "jobs": [job_view(job) for job in jobs]})
