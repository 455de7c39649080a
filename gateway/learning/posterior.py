"""What the decisions about a lesson come to: the difference in recurrence, and how sure it is.

Each decision was drawn with a known probability, so both arms are weighted by its inverse: the
estimate stays right while that probability moves with the evidence. The rates have Beta posteriors
over the effective number of decisions of their arm; a lesson starts from what is known of the
general one it belongs to, if there is one.

Pure: equal decisions give an equal posterior, on every gateway and after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.learning.mining import WINDOW_CALLS, ReadCallOfRun
from gateway.steering.evidence.failure_keys import CallReading
from gateway.stores.learning import DecisionRow, NearOutcome, Posterior, SettledDecision

MATTERS = 0.05
"""Effect, as a difference of probabilities, from which a lesson is worth giving."""
LEAST_SHARE, MOST_SHARE = 0.2, 0.8
"""Limits of the probability with which a lesson in trial is given. Source: `learning.md`, 6."""
ACTIVE_SHARE = 0.9
"""Of an active lesson: the rest is the hold-out, which never ends."""
PARENT_DECISIONS = 4.0
"""Most decisions per arm that the general lesson's rates count for."""

_POINTS = 400
_SHARE_DIGITS = 4
"""The last digits of a sum depend on its order; the draw must not."""
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Observation:
    """One settled decision: whether the lesson was given, with which probability, and whether the
    failure came again."""

    given: bool
    share: float
    recurred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One arm: its weighted rate (None without decisions), and its Beta posterior's parameters."""

    rate: float | None
    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        total = self.a + self.b
        return self.a * self.b / (total * total * (total + 1.0))


def observations(decisions: Sequence[SettledDecision]) -> list[Observation]:
    """Those whose near outcome is known."""
    return [
        Observation(each.decision.given, each.decision.share, each.recurred)
        for each in decisions
        if each.recurred is not None
    ]


def posterior(
    seen: Sequence[Observation], *, active: bool = False, parent: Posterior | None = None
) -> Posterior:
    """What the observations come to. `active`: whether the lesson has passed its trial; `parent`:
    the posterior of the general lesson that this one belongs to."""
    known = parent or Posterior()
    given = _arm([o for o in seen if o.given], known.rate_given)
    held = _arm([o for o in seen if not o.given], known.rate_held)
    helps, harms = exceeds(held, given, MATTERS), 1.0 - exceeds(held, given, 0.0)
    effect = low = high = None
    if given.rate is not None and held.rate is not None:
        effect = held.rate - given.rate
        spread = _Z95 * math.sqrt(held.variance + given.variance)
        low, high = held.mean - given.mean - spread, held.mean - given.mean + spread
    share = ACTIVE_SHARE if active else min(max(1.0 - harms, LEAST_SHARE), MOST_SHARE)
    share = round(share, _SHARE_DIGITS)
    return Posterior(
        decisions=len(seen),
        given=sum(o.given for o in seen),
        rate_given=given.rate,
        rate_held=held.rate,
        effect=effect,
        low=low,
        high=high,
        helps=helps,
        harms=harms,
        share=share,
    )


def interval(rate: float, decisions: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate."""
    if not decisions:
        return 0.0, 1.0
    z2 = _Z95 * _Z95 / decisions
    middle = (rate + z2 / 2) / (1 + z2)
    spread = _Z95 * math.sqrt(rate * (1 - rate) / decisions + z2 / (4 * decisions)) / (1 + z2)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def _arm(seen: Sequence[Observation], parent_rate: float | None) -> _Arm:
    """Rate and posterior of one arm; the prior is flat, or leans to the parent's rate."""
    a = b = 1.0
    if parent_rate is not None:
        a += PARENT_DECISIONS * parent_rate
        b += PARENT_DECISIONS * (1.0 - parent_rate)
    if not seen:
        return _Arm(rate=None, a=a, b=b)
    weights = [1.0 / (o.share if o.given else 1.0 - o.share) for o in seen]
    total = sum(weights)
    rate = sum(w for w, o in zip(weights, seen, strict=True) if o.recurred) / total
    effective = total * total / sum(w * w for w in weights)
    return _Arm(rate=rate, a=a + effective * rate, b=b + effective * (1.0 - rate))


def exceeds(larger: _Arm, smaller: _Arm, by: float) -> float:
    """The probability that one arm's rate is above the other's by at least `by`."""
    density, below = _density(larger.a, larger.b), _density(smaller.a, smaller.b)
    cumulative, total = [0.0], 0.0
    for mass in below:
        total += mass
        cumulative.append(total)
    shift = by * _POINTS
    chance = 0.0
    for index, mass in enumerate(density):
        # Both rates lie anywhere in their cell: half of an equal cell counts.
        at = index + 0.5 - shift
        if at <= 0.0:
            continue
        cell = min(int(at), _POINTS - 1)
        chance += mass * (cumulative[cell] + below[cell] * min(at - cell, 1.0))
    return min(max(chance, 0.0), 1.0)


def _density(a: float, b: float) -> list[float]:
    """The mass of Beta(a, b) in each of equal cells of [0, 1]."""
    logs = []
    for index in range(_POINTS):
        x = (index + 0.5) / _POINTS
        logs.append((a - 1.0) * math.log(x) + (b - 1.0) * math.log(1.0 - x))
    top = max(logs)
    masses = [math.exp(value - top) for value in logs]
    total = sum(masses)
    return [mass / total for mass in masses]


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
