"""What handing over or ending runs at each risk would have come to: `python -m lab at-risk`.

Every run is read by weights and words of the other scenarios. The levels that ship are chosen from
these tables; the last one shows what such a choice is worth on scenarios that it did not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from gateway.commands.report import risk_table
from gateway.commands.store import table
from gateway.offline.recordings import parse_recording, read_lines, steps_of
from gateway.reporting.at_risk import RiskCurve, risk_curve
from gateway.steering.acting import AtRisk, AtRiskSettings
from gateway.steering.scoring.risk import LASTING_STEPS, risk_of
from gateway.stores.totals import RISK_LEVELS, RiskSums, count_at_risk
from gateway.text.formatting import percent
from lab.fitting import solve
from lab.heldout import fit_words, splits
from lab.weights import FOLDS, SEED, LabelledRun, fit_risk, folds_of, label_run

LOSSES = (0.0025, 0.005, 0.01)
"""Shares of the solved runs that ending may cost, for which a level is chosen."""
REACHES = (0.05, 0.1, 0.15)
"""Shares of the runs that handing over may reach."""
CHARS_PER_TOKEN = 4
LATER = (3, 5, 8)
"""Steps after handing over at which a run may still be at the level."""


class Watched(NamedTuple):
    """A run with its held-out risks per step, each the least of the newest LASTING_STEPS, and the
    tokens of its calls, by the length of what was said: a call reads all that came before."""

    run: LabelledRun
    lasting: tuple[float, ...]
    tokens: tuple[int, ...]

    def first(self, level: float) -> int | None:
        """The first step, from 1, at which the risk lasted at a level."""
        return next((n for n, risk in enumerate(self.lasting, 1) if risk >= level), None)


def run_at_risk(files: Sequence[Path]) -> int:
    """Print the curves and the chosen levels. Returns the exit status, 0."""
    console = Console(width=120, highlight=False)
    held_out = watched_runs(files)
    for name, runs in held_out.items():
        for works in (True, False):
            found = curve_of(each for each in runs if each.run.works == works)
            kind = "that work on files or programs" if works else "that only talk"
            console.print(f"\n{name} held out: {found.runs} runs {kind}, {found.failed} failed")
            console.print(risk_table(found))
    console.print("\nlevels chosen on other scenarios, for runs that work on files or programs")
    console.print(chosen([each for each in held_out["scenarios"] if each.run.works]))
    return 0


def watched_runs(files: Sequence[Path]) -> dict[str, list[Watched]]:
    """The labelled runs of these files, read by models of other scenarios, and of other sources."""
    sized = []
    for file, number, text in read_lines(files):
        recording = parse_recording(text, f"{file.name}:{number}")
        if (run := label_run(recording)) is not None:
            sizes = [
                len(step.thought) + sum(len(a.arguments) + len(a.observation) for a in step.actions)
                for step in steps_of(recording)
            ]
            sized.append((run, tuple(np.cumsum(sizes) // CHARS_PER_TOKEN)))
    sized.sort(key=lambda each: (each[0].label.id, each[0].digest))
    labelled = [run for run, _ in sized]
    folds = splits(labelled)
    found = {}
    for name, own in {"scenarios": folds["groups"], "sources": folds["sources"]}.items():
        found[name] = list[Watched]()
        for training, judged in own:
            model = fit_risk([labelled[n] for n in training], solve, fit_words)
            for n in judged:
                risks = [risk_of(float(odds)) for odds in model.log_odds(labelled[n])]
                found[name].append(Watched(labelled[n], lasting_of(risks), sized[n][1]))
    return found


def lasting_of(risks: Sequence[float]) -> tuple[float, ...]:
    """Per step, the least of the newest LASTING_STEPS; 0 before there are so many."""
    ends = range(1, len(risks) + 1)
    return tuple([min(risks[n - LASTING_STEPS : n]) if n >= LASTING_STEPS else 0.0 for n in ends])


def curve_of(runs: Iterable[Watched]) -> RiskCurve:
    """The curve of these runs, by the function that makes it for recorded ones."""
    sums: RiskSums = {}
    for each in runs:
        steps = {name: each.first(float(name)) for name in RISK_LEVELS}
        reached = {name: step for name, step in steps.items() if step is not None}
        used = {name: int(sum(each.tokens[:step])) for name, step in reached.items()}
        outcome = "failure" if each.run.label.failed else "success"
        count, whole = len(each.lasting), int(sum(each.tokens))
        count_at_risk(sums, reached, used, outcome=outcome, steps=count, tokens=whole)
    return risk_curve(sums)


def chosen(runs: Sequence[Watched]) -> Table:
    """Per limit, the lowest level in steps of .01 that keeps to it on the other scenarios, and what
    it came to on those that it was not chosen on; then the default settings."""
    later = [f"{steps} later" for steps in LATER]
    shown = table(("limit",), ("levels", "runs", "reached", "failed", "solved lost", *later))
    solved = sum(not each.run.label.failed for each in runs)

    def add(name: str, levels: str, hits: Sequence[tuple[Watched, float]]) -> None:
        failed = sum(each.run.label.failed for each, _ in hits)
        lost = len(hits) - failed
        precision = percent(failed / len(hits) if hits else None, 1)
        shares = (
            percent(len(hits) / len(runs), 1),
            precision,
            f"{lost} ({percent(lost / solved, 1)})",
        )
        later = [_still(hits, steps) for steps in LATER]
        shown.add_row(name, levels, str(len(hits)), *shares, *later)

    fold = folds_of((each.run.label.group for each in runs), FOLDS, SEED)
    limits = [("solved lost", most, True) for most in LOSSES]
    limits += [("runs reached", most, False) for most in REACHES]
    for name, most, solved_only in limits:
        levels, hits = [], list[tuple[Watched, float]]()
        for number in range(FOLDS):
            rest = [each for each in runs if fold[each.run.label.group] != number]
            counted = [each for each in rest if not (solved_only and each.run.label.failed)]
            peaks = sorted((max(each.lasting) for each in counted), reverse=True)
            peak = peaks[int(most * len(peaks))]
            level = np.ceil((peak + 1e-9) * 100) / 100
            levels.append(level)
            own = [each for each in runs if fold[each.run.label.group] == number]
            hits += [(each, level) for each in own if each.first(level)]
        add(f"{percent(most, 2)} {name}", f"{min(levels):.2f} to {max(levels):.2f}", hits)
    shipped, ends = AtRiskSettings(at_risk="end"), list[tuple[Watched, float]]()
    handed = [(each, shipped.hand_over_at) for each in runs if each.first(shipped.hand_over_at)]
    for each in runs:
        found = AtRisk()
        for step, lasting in enumerate(each.lasting, 1):
            found = found.after(step, lasting, shipped)
        if found.ended:
            ends.append((each, shipped.hand_over_at))
    for name, hits, level in (
        ("default, hand over", handed, shipped.hand_over_at),
        ("default, end", ends, shipped.end_at),
    ):
        add(name, f"{level:.2f}", hits)
    return shown


def _still(hits: Sequence[tuple[Watched, float]], steps: int) -> str:
    """`runs (solved)` that are at the level so many steps after they reached it, too."""
    found = []
    for each, level in hits:
        at = (each.first(level) or 0) + steps - 1
        if at < len(each.lasting) and each.lasting[at] >= level:
            found.append(each.run.label.failed)
    return f"{len(found)} ({found.count(False)})"
