"""Values of learning: outcomes and lessons, and the models on which workloads began.

No verdict on a run is overwritten. Decisions are written with the call that they belong to
(`CallRecord.decisions`). The counts of workloads outlive the runs that retention removes. Times are
seconds of the epoch. Every store must pass `steering_gateway_testing.store_conformance`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from gateway.core.pattern import Pattern, Status, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """One verdict on a run. `source`: told_header, told_api, told_cli, interruption, correction,
    result, moved_on or abandoned. `verdict`: success, failure, other, or "" for a score without
    one. `weight`: the confidence in it, in [0, 1]. `evidence`: where it was read, such as `step
    12`. Rows of the source `reader` hold what a model read, in `comment`: a title, or the kind of
    the message at a step."""

    run_id: str
    tenant: str
    source: str
    metric: str = "task"
    verdict: str = ""
    score: float | None = None
    comment: str = ""
    weight: float = 1.0
    at: float
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfLesson:
    """A lesson, and a step of a run."""

    run_id: str
    step_index: int
    pattern_id: str


READER = "reader"  # source of the answers of `gateway/reader`, which are no verdicts
TITLE = "title"  # metric of the title that it gave a run
NO_SUPPORT = ("unsure", "failed_again")  # kinds of evidence, of earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow(OfLesson):
    """One run's support of a lesson. `kind`: said or, of earlier versions, distilled, fix, fact,
    unsure, practice, repair, dead_end and failed_again. `task`: digest of the run's task.
    `conversation`: root of its tree."""

    tenant: str
    kind: str
    conversation: str
    task: str
    at: float
    key_name: str = ""


class DecisionRow(Struct, frozen=True, kw_only=True):
    """One occasion on which a lesson could be given. `share`: probability with which it was to be
    given. `similarity` is 1 for an exact key."""

    run_id: str
    step_index: int
    pattern_id: str
    owner: str
    version: int
    share: float
    given: bool
    similarity: float
    key: str
    state: str
    failure_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearOutcome(OfLesson):
    """Outcome that followed a decision: whether the failure came again within the window, and the
    calls until the same kind of call worked, None = not within the window."""

    recurred: bool
    calls_to_success: int | None
    steps_left: int


class SettledDecision(Struct, frozen=True, kw_only=True):
    """A decision with its near outcome; `at` of the call, `tenant` of the run."""

    decision: DecisionRow
    tenant: str
    at: float
    recurred: bool | None
    calls_to_success: int | None
    steps_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Result of the settled decisions about one version of a lesson. `rate_given`, `rate_held`:
    recurrence in each arm, weighted by inverse propensity; `success_given`, `success_held`:
    success. `effect`: held minus given, with its 95 % interval. `helps`, `harms`: probability that
    the effect is at least what counts, or below 0; `harms_success`: that success is rarer. `proof`,
    `safe`: e-values of help, and of no less success. `share`: the probability with which the
    lesson is given next."""

    decisions: int = 0
    given: int = 0
    rate_given: float | None = None
    rate_held: float | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    helps: float | None = None
    harms: float | None = None
    success_given: float | None = None
    success_held: float | None = None
    harms_success: float | None = None
    proof: float = 1.0
    safe: float = 1.0
    share: float = 0.5


class Support(Struct, frozen=True, kw_only=True):
    """Numbers of different conversations, tasks and keys that support a lesson. `span_s`: seconds
    from the first to the last."""

    conversations: int
    tasks: int
    keys: int = 1
    span_s: float = 0.0


class StoredLesson(Struct, frozen=True, kw_only=True):
    """A lesson, its support and its trial. `reason`: of its last change."""

    pattern: Pattern
    created_at: float = 0.0
    updated_at: float = 0.0
    support: Support = Support(conversations=0, tasks=0)
    reason: str = ""
    posterior: Posterior = Posterior()


class LessonFilter(Struct, frozen=True, kw_only=True):
    """Filter of lessons; None does not filter. `tenant`: its own and the shared ones."""

    tenant: str | None = None
    statuses: Sequence[Status] = ()
    tier: Tier | None = None
    key_prefix: str | None = None
    since: float | None = None


class Learned(Struct, frozen=True, kw_only=True):
    """Number of new lessons and of new evidence."""

    lessons: int = 0
    evidence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work; `key` is unique within its kind. `state`: waiting, done or failed.
    `tokens`, `cost_usd`: used, or reserved for attempts whose use is unknown. `payload`: ids, and
    of an answer its text."""

    kind: str
    key: str
    tenant: str
    payload: Mapping[str, object] = field(default_factory=dict)
    state: str = "waiting"
    attempts: int = 0
    lease_until: float = 0.0
    created_at: float = 0.0
    done_at: float | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Limits of a tenant's jobs, over those claimed after `since`. `reserve_tokens`, `reserve_usd`:
    counted with each claim until the job is finished or given back."""

    since: float
    tokens: float
    cost_usd: float
    reserve_tokens: int = 0
    reserve_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRun:
    """One run, when it began. `workload`: the key of the client, its tools and the requested model;
    `model`: of its first call; `choice`: the decision of the learned policy, if it decided."""

    run_id: str
    tenant: str
    workload: str
    client: str
    requested: str
    model: str
    at: float
    choice: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRate:
    """The outcomes of a workload's runs that began on one model; `recent_` ones have faded: an
    outcome counts half after 200 runs of the workload."""

    tenant: str
    workload: str
    client: str
    requested: str
    model: str
    solved: float
    failed: float
    recent_solved: float = 0.0
    recent_failed: float = 0.0


class DecidedRun(Struct, frozen=True, kw_only=True):
    """A run that the learned policy decided. `outcome`: `success`, `failure` or None."""

    run: WorkloadRun
    outcome: str | None
    cost_usd: float | None


class PolicyRoute(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model on which the runs of a workload begin. `counts`: by model, its solved and failed
    runs as routing reads them, which fade."""

    tenant: str
    client: str = ""
    requested: str = ""
    workload: str
    model: str = ""
    counts: Mapping[str, tuple[float, float]]


Applies = TypeVar("Applies")


class PolicyEntry(Struct, Generic[Applies], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a policy. `digest` of `name` and `applies`; `evidence` is for people."""

    name: str
    applies: Applies
    evidence: Mapping[str, Any] = {}
    digest: str = ""


class LearnedPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy that was learned. `form` of its file; `digest` of all entries.
    `thresholds`: of a policy that an earlier version compiled; they have no effect."""

    form: Literal[1] = 1
    routes: tuple[PolicyEntry[PolicyRoute], ...] = ()
    thresholds: tuple[Any, ...] = ()
    lessons: tuple[PolicyEntry[Pattern], ...] = ()
    rules: tuple[PolicyEntry[Pattern], ...] = ()
    digest: str = ""
