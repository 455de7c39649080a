"""The ledger: no number without a comparison, and intervals that hold the truth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.features.reports.savings import Saving, savings
from gateway.stores.stopped_by import Stop
from gateway.stores.totals import ExperimentRun
from tests.features.reports.builders import a_run

COSTS = st.none() | st.floats(0.001, 50)
ARMS = st.sampled_from(["on", "shadow", "off", None])


@st.composite
def some_runs(draw: st.DrawFn, experiment: str = "e") -> list[ExperimentRun]:
    """Runs of one experiment, of known and of unknown cost, some with several runs a unit."""
    return [
        a_run(
            number,
            id=f"{experiment}-{number}",
            experiment=experiment,
            arm=draw(ARMS),
            unit=f"u{draw(st.integers(0, 20))}",
            cost_usd=draw(COSTS),
            saved_usd=draw(st.none() | st.floats(-5, 5)),
            outcome=draw(st.sampled_from(["success", "failure", None])),
            text_chars=draw(st.sampled_from([0, 0, 400, -1])),
            calls=draw(st.integers(0, 9)),
        )
        for number in range(draw(st.integers(0, 40)))
    ]


def of(rows: list[Saving], act: str) -> Saving | None:
    return next((row for row in rows if row.act == act), None)


def units(runs: list[ExperimentRun], arm: str) -> int:
    return len({r.unit for r in runs if r.arm == arm and r.cost_usd is not None})


@given(some_runs())
def test_no_number_without_a_comparison(runs: list[ExperimentRun]) -> None:
    """Steering has a number only with enough units of known cost in both arms; an unknown price is
    never 0; each row that has a number says what it is against."""
    rows = savings(runs)
    arms = {run.arm for run in runs}
    control = "off" if "off" in arms else "shadow"
    enough = "on" in arms and min(units(runs, "on"), units(runs, control)) >= 5
    found = of(rows, "steering in e")
    assert (found is not None and found.saved_usd is not None) == enough
    alone = savings([replace(run, experiment=None) for run in runs])
    assert of(alone, "steering in e") is None
    assert of(alone, "guidance, lessons, hand-over") is not None
    assert (of(rows, "guidance, lessons, hand-over") is None) == (found is not None)
    routing = of(rows, "routing")
    assert routing is not None
    assert (routing.saved_usd is None) == all(run.saved_usd is None for run in runs)
    for row in rows:
        assert row.baseline
        assert row.saved_usd is None or row.spent_usd is not None
        assert row.reach_usd is None or row.reach_usd >= 0
    texts = of(rows, "texts that steering added")
    priced = [r for r in runs if r.text_chars > 0 and r.cost_usd is not None]
    if texts is not None:
        assert (texts.saved_usd is None) == (not priced)
        assert texts.saved_usd is None or texts.saved_usd < 0


@given(some_runs())
def test_swapping_the_arms_flips_the_sign(runs: list[ExperimentRun]) -> None:
    """Per run: the saving of one arm is the loss of the other."""
    runs = [r for r in runs if r.arm in ("on", "shadow")]
    other = [replace(r, arm="on" if r.arm == "shadow" else "shadow") for r in runs]
    one, two = (of(savings(each), "steering in e") for each in (runs, other))
    if one is not None and two is not None and one.saved_usd is not None:
        assert two.saved_usd is not None
        assert one.saved_usd / one.runs == pytest.approx(-two.saved_usd / two.runs, abs=1e-9)


@given(some_runs(), some_runs("another"))
def test_runs_of_other_experiments_change_nothing(
    runs: list[ExperimentRun], others: list[ExperimentRun]
) -> None:
    """The row of an experiment is made of its own runs."""
    alone, together = (of(savings(each), "steering in e") for each in (runs, [*runs, *others]))
    assert alone == together


@pytest.mark.parametrize("factor", [1.0, 0.8, 1.3])
def test_the_interval_holds_the_true_saving(factor: float) -> None:
    """Of 300 ledgers at a known effect at least 90 % hold it; two runs a unit, skewed costs."""
    held = 0
    for seed in range(300):
        chance = random.Random(seed)
        runs = []
        for unit in range(80):
            arm, usual = chance.choice(("on", "shadow")), chance.gauss(0, 0.5)
            for number in range(2):
                cost = 2.718281828 ** (usual + chance.gauss(0, 0.5)) * (
                    factor if arm == "on" else 1
                )
                changes = {"arm": arm, "unit": f"u{unit}", "cost_usd": cost, "experiment": "e"}
                runs.append(a_run(2 * unit + number, **changes))
        row = of(savings(runs), "steering in e")
        assert row is not None
        assert row.saved_usd is not None
        assert row.reach_usd is not None
        # The mean of a lognormal of variance .5 is exp(.25).
        held += abs(row.saved_usd - (1 - factor) * 1.2840254 * row.runs) <= row.reach_usd
    print(f"factor {factor}: {held} of 300")
    assert held >= 270


def test_rows_in_words() -> None:
    """A dearer model is a loss; stopped runs are not saved; an unknown price is said."""
    stop = Stop(action="stop", by="budget", why="over the limit")
    runs = [
        a_run(n, saved_usd=-0.1, text_chars=400, calls=3, stopped=stop if n < 2 else None)
        for n in range(6)
    ]
    runs.append(a_run(9, cost_usd=None, calls=4, text_chars=400))
    rows = {row.act: row for row in savings(runs, reader_tokens=1000)}
    routing = rows["routing"]
    assert routing.saved_usd == pytest.approx(-0.6)
    assert routing.reach_usd == pytest.approx(0.0)
    assert (routing.runs, routing.spent_usd) == (6, 3.0)
    assert routing.note == "1 run (4 calls) without all prices left out"
    assert rows["guidance, lessons, hand-over"].note == "no comparison: run `gateway pilot start`"
    assert rows["guidance, lessons, hand-over"].saved_usd is None
    stopped = rows["runs stopped"]
    assert (stopped.saved_usd, stopped.spent_usd) == (None, 1.0)
    assert stopped.note.startswith("2 stopped by a budget")
    texts = rows["texts that steering added"]
    # 100 of the 1,000 tokens of each of six runs at $0.50.
    assert texts.saved_usd == pytest.approx(-0.3)
    assert "1 run of unknown price or text left out" in texts.note
    model = rows["the reader's model"]
    assert (model.saved_usd, model.spent_usd) == (None, None)
    assert model.note.endswith("of unknown price")


def test_an_empty_ledger_has_no_number() -> None:
    """Both rows that are always there say so."""
    assert [(row.saved_usd, row.runs) for row in savings([])] == [(None, 0)] * 2
