"""Diversity: the run has stopped bringing anything new."""

from __future__ import annotations

from collections import deque

from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.monitors.settings import RobustSettings

LITTLE_NEW = 0.2  # share of new words in a result below which it brings nothing new
HEALTHY_SHARE = 0.5  # half of the window may be stale without a score
SLOPE = 1.6  # seven stale actions of eight score 0.6


class Diversity:
    """Share of recent actions that are similar to a recent one and bring nothing new.

    Tool names do not matter: an agent with one tool that reads on is as diverse as one with ten."""

    __slots__ = ("_stale",)

    def __init__(self, settings: RobustSettings) -> None:
        self._stale: deque[bool] = deque(maxlen=settings.novelty_window)

    def push(self, step: ObservedStep) -> None:
        """Judge each action stale or not."""
        for (_, repeat), novelty in zip(step.actions, step.news.novelty, strict=True):
            progresses = repeat.kind == "pending" or repeat.changed
            self._stale.append(repeat.similar and not progresses and novelty < LITTLE_NEW)
        if self._stale and not step.actions and step.trouble is None:
            self._stale.append(False)

    def reading(self) -> tuple[float, str]:
        """1.6 x (stale share - 1/2), 0 until the window is full."""
        size = self._stale.maxlen or 1
        if len(self._stale) < size:
            return 0.0, ""
        stale = sum(self._stale)
        score = min(max(SLOPE * (stale / size - HEALTHY_SHARE), 0.0), 1.0)
        return score, f"{stale} of the last {size} calls brought nothing new" if score else ""
