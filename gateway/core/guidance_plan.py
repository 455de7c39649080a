"""Plan of a call's guidance: the tiers that may be looked up, and the monitor text that is due.

All pure: the same values give the same guidance, and no step is decided twice."""

from msgspec.structs import replace

from gateway.core.agent_kind import kind_of_agent
from gateway.core.fsm import FSMState
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import FIRST_CALL, GuidanceState, Moment
from gateway.core.guidance_text import (
    SKIP_DIRECTIVE,
    SKIP_REPAIR,
    evidence_for,
    failure_of,
    monitor_text,
    severities,
)
from gateway.core.monitors import Readings
from gateway.core.pattern import Query, Tier
from gateway.core.step import recent_text
from gateway.values import Value

CHARS_PER_TOKEN = 4  # rough size of a token of English text; most are longer
RECOVERED_STEPS = 6  # scored steps without an alarm that make a run recovered: FAST's window


# Failures that get a text only while the newest step is part of them, and the steps that show it.
_SHOWN_BY_STEP = frozenset({"loop", "test_repeat", "edit_revert", "diversity", "hedge"})
KNOWN_STEPS = 3


class MonitorText(Value):
    """A monitor text that is due."""

    text: str  # with the evidence of the reading filled in
    failure_type: str  # label of the failure it speaks of
    subject: str  # what its severities are counted by: the cause, or else the failure type
    severity: int  # 1 to 3; a problem that persists gets a stronger text


class Plan(Value):
    """The guidance to find for one call."""

    step: int  # newest scored step; FIRST_CALL before there is one
    model: str = ""  # the routed model's name; decides the family of the texts
    failure_type: str = ""  # label that the monitors report; "" for none
    queries: tuple[Query, ...] = ()  # look-ups to make, in the order of the block
    monitor: MonitorText | None = None  # the text that is due; None when none is
    directive: str = ""  # text that is sent with this call only; "" for none
    hand_over: str = ""  # text that is sent in place of all others and kept; "" for none
    event: str = ""  # sentence that stands before a pattern for a cause; "" for none
    reasons: tuple[str, ...] = ()  # why something was held back


def note(guidance: GuidanceState, step: int, readings: Readings | None) -> GuidanceState:
    """The state after step `step` was scored; a step that was noted before changes nothing. After
    RECOVERED_STEPS steps without an alarm the texts of the monitors are ready again: the next alarm
    is another problem, or the same one at another time."""
    newest = guidance.fired_step
    if readings is None or not readings.fired or (newest is not None and step <= newest):
        return guidance
    recovered = newest is not None and step - newest > RECOVERED_STEPS
    severities = {} if recovered else guidance.severities
    return replace(guidance, fired_step=step, severities=severities)


def plan(
    guidance: GuidanceState,
    moment: Moment,
    etraces: EtraceSettings,
    injection: InjectionSettings,
    gates: Gates,
    *,
    every_alarm: bool = False,
) -> Plan:
    """The look-ups and texts that this call may have. A step that was decided before gets nothing
    new: what it got is among the injections that placement sends again. `every_alarm`: a text for
    each alarm, also where the newest step is no part of the trouble."""
    step = FIRST_CALL if moment.step is None else moment.step
    directive = ""
    if injection.skip_directive and moment.signal.state is FSMState.SKIP:
        found = moment.situation()
        # An agent that is only in a wrong directory hears that, and has nothing to hand over.
        if found is None or found.cause.name != "directory_missing":
            directive = SKIP_REPAIR if moment.repairing else SKIP_DIRECTIVE
    if guidance.decided_step is not None and step <= guidance.decided_step:
        return Plan(step=step, model=moment.model, directive=directive)
    queries, reasons = _queries(guidance, moment, etraces, gates=gates)
    failure_type = moment.failure_type
    monitor, held = due_text(guidance, moment, injection, every_alarm=every_alarm)
    # A pattern for a cause speaks of a kind of trouble; without a monitor's text it gets the event.
    quoted = queries and monitor is None and injection.quotes
    named = quoted and any(query.cause for query in queries)
    found = moment.situation() if named else None
    return Plan(
        step=step,
        model=moment.model,
        failure_type=failure_type,
        queries=queries,
        monitor=monitor,
        directive=directive,
        event=found.event if found else "",
        reasons=reasons + held,
    )


def _at_risk(guidance: GuidanceState, moment: Moment, step: int, settings: EtraceSettings) -> bool:
    readings = moment.signal.readings
    if readings is None or not readings.scores:
        # With no monitor configured nothing could ever open the gate.
        return True
    earliest = step - settings.e1_lookback_steps
    return (
        bool(readings.fired)
        or readings.composite > settings.e1_composite
        or (guidance.fired_step is not None and earliest <= guidance.fired_step < step)
    )


