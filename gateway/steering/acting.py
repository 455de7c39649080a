"""Precision bars: an intervention is made only when its expected precision is high enough.

Calibration measured how often runs that show a signal fail, reweighted so that half of all do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

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
    """Settings of the section `steering` that decide about a call. `act_above`: the expected
    precision in [0, 1] that an action needs; actions not listed keep their default
    (docs/evidence.md). `stop_above`: risk in (0, 1] from which a step with an alarm is a strike
    (`Strike` in `gateway/steering/steer.py`), None = never. `token_budget`: tokens that a run is
    expected to need. Raises ValueError: unknown action, or a value out of range."""

    act_above: Mapping[str, float] = field(default_factory=dict)
    stop_above: float | None = None
    token_budget: int | None = None
    budget_action: Literal["none", "wrap_up"] = "none"

    def __post_init__(self) -> None:
        for name, bar in self.act_above.items():
            if name not in ACTIONS:
                raise ValueError(f"act_above.{name}: not one of {', '.join(ACTIONS)}")
            refuse_outside_unit(f"act_above.{name}", bar)
        if self.stop_above is not None and not 0 < self.stop_above <= 1:
            raise ValueError("stop_above: must be above 0, and at most 1")
        if self.token_budget is not None and self.token_budget < 1:
            raise ValueError(f"token_budget: must be at least 1, got {self.token_budget}")
        if self.token_budget is None and self.budget_action != "none":
            raise ValueError(f"budget_action: {self.budget_action} needs a token_budget")

    def bar(self, action: str) -> float:
        """The bar of one action."""
        return self.act_above.get(action, DEFAULT_BARS[action])


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRiskSettings:
    """Whether runs that are likely to fail are handed over to a person, or ended, or a person is
    asked whether to end them. `hand_over_at`, `end_at`: risks in (0, 1], by the evidence
    of the run alone, that have to last three steps;
    `end_after`: steps after the hand-over at which a run that is still at `hand_over_at` is stopped
    by `end`. Source of the defaults: docs/budgets.md. Runs that only talk are left out. Raises
    ValueError: a level out of range, or `end_at` below `hand_over_at`."""

    at_risk: Literal["off", "hand_over", "ask", "end"] = "off"
    hand_over_at: float = 0.8
    end_at: float = 0.9
    end_after: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.end_at <= 1:
            raise ValueError(f"end_at: must be above 0, and at most 1, got {self.end_at}")
        if not 0 < self.hand_over_at <= self.end_at:
            raise ValueError(f"hand_over_at: must be above 0, and at most end_at ({self.end_at})")
        if self.end_after < 1:
            raise ValueError("end_after: must be at least 1")


class AtRisk(Struct, frozen=True, kw_only=True):
    """A run at risk, after one step. So far: the step at which it was `handed_over`, whether it was
    looked at `again` some steps later, and whether it was `ended`. Now: whether it is asked to hand
    over (`asks`), or stopped (`stops`), and the `reason` of either, or of nothing."""

    handed_over: int | None = None
    again: bool = False
    ended: bool = False
    asks: bool = False
    stops: bool = False
    reason: str = ""

    @property
    def kept(self) -> "AtRisk":
        """The part that the run remembers."""
        return AtRisk(handed_over=self.handed_over, again=self.again, ended=self.ended)

    def after(self, step: int, lasting: float, settings: AtRiskSettings) -> "AtRisk":
        """The run after one more step; `lasting`: `to_act_on` of `RunRisk`. Each act is done once:
        a person who lets an ended run go on has decided that."""
        before, handed = self.kept, self.handed_over
        if settings.at_risk == "off" or self.ended:
            return before
        high, found = lasting >= settings.hand_over_at, f"risk {lasting:.2f} for three steps"
        looks = handed is not None and not self.again and step >= handed + settings.end_after
        if settings.at_risk in ("ask", "end") and (lasting >= settings.end_at or (looks and high)):
            asked = "" if handed is None else f", asked to hand over at step {handed}"
            return replace(before, ended=True, stops=True, reason=f"end: {found}{asked}")
        if handed is None and high:
            return replace(before, handed_over=step, asks=True, reason=f"hand_over: {found}")
        if looks:
            said = f"hand_over: asked at step {handed}, the run goes on, risk {lasting:.2f}"
            return replace(before, again=True, reason=said)
        return before


class ActionSignal(Struct, frozen=True, kw_only=True):
    """The state and readings that decide about the actions on a call: the run's, or drawn ones.
    `at_risk`: whether to act, in the control arm of an experiment; None = the readings decide.
    `severity` of the alarm, 0 to 3; `waits`: the newest step only waits for something;
    `likely_fails`, `lasting_risk`: see `likely` and `lasting` of `RunRisk`."""

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
    """Share of such moments in runs of the kind that the action is meant for, in [0, 1]. For
    `route_fast` that is a run that succeeds, for all others one that fails. Raises ValueError:
    unknown action."""
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
    """Whether to take an action that its own rule asks for. A bar excludes signals that were
    measured and found too weak. An action without a measured signal (the first look-ups of a run,
    the look-back after an alarm) is decided by its rule alone."""
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
    """The state that selects the model, and reasons where it is not the run's own. An alarm of
    `least_severity` or more, or a risk that lasts at `least_risk` (0 = never), is routed like SLOW
    at once; a run in FAST that waits for a job like NORMAL, because what the job brings is not
    known. The state is NORMAL when changing the model is below its precision bar."""
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
