"""Values and store of learning: outcomes and lessons, and the models on which workloads began.

No verdict on a run is overwritten. Decisions are written with the call that they belong to
(`CallRecord.decisions`). The counts of workloads outlive the runs that retention removes. Times are
seconds of the epoch. Every store must pass `steering_gateway_testing.store_conformance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from gateway.steering.guidance.pattern import Pattern, Status, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """One verdict on a run. `source`: told_header, told_api, told_cli, interruption, correction,
    result, moved_on or abandoned. `verdict`: success, failure, other, or "" for a score without
    one. `weight`: the confidence in it, in [0, 1]. `evidence`: where it was read, such as `step
    12`."""

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


UNSURE = "unsure"  # kind of evidence that supports nothing yet
NO_SUPPORT = (UNSURE, "failed_again")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow(OfLesson):
    """One run's support of a lesson. `kind`: fix, fact, unsure, said, distilled or, of earlier
    versions, practice, repair, dead_end and failed_again. `task`: digest of the run's task.
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
    from the first to the last; `tenant_keys`: number of names that its tenant's valid keys have."""

    conversations: int
    tasks: int
    keys: int = 1
    span_s: float = 0.0
    tenant_keys: int = 0


class StoredLesson(Struct, frozen=True, kw_only=True):
    """A lesson, its support and its trial. `reason`: of its last change."""

    pattern: Pattern
    created_at: float
    updated_at: float
    support: Support
    reason: str
    posterior: Posterior


class LessonFilter(Struct, frozen=True, kw_only=True):
    """Filter of lessons; None does not filter. `tenant`: its own and the shared ones."""

    tenant: str | None = None
    statuses: Sequence[Status] = ()
    tier: Tier | None = None
    key: str | None = None
    key_prefix: str | None = None
    since: float | None = None


class Learned(Struct, frozen=True, kw_only=True):
    """Number of new lessons and of new evidence."""

    lessons: int = 0
    evidence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work; `key` is unique within its kind. `state`: waiting, done or failed.
    `tokens`, `cost_usd`: used, or reserved for attempts whose use is unknown. `payload`: ids only,
    no content of a run."""

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


class LearningStore(Protocol):
    """Outcomes, lessons, decisions and jobs. Every method may raise StoreError. `tenant` None,
    where it is allowed, means every tenant."""

    async def add_outcome(self, outcome: OutcomeRow) -> bool:
        """Store a verdict; False when the newest of its source and metric says the same."""

    async def outcomes(self, tenant: str | None, run_id: str) -> list[OutcomeRow]:
        """The verdicts on a run, oldest first."""

    async def checked(self, tenant: str, run_id: str) -> list[tuple[str, str, str, int]]:
        """The newest runs of a run's workload that have an outcome which was not derived: source
        and verdict of what was read off them ("" for all runs), the outcome, and their number."""

    async def learn(self, entries: Sequence[tuple[Pattern, Sequence[EvidenceRow]]]) -> Learned:
        """Store lessons with their evidence, all or none. A known lesson only gets the evidence
        that is new, and is confirmed at its time. Raises: ValueError for a pattern that is no
        lesson."""

    async def lessons(self, wanted: LessonFilter, *, limit: int = 1000) -> list[StoredLesson]:
        """Lessons, last changed first."""

    async def lesson(self, tenant: str | None, pattern_id: str) -> StoredLesson | None:
        """The tenant's own or the shared lesson of that id."""

    async def move(
        self, tenant: str, pattern_id: str, status: Status, *, reason: str, at: float
    ) -> bool:
        """Change the status of the lesson of exactly this owner; False when it has that status."""

    async def prolong(self, tenant: str, pattern_id: str, expires_at: float) -> None:
        """Set when the lesson expires."""

    async def share(self, tenant: str, pattern_id: str, at: float) -> bool:
        """Give a tenant's e2 lesson to all tenants; False when there is none, or all have it
        already."""

    async def trim(self, tenant: str, tier: Tier, most: int) -> int:
        """Remove candidates, the longest unconfirmed first, until at most `most` lessons of the
        tier or no candidate is left; returns the number removed."""

    async def evidence(self, tenant: str, pattern_id: str, limit: int = 200) -> list[EvidenceRow]:
        """The evidence for the lesson of exactly this owner, newest first."""

    async def decisions(
        self, owner: str, pattern_id: str, version: int | None = None, *, limit: int = 10_000
    ) -> list[SettledDecision]:
        """The decisions about a lesson in every run, oldest first."""

    async def verdicts(self, owner: str, pattern_id: str, version: int) -> list[OutcomeRow]:
        """The verdicts on the runs of a lesson's decisions, oldest first."""

    async def open_decisions(self, run_id: str, *, settled: bool = False) -> list[DecisionRow]:
        """The decisions of a run whose near outcome is not known yet, in step order; with
        `settled` all of them."""

    async def settle(self, outcomes: Sequence[NearOutcome]) -> int:
        """Fill in near outcomes; one that is known already stays. Returns how many were new."""

    async def put_posterior(
        self, owner: str, pattern_id: str, version: int, posterior: Posterior, at: float
    ) -> None:
        """Store what the decisions come to, in place of the earlier one."""

    async def enqueue(self, job: Job) -> bool:
        """Add a job; False when one of its kind and key exists."""

    async def claim(
        self, kind: str, *, now: float, lease_s: float, most_attempts: int, allowance: Allowance
    ) -> Job | None:
        """The oldest waiting job that may be done, held for `lease_s` seconds. One job of a tenant
        is held at a time, so that its allowance is exceeded by one job at most. A job whose lease
        ended can be claimed again, `most_attempts` times in all; then it is `failed`."""

    async def finish(self, job: Job, *, now: float, error: str = "") -> bool:
        """The job is done, or with `error` has failed; `job.tokens` and `job.cost_usd` are kept.
        False, with nothing changed, when somebody else has claimed it since."""

    async def give_back(self, job: Job, until: float) -> bool:
        """The job waits until then, as `job` is now; False as of `finish`."""

    async def spent(self, kind: str, tenant: str | None, since: float) -> tuple[int, float]:
        """Tokens and USD of jobs that were claimed since then, unfinished included."""

    async def jobs(self, kind: str, tenant: str | None = None, *, limit: int = 100) -> list[Job]:
        """The newest jobs."""

    async def count_jobs(self, kind: str, tenant: str | None = None) -> dict[str, int]:
        """Number of jobs in each state."""

    async def forget(self, tenant: str | None, run_id: str, at: float) -> list[str] | None:
        """Remove what is known of a run (jobs by `run`), and the lessons that nothing else
        supports; returns the ids of those lessons, None for a run that is not known.

        From then on nothing is learned from it, and `decisions` leaves it out. Texts of the lessons
        that are gone are masked where other runs were given them, and lessons that stay no longer
        hold words of the run."""

    async def forgotten(self, tenant: str) -> frozenset[str]:
        """The ids of the tenant's forgotten runs."""


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


class EndedRun(Struct, frozen=True, kw_only=True):
    """A run with an outcome. `run`: as it was noted, `at` its end; without a workload if it was
    not. `weight`: the confidence in the outcome. `sequence`: in its conversation, from 0."""

    run: WorkloadRun
    failed: bool
    weight: float
    sequence: int
    project: str = ""
