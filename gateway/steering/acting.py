"""Precision bars: an intervention is made only when its expected precision is high enough.

Calibration measured how often runs that show a signal fail, reweighted so that half of all do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.fsm import HARD_STATES, FSMState, refuse_outside_unit
from gateway.steering.guidance.pattern import Tier
from gateway.steering.guidance.plan import Plan
from gateway.steering.monitors import Readings
from gateway.steering.scoring.calibration import Calibration

NO_EVIDENCE = 0.5  # expected precision of acting without a signal: half of the runs fail
DEFAULT_BARS: Mapping[str, float] = MappingProxyType(
    {"route_fast": 0.55, "route_slow": 0.7, "monitor_text": 0.7}
    | {"e1": 0.6, "e2": 0.5, "skip_directive": 0.7}
)
"""Source: held-out precision on the development runs, docs/evidence.md; 0.5 excludes nothing."""
ACTIONS = tuple(DEFAULT_BARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActSettings:
    """Settings of the section `steering` that decide about a call.

    `act_above`: the expected precision in [0, 1] that an action needs; actions not listed keep
    their default (docs/evidence.md). `stop_above`: risk in (0, 1] from which a step with an alarm
    is a strike (`Strike` in `gateway/steering/steer.py`), None = never.

    Raises:
        ValueError: unknown action, or a value out of range.
    """

    act_above: Mapping[str, float] = field(default_factory=dict)
    stop_above: float | None = None

    def __post_init__(self) -> None:
        for name, bar in self.act_above.items():
            if name not in ACTIONS:
                raise ValueError(f"act_above.{name}: not one of {', '.join(ACTIONS)}")
            refuse_outside_unit(f"act_above.{name}", bar)
        if self.stop_above is not None and not 0 < self.stop_above <= 1:
            raise ValueError("stop_above: must be above 0, and at most 1")

    def bar(self, action: str) -> float:
        """The bar of one action."""
        return self.act_above.get(action, DEFAULT_BARS[action])


class ActionSignal(Struct, frozen=True, kw_only=True):
    """The state and readings that decide about the actions on a call: the run's, or drawn ones.

    `at_risk`: whether to act, in the control arm of an experiment; None = the readings decide.
    `severity` of the alarm, 0 to 3; `waits`: the newest step only waits for something;
    `likely_fails`, `lasting_risk`: see `likely` and `lasting` of `RunRisk`.
    """

    state: FSMState
    readings: Readings | None = None
    at_risk: bool | None = None
    severity: int = 0
    waits: bool = False
    likely_fails: bool = False
    lasting_risk: float = 0.0


def expected_precision(
    action: str, state: FSMState, readings: Readings | None, calibration: Calibration
) -> float:
    """Share of such moments in runs of the kind that the action is meant for, in [0, 1].

    For `route_fast` that is a run that succeeds, for all others one that fails.

    Raises:
        ValueError: unknown action.
    """
    known = calibration.precision
    if action == "route_fast":
        return 1.0 - known.get("FAST", NO_EVIDENCE) if state is FSMState.FAST else NO_EVIDENCE
    if action in ("route_slow", "skip_directive"):
        return known.get(state.value, NO_EVIDENCE) if state in HARD_STATES else NO_EVIDENCE
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is not one of {', '.join(ACTIONS)}")
    signals = [*(readings.fired if readings else ())]
    if state in HARD_STATES:
        signals.append(state.value)
    return max([known.get(signal, NO_EVIDENCE) for signal in signals], default=NO_EVIDENCE)


def meets_precision_bar(
    action: str, signal: ActionSignal, calibration: Calibration, settings: ActSettings
) -> bool:
    """Whether to take an action that its own rule asks for.

    A bar excludes signals that were measured and found too weak. An action without a measured
    signal (the first look-ups of a run, the look-back after an alarm) is decided by its rule alone.
    """
    state, readings = signal.state, signal.readings
    if state not in HARD_STATES and not (readings and readings.fired) and action != "route_fast":
        return True
    return expected_precision(action, state, readings, calibration) >= settings.bar(action)


def planned_actions(planned: Plan, meets_bar: Callable[[str], bool]) -> Plan:
    """The plan without the actions below their precision bar; its reasons name them."""
    tiers = {query.tier for query in planned.queries}
    wishes = {
        "monitor_text": planned.monitor,
        "skip_directive": planned.directive,
        **{tier.value: tier in tiers for tier in (Tier.E1, Tier.E2)},
    }
    refused = [action for action, wish in wishes.items() if wish and not meets_bar(action)]
    if not refused:
        return planned
    return replace(
        planned,
        monitor=None if "monitor_text" in refused else planned.monitor,
        directive="" if "skip_directive" in refused else planned.directive,
        queries=tuple([each for each in planned.queries if each.tier.value not in refused]),
        reasons=(*planned.reasons, *(f"{action}: below its bar" for action in refused)),
    )


def routing_state(
    signal: ActionSignal,
    least_severity: int,
    least_risk: float,
    meets_bar: Callable[[str, ActionSignal], bool],
) -> tuple[FSMState, tuple[str, ...]]:
    """The state that selects the model, and reasons where it is not the run's own.

    An alarm of `least_severity` or more, or a risk that lasts at `least_risk` (0 = never), is
    routed like SLOW at once; a run in FAST that waits for a job like NORMAL, because what the job
    brings is not known. The state is NORMAL when changing the model is below its precision bar.
    """
    reasons: tuple[str, ...] = ()
    risky = 0.0 < least_risk <= signal.lasting_risk
    persists = 0 < least_severity <= signal.severity
    if (risky or persists) and signal.state not in HARD_STATES:
        why = "the alarm persists" if persists else f"risk {least_risk:g} or more for three steps"
        signal, reasons = replace(signal, state=FSMState.SLOW), (f"routing: {why}",)
    elif signal.waits and signal.state is FSMState.FAST:
        signal, reasons = replace(signal, state=FSMState.NORMAL), ("routing: a job is waited for",)
    action = "route_slow" if signal.state in HARD_STATES else "route_fast"
    stays = signal.state not in (FSMState.FAST, *HARD_STATES)
    if stays or meets_bar(action, signal):
        return signal.state, reasons
    return FSMState.NORMAL, (*reasons, f"routing: {action} below its bar")
