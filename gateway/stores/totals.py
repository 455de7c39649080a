"""Runs and their totals, which every store computes in the same way."""

from collections.abc import Mapping, Sequence
from operator import add, attrgetter
from typing import Any

from msgspec import Struct

from gateway.steering.transcript.user_words import title_of
from gateway.stores.records import IMPORTED, CallRow, RunUpdate, StepRow
from gateway.stores.severity import SEVERITY_WORDS, Severity, by_word, run_severity, severity_of
from gateway.stores.stopped_by import Stop
from gateway.values import FieldDict, Value

RULES = "e3"  # the source of the universal rules, which are the same in every run
DERIVED = "derived"  # the `outcome_source` of an outcome that the gateway derived itself
HAND_OVER = "hand_over"  # the source of the text that asks a run to stop and report


class TokenTotals(Value):
    """Tokens and costs of calls."""

    input_tokens: int = 0  # with cached and cache-write tokens
    cached_tokens: int = 0  # of the input, read from the provider's cache
    cache_write_tokens: int = 0  # of the input, written into the provider's cache
    output_tokens: int = 0  # with those of reasoning
    reasoning_tokens: int = 0  # of the output, those that the client does not see
    cost_usd: float | None = None  # US dollars, of the calls whose price is known; None without any
    # US dollars for the same tokens at the requested models' prices
    cost_unsteered_usd: float | None = None
    # US dollars, unsteered minus steered, over the calls where both are known
    saved_usd: float | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


class CallTotals(TokenTotals):
    """Sums over calls."""

    calls: int = 0  # sent upstream, each repetition counted
    retries: int = 0  # of `calls`, repetitions by the client
    errors: int = 0  # answers of status 400 and above, and incomplete ones
    injections: int = 0  # pieces of guidance that reached the model
    unpriced_calls: int = 0  # of unknown price; refused calls cost nothing and are none
    latency_s: float = 0.0  # seconds, summed
    overhead_ms: float = 0.0  # the gateway's own milliseconds, summed


class LostInput(CallTotals):
    """Input that was paid again because the provider's cache did not have it."""

    lost_tokens: Mapping[str, int] = {}  # per cause
    # US dollars beyond the price of reading them from the cache, per cause
    lost_usd: Mapping[str, float] = {}


class CountedSteps(LostInput):
    """Counters by name."""

    states: Mapping[str, int] = {}  # steps per difficulty state
    failure_types: Mapping[str, int] = {}  # steps per label that was reported
    models: Mapping[str, int] = {}  # calls per model asked
    # an alias of `steps_by_severity`, with the names of earlier versions: low, warn and danger
    severity: Mapping[str, int] = {}
    unsteered: Mapping[str, int] = {}  # calls without a decision, per reason
    estimated: Mapping[str, float] = {}  # the estimated part of `calls`, `tokens` and `cost_usd`
    # pieces that reached the model, per source; `injections` is their sum
    guidance: Mapping[str, int] = {}


