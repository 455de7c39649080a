"""A run as `TraceState`: its state, a log of its steps, and what was found and alarmed at each."""

from collections.abc import Iterable

from msgspec.structs import asdict

from gateway.core.pattern import ETrace, Tier
from gateway.stores.records import StepRow
from gateway.stores.traces import RunTrace
from gateway.values import FieldDict, Value


class StepLogEntry(Value):
    """One step in short; step 0 is the run's first call."""

    step: int  # scored steps so far, from 0
    fsm_state: str  # after the step was scored
    difficulty: float | None = None  # in [0, 1]; None: not scored
    monitors_fired: tuple[str, ...] = ()  # at or above their threshold


class StepAssessment(Value):
    """The findings at a step."""

    # the most similar pattern of tier e1 that cleared its gate; None for none
    e1_match: ETrace | None = None
    e2_matches: tuple[ETrace, ...] = ()  # those of e2 and e3 that did, the most similar first
    monitors_fired: tuple[str, ...] = ()  # at or above their threshold


def step_log(steps: Iterable[StepRow]) -> list[StepLogEntry]:
    """The log of these steps."""
    return [
        StepLogEntry(
            step=step.step_index,
            fsm_state=step.state,
            difficulty=step.difficulty,
            monitors_fired=step.fired,
        )
        for step in steps
    ]


def assessment(step: StepRow) -> StepAssessment:
    """The assessment in a step's record."""
    cleared = [found for found in step.candidates if found.cleared]
    e1 = [found for found in cleared if found.tier == Tier.E1.value]
    return StepAssessment(
        e1_match=e1[0] if e1 else None,
        e2_matches=tuple([found for found in cleared if found not in e1]),
        monitors_fired=step.fired,
    )


def trace_state(trace: RunTrace) -> FieldDict:
    """Returns a run with everything recorded of it, for an export."""
    return {
        "run": trace.run,
        **trace.run.totals.in_words,
        "current_state": trace.run.state,
        "step_log": step_log(trace.steps),
        "steps": [{**asdict(step), "assessment": assessment(step)} for step in trace.steps],
        "guidance": trace.injections,
    }
