"""`/api/runs`, `/api/conversations`, `/api/health-summary`: the run log and run outcomes."""

import time
from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields
from pydantic import BaseModel, Field, GetCoreSchemaHandler

from gateway.api.operations import ApiRequest, ApiResponse, Operations, note, shape
from gateway.api.params import (
    DIGITS,
    Cursor,
    Flag,
    OneOf,
    PageParameters,
    Parameters,
    PathText,
    RunFilters,
    Sent,
    SortParameters,
    TenantParameter,
    Text,
    naming,
    page_request,
)
from gateway.api.views import picked, run_view, step_views, thresholds
from gateway.auth.access import Access
from gateway.core.fsm import FSM_THRESHOLDS
from gateway.errors import NotFound
from gateway.reporting import trace_state, wrong_alarms
from gateway.stores import filters, health, lists
from gateway.stores.learning import OutcomeRow
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.severity import SeverityWord
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.totals import RunRecord
from gateway.text.secrets import mask_secrets
from gateway.values import FieldDict, T

if TYPE_CHECKING:
    from gateway.runtime import Runtime

OPERATIONS = Operations()
Omitted = Annotated[T, Field(exclude=True)]  # A field of a stored row that the answer leaves out
Outcome = Annotated[str, OneOf(filters.OUTCOMES)]


class Described:
    """Makes pydantic read a struct as a dataclass with the same fields."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler(_as_dataclass(cls))  # type: ignore[arg-type]


@cache
def _as_dataclass(kind: Any) -> Any:
    """A type in which dataclasses take the place of structs."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        return Annotated[(_as_dataclass(arguments[0]), *arguments[1:])]
    if origin is UnionType:
        return reduce(or_, map(_as_dataclass, arguments))
    if origin in (list, tuple):
        return origin[tuple(map(_as_dataclass, arguments))]
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return kind
    found = [(of.name, _as_dataclass(of.type)) for of in fields(kind)]
    about = {"__doc__": kind.__doc__, "described": (kind,)}
    return make_dataclass(kind.__name__, found, namespace=about)


class Run(Described, RunRecord):
    """A run with values derived from its totals."""

    severity_word: SeverityWord  # the worst that it came to
    steps_by_severity: Mapping[str, int]  # scored steps
    composite_mean: Annotated[float, Field(ge=0, le=1)]  # of the scored steps
    duration_s: float  # from the first call to the newest
    handed_over: int | None  # step at which it was asked to stop and report
    tokens: int  # input and output tokens together
    token_budget: int | None  # steering.token_budget
    budget_used: Annotated[float | None, Field(ge=0, le=1)]  # share of the budget that is used


class Health(Described, health.HealthSummary):
    """The health of the selected runs, and what no run has."""

    # unsteered calls by reason whose conversation was not found, or whose body was too large to
    # read, since the start of the process; empty for a tenant's own key
    unrecorded_calls: Mapping[str, int]


class Spread(Described, health.Spread):
    """The duration in seconds, the cost and the calls of the newest runs that match."""


class RunPage(BaseModel):
    """One page of a list of runs."""

    runs: list[Run]  # in the order that was asked for
    next_cursor: Cursor  # null on the last page
    total: int = 0  # with `count`: all runs that match
    spread: Spread | None = None  # with `count`: their median and 95th percentile


class Guidance(Described, InjectionRow):
    """One piece of guidance, listed under its step."""

    run_id: Omitted[str]  # that of the step it is listed under
    step_index: Omitted[int]  # likewise


class StepLogEntry(Described, trace_state.StepLogEntry):
    """One step in short; step 0 is the run's first call."""


class StepRecord(Described, StepRow):
    """One step of a run with the guidance decided at it."""

    run_id: Omitted[str]  # that of the run it is listed under
    assessment: trace_state.StepAssessment  # findings at the step, under the names of TraceState
    guidance: list[Guidance]  # decided at this step, in the order of the block


class Thresholds(BaseModel):
    """The thresholds in force now, to draw next to a run's curves."""

    fast: float  # a score below it is easy
    slow: float  # a score above it is hard
    skip: float  # a score above it is very hard
    margin: float  # by how much a score must pass a threshold to undo its state

    fire: float  # score from which a monitor fires
    at_risk: float  # composite from which a step is at risk
    in_trouble: float  # composite from which a step is in trouble
    warn: float  # an alias of `at_risk`
    danger: float  # an alias of `in_trouble`


class TraceState(BaseModel):
    """One run step by step, or a part of it."""

    run: Run  # description and totals
    current_state: str  # after the newest step
    step_log: list[StepLogEntry]  # every step in short
    steps: list[StepRecord]  # with texts where `content` asks for them
    fsm_thresholds: dict[str, float]  # thresholds, margin and windows in force now
    next_after_step: int | None  # `after_step` of the next part; null on the last
    thresholds: Thresholds  # to draw next to the run's curves
    policy_in_force: bool  # whether the current policy decided the run's newest step


