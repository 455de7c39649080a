"""`/api/runs`: the run log, and the outcome of each run."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field

from gateway.api.filters import (
    RunFilters,
    SortParameters,
    TenantParameter,
    described,
    run_filter,
)
from gateway.api.models import OutcomeBody, ReportedOutcome, RunPage, Trace
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import DIGITS, Flag, Parameters, PathText
from gateway.api.views import run_view, step_views, thresholds
from gateway.errors import BadRequest, NotFound
from gateway.runtime import Runtime
from gateway.stores.learning import OutcomeRow
from gateway.stores.queries import Facets, PageRequest, RunTrace
from gateway.text.secrets import mask_secrets


class RunListParameters(SortParameters, RunFilters):
    """Which runs, and in which order."""

    count: Annotated[Flag, described("Also count all runs that match.")] = False


class RunParameters(Parameters):
    """Which run."""

    run_id: Annotated[PathText, described("The run's id.")]


class TraceParameters(RunParameters):
    """Which part of a run's trace."""

    content: Annotated[
        Flag, described("With the texts of each step; guidance keeps its text either way.")
    ] = True
    after_step: Annotated[
        int,
        Field(ge=-1, le=2**31 - 1),
        DIGITS,
        described("Only steps after this one; step 0 is the first call."),
    ] = -1
    limit: Annotated[
        Annotated[int, Field(ge=1, le=100_000), DIGITS] | None,
        described("At most this many steps."),
    ] = None


async def list_runs(request: ApiRequest[RunListParameters]) -> ApiResponse:
    """One page of the selected runs."""
    params, runs = request.params, run_filter(dict(request.params), request.tenant)
    page = PageRequest(
        limit=params.limit,
        sort=params.sort,
        descending=params.order == "desc",
        cursor=params.cursor,
    )
    try:
        found = await request.runtime.runs.list_runs(runs, page)
    except ValueError as error:
        raise BadRequest(str(error), param="cursor") from None
    settings = request.runtime.settings
    payload: dict[str, Any] = {
        "runs": [run_view(run, settings) for run in found.runs],
        "next_cursor": found.next_cursor,
    }
    if params.count:
        payload["total"] = await request.runtime.runs.count_runs(runs)
    return ApiResponse(payload=payload)


async def get_run(request: ApiRequest[TraceParameters]) -> ApiResponse:
    """One run's trace, or a part of it."""
    params = request.params
    trace = await request.runtime.runs.get_run(
        params.run_id,
        tenant=request.tenant,
        content=params.content,
        after_step=params.after_step,
        limit=params.limit,
    )
    if trace is None:
        raise _unknown(params.run_id)
    view = _trace_view(request.runtime, trace, params.after_step, params.limit)
    return ApiResponse(payload=view)


def _trace_view(runtime: Runtime, trace: RunTrace, after: int, limit: int | None) -> dict[str, Any]:
    last = None if limit is None else after + limit
    more = last is not None and trace.run.totals.steps > last
    return {
        "run": run_view(trace.run, runtime.settings),
        "steps": step_views(trace),
        "next_after_step": last if more else None,
        "thresholds": thresholds(runtime.settings),
        "policy_in_force": trace.run.policy_digest == runtime.services.policy_digest,
    }


async def post_outcome(request: ApiRequest[RunParameters]) -> ApiResponse:
    """Report a run's outcome."""
    run_id, body = request.params.run_id, request.read(OutcomeBody)
    await report_outcome(request.runtime, run_id, body, tenant=request.tenant)
    return ApiResponse(payload={"run_id": run_id, "outcome": body.outcome})


async def report_outcome(
    runtime: Runtime, run_id: str, body: OutcomeBody, *, tenant: str | None
) -> None:
    """Store a run's outcome and notify the subscribers; the same again changes nothing.

    Raises:
        NotFound: the tenant has no run of that id.
    """
    outcome, masks = body.outcome, runtime.settings.storage.mask_secrets
    trace = await runtime.runs.get_run(run_id, tenant=tenant, content=False, limit=0)
    kept = trace is not None and await runtime.runs.set_outcome(
        run_id, outcome, source="api", tenant=tenant
    )
    if trace is None or not kept:
        raise _unknown(run_id)
    reported = OutcomeRow(
        run_id=run_id,
        tenant=trace.run.tenant,
        source="told_api",
        verdict=outcome,
        score=body.score,
        comment=mask_secrets(body.comment) if masks else body.comment,
        at=time.time(),
    )
    await runtime.learning.add_outcome(reported)
    runtime.events.publish(
        {"type": "outcome", "tenant": trace.run.tenant, "run_id": run_id, "outcome": outcome}
    )
    runtime.log.info("outcome reported", run_id=run_id, outcome=outcome)


async def get_facets(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """The values that filters can choose from."""
    return ApiResponse(payload=await request.runtime.runs.facets(tenant=request.tenant))


def _unknown(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id[:80]!r}", param="run_id")


OPERATIONS = (
    Operation(
        name="listRuns",
        method="GET",
        path="/api/runs",
        summary="Runs, newest first or in another order, by any of the filters.",
        handler=list_runs,
        params=RunListParameters,
        responses={200: Content(RunPage, "One page.")},
        errors=(400, 403),
    ),
    Operation(
        name="getRun",
        method="GET",
        path="/api/runs/{run_id}",
        summary="A run step by step: scores, guidance, call and texts.",
        handler=get_run,
        params=TraceParameters,
        responses={200: Content(Trace, "The trace.")},
        errors=(400, 404),
    ),
    Operation(
        name="reportOutcome",
        method="POST",
        path="/api/runs/{run_id}/outcome",
        summary="Report a run's outcome; a later report replaces an earlier one.",
        handler=post_outcome,
        params=RunParameters,
        body=Content(OutcomeBody),
        responses={200: Content(ReportedOutcome, "Stored.")},
        errors=(400, 403, 404, 413),
        right="report",
    ),
    Operation(
        name="getFacets",
        method="GET",
        path="/api/facets",
        summary="The agents, models, failure types, experiments and arms that occur.",
        handler=get_facets,
        params=TenantParameter,
        responses={200: Content(Facets, "The values.")},
        errors=(400, 403),
    ),
)