def _queries(
    guidance: GuidanceState, moment: Moment, settings: EtraceSettings, gates: Gates
) -> tuple[tuple[Query, ...], tuple[str, ...]]:
    """The look-ups, and the reasons against others."""
    if not settings.enabled:
        return (), ()
    if moment.signal.state is FSMState.FAST:
        return (), ("look-up: none in FAST",)
    base = Query(
        tier=Tier.E3,
        model=moment.model,
        floor=settings.recall_threshold,
        exclude=frozenset(guidance.pattern_ids),
    )
    queries = []
    reasons = []
    if settings.e3_max and not guidance.e3_done:
        if settings.e3_when == "always" or moment.tools:
            kind = kind_of_agent(moment.tools) if settings.e3_by_kind else ""
            room = settings.e3_max_tokens * CHARS_PER_TOKEN
            queries.append(replace(base, top_k=settings.e3_max, kind=kind, max_chars=room))
        else:
            reasons.append("e3: no tools offered")
    if moment.step is None:
        return tuple(queries), tuple(reasons)
    at_risk = _at_risk(guidance, moment, moment.step, settings=settings)
    if not settings.e1_top_k or guidance.e1_count >= settings.e1_per_run:
        reasons.append("e1: allowance spent")
    elif not at_risk:
        reasons.append("e1: gate closed")
    elif text := recent_text(moment.recent, settings.e1_steps):
        top_k = settings.e1_top_k
        queries.append(replace(base, tier=Tier.E1, text=text, top_k=top_k, gate=gates.e1))
    e2_count = guidance.e2_counts.get(moment.failure_type, 0)
    if not settings.e2_top_k or e2_count >= settings.e2_per_type:
        reasons.append("e2: allowance spent")
    elif settings.e2_when == "at_risk" and not at_risk:
        reasons.append("e2: not at risk")
    elif settings.e2_when == "at_risk" and brings_news(moment):
        reasons.append("e2: the newest step brings something new")
    elif text := recent_text(moment.recent, settings.e2_steps):
        queries.append(_e2_query(replace(base, text=text), moment, settings, gates=gates))
    return tuple(queries), tuple(reasons)


def _e2_query(base: Query, moment: Moment, settings: EtraceSettings, gates: Gates) -> Query:
    """The look-up for a kind of failure; with its cause, if the run is stuck on one."""
    situation = moment.situation() if settings.e2_by_cause else None
    fired = moment.signal.readings is not None and bool(moment.signal.readings.fired)
    if situation is not None and not (situation.persists or (fired and situation.count > 1)):
        situation = None
    return replace(
        base,
        tier=Tier.E2,
        top_k=settings.e2_top_k,
        gate=gates.e2 if moment.failure_type or gates.e2_untyped is None else gates.e2_untyped,
        margin=settings.e2_margin,
        failure_type=moment.failure_type or None,
        cause=situation.cause.name if situation else "",
    )


def brings_news(moment: Moment) -> bool:
    """True where the newest step shows no trouble, and no monitor names one that steps do not."""
    named = moment.failure_type not in ("", *_SHOWN_BY_STEP)
    return not named and len(moment.recent) >= KNOWN_STEPS and moment.situation() is None


def due_text(
    guidance: GuidanceState, moment: Moment, injection: InjectionSettings, *, every_alarm: bool
) -> tuple[MonitorText | None, tuple[str, ...]]:
    """Returns the monitor text that is due, or why there is none though a monitor would give
    one. `every_alarm`: see `plan`."""
    readings = moment.signal.readings
    if moment.step is None or readings is None:
        return None, ()
    alarmed = readings.fired or readings.composite >= injection.monitor_composite
    failure_type = failure_of(readings) if alarmed and injection.monitor_guidance else None
    if failure_type is None:
        return None, ()
    if reason := _held_back(guidance, moment, injection, failure_type=failure_type):
        return None, (reason,)
    shown = failure_type in _SHOWN_BY_STEP
    situation = moment.situation() if shown else None
    shown = shown and len(moment.recent) >= KNOWN_STEPS
    if situation is None and shown and not every_alarm:
        return None, ("monitor: the newest step brings something new",)
    subject = situation.cause.name if situation else failure_type
    given = guidance.severities
    severity = max(given.get(subject, 0), given.get(failure_type, 0)) + 1
    if severity > severities(failure_type):
        return None, ("monitor: all texts sent",)
    sent = given.get(subject, 0)
    if situation is None or sent >= len(situation.cause.texts):
        text = monitor_text(failure_type, severity, evidence_for(failure_type, readings))
    else:
        if not injection.quotes:
            situation = situation.unquoted()
        # The mildest move comes first for each cause, whatever was said about others.
        text = situation.text(sent + 1)
    due = MonitorText(text=text, failure_type=failure_type, subject=subject, severity=severity)
    return due, ()


def _held_back(
    guidance: GuidanceState, moment: Moment, injection: InjectionSettings, failure_type: str
) -> str:
    """Reason for giving no text about a failure now; "" when one may be given."""
    if guidance.monitor_count >= injection.monitor_cap:
        return "monitor: cap reached"
    since = guidance.monitor_step
    step = moment.step
    wait = injection.cooldown(moment.signal.state.value)
    if since is not None and step is not None and step - since < wait:
        return "monitor: cooling down"
    if not severities(failure_type):
        return f"monitor: no text for {failure_type}"
    spent = guidance.severities.get(failure_type, 0) >= severities(failure_type)
    return "monitor: all texts sent" if spent else ""