class RunTotals(CountedSteps):
    """Sums over one run's calls and scored steps."""

    steps: int = 0  # the highest step index
    scored_steps: int = 0  # fewer than `steps` where steering failed
    composite_peak: float = 0.0  # the highest of a step, in [0, 1]
    composite_sum: float = 0.0  # over the scored steps; the mean follows from it
    fired: Mapping[str, int] = {}  # firings per monitor
    human: Mapping[str, int] = {}  # acts of a person, per kind
    asked: Mapping[str, int] = {}  # step at which the run was asked to hand over, by HAND_OVER
    acts: Mapping[str, float] = {}  # epoch seconds of the first act of each kind

    @property
    def advice(self) -> int:
        """Pieces of guidance without the universal rules, which every run is given."""
        if self.injections and not self.guidance:
            return self.injections  # recorded before the sources were counted
        return sum([n for source, n in self.guidance.items() if source != RULES])

    @property
    def composite_mean(self) -> float:
        """Mean composite of the scored steps, in [0, 1]; 0.0 when there is none."""
        if self.scored_steps:
            return self.composite_sum / self.scored_steps
        return 0.0

    @property
    def worst_severity(self) -> Severity:
        """The worst that the run has come to."""
        return run_severity(self.composite_peak, self.fired, self.states)

    @property
    def in_words(self) -> FieldDict:
        """The severity of the run and of its steps as it leaves the gateway."""
        return {
            "severity_word": SEVERITY_WORDS[self.worst_severity],
            "steps_by_severity": by_word(self.severity),
        }

    def including(
        self,
        fresh: Sequence[StepRow],
        calls: Sequence[CallRow],
        *,
        retries: int,
        injections: int,
        sources: Sequence[str] = (),
        late: Sequence[tuple[str, StepRow]] = (),
        human: Sequence[str] = (),
    ) -> "RunTotals":
        """These totals plus `fresh` steps and `calls`. `retries`: of `calls`, those that repeat a
        call counted before. `injections`: new pieces of guidance, from `sources`. `late`: steps
        counted before without scores, with the states that they were counted in."""
        scored = fresh
        if late:
            scored = [*fresh, *[step for _, step in late]]
        composites = [step.composite for step in scored if step.composite is not None]
        failure_types = [step.failure_type for step in scored if step.failure_type is not None]
        states = dict(_counted(self.states, [s.state for s in fresh if s.step_index >= 0]))
        for state, step in late:
            if state != step.state:
                states[state] = states.get(state, 0) - 1
                states[step.state] = states.get(step.state, 0) + 1
        cost, unsteered, saved = self._costs(calls)
        unpriced = 0
        errors = 0
        estimates = []
        for call in calls:
            unpriced += call.unpriced
            errors += call.failed
            if call.usage_estimated or call.price_estimated:
                estimates.append(call.estimated)
        more = (
            len(composites),
            sum(composites),
            len(calls),
            retries,
            errors,
            injections,
            unpriced,
            *_sums(calls),
        )
        return RunTotals(
            steps=max([self.steps, *[step.step_index for step in fresh]]),
            **dict(zip(_ADDED, map(add, _added(self), more), strict=True)),
            cost_usd=cost,
            cost_unsteered_usd=unsteered,
            saved_usd=saved,
            composite_peak=max([self.composite_peak, *composites]),
            states=states,
            fired=_counted(self.fired, [name for step in scored for name in step.fired]),
            failure_types=_counted(self.failure_types, failure_types),
            models=_counted(self.models, [call.model_asked for call in calls]),
            severity=_counted(self.severity, list(map(severity_of, composites))),
            unsteered=_counted(self.unsteered, [c.unsteered for c in calls if c.unsteered]),
            estimated=_with_estimates(self.estimated, estimates),
            lost_tokens=_with_lost(self.lost_tokens, calls, "lost_tokens"),
            lost_usd=_with_lost(self.lost_usd, calls, "lost_usd"),
            guidance=_counted(self.guidance, sources),
            human=_counted(self.human, human),
            asked=self._asked(scored, sources),
            acts=_with_acts(self.acts, fresh),
        )

    def _asked(self, steps: Sequence[StepRow], sources: Sequence[str]) -> Mapping[str, int]:
        if HAND_OVER not in sources or HAND_OVER in self.asked:
            return self.asked
        return {HAND_OVER: max([self.steps, *[step.step_index for step in steps]])}

    def _costs(self, calls: Sequence[CallRow]) -> tuple[float | None, float | None, float | None]:
        cost = self.cost_usd
        unsteered = self.cost_unsteered_usd
        saved = self.saved_usd
        for call in calls:
            cost = plus(cost, call.cost_usd)
            unsteered = plus(unsteered, call.cost_unsteered_usd)
            if call.cost_usd is not None and call.cost_unsteered_usd is not None:
                saved = plus(saved, call.cost_unsteered_usd - call.cost_usd)
        return cost, unsteered, saved


# What a commit adds to, in the order of `RunTotals.including` and `_sums`.
_ADDED = (
    "scored_steps",
    "composite_sum",
    "calls",
    "retries",
    "errors",
    "injections",
    "unpriced_calls",
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "latency_s",
    "overhead_ms",
)
_added = attrgetter(*_ADDED)


def _sums(calls: Sequence[CallRow]) -> tuple[float, ...]:
    """The five kinds of tokens, seconds and milliseconds; in one loop, for each commit."""
    read = cached = written = output = reasoned = 0
    latency_s = overhead_ms = 0.0
    for call in calls:
        read += call.input_tokens or 0
        cached += call.cached_tokens or 0
        written += call.cache_write_tokens or 0
        output += call.output_tokens or 0
        reasoned += call.reasoning_tokens or 0
        latency_s += call.latency_s
        overhead_ms += call.overhead_ms
    return read, cached, written, output, reasoned, latency_s, overhead_ms


def plus(left: float | None, right: float | None) -> float | None:
    """The sum, where None is unknown and adds nothing; None when both are unknown."""
    if left is None or right is None:
        if left is None:
            return right
        return left
    return left + right


def _counted(counter: Mapping[str, int], names: Sequence[str]) -> Mapping[str, int]:
    if not names:
        return counter
    counted = dict(counter)
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return counted


