"""Hedge: the agent grows less sure of itself."""

from __future__ import annotations

from collections import deque

from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.monitors.robust.diversity import LITTLE_NEW
from gateway.steering.monitors.settings import RobustSettings

SHORT_THOUGHT_WORDS = 3  # shorter thoughts are not read: they have no density to speak of
EARLY_HEDGES = 0.5
EARLY_WORDS = 50  # prior of the early density: a first hedge is no trend
LEAST_DENSITY = 0.02  # hedges a word under which the newest thoughts are sure, whatever came before
RATIO_SPAN = 4.0  # late density of five times the early one scores 1; 3.4 times fires
RETRACTION_WINDOW = 8  # newest thoughts among which retractions are counted
ONE_RETRACTION = 0.3  # one self-correction is healthy
MORE_RETRACTIONS = 0.7  # a second one within the window fires


class Hedge:
    """Density of hedging in the newest thoughts against the run before them.

    Only thoughts with an action count: a message to a user hedges out of politeness. A trend
    needs hedges in all but one of the newest thoughts."""

    __slots__ = ("_early_hedges", "_early_words", "_late", "_retractions", "_size", "_thoughts")

    def __init__(self, settings: RobustSettings) -> None:
        self._size = settings.trend_window
        self._late: deque[tuple[int, int]] = deque()
        self._early_hedges = self._early_words = self._thoughts = 0
        self._retractions: deque[bool] = deque(maxlen=RETRACTION_WINDOW)

    def push(self, step: ObservedStep) -> None:
        """Observe the step's thought, if the step has an action."""
        facts = step.facts
        if not step.actions or facts.words < SHORT_THOUGHT_WORDS:
            return
        inquires = step.trouble is None and max(step.news.novelty) >= LITTLE_NEW
        self._retractions.append(facts.retracts and not inquires)
        self._late.append((0 if inquires else facts.hedges, facts.words))
        self._thoughts += 1
        if len(self._late) > self._size:
            hedges, words = self._late.popleft()
            self._early_hedges += hedges
            self._early_words += words

    def reading(self) -> tuple[float, str]:
        """The larger of the trend and of repeated retractions."""
        trend, reason = self._trend()
        retractions = sum(self._retractions)
        again = MORE_RETRACTIONS if retractions > 1 else ONE_RETRACTION * retractions
        if again > trend:
            return again, f"{retractions} retractions in the last {len(self._retractions)} thoughts"
        return trend, reason

    def _trend(self) -> tuple[float, str]:
        hedging = sum([1 for hedges, _ in self._late if hedges])
        if self._thoughts < 2 * self._size or hedging < self._size - 1:
            return 0.0, ""
        late = sum([h for h, _ in self._late]) / sum([w for _, w in self._late])
        if late < LEAST_DENSITY:
            return 0.0, ""
        early = (self._early_hedges + EARLY_HEDGES) / (self._early_words + EARLY_WORDS)
        score = min(max((late / early - 1.0) / RATIO_SPAN, 0.0), 1.0)
        return score, f"hedging {late / early:.1f} times as dense as before" if score else ""
