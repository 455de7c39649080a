"""Signals in failed and in successful runs: how often, how early, and how precise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.evaluation import RunReading

CODING = "swe-"  # prefix of the sources whose agents repair code
_NAN, _INFINITE = float("nan"), float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRates:
    """Share of the runs that show a signal at all. `failed`, `successful`: share of these runs that
    show it, each with its count such as "7/171". `ahead`: median share of a failed run that is left
    when the signal first appears. `distance`: median steps from the labelled mistake to that
    moment, None without labels."""

    failed: float
    failed_count: str
    successful: float
    successful_count: str
    ahead: float
    distance: float | None

    @property
    def ratio(self) -> float:
        """Failed over successful; infinite when no successful run shows the signal."""
        if self.successful:
            return self.failed / self.successful
        return _INFINITE if self.failed else _NAN


def signal_rates(runs: Sequence[RunReading], signal: str) -> SignalRates:
    """The rates of one signal over `runs`."""
    failed, successful, false = _counts(runs, signal)
    hits = [run for run in failed if signal in run.first]
    ahead = [1 - (run.first[signal] + 1) / run.steps for run in hits]
    mistakes = [(run.first[signal], run.label.mistake_step) for run in hits]
    distance = [first - mistake for first, mistake in mistakes if mistake is not None]
    return SignalRates(
        failed=len(hits) / len(failed) if failed else _NAN,
        failed_count=f"{len(hits)}/{len(failed)}",
        successful=false / successful if successful else _NAN,
        successful_count=f"{false}/{successful}",
        ahead=float(np.median(ahead)) if ahead else _NAN,
        distance=float(np.median(distance)) if distance else None,
    )


def _counts(runs: Sequence[RunReading], signal: str) -> tuple[list[RunReading], int, int]:
    """The failed runs, the number of successful ones, and of those that show the signal."""
    successful = [run for run in runs if not run.failed]
    shown = sum(signal in run.first for run in successful)
    return [run for run in runs if run.failed], len(successful), shown


def by(runs: Iterable[RunReading], key: Callable[[RunReading], str]) -> dict[str, list[RunReading]]:
    """The runs by a key, in order of the key."""
    parts: dict[str, list[RunReading]] = {}
    for run in runs:
        parts.setdefault(key(run), []).append(run)
    return dict(sorted(parts.items()))
