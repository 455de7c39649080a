"""Scorer `calibrated`: a small logistic model over the step and the run before it.

A score resembles the probability that the run fails, for an agent that fails in about one run of
four. The weights were fitted on real runs, compared only within one agent; the scale was set so
that below 0.2 is easy, above 0.6 hard and above 0.85 very hard.
"""

from __future__ import annotations

import math
from collections import deque

from gateway.steering.evidence.features import StepFacts, alike, describe
from gateway.steering.evidence.repeats import CallMemory, KnownWords
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step

PRIOR_ACTIONS = 5
"""Added to the number of actions behind a rate, so that the first few do not dominate it."""
PRIOR_EFFORT = 1.0
"""Added to the effort, so that its logarithm starts at 0."""
NEWS_DISCOUNT = 0.7
"""Share by which the effort of a step is reduced when its results are entirely new."""
PRIOR_WORDS = 100
"""Added to the words that hedges are taken over: a first hedge is no trend."""
MOST_HEDGES = 3
"""Hedges counted per thought: one rambling thought is one."""
REPEATS_MEMORY = 0.15
FAILURES_MEMORY = 0.2
ECHO_MEMORY = 0.2
"""Weight of the newest action or thought in the moving means: half is forgotten in 4, 3 and 3."""
ECHO_OVERLAP = 0.7
"""Share of words, in [0, 1], from which one thought echoes another."""
ECHO_WORDS = 6
"""Different words from which a thought can echo: "Reading the next file." is a stock phrase."""
ECHO_THOUGHTS = 8
"""Newest thoughts that can be echoed."""


class RunFeatures:
    """The features of a run up to its newest step, kept at constant cost per step.

    In the order of `calibration.FEATURES`: `effort`, log of the steps spent, where a step counts
    less the more of its results is new, and waiting for a job counts nothing; `progress`, calls
    whose result differs from before, per action; `hedging`, hedges per word of the thoughts that
    come with an action; `similar`, calls similar to a recent one, less the share of news in their
    results, per action; `repeats` and `failures`, moving means over the actions; `echo`, moving
    mean of thoughts that repeat an earlier one while the results bring nothing new.
    """

    __slots__ = (
        "_actions",
        "_changed",
        "_echo",
        "_effort",
        "_failures",
        "_hedges",
        "_known",
        "_memory",
        "_repeats",
        "_similar",
        "_thoughts",
        "_words",
    )

    def __init__(self) -> None:
        self._memory = CallMemory()
        self._thoughts: deque[frozenset[str]] = deque(maxlen=ECHO_THOUGHTS)
        self._known = KnownWords()
        self._actions = self._changed = self._hedges = self._words = 0
        self._effort = self._similar = 0.0
        self._repeats = self._failures = self._echo = 0.0

    def push(self, facts: StepFacts) -> None:
        """Observe the next step."""
        waits, news = bool(facts.actions), 0.0
        for action in facts.actions:
            repeat = self._memory.observe(action)
            novelty = self._known.novelty(action.result_words)
            failed = action.failure is not None and not action.transient
            self._repeats += REPEATS_MEMORY * (repeat.strength - self._repeats)
            self._failures += FAILURES_MEMORY * (failed - self._failures)
            news = max(news, novelty)
            if repeat.kind == "pending" or action.transient:
                continue
            waits = False
            self._actions += 1
            self._changed += repeat.changed
            self._similar += repeat.similar * (1.0 - novelty)
        if not waits:
            self._effort += 1.0 - NEWS_DISCOUNT * news
        self._read_thought(facts, news)

    def _read_thought(self, facts: StepFacts, news: float) -> None:
        words = facts.vocabulary
        if len(words) >= ECHO_WORDS:
            same = any(alike(words, thought, ECHO_OVERLAP) for thought in self._thoughts)
            self._thoughts.append(words)
            self._echo += ECHO_MEMORY * (same * (1.0 - news) - self._echo)
        else:
            self._echo -= ECHO_MEMORY * self._echo
        if facts.actions:
            self._hedges += min(facts.hedges, MOST_HEDGES)
            self._words += facts.words

    def values(self) -> tuple[float, ...]:
        """The features now."""
        actions = self._actions + PRIOR_ACTIONS
        return (
            math.log(self._effort + PRIOR_EFFORT),
            self._changed / actions,
            self._hedges / (self._words + PRIOR_WORDS),
            self._similar / actions,
            self._repeats,
            self._failures,
            self._echo,
        )


class CalibratedScorer:
    """Scores one run's steps in order; each score uses that step and the ones before it."""

    __slots__ = ("_calibration", "_features")

    def __init__(self, settings: DifficultySettings) -> None:
        self._calibration = settings.calibration or shipped_calibration()
        self._features = RunFeatures()

    def push(self, step: Step) -> float:
        """Difficulty of `step` in (0, 1), given the steps pushed before it. Never raises."""
        self._features.push(describe(step))
        return self._calibration.score(self._features.values())
