"""The bodies of the control plane as types: what requests must bring, and what answers look like.

Answers are written from plain values (`views`), which is many times faster than pydantic for long
traces; these types describe them in the OpenAPI document, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, make_dataclass
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler

from gateway.api.params import OneOf
from gateway.steering.guidance.pattern import MAX_ID_CHARS
from gateway.stores.patterns import Added
from gateway.stores.queries import OUTCOMES, HealthSummary
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import RunRecord

T = TypeVar("T")
Omitted = Annotated[T, Field(exclude=True)]
"""A field of a stored row that the answer leaves out."""

Outcome = Annotated[str, OneOf(OUTCOMES)]
Tier = Literal["e1", "e2", "e3"]
Cursor = Annotated[str | None, Field(description="Null on the last page.")]


class Described:
    """Makes pydantic read a struct as a dataclass with the same fields."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler(_as_dataclass(cls))  # type: ignore[arg-type]


@cache
def _as_dataclass(kind: Any) -> Any:
    """A type in which dataclasses take the place of structs."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[(_as_dataclass(arguments[0]), *arguments[1:])]
    if origin is UnionType:
        return reduce(or_, map(_as_dataclass, arguments))
    if origin in (list, tuple):
        return origin[tuple(map(_as_dataclass, arguments))]
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return kind
    found = [(each.name, _as_dataclass(each.type), _default(each)) for each in fields(kind)]
    return make_dataclass(kind.__name__, found, namespace={"__doc__": kind.__doc__}, kw_only=True)


def _default(of: FieldInfo) -> Any:
    default = MISSING if of.default is NODEFAULT else of.default
    factory = MISSING if of.default_factory is NODEFAULT else of.default_factory
    return field(default=default, default_factory=factory)  # type: ignore[arg-type]


class Run(Described, RunRecord, frozen=True, kw_only=True):
    """A run with values derived from its totals."""

    composite_mean: Annotated[float, Field(ge=0, le=1)]
    duration_s: Annotated[float, Field(description="From the first call to the newest.")]
    tokens: Annotated[int, Field(description="Input and output tokens together.")]
    token_budget: Annotated[int | None, Field(description="steering.token_budget.")]
    budget_used: Annotated[
        float | None, Field(ge=0, le=1, description="Share of the budget that is used.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(HealthSummary):
    """The health of the selected runs, and what no run has."""

    unrecorded_calls: Annotated[
        Mapping[str, int],
        Field(
            description="Unsteered calls by reason whose conversation was not found, or whose "
            "body was too large to read, since the start of the process; empty for a "
            "tenant's own key."
        ),
    ]


class RunPage(BaseModel):
    """One page of a list of runs."""

    runs: list[Run]
    next_cursor: Cursor
    total: Annotated[int, Field(description="With `count`: all runs that match.")] = 0


class Guidance(Described, InjectionRow, frozen=True, kw_only=True):
    """One piece of guidance, listed under its step."""

    run_id: Omitted[str]
    step_index: Omitted[int]


class TraceStep(Described, StepRow, frozen=True, kw_only=True):
    """One step of a run with the guidance decided at it."""

    run_id: Omitted[str]
    guidance: list[Guidance]


class Thresholds(BaseModel):
    """The thresholds in force now, to draw next to a run's curves."""

    fast: float
    slow: float
    skip: float
    margin: float
    fire: float
    warn: float
    danger: float


class Trace(BaseModel):
    """One run step by step, or a part of it."""

    run: Run
    steps: list[TraceStep]
    next_after_step: Annotated[
        int | None, Field(description="`after_step` of the next part; null on the last.")
    ]
    thresholds: Thresholds
    policy_in_force: Annotated[
        bool, Field(description="Whether the current policy decided the run's newest step.")
    ]


class OutcomeBody(BaseModel):
    """The outcome of a run; score and comment are kept with it."""

    model_config = ConfigDict(extra="forbid")
    outcome: Outcome
    score: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    comment: Annotated[str, Field(max_length=2000)] = ""


class ReportedOutcome(BaseModel):
    """An outcome that has been stored."""

    run_id: str
    outcome: Outcome


class PatternPatch(BaseModel):
    """Keys to replace; `fields` is merged key by key, and null removes a key."""

    failure_type: str | None = None
    model_family: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    gate_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    source_trace_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    fields: Mapping[str, Any] = {}


class PatternBody(PatternPatch):
    """One pattern; `gateway.steering.guidance.codec` reads it, as it reads lines of files."""

    pattern_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] = ""
    tier: Tier
    fields: Annotated[Mapping[str, Any], Field(min_length=1)]


class PatternRecord(BaseModel):
    """One stored pattern."""

    pattern_id: str
    tier: Tier
    tenant: Annotated[str, Field(description="Empty for a pattern that all tenants share.")]
    failure_type: str | None
    model_family: str
    gate_threshold: float | None
    source_trace_id: str | None
    fields: Mapping[str, Any]
    status: Annotated[str, Field(description="Of a learned pattern; else `active`.")]
    origin: Annotated[str, Field(description="How it was learned; empty when it was not.")]
    created_at: float
    updated_at: float
    counts: Mapping[str, int]
    indexed: Annotated[bool, Field(description="Whether a search can find it.")]


class PatternPage(BaseModel):
    """One page of a list of patterns."""

    patterns: list[PatternRecord]
    next_cursor: Cursor


class AddedPattern(BaseModel):
    """What happened to a pattern that was sent."""

    result: Added
    pattern_id: str


class ImportCounts(BaseModel):
    """How many patterns of an import had each result."""

    added: int
    replaced: int
    unchanged: int


class ErrorDetail(BaseModel):
    """One error, as OpenAI's API describes errors."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The body of every error."""

    error: ErrorDetail
