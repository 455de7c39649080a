"""Separation of failed runs from successful ones by their scores.

Runs are compared only within one (source, model) pair: across all runs, a score that merely
recognises the model would rank well. Intervals are 95 % bootstrap percentiles over groups, because
runs of one task are not independent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gateway.offline.playback import Replayed
from gateway.offline.recordings import RunLabel
from gateway.offline.replay_summary import Side

Floats = NDArray[np.float64]

BOOTSTRAP_ROUNDS = 1000
SEED = 20240917
POINTS = ("end", "half", "10 steps", "5 steps")
_NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """One finished run as it was scored: one score per step, and when each signal first appeared.
    `first`: signal (a monitor, FAST, SLOW, SKIP, risk, alarm) to the first step that shows it, if
    any. Per step, `risks`: without a prior, empty when only difficulty is known, which then ranks
    the runs; `troubles`: 1 where it is trouble; `states`: the state after it."""

    label: RunLabel
    scores: tuple[float, ...]
    first: Mapping[str, int]
    risks: tuple[float, ...] = ()
    troubles: tuple[float, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, its 95 % interval, and the number of pairs compared; NaN without any pair."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "-"
        return f"{self.value:.3f} [{self.low:.2f}, {self.high:.2f}]"


def readings(kept: Iterable[Replayed], side: Side, *, risks: bool = True) -> list[RunReading]:
    """The labelled runs of one side, for the evaluation; without `risks` difficulty ranks them."""
    found = []
    for played in filter(None, map(side, kept)):
        steps = played["steps"]
        if played["success"] is not None and steps:
            reading = RunReading(
                label=RunLabel(**{field.name: played[field.name] for field in fields(RunLabel)}),
                scores=tuple(step["difficulty"] for step in steps),
                first=played["first"],
                risks=tuple(step["risk"] for step in steps) if risks else (),
                troubles=tuple(float(step["trouble"] is not None) for step in steps),
                states=tuple(step["state"] for step in steps),
            )
            found.append(reading)
    return found


def step_at(steps: int, point: str) -> int | None:
    """Index of the step at a point of a run of so many steps; None if the run is shorter. A point
    is the end, half of the steps, or a number of them such as "10 steps"."""
    parts = {"end": steps, "half": max(1, steps // 2)}
    count = parts[point] if point in parts else int(point.removesuffix(" steps"))
    return count - 1 if 0 < count <= steps else None


def score_at(run: RunReading, point: str) -> float | None:
    """Score used to rank the run at a point (see `step_at`)."""
    ranked = run.risks or run.scores
    at = step_at(len(ranked), point)
    return None if at is None else ranked[at]


def auroc(runs: Sequence[RunReading], point: str, *, rounds: int = BOOTSTRAP_ROUNDS) -> Estimate:
    """Probability that a failed run scores above a successful one of the same source and model."""
    blocks = list(_blocks(runs, point))
    pairs = sum(wins.size for wins, _, _ in blocks)
    if not pairs:
        return Estimate(value=_NAN, low=_NAN, high=_NAN, pairs=0)
    groups = sorted({group for _, *sides in blocks for side in sides for group in side})
    number = {group: i for i, group in enumerate(groups)}
    indexed = [
        (wins, np.array([number[g] for g in failed]), np.array([number[g] for g in successful]))
        for wins, failed, successful in blocks
    ]
    # How often each group is drawn when as many are drawn as there are; one row per round.
    count = len(groups)
    picked = np.random.default_rng(SEED).integers(0, count, (rounds, count))
    places = (picked + count * np.arange(rounds)[:, None]).ravel()
    drawn = np.bincount(places, minlength=rounds * count).reshape(rounds, count).astype(np.float64)
    low, high = np.nanpercentile(_weighted(indexed, drawn), [2.5, 97.5])
    (value,) = _weighted(indexed, np.ones((1, count)))
    return Estimate(value=float(value), low=float(low), high=float(high), pairs=pairs)


def _blocks(
    runs: Sequence[RunReading], point: str
) -> Iterator[tuple[np.ndarray, list[str], list[str]]]:
    """Per source and model: wins of failed runs (rows) over successful ones, and their groups."""
    strata: dict[tuple[str, str], tuple[list[tuple[float, str]], list[tuple[float, str]]]] = {}
    for run in runs:
        if (score := score_at(run, point)) is not None:
            sides = strata.setdefault(run.label.stratum, ([], []))
            sides[not run.label.failed].append((score, run.label.group))
    for failed, successful in strata.values():
        if failed and successful:
            a = np.array([score for score, _ in failed])[:, None]
            b = np.array([score for score, _ in successful])[None, :]
            wins = (a > b) + 0.5 * (a == b)
            yield wins, [group for _, group in failed], [group for _, group in successful]


def _weighted(
    blocks: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], weights: Floats
) -> Floats:
    """Share of the pairs that are won, for each row of weights; NaN where no pair has any. The sums
    are of halves, which floats hold exactly: their order does not matter."""
    won, total = np.zeros(len(weights)), np.zeros(len(weights))
    for wins, rows, columns in blocks:
        above, below = weights[:, rows], weights[:, columns]
        won += np.einsum("ij,ij->i", above @ wins, below)
        total += above.sum(axis=1) * below.sum(axis=1)
    shares = np.full(len(weights), np.nan)
    np.divide(won, total, out=shares, where=total > 0)
    return shares
