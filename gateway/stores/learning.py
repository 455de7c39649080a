"""Values of learning: outcomes and lessons, and the models on which workloads began.

No verdict on a run is overwritten. Decisions are written with the call that they belong to
(`CallRecord.decisions`). The counts of workloads outlive the runs that retention removes. Times are
seconds of the epoch. Every store must pass `steering_gateway_testing.store_conformance`."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from gateway.core.pattern import Pattern, Status, Tier
from gateway.data_files import read_toml
from gateway.values import FieldDict, Texts, Value, frozen


@frozen
class OutcomeRow:
    """One verdict on a run. Rows of the source `reader` hold what a model read: a title, or the
    kind of the message at a step."""

    run_id: str  # the run that is judged
    tenant: str  # owner of the run
    # told_header, told_api, told_cli, interruption, correction, result, moved_on, abandoned or
    # reader
    source: str
    metric: str = "task"  # what is judged; `task` = whether the run did what was asked
    verdict: str = ""  # success, failure, other, or "" for a score without one
    score: float | None = None  # as reported, any scale; None without one
    comment: str = ""  # of the person; from `reader` the title or kind that it read
    weight: float = 1.0  # confidence in the verdict, in [0, 1]
    at: float  # epoch seconds of the verdict
    evidence: str = ""  # where it was read, such as `step 12`; "" for the run as a whole


@frozen
class OfLesson:
    """A lesson, and a step of a run."""

    run_id: str  # with `step_index` the place in the run log
    step_index: int  # step of the run, 0 for its first call
    pattern_id: str  # id of the lesson


# Kinds of the stored jobs of the reader: one thing to ask about a run, and an answer by the digest
# of what was asked.
JOBS = "read"
ANSWERS = "answer"
# Kinds of a person's message, and what each means.
KINDS: Texts = MappingProxyType(read_toml(__package__, "message_kinds.toml"))
READER = "reader"  # source of the answers of `reader.model`, which are no verdicts
TITLE = "title"  # metric of the title that it gave a run
MARK = "mark"  # kind of the evidence that a person marked a call: a rule is to be given there
AGAINST = "failed_again"  # kind of the evidence that a lesson did not help
# Kinds of evidence that do not speak for a lesson; `unsure` is of earlier versions.
NO_SUPPORT = (MARK, AGAINST, "unsure")


@frozen
class EvidenceRow(OfLesson):
    """One run's support of a lesson."""

    tenant: str  # owner of the run
    # `said`, MARK, `ended` or AGAINST; of earlier versions distilled, fix, fact, unsure, practice,
    # repair and dead_end
    kind: str
    conversation: str  # root of the run's tree; support counts different ones
    # digest of the run's task; support counts different ones. Of a MARK the calls that it is for
    task: str
    at: float  # epoch seconds of the step
    key_name: str = ""  # gateway key of the run; "" without one


class DecisionRow(Value):
    """One occasion on which a lesson could be given."""

    run_id: str  # with `step_index` the place of the call
    step_index: int  # step at which the call was made
    pattern_id: str  # id of the lesson
    owner: str  # tenant that owns the lesson; "" for a shared one
    version: int  # of the lesson at that time
    share: float  # probability with which it was to be given, in (0, 1]
    given: bool  # the result of the draw
    similarity: float  # of its key to the failure's; 1 for the same key
    key: str  # of the failure that it fitted
    state: str  # difficulty state at that time, by name
    failure_type: str = ""  # label that the monitors reported; "" for none


@frozen
class NearOutcome(OfLesson):
    """The outcome that followed a decision about a lesson."""

    recurred: bool  # the failure came again within the window
    # calls until the same kind of call worked; None = not within the window
    calls_to_success: int | None
    steps_left: int  # steps of the run after the decision


class SettledDecision(Value):
    """A decision with its near outcome."""

    decision: DecisionRow  # the occasion and the draw
    tenant: str  # owner of the run
    at: float  # epoch seconds of the call
    recurred: bool | None  # the failure came again within the window; None = not known
    # calls until the same kind of call worked; None = not within the window
    calls_to_success: int | None
    steps_left: int | None  # steps of the run after the decision; None = not known


