"""Monitor guidance: what is said when a run shows one of the six failures.

Each text names the failure with its evidence and invites a different move; none dictates one, and
none names a tool. There are three severities per failure: a remark, a warning, a call to change the
plan. A problem that persists is told the next one, never the same again.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.steering.etrace.render import sanitise
from gateway.steering.monitors.base import FAILURE_TYPES, Readings

SEVERITIES = (1, 2, 3)

MONITOR_OF: Mapping[str, str] = {label: monitor for monitor, label in FAILURE_TYPES.items()}
"""Monitor whose reading and evidence belong to a failure type."""

MAX_EVIDENCE_CHARS = 300

SKIP_DIRECTIVE = (
    "STOP AND DELIVER: this run has been hard for a long stretch without getting better. Leave "
    "the current approach now. Hand over the best result you can support with what is already "
    "verified, as a partial answer if need be; say plainly what is done, what is not, what was "
    "tried and why it failed. Do not start new lines of work."
)
"""Given on every call while the run is in state SKIP. Source: reference section 8."""

_TEXTS: Mapping[str, tuple[str, str, str]] = {
    "loop": (
        "The last moves look alike{evidence}. When the same call keeps giving the same kind of "
        "answer, the next one rarely differs. What did the latest result tell you that you did "
        "not know before? If nothing, a different question may get further than the same one.",
        "The run is going round in a loop{evidence}, and an earlier note about it changed "
        "nothing. State in one sentence what these calls were meant to find out, then choose a "
        "way to find it out that does not depend on them: another source, another angle, a "
        "smaller case.",
        "The loop persists{evidence}. Treat this line as exhausted: write down what it has "
        "established so far, name the assumption that all these calls share, and test that "
        "assumption first. If it cannot be tested, go on with the part of the task that does not "
        "need it, or report what blocks you.",
    ),
    "budget": (
        "This run has already used many calls{evidence}. It may be a good moment to check how "
        "much of the task is done, which open point matters most, and whether what you already "
        "know is enough for it.",
        "A large share of the usual budget is gone{evidence} without a result on the table. List "
        "what is settled and what is missing; then take the shortest path to a result that can be "
        "shown, and leave side paths for later.",
        "This run is far beyond its usual length{evidence}. More of the same is unlikely to pay. "
        "Bring what exists into a state that can be handed over, check it once, and finish; name "
        "what is left open instead of chasing it.",
    ),
    "edit_revert": (
        "Recent edits undo or redo each other{evidence}. Before the next edit, it may help to say "
        "what exactly the last one was expected to change, and what happened instead.",
        "The same place is being edited back and forth{evidence}. Both versions failed, so the "
        "cause probably lies outside what is being edited. Read the newest failure from its first "
        "line, follow the values to where they go wrong, and change nothing until the cause has a "
        "name.",
        "The back and forth of edits goes on{evidence}. Return to the last version that was known "
        "to work, and make the smallest change whose effect you can predict. If no such change "
        "comes to mind, gather evidence first: a minimal reproduction, the actual values, the "
        "callers.",
    ),
    "test_repeat": (
        "The same check fails in the same way{evidence}. What has changed between these runs that "
        "could have changed its outcome? If nothing has, the failure text itself is the best next "
        "thing to read closely.",
        "A check has failed with the same message again{evidence}, so the changes in between did "
        "not touch its cause. Take the failing assertion apart: which value was expected, which "
        "came, and where is it made? Confirm that the code you change is the code that runs.",
        "This check still fails identically{evidence}. Running it once more will say the same. "
        "Doubt what has been taken for granted: the right file, version and environment, the "
        "meaning of the expectation itself, a stale copy or cache. Reproduce the failure in the "
        "smallest form before touching anything else.",
    ),
    "diversity": (
        "The run has been relying on one kind of move{evidence}. Is there another view of the "
        "problem, or another means you have been given, that would answer the open question more "
        "directly?",
        "Progress seems to hang on a single kind of move{evidence}. Step back: what is the goal, "
        "what is known, and which two quite different ways lead there? Take the one not tried "
        "yet.",
        "The run has narrowed to one move and stays there{evidence}. Drop it for now. Re-read the "
        "task from the beginning, note what has not been looked at at all, and start from there.",
    ),
    "hedge": (
        "There is a good deal of doubt in the recent reasoning{evidence}. Which single fact would "
        "settle it? Looking that fact up is likely cheaper than reasoning around it.",
        "Doubts and changes of mind are piling up{evidence}. Separate what has been observed from "
        "what is assumed; pick the assumption on which most depends and check it directly before "
        "building on it.",
        "The reasoning keeps turning over without settling{evidence}. Decide: take the reading "
        "that the observed facts support best, say what would disprove it, and act on it until "
        "that happens. If the facts support none, say so and ask, or report what is missing.",
    ),
}


def failure_of(readings: Readings) -> str | None:
    """The failure to speak about: that of the worst fired monitor, else of the highest score."""
    if readings.failure_type:
        return readings.failure_type
    worst = max(MONITOR_OF, key=lambda name: readings.scores.get(MONITOR_OF[name], 0.0))
    return worst if readings.scores.get(MONITOR_OF[worst], 0.0) > 0.0 else None


def evidence_for(failure_type: str, readings: Readings) -> str:
    """What the failure's monitor saw, in its own words; empty when it gave none."""
    return readings.evidence.get(MONITOR_OF.get(failure_type, failure_type), "")


def monitor_text(failure_type: str, severity: int, evidence: str = "") -> str:
    """The text for one of `FAILURE_TYPES` at severity 1 to 3, with its evidence in parentheses.

    Evidence may quote the agent and its tools, so it is sanitised and bounded.
    """
    shown = sanitise(evidence, MAX_EVIDENCE_CHARS).replace("\n", " ").rstrip(". ")
    return _TEXTS[failure_type][severity - 1].format(evidence=f" ({shown})" if shown else "")