class OutcomeBody(Sent):
    """The outcome of a run; score and comment are kept with it."""

    outcome: Outcome  # success, failure or other
    # any scale; null without one
    score: Annotated[float, Field(ge=-1e9, le=1e9, strict=True)] | None = None
    comment: Annotated[str, Field(max_length=2000)] = ""  # kept with the run


ReportedOutcome = shape(
    "ReportedOutcome", "An outcome that has been stored.", run_id=str, outcome=Outcome
)


class RunListParameters(SortParameters, RunFilters):
    """Filter of runs, and their order."""

    count: Flag = False  # also count all runs that match


class RunParameters(Parameters):
    """Id of a run."""

    run_id: PathText  # the run's id


class RunOfTenant(RunParameters, TenantParameter):
    """Id of a run, and its tenant."""


class TraceParameters(RunParameters):
    """Part of a run's trace."""

    content: Flag = True  # with the texts of each step; guidance keeps its text either way
    # only steps after this one; step 0 is the first call
    after_step: Annotated[int, Field(ge=-1, le=2**31 - 1), DIGITS] = -1
    limit: Annotated[int, Field(ge=1, le=100_000), DIGITS] | None = None  # at most this many steps


@OPERATIONS.add("GET /api/runs", RunPage, "One page.")
async def list_runs(request: ApiRequest[RunListParameters]) -> ApiResponse:
    """Runs, newest first or in another order, by any of the filters."""
    params = request.params
    runs = filters.run_filter(dict(request.params), request.tenant)
    with naming("cursor"):
        found = await request.runtime.runs.list_runs(runs, page_request(dict(params)))
    views = [run_view(run, request.runtime.settings) for run in found.runs]
    payload: FieldDict = {"runs": views, "next_cursor": found.next_cursor}
    if params.count:
        payload["total"] = await request.runtime.runs.count_runs(runs)
        payload["spread"] = (await request.runtime.runs.newest_runs(runs)).spread
    return ApiResponse(payload)


@OPERATIONS.add("GET /api/runs/{run_id}", TraceState, "The trace.")
async def get_run(request: ApiRequest[TraceParameters]) -> ApiResponse:
    """A run step by step: scores, guidance, call and texts."""
    params = request.params
    part = picked(params, "content", "after_step", "limit")
    trace = await request.runtime.runs.get_run(params.run_id, tenant=request.tenant, **part)
    if trace is None:
        raise unknown_run(params.run_id)
    run = trace.run
    settings = request.runtime.settings
    if params.limit is None:
        last = None
    else:
        last = params.after_step + params.limit
    view = {
        "run": run_view(run, settings),
        "current_state": run.state,
        "step_log": trace_state.step_log(trace.steps),
        "fsm_thresholds": {name: getattr(settings.fsm, name) for name in FSM_THRESHOLDS},
        "steps": step_views(trace),
        "next_after_step": last if last is not None and run.totals.steps > last else None,
        "thresholds": thresholds(settings),
        "policy_in_force": run.policy_digest == request.runtime.services.policy_digest,
    }
    return ApiResponse(view)


@OPERATIONS.add(
    "POST /api/runs/{run_id}/outcome", ReportedOutcome, "Stored.", body=OutcomeBody, needs="report"
)
async def report_outcome(request: ApiRequest[RunParameters]) -> ApiResponse:
    """Report a run's outcome; a later report replaces an earlier one. The id of a conversation,
    also the client's own, stands for its newest run."""
    body = request.read(OutcomeBody)
    run_id = request.params.run_id
    run_id = await keep_outcome(request.runtime, run_id, body, access=request.access)
    return ApiResponse({"run_id": run_id, "outcome": body.outcome})


async def run_named(runs: RunStore, given: str, tenant: str | None) -> RunRecord | None:
    """The run of an id: of a run, or of a conversation by the gateway's or the client's own id."""
    trace = await runs.get_run(given, tenant=tenant, content=False, limit=0)
    if trace is not None:
        return trace.run
    known = await runs.list_conversations(tenant=tenant, external_key=given, limit=1)
    for conversation_id in (given, *[each.id for each in known.conversations]):
        wanted = filters.RunFilter(tenant=tenant, conversation_id=conversation_id)
        if found := (await runs.list_runs(wanted, lists.PageRequest(limit=1))).runs:
            return found[0]
    return None


