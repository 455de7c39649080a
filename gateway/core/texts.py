"""Monitor guidance: the text that is due when a monitor reports a failure.

The texts are in the rows of the monitors' table. A problem that persists gets the next severity."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_state import GuidanceState, Moment
from gateway.core.monitors import FAILURE_TYPES, Readings
from gateway.core.monitors.table import TABLE
from gateway.core.render import sanitise
from gateway.data_files import read_toml
from gateway.values import Value

MAX_EVIDENCE_CHARS = 300

TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {row.failure_type: row.texts for row in reversed(TABLE) if row.texts}
)  # texts by failure type, in order of severity; of monitors that share one, those of the first

_DIRECTIVES = read_toml(__package__, "directives.toml")
SKIP_DIRECTIVE, SKIP_REPAIR, HAND_OVER_TEXT = (
    " ".join(_DIRECTIVES[name].split()) for name in ("skip", "skip_repair", "hand_over")
)

BUDGET_DIRECTIVE = (  # sent with every call of a run whose budget is nearly used; it may go well
    "WRAP UP: budget {used}. Bring "
    "what you are doing to a state that works, and begin nothing new. Then hand over the result: "
    "state plainly what is done and checked, what is not done, and how to continue."
)


def skip_directive(*, repairing: bool) -> str:
    """The directive of state SKIP for a run, in the middle of a repair or not."""
    return SKIP_REPAIR if repairing else SKIP_DIRECTIVE


def failure_of(readings: Readings) -> str | None:
    """The failure to speak about: that of the worst fired monitor, else of the highest score."""
    if readings.failure_type:
        return readings.failure_type
    worst = max(FAILURE_TYPES, key=lambda name: readings.scores.get(name, 0.0))
    return FAILURE_TYPES[worst] if readings.scores.get(worst, 0.0) > 0.0 else None


def evidence_for(failure_type: str, readings: Readings) -> str:
    """The reason given by the failure's monitor (the worst of several); "" without one."""
    reports = [name for name, label in FAILURE_TYPES.items() if label == failure_type]
    worst = max(reports, key=lambda name: readings.scores.get(name, 0.0), default=failure_type)
    return readings.evidence.get(worst, "")


def severities(failure_type: str) -> int:
    """Number of texts for a failure; 0 for one without."""
    return len(TEXTS.get(failure_type, ()))


def monitor_text(failure_type: str, severity: int, evidence: str = "") -> str:
    """The text for a failure at severity 1 to `severities`, with its evidence in parentheses.
    Evidence may quote the agent and its tools, so it is sanitised and bounded."""
    shown = sanitise(evidence, MAX_EVIDENCE_CHARS).replace("\n", " ").rstrip(". ")
    text = TEXTS[failure_type][severity - 1]
    return text.replace("{evidence}", f" ({shown})" if shown else "")


# Failures that get a text only while the newest step is part of them, and the steps that show it.
_SHOWN_BY_STEP = frozenset({"loop", "test_repeat", "edit_revert", "diversity", "hedge"})
KNOWN_STEPS = 3


class MonitorText(Value):
    """A monitor text that is due."""

    text: str  # with the evidence of the reading filled in
    failure_type: str  # label of the failure it speaks of
    subject: str  # what its severities are counted by: the cause, or else the failure type
    severity: int  # 1 to 3; a problem that persists gets a stronger text


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
