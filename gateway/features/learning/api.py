"""`/api/lessons`: lessons, and what is known of runs besides their calls."""

import time
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.api.control import ControlBody
from gateway.api.operations import ApiRequest, ApiResponse, Operations, like, publish_change, shape
from gateway.api.params import (
    DIGITS,
    OneOf,
    PathText,
    Sent,
    TenantParameter,
    Time,
    naming,
)
from gateway.api.runs import RunOfTenant
from gateway.core.pattern import Lesson, Pattern, PatternContent, Status, Tier
from gateway.errors import BadRequest, NotFound
from gateway.features.learning import typed_counts
from gateway.features.learning.forget import forget
from gateway.features.learning.gate import MOST_CHARS
from gateway.features.learning.life_cycle import LessonActions
from gateway.features.learning.views import lesson_detail, visible_lesson
from gateway.features.learning.worker import learning_of
from gateway.runtime import Runtime
from gateway.stores import learning
from gateway.stores.learning import LessonFilter, StoredLesson, Support
from gateway.values import FieldDict

OPERATIONS = Operations()
STATUSES = tuple(status.value for status in Status)
StatusName = Annotated[str, OneOf(STATUSES)]
TIERS = (Tier.E1.value, Tier.E2.value)


class LessonChoice(TenantParameter):
    """Choice of lessons."""

    status: StatusName | None = None  # in this status
    tier: Annotated[str, OneOf(TIERS)] | None = None  # of this tier


class LessonFilters(LessonChoice):
    """Filter of lessons."""

    since: Time | None = None  # changed at or after this time
    limit: Annotated[int, Field(ge=1, le=1000, description="Most lessons."), DIGITS] = 100


class ForgetBody(ControlBody):
    """A session or a person, with the reason and who asked for it."""

    subject: str  # id of a conversation or a run, or the client's own; a person's name
    person: bool = False  # all sessions of a person: a key's owner or name, or the tag `author`


class LessonParameters(TenantParameter):
    """Id of a lesson."""

    pattern_id: PathText  # the lesson's id


@like(learning.Posterior)
class Posterior(BaseModel):
    """Result of the decisions about a lesson; null where there are none yet."""

    effect: float | None  # held minus given, as probabilities
    share: float  # of the occasions on which it is given next


class TrialArm(BaseModel):
    """Rate at which the failure recurred in one arm, with a 95 % interval."""

    name: Literal["given", "held"]  # the lesson was given, or held back by the draw
    rate: float | None  # share of occasions after which the failure came again; null without any
    decisions: int  # settled ones in this arm
    low: float  # lower end of the rate's 95 % interval
    high: float  # upper end of it


@like(Pattern, "pattern_id", "source_trace_id")
@like(PatternContent, "situation")
@like(Lesson, "version", "supersedes", "origin", "key", "applies_when", "last_confirmed_at")
@like(Support, "conversations", "tasks", "keys", "against")
@like(StoredLesson, "created_at", "updated_at", "reason")
class LessonRecord(BaseModel):
    """A lesson."""

    tier: Literal["e1", "e2"]  # e1 = about one failure, e2 = about a kind of failure
    tenant: str  # empty for a lesson that all tenants share
    status: StatusName  # candidate, trial, active, quarantined or retired
    trust: str  # least trusted source of the text; decides whether it is advice or a quotation
    advice: str  # the text that runs are given
    why_not_active: str  # what is missing, in words; empty for an active one
    posterior: Posterior  # result of its trial so far
    arms: list[TrialArm]  # given and held back


LessonList = shape("LessonList", "Lessons, last changed first.", lessons=list[LessonRecord])


class Evidence(BaseModel):
    """One run's support of a lesson."""

    run_id: str  # the run that supports the lesson
    step: int  # of that run
    kind: str  # what was read there
    at: float  # epoch seconds of the step


@like(learning.DecisionRow, "run_id", "share", "given", "similarity", "state", "failure_type")
@like(learning.SettledDecision, "at", "recurred", "calls_to_success", "steps_left")
class LessonOccasion(BaseModel):
    """One occasion on which the lesson could be given; null where the window is still open."""

    step: int  # of the run, 0 for its first call


@like(typed_counts.TypedCounts)
class TypedTimes(BaseModel):
    """Times that people typed a rule, and sessions of its project, before and since its date."""


class LessonDetail(LessonRecord):
    """A lesson with its evidence and its newest decisions."""

    typed: TypedTimes | None  # how often people typed a rule; null for other lessons
    reminds_at: list[str]  # calls that people marked: at calls like these a rule is given again
    evidence: list[Evidence]  # newest first
    decisions: list[LessonOccasion]  # newest first


class MarkedCall(BaseModel):
    """A call of a run."""

    run_id: str  # the run with the call
    step: int = Field(ge=0)  # its step; of several calls the last one counts
    remove: bool = False  # take the mark back


class LessonChange(Sent):
    """Change of a lesson: another status or text, or a call at whose like a rule is given again."""

    status: StatusName | None = None  # null: it stays
    # another text makes a new version, in trial; null: it stays
    advice: Annotated[str, Field(min_length=1, max_length=MOST_CHARS)] | None = None
    mark: MarkedCall | None = None  # null: none is added or taken back