def _with_acts(known: Mapping[str, float], steps: Sequence[StepRow]) -> Mapping[str, float]:
    for step in steps:
        if step.acts and not known.keys() >= set(step.acts):
            known = dict.fromkeys(step.acts, step.at) | dict(known)
    return known


def _with_lost(known: Mapping[str, Any], calls: Sequence[CallRow], name: str) -> Mapping[str, Any]:
    """Sums by cause; the messages of a history are one."""
    for call in calls:
        if cause := call.lost_cause.rstrip(" 0123456789"):
            known = {**known, cause: known.get(cause, 0) + getattr(call, name)}
    return known


def _with_estimates(
    known: Mapping[str, float], estimates: Sequence[tuple[int, int, float]]
) -> Mapping[str, float]:
    if not estimates:
        return known
    sums = zip(("calls", "tokens", "cost_usd"), map(sum, zip(*estimates, strict=True)), strict=True)
    return {name: known.get(name, 0) + more for name, more in sums}


class RunRecord(RunUpdate):
    """One run: its latest description and its totals. `arm`, `experiment` and `unit` are those
    of the first call and never change."""

    conversation_id: str  # the one that it belongs to
    tenant: str  # owner of the run
    totals: RunTotals  # sums over its calls and scored steps
    stopped: Stop | None = None  # why it goes no further now; None when it may
    read_title: str = ""  # title that the reader gave it (`reader.model`)
    session_id: str = ""  # conversation at the root of the tree that it belongs to

    @property
    def handed_over(self) -> int | None:
        """The step at which the run was asked to stop and report; None for one that was not."""
        return self.totals.asked.get(HAND_OVER)

    @property
    def title(self) -> str:
        """The reader's title, else the task as lists show it, also where another version has stored
        it."""
        return self.read_title or title_of(self.task_preview)

    @property
    def imported(self) -> bool:
        """True for a run that was read from a log of its agent: see IMPORTED."""
        return self.mode == IMPORTED

    @property
    def last_at(self) -> float:
        """The time of the newest call; of an imported run that of its session's."""
        ended = None
        if self.imported:
            ended = self.ended_at
        if ended is None:
            return self.updated_at
        return ended

    @property
    def duration_s(self) -> float:
        """Seconds from the first call to the newest one."""
        return max(0.0, self.last_at - self.started_at)


AT_ONCE = 5_000  # runs read at once: about 50 ms in the thread that reads; other reads come between


class ExperimentRun(Struct, frozen=True):
    """One run as reports read it; fields not documented here are as in RunRecord and RunTotals."""

    id: str  # conversation id and number of the run
    started_at: float  # epoch seconds of its first call
    arm: str | None  # None outside an experiment
    unit: str  # what is drawn into an arm together; the conversation where none was named
    outcome: str | None  # success, failure, other, or None while unknown
    profile: str  # weights of the monitors, by kind of task
    agent: str  # the client's program, as its user agent names it
    model_requested: str  # by the newest call
    tenant: str  # owner of the run
    policy_digest: str  # equal for equal policies
    steps: int  # the highest step index
    scored_steps: int  # fewer than `steps` where steering failed
    input_tokens: int  # with cached tokens
    cached_tokens: int  # of the input, read from the provider's cache
    tokens: int  # input and output
    cost_usd: float | None  # US dollars; None where the price of a call is unknown
    composite_peak: float  # the highest of a step, in [0, 1]
    composite_sum: float  # over the scored steps
    injections: int  # pieces of guidance that reached the model
    updated_at: float  # epoch seconds of its newest call
    models: Mapping[str, int]  # calls per model asked
    estimated: Mapping[str, float]  # the estimated part of `calls`, `tokens` and `cost_usd`
    human: Mapping[str, int]  # acts of a person, per kind
    acts: Mapping[str, float]  # epoch seconds of the first act of each kind
    experiment: str | None = None  # id; None outside of one
    key_name: str = ""  # name of the gateway key; "" without one
    calls: int = 0  # sent upstream
    # US dollars saved by routing; None where a call lacks one of its two prices
    saved_usd: float | None = None
    # characters of the texts added, once for each call that read them; -1: not stored
    text_chars: int = 0
    stopped: Stop | None = None  # why it goes no further; None when it may
    counts: Mapping[str, Mapping[str, Any]] = {}  # counters by name

    @property
    def duration_s(self) -> float:
        """Seconds from the first call to the newest one."""
        return max(0.0, self.updated_at - self.started_at)

    @property
    def interventions(self) -> int:
        """Acts of a person."""
        return sum(self.human.values())
