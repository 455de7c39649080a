"""Risk on real sessions, where the label is what the person does next: `python -m lab people`.

A run is *corrected* where the person then says that it is wrong (`fix`), steers it, or interrupts
it for that, and *accepted* where the person says go on or gives a new task. Pairs are compared
inside one developer; the weights of what people correct are fitted on the others.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError
from gateway.offline.recordings import read_lines
from gateway.steering.fold import ConversationFold, StepOutcome
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibration import PeopleWeights, shipped_calibration
from gateway.steering.scoring.risk import LedRun, RiskModel
from lab.fitting import solve
from lab.weights import Array, fit_logistic

CORRECTED, ACCEPTED = ("fix", "steer"), ("go", "new")
RIDGE = 5.0
FEW_RUNS = 20  # labelled runs below which developers are put together
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run as it was when the person wrote. `features`: logarithm of its edits, and whether it
    asks; `task`: evidence by its steps; `led`: the person led it; `counts`: single numbers."""

    session: str
    developer: str
    corrected: bool
    features: tuple[float, float]
    task: float
    led: bool
    counts: Mapping[str, float]


def read_session(line: str) -> dict[str, Any]:
    """A recorded session; a backslash that begins no escape stands for itself."""
    try:
        found = json.loads(line, strict=False)
    except ValueError:
        mended = _ESCAPE.sub(lambda match: match[0] if match[1] else r"\\", line)
        found = json.loads(mended, strict=False)
    return dict(found)


def ended_runs(sessions: Path, said: Path) -> list[Ended]:
    """The runs before each labelled message or interruption."""
    labels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _, _, line in read_lines([said]):
        row = json.loads(line)
        if row["kind"] != "reject" and row["category"] in (*CORRECTED, *ACCEPTED):
            labels[row["session"]].append(row)
    found: list[Ended] = []
    for _, _, line in read_lines([sessions]):
        session = read_session(line)
        found += _of_session(session, labels[session["id"]])
    return found


def _of_session(session: Mapping[str, Any], labels: Sequence[Mapping[str, Any]]) -> Iterator[Ended]:
    fold = ConversationFold(Policy())
    for label in sorted(labels, key=lambda label: int(label["at"])):
        fold.extend(session["messages"][: label["at"]])
        run = fold.current
        yield _ended(session, label, [*run.outcomes], after=run.index > 0)


def _ended(
    session: Mapping[str, Any],
    label: Mapping[str, Any],
    outcomes: Sequence[StepOutcome],
    *,
    after: bool,
) -> Ended:
    shipped = shipped_calibration()
    plain = RiskModel(replace(shipped, risk=replace(shipped.risk, people=None)))
    people = LedRun(PeopleWeights(edits=1.0), led=after)
    edits, led = 0.0, after
    for outcome in outcomes:
        plain.push(outcome.observed)
        led = people.push(outcome.observed, works=plain.works) is not None
        edits += sum([len(action.edits) for action in outcome.observed.facts.actions])
    edits = float(np.log1p(edits))
    newest = outcomes[-1] if outcomes else None
    asks = float(newest.observed.facts.asks) if newest is not None else 0.0
    return Ended(
        session=session["id"],
        developer=session["who"],
        corrected=label["category"] in CORRECTED,
        features=(edits, asks),
        task=plain.log_odds,
        led=led,
        counts={
            "edits": edits,
            "steps": float(len(outcomes)),
            "difficulty": newest.difficulty if newest is not None else 0.0,
        },
    )


def fit_people(runs: Sequence[Ended]) -> PeopleWeights:
    """The weights by these runs; each developer has an intercept."""
    developers = sorted({run.developer for run in runs})
    features = np.array([run.features for run in runs])
    model = fit_logistic(
        features,
        np.array([float(run.corrected) for run in runs]),
        np.ones(len(runs)),
        ridge=RIDGE,
        strata=np.array([[float(run.developer == name) for name in developers] for run in runs]),
        solve=solve,
    )
    weights, _ = model.linear()
    edits, asks = (float(f"{each:.3g}") for each in weights)
    average = float(f"{float((features @ weights).mean()):.3g}")
    return PeopleWeights(average=average, edits=edits, asks=asks)


def held_out(runs: Sequence[Ended]) -> Array:
    """The evidence of each run, by weights of other developers."""
    found = np.zeros(len(runs))
    owners = _owners(runs)
    for owner in sorted(set(owners)):
        others = [run for run, own in zip(runs, owners, strict=True) if own != owner]
        weights = fit_people(others)
        for number, (run, own) in enumerate(zip(runs, owners, strict=True)):
            if own == owner:
                found[number] = _evidence(run, weights)
    return found


def _evidence(run: Ended, weights: PeopleWeights) -> float:
    edits, asks = run.features
    return weights.edits * edits + weights.asks * asks - weights.average if run.led else run.task


def _owners(runs: Sequence[Ended]) -> list[str]:
    names = [run.developer for run in runs]
    return [name if names.count(name) >= FEW_RUNS else "others" for name in names]


def inside(runs: Sequence[Ended], values: Array, kept: Callable[[Ended, str], bool]) -> float:
    """Chance that a corrected run has more than an accepted one of the same developer."""
    owners = _owners(runs)
    won = pairs = 0.0
    for owner in sorted(set(owners)):
        own = [n for n, name in enumerate(owners) if name == owner and kept(runs[n], name)]
        a = np.array([values[n] for n in own if runs[n].corrected])[:, None]
        b = np.array([values[n] for n in own if not runs[n].corrected])[None, :]
        won += float(((a > b) + 0.5 * (a == b)).sum())
        pairs += a.size * b.size
    return won / pairs if pairs else float("nan")


def _is_of(name: str, run: Ended, owner: str) -> bool:
    return owner == name


def run_people(sessions: Path, said: Path, *, out: TextIO | None = None) -> int:
    """Print the figures and the weights by all developers. Returns the exit status, 0."""
    runs = ended_runs(sessions, said)
    if len({run.corrected for run in runs}) < 2 or len(set(_owners(runs))) < 2:
        raise ConfigError(f"{said}: labelled runs of both kinds and of two developers are needed")
    half = {name: number % 2 for number, name in enumerate(sorted({run.session for run in runs}))}
    parts: dict[str, Callable[[Ended, str], bool]] = {
        "all": lambda run, owner: True,
        "first half": lambda run, owner: half[run.session] == 0,
        "second half": lambda run, owner: half[run.session] == 1,
    }
    for name in sorted(set(_owners(runs))):
        parts[name] = partial(_is_of, name)
    rows = {"risk, other developers' weights": held_out(runs)}
    rows["risk by its steps alone"] = np.array([run.task for run in runs])
    for name in runs[0].counts:
        rows[name] = np.array([run.counts[name] for run in runs])
    corrected = sum(run.corrected for run in runs)
    title = f"corrected against accepted, {len(runs)} runs, {corrected} corrected"
    table = Table("", *parts, title=f"{title}; AUROC inside a developer", title_justify="left")
    for name, values in rows.items():
        table.add_row(name, *[f"{inside(runs, values, kept):.3f}" for kept in parts.values()])
    console = Console(file=out or sys.stdout, width=140, highlight=False)
    console.print(table)
    console.print(f"weights by all: {fit_people(runs)}", markup=False)
    return 0
