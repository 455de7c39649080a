"""Muted alarms: what is left to act on."""

from __future__ import annotations

import pytest

from gateway.core.monitors import FAILURE_TYPES, MonitorSettings, Readings, combine
from gateway.core.monitors.alarms import Alarm
from gateway.core.monitors.muting import without_muted


@pytest.mark.parametrize("muted", ["streak", "test_repeat"])
def test_other_alarms_stay(muted: str) -> None:
    """What is muted counts as 0 in the composite; the other one names the failure."""
    weights = MonitorSettings().resolved_weights()
    scores = {"streak": 1.0, "test_repeat": 1.0, "hedge": 0.5}
    found = combine(scores, {}, weights=weights, fire_threshold=0.6)
    alarms = [
        Alarm(monitor=name, entry=name, sentence="s", count=1, first_step=1, newest_step=1)
        for name in ("streak", "test_repeat")
    ]
    whole = Readings(
        scores=found.scores,
        composite=found.composite,
        fired=found.fired,
        failure_type=found.failure_type,
        alarms=tuple(alarms),
    )
    (other,) = {"streak", "test_repeat"} - {muted}
    left = without_muted(whole, {muted}, weights)
    assert left.scores == {**scores, muted: 0.0}
    assert (left.fired, left.failure_type) == ((other,), FAILURE_TYPES[other])
    assert [alarm.monitor for alarm in left.alarms] == [other]
    assert left.composite == round(whole.composite - weights[muted], 4)
    assert without_muted(whole, set(), weights) == whole
    nothing = without_muted(whole, {muted, other}, weights)
    assert (nothing.fired, nothing.failure_type, nothing.alarms) == ((), None, ())
