"""Records of a run for people and programs outside: steps, traces, assessments, E-traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState

TIERS = ("e1", "e2", "e3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ETrace:
    """A retrieved pattern. `tier`: e1 (instance), e2 (failure pattern) or e3 (universal).

    `similarity`: cosine in [0, 1]; `pattern_id` is empty for guidance that is not stored; `fields`:
    the payload; `model_family` is empty for any; `level` is an old name of `tier` and always equal
    to it; `source_trace_id`: the run it was learnt from.

    Raises:
        ValueError: unknown tier, or a level that is another tier.
    Source: reference section 6.2.
    """

    tier: str
    similarity: float = 0.0
    pattern_id: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    failure_type: str | None = None
    model_family: str = ""
    level: str = ""
    source_trace_id: str | None = None

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"tier: {self.tier!r} is none of {', '.join(TIERS)}")
        if self.level not in ("", self.tier):
            raise ValueError(f"level: {self.level!r} differs from tier {self.tier!r}")
        object.__setattr__(self, "level", self.tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One scored step; `state` is the state after scoring. Source: reference section 10.

    `step_index` counts the scored steps of a run from 1; `difficulty` is in [0, 1]. Of parallel
    calls the last one is shown.
    """

    step_index: int
    thought: str
    action: str | None = None
    action_input: str | None = None
    observation: str | None = None
    difficulty: float = 0.0
    state: FSMState = FSMState.INIT
    tokens_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceState:
    """A run so far. Source: reference section 10."""

    trace_id: str
    steps: list[StepRecord] = field(default_factory=list)
    current_state: FSMState = FSMState.INIT
    difficulty_history: list[float] = field(default_factory=list)
    total_tokens: int = 0
    token_budget: int | None = None

    @property
    def budget_used(self) -> float:
        """Share of the token budget in [0, 1]; 0 without a budget. Source: reference section 3."""
        if not self.token_budget or self.token_budget < 0:
            return 0.0
        return min(self.total_tokens / self.token_budget, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAssessment:
    """What one scored step led to. Source: reference section 10.

    `loop_count`: scored steps in a row, up to this one, at which the streak monitor fired;
    `e1_match`: the most similar e1 pattern; `e2_matches`: all e2 and e3 patterns above the recall
    floor by falling similarity; `injections`: the texts put into the request.
    """

    difficulty: float
    state: FSMState
    loop_detected: bool = False
    loop_count: int = 0
    budget_used: float = 0.0
    e1_match: ETrace | None = None
    e2_matches: list[ETrace] = field(default_factory=list)
    injections: list[str] = field(default_factory=list)


def step_record(outcome: StepOutcome) -> StepRecord:
    """The record of a scored step; unknown tokens count as 0."""
    step = outcome.step
    action = step.actions[-1] if step.actions else None
    return StepRecord(
        step_index=outcome.index,
        thought=step.thought,
        action=action.name if action else None,
        action_input=action.arguments if action else None,
        observation=action.observation if action else None,
        difficulty=outcome.difficulty,
        state=outcome.state,
        tokens_used=step.tokens or 0,
    )


def trace_state(
    trace_id: str,
    outcomes: Sequence[StepOutcome],
    *,
    ended: bool = False,
    token_budget: int | None = None,
) -> TraceState:
    """The trace of a run from all its outcomes, in order; INIT when nothing was scored."""
    records = [step_record(outcome) for outcome in outcomes]
    state = records[-1].state if records else FSMState.INIT
    return TraceState(
        trace_id=trace_id,
        steps=records,
        current_state=FSMState.END if ended else state,
        difficulty_history=[record.difficulty for record in records],
        total_tokens=sum(record.tokens_used for record in records),
        token_budget=token_budget,
    )


def step_assessment(
    outcomes: Sequence[StepOutcome],
    *,
    matches: Sequence[ETrace] = (),
    injections: Sequence[str] = (),
    budget_used: float = 0.0,
) -> StepAssessment:
    """The assessment of the newest of `outcomes`, with the patterns matched for it.

    Raises:
        IndexError: no outcomes.
    """
    newest = outcomes[-1]
    loops = 0
    for outcome in reversed(outcomes):
        if "streak" not in outcome.readings.fired:
            break
        loops += 1
    ranked = sorted(matches, key=lambda match: -match.similarity)
    return StepAssessment(
        difficulty=newest.difficulty,
        state=newest.state,
        loop_detected=loops > 0,
        loop_count=loops,
        budget_used=budget_used,
        e1_match=next((match for match in ranked if match.tier == "e1"), None),
        e2_matches=[match for match in ranked if match.tier != "e1"],
        injections=list(injections),
    )
