"""Which guidance a call may get: the tiers that may be looked up now, the monitor text that is due.

`note` every scored step, `plan` the call, look up what the plan asks for, `decide.decide`, then
`placement.place`. All pure: the same values give the same guidance, and a step that was decided
once is not decided again.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.steering.fsm import FSMState
from gateway.steering.guidance.pattern import Query, Tier
from gateway.steering.guidance.settings import EtraceSettings, Gates, InjectionSettings
from gateway.steering.guidance.state import FIRST_CALL, GuidanceState, count
from gateway.steering.guidance.texts import evidence_for, failure_of, monitor_text, severities
from gateway.steering.monitors import Readings
from gateway.steering.transcript.steps import Step, recent_text
from gateway.wire.values import dataclass, replace

RECOVERED_STEPS = 6
"""Scored steps without an alarm after which a run has recovered: a window of FAST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The situation of a run when a call is decided.

    `step` = index of the newest scored step of the run, None on its first call; `state` = the state
    after that step; `readings` = the monitors on it, None when none is configured; `recent` = the
    newest steps, oldest first; `model` = the routed model's name; `at_risk` = whether to act on
    this step, when something other than the readings decides that; None = the readings do.
    """

    step: int | None
    state: FSMState
    readings: Readings | None = None
    recent: Sequence[Step] = ()
    model: str = ""
    at_risk: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorText:
    """A monitor text that is due, with the failure and severity it speaks of."""

    text: str
    failure_type: str
    severity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a call wants: look-ups to make, a monitor text, the SKIP directive.

    `reasons` say why something was held back.
    """

    step: int
    model: str = ""
    failure_type: str = ""
    queries: tuple[Query, ...] = ()
    monitor: MonitorText | None = None
    directive: bool = False
    reasons: tuple[str, ...] = ()


def note(guidance: GuidanceState, step: int, readings: Readings | None) -> GuidanceState:
    """The state after step `step` was scored; a step that was noted before changes nothing.

    After RECOVERED_STEPS steps without an alarm the texts of the monitors are ready again: the next
    alarm is another problem, or the same one at another time.
    """
    newest = guidance.fired_step
    if readings is None or not readings.fired or (newest is not None and step <= newest):
        return guidance
    recovered = newest is not None and step - newest > RECOVERED_STEPS
    severities = () if recovered else guidance.severities
    return replace(guidance, fired_step=step, severities=severities)


def plan(
    guidance: GuidanceState,
    moment: Moment,
    etraces: EtraceSettings,
    injection: InjectionSettings,
    gates: Gates,
) -> Plan:
    """What this call may look up and inject.

    A step that was decided before gets nothing new: what it got is among the injections that
    placement sends again.
    """
    step = FIRST_CALL if moment.step is None else moment.step
    directive = injection.skip_directive and moment.state is FSMState.SKIP
    if guidance.decided_step is not None and step <= guidance.decided_step:
        return Plan(step=step, model=moment.model, directive=directive)
    queries, reasons = _queries(guidance, moment, etraces, gates)
    monitor, held = _monitor(guidance, moment, injection)
    return Plan(
        step=step,
        model=moment.model,
        failure_type=_failure_type(moment),
        queries=queries,
        monitor=monitor,
        directive=directive,
        reasons=reasons + held,
    )


def _at_risk(guidance: GuidanceState, moment: Moment, settings: EtraceSettings) -> bool:
    if moment.step is None:
        return False
    if moment.at_risk is not None:
        return moment.at_risk
    readings = moment.readings
    if readings is None or not readings.scores:
        # With no monitor configured nothing could ever open the gate.
        return True
    earliest = moment.step - settings.e1_lookback_steps
    return (
        bool(readings.fired)
        or readings.composite > settings.e1_composite
        or (guidance.fired_step is not None and earliest <= guidance.fired_step < moment.step)
    )


def _failure_type(moment: Moment) -> str:
    return (moment.readings.failure_type if moment.readings else None) or ""


def _queries(
    guidance: GuidanceState,
    moment: Moment,
    settings: EtraceSettings,
    gates: Gates,
) -> tuple[tuple[Query, ...], tuple[str, ...]]:
    if not settings.enabled:
        return (), ()
    if moment.state is FSMState.FAST:
        return (), ("look-up: none in FAST",)
    base = Query(
        tier=Tier.E3,
        model=moment.model,
        floor=settings.recall_floor,
        exclude=frozenset(guidance.pattern_ids),
    )
    queries, reasons = [], []
    if settings.e3_max and not guidance.e3_done:
        queries.append(replace(base, top_k=settings.e3_max))
    if moment.step is None:
        return tuple(queries), ()
    if moment.at_risk is False:
        return tuple(queries), ("look-up: held back",)
    at_risk = _at_risk(guidance, moment, settings)
    if reason := _e1_held(guidance, settings, at_risk):
        reasons.append(reason)
    elif text := recent_text(moment.recent, settings.e1_steps):
        queries.append(
            replace(base, tier=Tier.E1, text=text, top_k=settings.e1_top_k, gate=gates.e1)
        )
    failure_type = _failure_type(moment)
    if reason := _e2_held(guidance, settings, at_risk, failure_type):
        reasons.append(reason)
    elif text := recent_text(moment.recent, settings.e2_steps):
        queries.append(
            replace(
                base,
                tier=Tier.E2,
                text=text,
                top_k=settings.e2_top_k,
                gate=_e2_gate(gates, failure_type),
                margin=settings.e2_margin,
                failure_type=failure_type or None,
            )
        )
    return tuple(queries), tuple(reasons)


def _e1_held(guidance: GuidanceState, settings: EtraceSettings, at_risk: bool) -> str:
    if not settings.e1_top_k or guidance.e1_count >= settings.e1_per_run:
        return "e1: allowance spent"
    return "" if at_risk else "e1: gate closed"


def _e2_held(
    guidance: GuidanceState, settings: EtraceSettings, at_risk: bool, failure_type: str
) -> str:
    spent = count(guidance.e2_counts, failure_type) >= settings.e2_per_type
    if not settings.e2_top_k or spent:
        return "e2: allowance spent"
    return "e2: not at risk" if settings.e2_when == "at_risk" and not at_risk else ""


def _e2_gate(gates: Gates, failure_type: str) -> float:
    untyped = gates.e2 if gates.e2_untyped is None else gates.e2_untyped
    return gates.e2 if failure_type else untyped


def _monitor(
    guidance: GuidanceState, moment: Moment, injection: InjectionSettings
) -> tuple[MonitorText | None, tuple[str, ...]]:
    readings = moment.readings
    if moment.step is None or readings is None or not injection.monitor_guidance:
        return None, ()
    if moment.at_risk is False:
        return None, ()
    if not readings.fired and readings.composite < injection.monitor_composite:
        return None, ()
    failure_type = failure_of(readings)
    if failure_type is None:
        return None, ()
    if guidance.monitor_count >= injection.monitor_cap:
        return None, ("monitor: cap reached",)
    wait = injection.cooldown(moment.state.value)
    if guidance.monitor_step is not None and moment.step - guidance.monitor_step < wait:
        return None, ("monitor: cooling down",)
    severity = count(guidance.severities, failure_type) + 1
    if not severities(failure_type):
        return None, (f"monitor: no text for {failure_type}",)
    if severity > severities(failure_type):
        return None, ("monitor: all texts sent",)
    text = monitor_text(failure_type, severity, evidence_for(failure_type, readings))
    return MonitorText(text=text, failure_type=failure_type, severity=severity), ()
