"""What came after a decision about a lesson: did the same failure come again.

The outcome of the run says nothing about a lesson: runs in trouble are the ones that are given
lessons, and they fail more often anyway. Whether the failure that the lesson answers comes again
within a few calls does say something. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.learning.mining import WINDOW_CALLS, ReadCallOfRun
from gateway.steering.evidence.failure_keys import CallReading
from gateway.stores.learning import DecisionRow, NearOutcome


def near_outcome(
    decision: DecisionRow, calls: Sequence[ReadCallOfRun], *, ended: bool, last_step: int
) -> NearOutcome | None:
    """What came after the decision; None as long as the window is open and the run goes on.

    `last_step`: the run's newest step. A decision at step n is about the call made with it, so its
    first effect is seen in step n + 1.
    """
    later = [call for call in calls if call.step > decision.step_index]
    if len(later) < WINDOW_CALLS and not ended:
        return None
    window = later[:WINDOW_CALLS]
    head = decision.key.split("|")[1] if decision.key.count("|") >= 2 else ""
    worked = (n for n, call in enumerate(window, 1) if _worked(call.reading, head))
    return NearOutcome(
        run_id=decision.run_id,
        step_index=decision.step_index,
        pattern_id=decision.pattern_id,
        recurred=any(_fails_with(call.reading, decision.key) for call in window),
        calls_to_success=next(worked, None),
        steps_left=max(0, last_step - decision.step_index),
    )


def _fails_with(reading: CallReading, key: str) -> bool:
    return reading.failure is not None and reading.failure.key == key


def _worked(reading: CallReading, head: str) -> bool:
    return reading.head == head and reading.failure is None and not reading.transient
