"""Plan of a call's guidance: the tiers that may be looked up, and the monitor text that is due.

`note` every scored step, `plan` the call, look up what the plan asks for, `decide.decide`, then
`placement.place`. All pure: the same values give the same guidance, and a step that was decided
once is not decided again.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.fsm import FSMState
from gateway.steering.guidance.pattern import Query, Tier
from gateway.steering.guidance.settings import EtraceSettings, Gates, InjectionSettings
from gateway.steering.guidance.state import FIRST_CALL, GuidanceState, Moment, count, kind_of_agent
from gateway.steering.guidance.texts import MonitorText, due_text
from gateway.steering.monitors import Readings
from gateway.steering.transcript.steps import recent_text

__all__ = ["Moment", "Plan", "note", "plan"]

CHARS_PER_TOKEN = 4  # rough size of a token of English text; most are longer
RECOVERED_STEPS = 6  # scored steps without an alarm that make a run recovered: FAST's window


class Plan(Struct, frozen=True, kw_only=True):
    """Guidance to find for a call: look-ups to make, a monitor text, the SKIP directive.

    `spent`: the directive is for the budget, not for a hard stretch. `repairing`: files were edited
    and not tested or committed since, which the directive says.
    `reasons` say why something was held back.
    """

    step: int
    model: str = ""
    failure_type: str = ""
    queries: tuple[Query, ...] = ()
    monitor: MonitorText | None = None
    directive: bool = False
    spent: bool = False
    repairing: bool = False
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
    """The look-ups and texts that this call may have.

    A step that was decided before gets nothing new: what it got is among the injections that
    placement sends again.
    """
    step = FIRST_CALL if moment.step is None else moment.step
    directive = injection.skip_directive and moment.state is FSMState.SKIP
    if guidance.decided_step is not None and step <= guidance.decided_step:
        return Plan(step=step, model=moment.model, directive=directive, repairing=moment.repairing)
    queries, reasons = _queries(guidance, moment, etraces, gates)
    monitor, held = due_text(guidance, moment, injection)
    return Plan(
        step=step,
        model=moment.model,
        failure_type=_failure_type(moment),
        queries=queries,
        monitor=monitor,
        directive=directive,
        repairing=moment.repairing,
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
    guidance: GuidanceState, moment: Moment, settings: EtraceSettings, gates: Gates
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
        if settings.e3_when == "always" or moment.tools:
            queries.append(_rules_query(base, moment, settings))
        else:
            reasons.append("e3: no tools offered")
    if moment.step is None:
        return tuple(queries), tuple(reasons)
    if moment.at_risk is False:
        return tuple(queries), ("look-up: held back",)
    for found in (
        _e1_query(base, guidance, moment, settings, gates),
        _e2_query(base, guidance, moment, settings, gates),
    ):
        if isinstance(found, Query):
            queries.append(found)
        elif found:
            reasons.append(found)
    return tuple(queries), tuple(reasons)


def _e1_query(
    base: Query, guidance: GuidanceState, moment: Moment, settings: EtraceSettings, gates: Gates
) -> Query | str:
    """The look-ups; or the reason for none, empty when the newest steps have no text."""
    if reason := _e1_held(guidance, settings, _at_risk(guidance, moment, settings)):
        return reason
    text = recent_text(moment.recent, settings.e1_steps)
    if not text:
        return ""
    return replace(base, tier=Tier.E1, text=text, top_k=settings.e1_top_k, gate=gates.e1)


def _e2_query(
    base: Query, guidance: GuidanceState, moment: Moment, settings: EtraceSettings, gates: Gates
) -> Query | str:
    """The same for a kind of failure; with its cause, if the run is stuck on one."""
    failure_type = _failure_type(moment)
    at_risk = _at_risk(guidance, moment, settings)
    if reason := _e2_held(guidance, settings, at_risk, failure_type):
        return reason
    text = recent_text(moment.recent, settings.e2_steps)
    if not text:
        return ""
    situation = moment.situation() if settings.e2_by_cause else None
    fired = moment.readings is not None and bool(moment.readings.fired)
    return replace(
        base,
        tier=Tier.E2,
        text=text,
        top_k=settings.e2_top_k,
        gate=_e2_gate(gates, failure_type),
        margin=settings.e2_margin,
        failure_type=failure_type or None,
        cause=situation.cause.name if situation and (fired or situation.persists) else "",
    )


def _rules_query(base: Query, moment: Moment, settings: EtraceSettings) -> Query:
    return replace(
        base,
        top_k=settings.e3_max,
        kind=kind_of_agent(moment.tools) if settings.e3_by_kind else "",
        max_chars=settings.e3_max_tokens * CHARS_PER_TOKEN,
    )


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
