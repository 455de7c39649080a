"""Monitor guidance: the text that is due when a monitor reports a failure.

The texts themselves are in the rows of the monitors' table. Each names the failure with its
evidence and suggests a different move; none names a tool. A problem that persists gets the text of
the next severity, never the same one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from gateway.steering.guidance.render import sanitise
from gateway.steering.guidance.settings import InjectionSettings
from gateway.steering.guidance.situation import Situation, read_doubt
from gateway.steering.guidance.state import GuidanceState, Moment, count
from gateway.steering.monitors import FAILURE_TYPES, Readings
from gateway.steering.monitors.table import TABLE

MAX_EVIDENCE_CHARS = 300

TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {row.failure_type: row.texts for row in reversed(TABLE) if row.texts}
)  # texts by failure type, in order of severity; of monitors that share one, those of the first

SKIP_DIRECTIVE = (
    "STOP AND DELIVER: this run has been hard for a long stretch without improving. Leave the "
    "current approach now. Hand over the best result that your verified findings support, as a "
    "partial answer if necessary. State plainly what is done, what is not done, what you tried and "
    "why it failed. Do not start new work."
)  # Sent with every call while the run is in state SKIP. Source: reference section 8.

SKIP_REPAIR = (  # the same in the middle of a repair: what is handed over must work
    "STOP AND DELIVER: this run has been hard for a long stretch without improving, and files were "
    "edited since the last test that passed. First restore a working state: finish the smallest "
    "edit that makes the tests pass, or undo the edits since then. Check it once. Then hand over "
    "what works, and state plainly what is done, what is not done, what you tried and why it "
    "failed. Do not start new work."
)


BUDGET_DIRECTIVE = (
    "WRAP UP: this run has used nearly all of its budget, and will be stopped when it has. Bring "
    "what you are doing to a state that works, and begin nothing new. Then hand over the result: "
    "state plainly what is done and checked, what is not done, and how to continue."
)
"""Sent with every call of a run whose budget is nearly used. It says nothing of difficulty: the run
may be going well."""


def skip_directive(*, repairing: bool, spent: bool = False) -> str:
    """The directive for a run, in the middle of a repair or not; `spent`: for its budget alone."""
    if spent:
        return BUDGET_DIRECTIVE
    return SKIP_REPAIR if repairing else SKIP_DIRECTIVE


def failure_of(readings: Readings) -> str | None:
    """The failure to speak about: that of the worst fired monitor, else of the highest score."""
    if readings.failure_type:
        return readings.failure_type
    worst = max(FAILURE_TYPES, key=lambda name: readings.scores.get(name, 0.0))
    return FAILURE_TYPES[worst] if readings.scores.get(worst, 0.0) > 0.0 else None


def evidence_for(failure_type: str, readings: Readings) -> str:
    """The reason given by the failure's monitor (the worst of several); empty when it gave none."""
    reports = [name for name, label in FAILURE_TYPES.items() if label == failure_type]
    worst = max(reports, key=lambda name: readings.scores.get(name, 0.0), default=failure_type)
    return readings.evidence.get(worst, "")


def severities(failure_type: str) -> int:
    """Number of texts for a failure; 0 for one without."""
    return len(TEXTS.get(failure_type, ()))


def monitor_text(failure_type: str, severity: int, evidence: str = "") -> str:
    """The text for a failure at severity 1 to `severities`, with its evidence in parentheses.

    Evidence may quote the agent and its tools, so it is sanitised and bounded.
    """
    shown = sanitise(evidence, MAX_EVIDENCE_CHARS).replace("\n", " ").rstrip(". ")
    text = TEXTS[failure_type][severity - 1]
    return text.replace("{evidence}", f" ({shown})" if shown else "")


_SHOWN_BY_STEP = frozenset({"loop", "test_repeat", "edit_revert", "diversity", "hedge"})
"""Failures that a text is given for only while the newest step is part of them."""
KNOWN_STEPS = 3  # steps from which on they show what the newest one is part of


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
    """Reason for giving no text about a failure now; "" when one may be given."""
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
    """Situation of the text; None for a failure that a single step does not show."""
    if failure_type not in _SHOWN_BY_STEP:
        return None
    situation = moment.situation()
    if failure_type != "hedge" or (situation is not None and situation.persists):
        return situation
    return read_doubt(moment.recent)
