"""Kinds of alarms that people called wrong: they are recorded, and nothing follows from them."""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from gateway.core.monitors.alarms import COMPOSITE_DIGITS, Readings
from gateway.core.monitors.table import FAILURE_TYPES


def without_muted(
    readings: Readings, muted: Collection[str], weights: Mapping[str, float]
) -> Readings:
    """The readings to act on: those of muted monitors count as 0. `weights` by monitor."""
    scores = {name: 0.0 if name in muted else score for name, score in readings.scores.items()}
    if scores == readings.scores:
        return readings
    weighted = {name: weights.get(name, 0.0) * score for name, score in scores.items()}
    fired = tuple([name for name in readings.fired if name not in muted])
    return replace(
        readings,
        scores=scores,
        composite=round(sum(weighted.values()), COMPOSITE_DIGITS),
        fired=fired,
        failure_type=FAILURE_TYPES[max(fired, key=weighted.__getitem__)] if fired else None,
        alarms=tuple([alarm for alarm in readings.alarms if alarm.monitor not in muted]),
    )
