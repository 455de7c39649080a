"""Monitor guidance: the text that is due when a monitor reports a failure.

The texts are in the rows of the monitors' table. A problem that persists gets the next severity."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.core.guidance_text import sanitise
from gateway.core.monitors import FAILURE_TYPES, Readings
from gateway.core.monitors.table import TABLE
from gateway.data_files import read_toml

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