Changed = shape(
    "Changed",
    "The lesson that holds now, and whether anything changed.",
    pattern_id=str,
    changed=bool,
)
Forgotten = shape(
    "Forgotten",
    "Rows that were erased, by place, whose they were, and what is out of reach.",
    subject=str,
    tenants=list[str],
    erased=dict[str, int],
    out_of_reach=str,
)
OutcomeList = shape(
    "OutcomeList", "Every verdict on a run, oldest first.", outcomes=list[FieldDict]
)


def lesson_filter(
    tenant: str | None, status: str | None, tier: str | None, since: float | None = None
) -> LessonFilter:
    """The filter that parameters describe; None selects all."""
    statuses = (Status(status),) if status else ()
    known = Tier(tier) if tier else None
    return LessonFilter(tenant=tenant, statuses=statuses, tier=known, since=since)


@OPERATIONS.add("GET /api/lessons", LessonList, "The lessons.")
async def list_lessons(request: ApiRequest[LessonFilters]) -> ApiResponse:
    """Lessons, last changed first: the tenant's own and the shared ones."""
    params = request.params
    runtime = request.runtime
    wanted = lesson_filter(request.tenant, params.status, params.tier, since=params.since)
    found = await runtime.lessons.lessons(wanted, limit=params.limit)
    return ApiResponse({"lessons": [visible_lesson(each, request.access) for each in found]})


@OPERATIONS.add("GET /api/lessons/{pattern_id}", LessonDetail, "The lesson.")
async def get_lesson(request: ApiRequest[LessonParameters]) -> ApiResponse:
    """One lesson: its evidence, its decisions, both arms, why it is not active."""
    runtime = request.runtime
    stored = await find_lesson(runtime, request.tenant, request.params.pattern_id)
    typed = await learning_of(runtime).typed(request.access.tenant)
    return ApiResponse(await lesson_detail(runtime.lessons, stored, request.access, typed=typed))


@OPERATIONS.add(
    "PATCH /api/lessons/{pattern_id}", Changed, "The lesson that holds now.", body=LessonChange
)
async def change_lesson(request: ApiRequest[LessonParameters]) -> ApiResponse:
    """Approve, pause, retire or edit a lesson, another text is a new version; or mark a call."""
    stored = await find_lesson(request.runtime, request.tenant, request.params.pattern_id)
    change = request.read(LessonChange)
    kept, changed = await apply_change(request.runtime, stored, change)
    return ApiResponse({"pattern_id": kept, "changed": changed})


@OPERATIONS.add("POST /api/sessions/forget", Forgotten, "What was erased.", body=ForgetBody)
async def forget_sessions(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Erase a session, or all sessions of a person, for good."""
    body = request.read(ForgetBody)
    return ApiResponse(
        await forget_here(request.runtime, body.subject, request.tenant, person=body.person)
    )


async def forget_here(
    runtime: Runtime, name: str, tenant: str | None, *, person: bool = False
) -> FieldDict:
    """Erase a session, or all sessions of a person. Raises: NotFound."""
    stores = runtime.opened.stores
    found = await forget(stores, runtime.settings, name, tenant=tenant, person=person)
    if found is None:
        raise NotFound(f"nothing is known of {name[:80]!r}", param="subject")
    learning_of(runtime).forget()
    for owner in found["tenants"]:
        publish_change(runtime, "session", "forgotten", tenant=owner)
    return found


@OPERATIONS.add("GET /api/runs/{run_id}/outcomes", OutcomeList, "The verdicts.")
async def list_outcomes(request: ApiRequest[RunOfTenant]) -> ApiResponse:
    """Every verdict on a run, by source, oldest first."""
    found = await request.runtime.lessons.outcomes(request.tenant, request.params.run_id)
    return ApiResponse({"outcomes": [asdict(row) for row in found]})


async def find_lesson(runtime: Runtime, tenant: str | None, pattern_id: str) -> StoredLesson:
    """The lesson of this id, if `tenant` may see it. Raises: NotFound."""
    stored = await runtime.lessons.lesson(tenant, pattern_id)
    if stored is None:
        raise NotFound(f"there is no lesson {pattern_id[:80]!r}", param="pattern_id")
    return stored


async def apply_change(
    runtime: Runtime, stored: StoredLesson, change: LessonChange
) -> tuple[str, bool]:
    """Change a lesson by hand; the id of the one that holds now, and whether anything changed.
    Raises: BadRequest."""
    if [change.status, change.advice, change.mark].count(None) != 2:
        raise BadRequest("give one of status, advice and mark", param="body")
    with naming("mark" if change.mark else "advice"):
        kept, changed = await LessonActions(runtime.lessons).change(
            stored, runtime.opened.stores.runs, at=time.time(), **dict(change)
        )
    learning_of(runtime).forget()
    publish_change(runtime, "lesson", "changed", tenant=stored.pattern.tenant, pattern_id=kept)
    return kept, changed
