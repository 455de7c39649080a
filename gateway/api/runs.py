"""`/api/runs`: the run log, and what became of each run."""

from __future__ import annotations

from typing import Any

from gateway.api.filters import PAGING, RUN_FILTERS, TENANT, run_filter
from gateway.api.operations import Answer, Call, Operation, Reply
from gateway.api.params import Param
from gateway.api.schema import page_of, schema_of
from gateway.api.views import RUN, TRACE, run_view, step_views, thresholds
from gateway.errors import BadRequest, NotFound
from gateway.library import judged_by
from gateway.runtime import Runtime
from gateway.stores.queries import OUTCOMES, Facets, PageRequest, RunTrace

RUN_ID = Param(name="run_id", description="The run's id.", in_path=True)
_COUNT = Param(
    name="count", description="Also count all the runs chosen.", kind="flag", default=False
)
_TRACE_PARAMS = (
    RUN_ID,
    Param(
        name="content",
        description="With the texts of each step; guidance keeps its text either way.",
        kind="flag",
        default=True,
    ),
    Param(
        name="after_step",
        description="Only steps after this one; step 0 is the first call.",
        kind="integer",
        low=-1,
        default=-1,
    ),
    Param(name="limit", description="At most so many steps.", kind="integer", low=1, high=100_000),
)
_OUTCOME_BODY = {
    "type": "object",
    "properties": {"outcome": {"enum": list(OUTCOMES)}},
    "required": ["outcome"],
    "additionalProperties": False,
}


async def list_runs(call: Call) -> Reply:
    """One page of the runs chosen."""
    values, runs = call.values, run_filter(call.values, call.tenant)
    page = PageRequest(
        limit=values["limit"],
        sort=values["sort"],
        descending=values["order"] == "desc",
        cursor=values["cursor"],
    )
    try:
        found = await call.runtime.runs.list_runs(runs, page)
    except ValueError as error:
        raise BadRequest(str(error), param="cursor") from None
    settings = call.runtime.settings
    payload: dict[str, Any] = {
        "runs": [run_view(run, settings) for run in found.runs],
        "next_cursor": found.next_cursor,
    }
    if values["count"]:
        payload["total"] = await call.runtime.runs.count_runs(runs)
    return Reply(payload=payload)


async def get_run(call: Call) -> Reply:
    """One run's trace, or a part of it."""
    after, limit = call.values["after_step"], call.values["limit"]
    trace = await call.runtime.runs.get_run(
        call.values["run_id"],
        tenant=call.tenant,
        content=call.values["content"],
        after_step=after,
        limit=limit,
    )
    if trace is None:
        raise _unknown(call.values["run_id"])
    return Reply(payload=_trace_view(call.runtime, trace, after, limit))


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


async def post_outcome(call: Call) -> Reply:
    """Say what a run came to."""
    body = call.json_object()
    outcome = body.get("outcome")
    if outcome not in OUTCOMES or len(body) > 1:
        raise BadRequest(
            f'the body must be {{"outcome": one of {", ".join(OUTCOMES)}}}', param="outcome"
        )
    await report_outcome(call.runtime, call.values["run_id"], outcome, tenant=call.tenant)
    return Reply(payload={"run_id": call.values["run_id"], "outcome": outcome})


async def report_outcome(
    runtime: Runtime, run_id: str, outcome: str, *, tenant: str | None
) -> None:
    """Keep a run's outcome, let its patterns and the listeners know.

    Raises:
        NotFound: the tenant has no run of that id.
    """
    trace = await runtime.runs.get_run(run_id, tenant=tenant, content=False)
    kept = trace is not None and await runtime.runs.set_outcome(
        run_id, outcome, source="api", tenant=tenant
    )
    if trace is None or not kept:
        raise _unknown(run_id)
    if runtime.tally is not None:
        runtime.tally.verdict(trace.run.tenant, judged_by(trace), outcome, trace.run.outcome)
    runtime.events.publish(
        {"type": "outcome", "tenant": trace.run.tenant, "run_id": run_id, "outcome": outcome}
    )
    runtime.log.info("outcome reported", run_id=run_id, outcome=outcome)


async def get_facets(call: Call) -> Reply:
    """What a filter can offer."""
    return Reply(payload=await call.runtime.runs.facets(tenant=call.tenant))


def _unknown(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id[:80]!r}", param="run_id")


OPERATIONS = (
    Operation(
        name="listRuns",
        method="GET",
        path="/api/runs",
        summary="Runs, newest first or in another order, by any of the filters.",
        handler=list_runs,
        params=(*RUN_FILTERS, *PAGING, _COUNT),
        answers={200: Answer("One page.", page_of("runs", RUN, total={"type": "integer"}))},
        errors=(400, 403),
    ),
    Operation(
        name="getRun",
        method="GET",
        path="/api/runs/{run_id}",
        summary="A run's course: each step with its scores, guidance, call and texts.",
        handler=get_run,
        params=_TRACE_PARAMS,
        answers={200: Answer("The trace.", TRACE)},
        errors=(400, 404),
    ),
    Operation(
        name="reportOutcome",
        method="POST",
        path="/api/runs/{run_id}/outcome",
        summary="Say what a run came to; a later verdict replaces an earlier one.",
        handler=post_outcome,
        params=(RUN_ID,),
        body=_OUTCOME_BODY,
        answers={
            200: Answer(
                "Kept.",
                {
                    "type": "object",
                    "properties": {
                        "run_id": {"type": "string"},
                        "outcome": {"enum": list(OUTCOMES)},
                    },
                    "required": ["run_id", "outcome"],
                },
            )
        },
        errors=(400, 403, 404, 413),
    ),
    Operation(
        name="getFacets",
        method="GET",
        path="/api/facets",
        summary="The agents, models, failure types, experiments and arms that occur.",
        handler=get_facets,
        params=(TENANT,),
        answers={200: Answer("The values.", schema_of(Facets))},
        errors=(400, 403),
    ),
)
