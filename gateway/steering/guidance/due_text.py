"""Which monitor text a call is due, if any: about what the newest step is stuck on."""

from __future__ import annotations

from msgspec import Struct

from gateway.steering.guidance.moment import Moment
from gateway.steering.guidance.settings import InjectionSettings
from gateway.steering.guidance.situation import Situation, read_doubt
from gateway.steering.guidance.state import GuidanceState, count
from gateway.steering.guidance.texts import evidence_for, failure_of, monitor_text, severities

_SHOWN_BY_STEP = frozenset({"loop", "test_repeat", "edit_revert", "diversity", "hedge"})
"""Failures that a text is given for only while the newest step is part of them."""
KNOWN_STEPS = 3
"""Steps from which on they show what the newest one is part of."""


class MonitorText(Struct, frozen=True, kw_only=True):
    """A monitor text that is due, with the failure it speaks of.

    `subject`: what its severities are counted by, the cause or else the failure type.
    """

    text: str
    failure_type: str
    subject: str
    severity: int


def due_text(
    guidance: GuidanceState, moment: Moment, injection: InjectionSettings
) -> tuple[MonitorText | None, tuple[str, ...]]:
    """The text that is due, and why there is none where a monitor would give one."""
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
    if reason := _held_back(guidance, moment, injection, failure_type):
        return None, (reason,)
    situation = _situation(moment, failure_type)
    shown = failure_type in _SHOWN_BY_STEP and len(moment.recent) >= KNOWN_STEPS
    if situation is None and shown and not (moment.at_risk or moment.every_alarm):
        return None, ("monitor: the newest step brings something new",)
    subject = situation.cause.name if situation else failure_type
    given = guidance.severities
    severity = max(count(given, subject), count(given, failure_type)) + 1
    if severity > severities(failure_type):
        return None, ("monitor: all texts sent",)
    if situation is not None and not injection.quotes:
        situation = situation.without_quotes()
    evidence = evidence_for(failure_type, readings)
    text = situation.text(severity) if situation else monitor_text(failure_type, severity, evidence)
    return (
        MonitorText(text=text, failure_type=failure_type, subject=subject, severity=severity),
        (),
    )


def _held_back(
    guidance: GuidanceState, moment: Moment, injection: InjectionSettings, failure_type: str
) -> str:
    """Why no text about a failure may be given now; "" when one may."""
    if guidance.monitor_count >= injection.monitor_cap:
        return "monitor: cap reached"
    wait = injection.cooldown(moment.state.value)
    since = guidance.monitor_step
    if since is not None and moment.step is not None and moment.step - since < wait:
        return "monitor: cooling down"
    if not severities(failure_type):
        return f"monitor: no text for {failure_type}"
    if count(guidance.severities, failure_type) >= severities(failure_type):
        return "monitor: all texts sent"
    return ""


def _situation(moment: Moment, failure_type: str) -> Situation | None:
    """What the text is about; None for a failure that a single step does not show."""
    if failure_type not in _SHOWN_BY_STEP:
        return None
    situation = moment.situation()
    if failure_type != "hedge" or (situation is not None and situation.persists):
        return situation
    return read_doubt(moment.recent)