async def store_outcome(
    runs: RunStore,
    learning: LearningStore,
    given: str,
    tenant: str | None,
    *,
    source: str,
    masks: bool,
    outcome: str,
    score: float | None,
    comment: str,
) -> RunRecord | None:
    """Store an outcome of the run that the id `given` names; None where there is no such run. The
    same again changes nothing."""
    run = await run_named(runs, given, tenant)
    if run is None or not await runs.set_outcome(run.id, outcome, source=source, tenant=tenant):
        return None
    row = OutcomeRow(
        run_id=run.id,
        tenant=run.tenant,
        source=f"told_{source}",
        verdict=outcome,
        score=score,
        comment=mask_secrets(comment) if masks else comment,
        at=time.time(),
    )
    await learning.add_outcome(row)
    return run


async def keep_outcome(
    runtime: "Runtime", given: str, body: OutcomeBody, access: Access | None = None
) -> str:
    """Store a run's outcome and notify the subscribers; the run's id. Raises: NotFound."""
    tenant = access.tenant if access else None
    said = body.model_dump()
    masks = runtime.settings.storage.mask_secrets
    run = await store_outcome(
        runtime.runs, runtime.lessons, given, tenant=tenant, source="api", masks=masks, **said
    )
    if run is None:
        raise unknown_run(given)
    what = {"run_id": run.id, "outcome": body.outcome}
    runtime.events.publish({"type": "outcome", "tenant": run.tenant, **what})
    runtime.log.info("outcome reported", **what)
    if access and access.controls:  # a person's; agents report their own
        await note(runtime, access, "outcome", act="report", subject=run.id, said=said)
    return run.id


class WrongAlarmBody(Sent):
    """The alarm that was wrong, and why."""

    # of this step; by default of the newest one with an alarm
    step: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    # kept with the alarm, for whoever looks at it later
    reason: Annotated[str, Field(max_length=300)] = ""
    undo: bool = False  # the alarm was right after all, and is muted no more


MutedAlarm = shape(
    "MutedAlarm",
    "Kinds of alarms that are muted for a project, or are so no more.",
    run_id=str,
    step=int,
    project=str,
    monitors=list[str],
    muted=bool,
)


@OPERATIONS.add(
    "POST /api/runs/{run_id}/wrong-alarm", MutedAlarm, "What is muted.", body=WrongAlarmBody
)
async def mute_alarm(request: ApiRequest[RunOfTenant]) -> ApiResponse:
    """Say that an alarm was wrong: alarms of its kind give no text and no act in the run's project
    from now on, and are still recorded."""
    body = request.read(WrongAlarmBody)
    found = await keep_wrong_alarm(
        request.runtime, request.params.run_id, body, access=request.access, tenant=request.tenant
    )
    return ApiResponse(
        {**picked(found, "run_id", "step", "project", "monitors"), "muted": not body.undo}
    )


async def keep_wrong_alarm(
    runtime: "Runtime", run_id: str, body: WrongAlarmBody, access: Access, tenant: str | None
) -> wrong_alarms.AlarmsOfStep:
    """Mute the kinds of a step's alarms for the run's project, or end that. Raises: NotFound: there
    is no such run, or no alarm at the step; StoreError."""
    found = await wrong_alarms.find_alarms(runtime.runs, run_id, body.step, tenant=tenant)
    if found is None:
        raise NotFound(f"there is no such alarm in a run {run_id[:80]!r}", param="run_id")
    for control in found.holds(body.reason, access.author):
        if body.undo:
            await runtime.holds.release(control.subject)
        else:
            await runtime.holds.hold(control)
    await note(runtime, access, *found.said(wrong=not body.undo))
    return found


def unknown_run(run_id: str) -> NotFound:
    """The error for a run that is not there."""
    return NotFound(f"there is no run {run_id[:80]!r}", param="run_id")


class ConversationParameters(PageParameters, TenantParameter):
    """Filter of conversations."""

    external_key: Text | None = None  # with this id given by the client


class Conversations(Described, lists.ConversationPage):
    """One page of a list of conversations, newest first; `next_cursor` is None on the last page."""


@OPERATIONS.add("GET /api/conversations", Conversations, "One page.")
async def list_conversations(request: ApiRequest[ConversationParameters]) -> ApiResponse:
    """Conversations, newest first; forks and sub-agents name their parent."""
    params = request.params
    chosen = picked(params, "external_key", "limit", "cursor")
    with naming("cursor"):
        page = await request.runtime.runs.list_conversations(tenant=request.tenant, **chosen)
    return ApiResponse(page)


@OPERATIONS.add("GET /api/health-summary", Health, "The summary.")
async def get_health_summary(request: ApiRequest[RunFilters]) -> ApiResponse:
    """Clean-run rate, fires, severity, time in state, tokens, cost, unsteered calls."""
    tenant = request.tenant
    summary = await request.runtime.runs.health_summary(
        filters.run_filter(dict(request.params), tenant)
    )
    if tenant is None:
        unrecorded = dict(request.runtime.unsteered.unrecorded)
    else:
        unrecorded = {}
    values = picked(summary, *health.HealthSummary.__struct_fields__)
    return ApiResponse(Health(**values, unrecorded_calls=unrecorded))