@frozen
class Posterior:
    """Result of the settled decisions about one version of a lesson."""

    decisions: int = 0  # settled ones, given or not
    given: int = 0  # of them, those on which the lesson was given
    # share of recurrences where it was given, weighted by inverse propensity; None = unknown
    rate_given: float | None = None
    rate_held: float | None = None  # the same where it was held back
    effect: float | None = None  # `rate_held` minus `rate_given`; above 0 the lesson helps
    # evidence that the failure comes again less often where it is given, in [0, 1): 1 - 1 / e-value
    helps: float | None = None
    harms: float | None = None  # the same, that it comes again more often
    # share of successful runs where it was given; None = unknown
    success_given: float | None = None
    success_held: float | None = None  # the same where it was held back
    harms_success: float | None = None  # the same, that success is rarer where it is given
    share: float = 0.5  # probability with which the lesson is given next


class Support(Value):
    """Numbers of different things that support a lesson."""

    conversations: int  # different trees of conversations
    tasks: int  # different tasks
    keys: int = 1  # different gateway keys
    span_s: float = 0.0  # seconds from the first support to the last
    against: int = 0  # different trees of conversations in which it did not help


class StoredLesson(Value):
    """A lesson with its support and its trial."""

    pattern: Pattern  # the lesson
    created_at: float = 0.0  # epoch seconds
    updated_at: float = 0.0  # epoch seconds of its last change
    support: Support = Support(conversations=0, tasks=0)  # numbers of what speaks for it
    reason: str = ""  # of its last change, for people
    posterior: Posterior = Posterior()  # result of its trial so far


class LessonFilter(Value):
    """Filter of lessons; a field of None or an empty one does not filter."""

    tenant: str | None = None  # its own lessons and the shared ones
    statuses: Sequence[Status] = ()  # any of these
    tier: Tier | None = None  # e1 or e2; lessons of tier e3 do not exist
    key_prefix: str | None = None  # beginning of the failure's key
    since: float | None = None  # epoch seconds: changed at or after


class Learned(Value):
    """Additions by one reading of runs."""

    lessons: int = 0  # new ones
    evidence: int = 0  # new rows of support, for new and known lessons


@frozen
class ReaderJob:
    """One piece of work."""

    kind: str  # which worker does it
    key: str  # unique within the kind; a second job of it is not added
    tenant: str  # whose allowance it uses
    payload: Mapping[str, object] = field(default_factory=dict)  # ids; of an answer its text
    state: str = "waiting"  # waiting, done or failed
    attempts: int = 0  # begun so far
    lease_until: float = 0.0  # epoch seconds until which one gateway works on it; 0 = nobody does
    created_at: float = 0.0  # epoch seconds
    done_at: float | None = None  # epoch seconds of its end; None until then
    tokens: int = 0  # used, or reserved for attempts whose use is unknown
    cost_usd: float = 0.0  # US dollars, used or reserved likewise
    error: str = ""  # of the last attempt; "" when that succeeded


@frozen
class JobLimits:
    """Limits of a tenant's jobs."""

    since: float  # epoch seconds; jobs claimed after it count
    tokens: float  # the most they may use together
    cost_usd: float  # US dollars that they may cost together
    reserve_tokens: int = 0  # counted with each claim until the job is finished or given back
    reserve_usd: float = 0.0  # US dollars, counted likewise


@frozen
class WorkloadRun:
    """One run when it began."""

    run_id: str  # the run
    tenant: str  # owner of the run
    workload: str  # key of the client, its tools and the requested model
    client: str  # the agent's program; "" when unknown
    requested: str  # model that the client named
    model: str  # model of the run's first call
    at: float  # epoch seconds of that call
    # decision of the learned policy as JSON values; None when it did not decide
    choice: FieldDict | None = None


@frozen
class WorkloadRate:
    """The outcomes of a workload's runs that began on one model."""

    tenant: str  # owner of the runs
    workload: str  # key of the client, its tools and the requested model
    client: str  # the agent's program; "" when unknown
    requested: str  # model that the client named
    model: str  # model that the runs began on
    solved: float  # runs with outcome success
    failed: float  # runs with outcome failure
    # the same, faded: an outcome counts half after 200 runs of the workload
    recent_solved: float = 0.0
    recent_failed: float = 0.0  # faded likewise
