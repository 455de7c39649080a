"""Scorer `calibrated`: difficulty of the newest eight steps of a run.

A score follows the chance that at least two of the next five steps are trouble. The weights were
fitted on real runs, without outcomes or step numbers: below 0.2 is easy, above 0.6 hard and above
0.85 very hard."""

import math
from collections import deque

from gateway.steering.evidence.observation import ObservedStep, ReadsObservations, RunObserver
from gateway.steering.scoring.calibration import (
    FEATURES,
    NEWEST_STEPS,
    WINDOW_STEPS,
    shipped_calibration,
)
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step

NEUTRAL = 0.22  # score without knowledge, a little above FAST: a run has to earn that
_NEUTRAL_ODDS = math.log(NEUTRAL / (1.0 - NEUTRAL))
FADING = 0.8  # share of the window's trouble left after one more step without
MOST_CALLS = 4  # parallel calls of a step that are counted


def signals_of(observed: ObservedStep) -> tuple[float, ...]:
    """Signals of a step about the stretch it is in, in the order of `calibration.SIGNALS`; `stale`.
    `trouble`: whether the step is trouble; `repeats`: how far its calls repeat earlier ones;
    `fails`, `empty`: whether a call failed, or found nothing; `looks`: whether a call shows
    content; `calls`: how many calls it makes, up to 4; `passes`: whether it runs a program that
    does not fail; `stale`: share of its results' words that the run has seen, 0 without calls."""
    repeats = novelty = 0.0
    fails = empty = looks = passes = False
    for (action, repeat), new in zip(observed.actions, observed.news.novelty, strict=True):
        repeats = max(repeats, repeat.strength)
        novelty = max(novelty, new)
        fails = fails or (action.failure is not None and not repeat.waits)
        passes = passes or (action.failure is None and action.program is not None)
        empty = empty or action.answer.empty
        looks = looks or action.effect.reads
    return (
        float(observed.trouble is not None),
        repeats,
        float(fails),
        float(empty),
        float(looks),
        float(min(len(observed.actions), MOST_CALLS)),
        float(passes),
        1.0 - novelty if observed.actions else 0.0,
    )


class StretchFeatures:
    """The features of a run's newest steps, in the order of `calibration.FEATURES`. Each signal of
    the newest step, its mean over the newest three, and over the newest eight. Trouble and repeats
    of the eight fade with each step that is no trouble. A step that only waits for something leaves
    the stretch as it is. While the run works on no file and no program, words that return are no
    sign: in a dialogue they only follow the step number."""

    __slots__ = ("_faded", "_stale", "_window", "works")

    def __init__(self) -> None:
        self._window: deque[list[float]] = deque(maxlen=WINDOW_STEPS)
        self._faded, self._stale = 1.0, 0.0
        self.works = False

    def push(self, observed: ObservedStep) -> None:
        """Observe the next step."""
        self.works = self.works or bool([1 for action, _ in observed.actions if action.works])
        if observed.waits:
            return
        *signals, stale = signals_of(observed)
        self._window.append(signals)
        self._stale = stale if self.works else 0.0
        self._faded = self._faded * FADING if observed.trouble is None else 1.0

    @property
    def known(self) -> float:
        """Share of the window that is filled, in [0, 1]."""
        return len(self._window) / WINDOW_STEPS

    def values(self) -> tuple[float, ...]:
        """The features now; all 0 before the first step."""
        if not self._window:
            return (0.0,) * len(FEATURES)
        steps = [*self._window]
        newest = steps[-NEWEST_STEPS:]
        few, many = len(newest), len(steps)
        trouble, repeats, *others = map(sum, zip(*steps, strict=True))
        return (
            *steps[-1],
            *[total / few for total in map(sum, zip(*newest, strict=True))],
            trouble / many * self._faded,
            repeats / many * self._faded,
            *[total / many for total in others],
            self._stale,
        )


class CalibratedScorer(ReadsObservations[float]):
    """Scores one run's steps in order, each with the seven steps before it."""

    __slots__ = ("_calibration", "_features", "_observer")

    def __init__(self, settings: DifficultySettings) -> None:
        self._calibration = settings.calibration or shipped_calibration()
        self._features = StretchFeatures()
        self._observer = RunObserver()

    def push(self, step: Step) -> float:
        """Difficulty of `step` in (0, 1), given the steps pushed before it. Never raises."""
        return self.push_observed(self._observer.observe(step))

    def push_observed(self, observed: ObservedStep) -> float:
        """The same, of a step that the run has observed."""
        features = self._features
        features.push(observed)
        odds = self._calibration.log_odds(features.values())
        return settled(odds, features.known, works=features.works)


def settled(log_odds: float, known: float, *, works: bool = True) -> float:
    """The score in (0, 1) of a stretch of which the share `known` of the window is filled. At least
    NEUTRAL unless the run works on files or programs: what is easy in a dialogue is not known, and
    FAST was wrong there."""
    odds = known * log_odds + (1.0 - known) * _NEUTRAL_ODDS
    if not works:
        odds = max(odds, _NEUTRAL_ODDS)
    return 1.0 / (1.0 + math.exp(-min(max(odds, -30.0), 30.0)))
