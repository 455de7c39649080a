"""A run's totals, computed from its step rows in the same way by every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import BY_OPERATOR, BudgetExceeded, RunStopped
from gateway.stores.late_scores import LateScore
from gateway.stores.records import CallRow, RunUpdate, StepRow

# Source: reference section 12: low < 0.35 <= warn < 0.6 <= danger; a run whose peak stays
# under the first line is clean.
WARN_COMPOSITE = 0.35
DANGER_COMPOSITE = 0.6

RULES = "e3"
"""The source of the universal rules, which are the same in every run."""

DERIVED = "derived"
"""The `outcome_source` of an outcome that the gateway derived itself."""


class RunTotals(Struct, frozen=True, kw_only=True):
    """Sums over one run's calls and scored steps.

    `steps` is the highest step index: the number of the agent's steps so far. `cost_usd` sums the
    calls whose price is known and is None when there is none; `unpriced_calls` counts the others
    except refused calls, which cost nothing. `errors` counts calls that failed. `saved_usd` sums
    (unsteered - steered) over the calls where both are known. The counters are keyed by name:
    steps per state, firings per monitor, steps per failure type, calls per model asked, scored
    steps per severity (low, warn, danger), calls without a decision per reason. `estimated`: how
    much of the sums is estimated, as `calls`, `tokens` and `cost_usd`. `guidance`: pieces that
    reached the model by source, of which `injections` is the sum.
    """

    steps: int = 0
    scored_steps: int = 0
    calls: int = 0
    retries: int = 0
    errors: int = 0
    injections: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    unpriced_calls: int = 0
    cost_usd: float | None = None
    cost_unsteered_usd: float | None = None
    saved_usd: float | None = None
    composite_peak: float = 0.0
    composite_sum: float = 0.0
    latency_s: float = 0.0
    overhead_ms: float = 0.0
    states: Mapping[str, int] = {}
    fired: Mapping[str, int] = {}
    failure_types: Mapping[str, int] = {}
    models: Mapping[str, int] = {}
    severity: Mapping[str, int] = {}
    unsteered: Mapping[str, int] = {}
    estimated: Mapping[str, float] = {}
    guidance: Mapping[str, int] = {}

    @property
    def advice(self) -> int:
        """Pieces of guidance without the universal rules, which every run is given."""
        if self.injections and not self.guidance:
            return self.injections  # recorded before the sources were counted
        return sum([n for source, n in self.guidance.items() if source != RULES])

    @property
    def composite_mean(self) -> float:
        """Mean composite of the scored steps, in [0, 1]; 0.0 when there is none."""
        return self.composite_sum / self.scored_steps if self.scored_steps else 0.0

    def including(
        self,
        fresh: Sequence[StepRow],
        calls: Sequence[CallRow],
        *,
        retries: int,
        injections: int,
        sources: Sequence[str] = (),
        late: Sequence[LateScore] = (),
    ) -> RunTotals:
        """These totals plus `fresh` steps, which were not counted before, and `calls`.

        `retries`: how many of `calls` repeat a call that was counted before. `injections`: how
        many pieces of guidance were new, `sources` where they came from. `late`: scores of steps
        that were counted before, without them.
        """
        scored = [*fresh, *[each.step for each in late]] if late else fresh
        composites = [step.composite for step in scored if step.composite is not None]
        failure_types = [step.failure_type for step in scored if step.failure_type is not None]
        cost, unsteered, saved = self._costs(calls)
        errors, unpriced, tokens, latency_s, overhead_ms = _sums(calls)
        states = _counted(self.states, [step.state for step in fresh])
        return RunTotals(
            steps=max([self.steps, *[step.step_index for step in fresh]]),
            scored_steps=self.scored_steps + len(composites),
            calls=self.calls + len(calls),
            retries=self.retries + retries,
            errors=self.errors + errors,
            injections=self.injections + injections,
            input_tokens=self.input_tokens + tokens[0],
            cached_tokens=self.cached_tokens + tokens[1],
            cache_write_tokens=self.cache_write_tokens + tokens[2],
            output_tokens=self.output_tokens + tokens[3],
            reasoning_tokens=self.reasoning_tokens + tokens[4],
            unpriced_calls=self.unpriced_calls + unpriced,
            cost_usd=cost,
            cost_unsteered_usd=unsteered,
            saved_usd=saved,
            composite_peak=max([self.composite_peak, *composites]),
            composite_sum=self.composite_sum + sum(composites),
            latency_s=self.latency_s + latency_s,
            overhead_ms=self.overhead_ms + overhead_ms,
            states=_moved(states, late) if late else states,
            fired=_counted(self.fired, [name for step in scored for name in step.fired]),
            failure_types=_counted(self.failure_types, failure_types),
            models=_counted(self.models, [call.model_asked for call in calls]),
            severity=_counted(self.severity, list(map(severity_of, composites))),
            unsteered=_counted(self.unsteered, [c.unsteered for c in calls if c.unsteered]),
            estimated=_with_estimates(self.estimated, calls),
            guidance=_counted(self.guidance, sources),
        )

    def _costs(self, calls: Sequence[CallRow]) -> tuple[float | None, float | None, float | None]:
        cost, unsteered, saved = self.cost_usd, self.cost_unsteered_usd, self.saved_usd
        for call in calls:
            cost = plus(cost, call.cost_usd)
            unsteered = plus(unsteered, call.cost_unsteered_usd)
            if call.cost_usd is not None and call.cost_unsteered_usd is not None:
                saved = plus(saved, call.cost_unsteered_usd - call.cost_usd)
        return cost, unsteered, saved


def _sums(calls: Sequence[CallRow]) -> tuple[int, int, tuple[int, ...], float, float]:
    """Failed calls, unpriced ones, the five kinds of tokens, seconds and milliseconds."""
    failed = unpriced = read = cached = written = output = reasoned = 0
    latency_s = overhead_ms = 0.0
    for call in calls:  # one loop: nearly always over one call, for each commit
        failed += call.failed
        unpriced += call.unpriced
        read += call.input_tokens or 0
        cached += call.cached_tokens or 0
        written += call.cache_write_tokens or 0
        output += call.output_tokens or 0
        reasoned += call.reasoning_tokens or 0
        latency_s += call.latency_s
        overhead_ms += call.overhead_ms
    return failed, unpriced, (read, cached, written, output, reasoned), latency_s, overhead_ms


def severity_of(composite: float) -> str:
    """`low`, `warn` or `danger`."""
    if composite < WARN_COMPOSITE:
        return "low"
    return "warn" if composite < DANGER_COMPOSITE else "danger"


def plus(left: float | None, right: float | None) -> float | None:
    """The sum, where None is unknown and adds nothing; None when both are unknown."""
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _counted(counter: Mapping[str, int], names: Sequence[str]) -> Mapping[str, int]:
    if not names:
        return counter
    counted = dict(counter)
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return counted


def _moved(states: Mapping[str, int], late: Sequence[LateScore]) -> Mapping[str, int]:
    """The steps per state, after the states of some were found out."""
    moved = dict(states)
    for each in late:
        if each.state != each.step.state:
            moved[each.state] = moved.get(each.state, 0) - 1
            moved[each.step.state] = moved.get(each.step.state, 0) + 1
    return moved


def _with_estimates(known: Mapping[str, float], calls: Sequence[CallRow]) -> Mapping[str, float]:
    estimated = [call.estimated for call in calls if call.usage_estimated]
    if not estimated:
        return known
    _, tokens, cost_usd = zip(*estimated, strict=True)
    return {
        "calls": known.get("calls", 0) + len(estimated),
        "tokens": known.get("tokens", 0) + sum(tokens),
        "cost_usd": known.get("cost_usd", 0.0) + sum(cost_usd),
    }


class Stop(Struct, frozen=True, kw_only=True):
    """Why a run makes no calls: `action` is stop or pause; `by`: operator, budget or steering."""

    action: str
    by: str
    why: str

    @property
    def words(self) -> str:
        """`stopped by the operator`, `paused by the operator`, `stopped by a budget`."""
        done = "paused" if self.action == "pause" else "stopped"
        return f"{done} by {_STOPPERS[self.by]}"


_STOPPERS = {"operator": "the operator", "budget": "a budget", "steering": "steering.stop_above"}


def stop_of(error: str | None, reasons: Sequence[str]) -> Stop | None:
    """The stop that the newest call of a run met; None for one that was sent.

    An operator's stop is in force while it is stored, whatever the newest call met.
    """
    kinds = {BudgetExceeded.label: "budget", RunStopped.label: "steering"}
    if error not in kinds:
        return None
    why = next((r for r in reversed(reasons) if r.startswith(f"{error}: ")), "")
    if error == RunStopped.label and BY_OPERATOR in why:
        return None
    return Stop(action="stop", by=kinds[error], why=why.removeprefix(f"{error}: "))


class RunRecord(Struct, frozen=True, kw_only=True):
    """One run: its latest description and its totals; `key_name` and `tags` say for whom it was.

    `outcome`: success, failure, other, or None while unknown. `arm`, `experiment` and `unit` are
    those of the first call and never change. `stopped`: why it goes no further now, if so.
    """

    id: str
    conversation_id: str
    tenant: str
    sequence: int
    started_at: float
    updated_at: float
    ended_at: float | None
    state: str
    outcome: str | None
    outcome_source: str
    agent: str
    task_preview: str
    profile: str
    mode: str
    experiment: str | None
    arm: str | None
    unit: str | None
    policy_digest: str
    identity_source: str
    model_requested: str
    totals: RunTotals
    key_name: str = ""
    tags: Mapping[str, str] = {}
    stopped: Stop | None = None


def settled_outcome(stored: tuple[str | None, str], update: RunUpdate) -> tuple[str | None, str]:
    """The (outcome, source) after `update`; a derived outcome never replaces a reported one."""
    outcome, source = stored
    if update.outcome is None:
        return stored
    if outcome is not None and source != DERIVED and update.outcome_source == DERIVED:
        return stored
    return update.outcome, update.outcome_source


def is_same_call(stored: CallRow, again: CallRow) -> bool:
    """Whether `again` is the newest call in `stored`, committed a second time: a client may repeat
    its request id, but no two calls take the same time to the nanosecond."""
    return (stored.request_id, stored.latency_s, stored.overhead_ms) == (
        again.request_id,
        again.latency_s,
        again.overhead_ms,
    )


def repeated_call(stored: CallRow, again: CallRow) -> CallRow:
    """One record of both calls: tokens and costs add up, the rest is that of `again`."""
    return replace(
        again,
        retries=max(stored.retries + 1, again.retries),
        attempts=stored.attempts + again.attempts,
        input_tokens=_sum(stored.input_tokens, again.input_tokens),
        cached_tokens=_sum(stored.cached_tokens, again.cached_tokens),
        cache_write_tokens=_sum(stored.cache_write_tokens, again.cache_write_tokens),
        output_tokens=_sum(stored.output_tokens, again.output_tokens),
        reasoning_tokens=_sum(stored.reasoning_tokens, again.reasoning_tokens),
        cost_usd=plus(stored.cost_usd, again.cost_usd),
        cost_unsteered_usd=plus(stored.cost_unsteered_usd, again.cost_unsteered_usd),
        usage_estimated=stored.usage_estimated or again.usage_estimated,
    )


def _sum(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else left + right
