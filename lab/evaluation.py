"""Labelled runs as they were replayed, and what the tables of the laboratory share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from gateway.core.monitors import SuiteName
from gateway.core.scoring.scorer import ScorerName
from gateway.errors import ConfigError
from gateway.offline.playback import Replayed, ReplayPolicy
from gateway.offline.recordings import RunLabel
from lab.comparison import Side

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """One finished run of so many `steps` as it was read. `first`: signal (a monitor, FAST, SLOW,
    SKIP, alarm) to the first step that shows it, if any. `states`: after each step."""

    label: RunLabel
    steps: int
    first: Mapping[str, int]
    states: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """True for a run whose outcome is known to be a failure."""
        return self.label.success is False


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


def readings(kept: Iterable[Replayed], side: Side) -> list[RunReading]:
    """The labelled runs of one side, for the evaluation."""
    found = []
    for played in filter(None, map(side, kept)):
        steps = played["steps"]
        if played["success"] is not None and steps:
            reading = RunReading(
                label=RunLabel(**{field.name: played[field.name] for field in fields(RunLabel)}),
                steps=len(steps),
                first=played["first"],
                states=tuple(step["state"] for step in steps),
            )
            found.append(reading)
    return found


def with_scorer(policy: ReplayPolicy, scorer: ScorerName | None, suite: SuiteName) -> ReplayPolicy:
    """The same policy with another suite and scorer, None = its own, for recordings that are one
    task each. A labelled recording counts as one run, because its outcome is that of the whole
    recording."""
    core = policy.rules.policy
    difficulty = replace(core.difficulty, scorer=scorer or core.difficulty.scorer)
    monitors = replace(core.monitors, suite=suite)
    core = replace(core, difficulty=difficulty, monitors=monitors, run_boundary="never")
    return replace(policy, rules=structs.replace(policy.rules, policy=core))


def folds_of(groups: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Each group's fold, the same for the same groups and seed."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[position]: i % folds for i, position in enumerate(order)}


def write_output(path: Path, text: str) -> None:
    """Write an output file of a command. Raises ConfigError: it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
