"""Fitting the scorer, and judging it."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.errors import ConfigError
from gateway.offline.recordings import RunLabel, parse_recording, read_lines
from gateway.steering.acting import (
    ActionSignal,
    ActSettings,
    expected_precision,
    meets_precision_bar,
)
from gateway.steering.experiments import random_switch
from gateway.steering.fold import RunFold
from gateway.steering.fsm import FSMState
from gateway.steering.monitors import Readings
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibration import (
    FEATURES,
    NEVER,
    SIGNS,
    Peaks,
    calibration_from_json,
    shipped_calibration,
    shipped_words,
)
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step
from lab.evaluation import Estimate, RunReading, auroc, score_at
from lab.fitting import fit_with_figures, run_calibrate
from lab.signals import balanced_precision, signal_rates
from lab.weights import (
    AlarmLevels,
    alarm_levels,
    calibration_to_json,
    fit,
    fit_logistic,
    folds_of,
    label_run,
    trouble_ahead,
)

SAMPLE = Path(__file__).parent / "replays" / "sample.jsonl.gz"


def reading(
    scores: list[float],
    *,
    failed: bool,
    group: str = "g",
    model: str = "m",
    first: dict[str, int] | None = None,
    mistake: int | None = None,
    risks: tuple[float, ...] = (),
    troubles: tuple[float, ...] = (),
    states: tuple[str, ...] = (),
) -> RunReading:
    """One run's reading."""
    return RunReading(
        label=RunLabel(
            id="r", source="s", model=model, group=group, success=not failed, mistake_step=mistake
        ),
        scores=tuple(scores),
        first=first or {},
        risks=risks,
        troubles=troubles,
        states=states,
    )


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third run of the sample, which are enough to fit."""
    texts = [text for _, _, text in read_lines([SAMPLE])][::3]
    path = tmp_path_factory.mktemp("runs") / "few.jsonl"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def labelled(few: Path) -> list[Any]:
    """These runs as calibration sees them."""
    recordings = [parse_recording(text, f"{n}") for _, n, text in read_lines([few])]
    return [run for run in map(label_run, recordings) if run is not None]


def test_the_same_runs_give_the_same_weights_to_the_last_bit(
    few: Path, labelled: list[Any], tmp_path: Path
) -> None:
    """Order of the runs does not matter; the file is the same byte by byte."""
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    out = io.StringIO()
    assert run_calibrate([few], weights=one, as_json=True, out=out, err=io.StringIO()) == 0
    reordered = fit_with_figures(labelled[::-1], words=lambda runs: shipped_words()).calibration
    assert one.read_text() == calibration_to_json(reordered)
    run_calibrate([few], weights=two, as_json=True, out=io.StringIO(), err=io.StringIO())
    assert one.read_bytes() == two.read_bytes()


def test_the_report_holds_both_sides_and_what_the_bars_exclude(
    few: Path, labelled: list[Any]
) -> None:
    """Held-out figures of the new model and the reference's; bars show in the actions."""
    out = io.StringIO()
    bars = ActSettings(act_above={"route_fast": 0.99})
    run_calibrate([few], as_json=True, acting=bars, out=out, err=io.StringIO())
    report, failed = json.loads(out.getvalue()), sum(run.label.failed for run in labelled)
    assert set(report["calibrated"]["all"]["auroc"]) == {"end", "half", "10 steps", "5 steps"}
    assert report["reference"]["all"]["signals"]["alarm"]["failed"].endswith(f"/{failed}")
    fast = next(row for row in report["actions"] if row["action"] == "route_fast")
    assert fast["excluded"] == ["FAST"]
    text = io.StringIO()
    run_calibrate([few], out=text, err=io.StringIO())
    assert "held out: 5 folds by group" in text.getvalue()
    assert "expected precision" in text.getvalue()


def test_weights_push_the_right_way(labelled: list[Any]) -> None:
    """Signs hold on any data, also on outcomes turned round."""
    for runs in (labelled, [_turned(run) for run in labelled]):
        weights = fit(runs).calibration.weights
        for name, weight in zip(FEATURES, weights, strict=True):
            assert weight * SIGNS[name] >= 0


def _turned(run: Any) -> Any:
    return dataclasses.replace(run, label=dataclasses.replace(run.label, success=run.label.failed))


def test_unlabelled_and_empty_runs_teach_nothing() -> None:
    """A run without an outcome or without steps is left out."""
    message = {"role": "assistant", "content": "x"}
    assert label_run(parse_recording(json.dumps({"messages": [message]}), "a")) is None
    assert label_run(parse_recording(json.dumps({"messages": [], "success": True}), "a")) is None


def test_too_little_data_is_refused(labelled: list[Any], tmp_path: Path) -> None:
    """Few runs, one outcome only, or too few groups say nothing, and calibrate says so."""
    with pytest.raises(ConfigError, match="at least 20"):
        fit(labelled[:5])
    with pytest.raises(ConfigError, match="both failed and successful"):
        fit([run for run in labelled if run.label.failed])
    broken = tmp_path / "b.jsonl"
    broken.write_text("{\n", encoding="utf-8")
    err = io.StringIO()
    with pytest.raises(ConfigError):
        run_calibrate([broken], err=err)
    assert "b.jsonl:1: not JSON" in err.getvalue()
    with pytest.raises(ConfigError, match="no such directory"):
        run_calibrate([broken], weights=tmp_path / "missing" / "w.json", err=io.StringIO())


def test_what_tells_agents_apart_earns_no_weight() -> None:
    """A feature that differs between strata but not within them is not learned."""
    draw = np.random.default_rng(0)
    agent = np.arange(400) % 2
    failed = draw.random(400) < np.where(agent, 0.8, 0.2)
    signal = draw.normal(failed.astype(float), 1.0)
    model = fit_logistic(
        np.column_stack([agent, signal]).astype(float),
        failed.astype(float),
        np.ones(400),
        ridge=3.0,
        strata=np.eye(2)[agent],
        stratum_ridge=0.01,
    )
    assert model.weights[1] > 2 * abs(model.weights[0])


def test_trouble_ahead_needs_two_troubled_steps_of_the_next_five() -> None:
    """The step itself does not count, nor what comes later; the last step has no label."""
    found = trouble_ahead([1, 0, 1, 1, 0, 0, 0, 0, 0])
    assert found[:8].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert math.isnan(found[8])
    assert trouble_ahead([]).size == 0


def test_groups_stay_together() -> None:
    """Every group lies in one fold, folds are about equal, the seed decides."""
    groups = [f"g{i % 50}" for i in range(200)]
    folds = folds_of(groups, 5, 1)
    assert (
        sorted({fold: list(folds.values()).count(fold) for fold in range(5)}.values()) == [10] * 5
    )
    assert folds == folds_of(reversed(groups), 5, 1)
    assert folds != folds_of(groups, 5, 2)


def test_the_alarm_level_is_where_few_solved_runs_come(labelled: list[Any]) -> None:
    """Evidence that lasts there is an alarm, a single peak is none; few runs promise no level."""
    solved = [run for run in labelled if not run.label.failed and len(run.steps.totals) > 3]
    many = [solved[n % len(solved)] for n in range(400)]
    evidence = [np.full(len(run.steps.totals), n / 400) for n, run in enumerate(many)]
    levels = alarm_levels(many, evidence)
    reached = [levels.reached(run, own).any() for run, own in zip(many, evidence, strict=True)]
    assert 0 < sum(reached) <= 20
    assert reached[-1]
    peak = np.zeros(len(many[-1].steps.totals))
    peak[2] = 9.0
    assert not levels.reached(many[-1], peak).any()
    few = alarm_levels(solved[:5], evidence[:5])
    assert math.isinf(min(few.works.level(0.05), few.talks.level(0.05)))
    assert not AlarmLevels().reached(many[-1], evidence[-1] + 99.0).any()


def level(value: float) -> Peaks:
    """A level that is set whatever is promised."""
    return Peaks(largest=(value,))


def test_evidence_that_lasts_is_told_on_each_step() -> None:
    """From the third step in a row on, and by the level of the kind of run; without one, never."""
    shipped = shipped_calibration()
    low = replace(
        shipped, risk=replace(shipped.risk, works_alarm=level(9.0), talks_alarm=level(-9.0))
    )
    steps = [Step(index=n, thought="Which number is it?") for n in range(4)]
    run = RunFold(Policy(difficulty=DifficultySettings(calibration=low)))
    assert [run.push(step).risk.likely for step in steps] == [False, False, True, True]
    never = replace(low, risk=replace(low.risk, talks_alarm=NEVER))
    assert calibration_from_json(calibration_to_json(never)) == never
    assert calibration_from_json(calibration_to_json(low)) == low
    known = replace(low, risk=replace(low.risk, works_alarm=Peaks(runs=120, largest=(2.0, 0.5))))
    text = calibration_to_json(known)
    assert calibration_from_json(text) == known
    with pytest.raises(ValueError, match=r"risk\.alarms\.works"):
        calibration_from_json(text.replace('"runs": 120', '"runs": "many"'))
    run = RunFold(Policy(difficulty=DifficultySettings(calibration=never)))
    assert not any(run.push(step).risk.likely for step in steps)


def test_auroc_compares_only_inside_source_and_model() -> None:
    """A score that recognises the model ranks perfectly over all runs and says nothing here."""
    runs = [reading([0.9], failed=True, model="bad", group=f"a{i}") for i in range(5)]
    runs += [reading([0.9], failed=False, model="bad", group="b")]
    runs += [reading([0.1], failed=False, model="good", group=f"c{i}") for i in range(5)]
    runs += [reading([0.1], failed=True, model="good", group="d")]
    figure = auroc(runs, "end", rounds=20)
    assert figure.value == 0.5
    assert figure.pairs == 10


def test_auroc_of_nothing_is_nothing() -> None:
    """Without a pair there is no figure."""
    figure = auroc([reading([0.5], failed=True)], "end", rounds=5)
    assert str(figure) == "-"
    assert str(Estimate(value=0.5, low=0.4, high=0.6, pairs=3)) == "0.500 [0.40, 0.60]"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_points_use_no_run_length_beyond_themselves(scores: list[float]) -> None:
    """End, half and ten steps read the score that stood there."""
    run = reading(scores, failed=True)
    assert score_at(run, "end") == scores[-1]
    assert score_at(run, "half") == scores[max(1, len(scores) // 2) - 1]
    assert score_at(run, "10 steps") == (scores[9] if len(scores) >= 10 else None)


def test_signal_rates_count_first_showings() -> None:
    """Shares per outcome, how much of the run was ahead, how far from the mistake."""
    runs = [
        reading([0.1] * 10, failed=True, first={"streak": 4}, mistake=2),
        reading([0.1] * 10, failed=True),
        reading([0.1] * 10, failed=False, first={"streak": 9}),
        *[reading([0.1] * 10, failed=False) for _ in range(3)],
    ]
    rates = signal_rates(runs, "streak")
    assert (rates.failed_count, rates.successful_count) == ("1/2", "1/4")
    assert rates.ratio == 2.0
    assert rates.ahead == 0.5
    assert rates.distance == 2
    assert signal_rates([*runs[:2], runs[3]], "streak").ratio == math.inf
    assert math.isnan(signal_rates(runs[:2], "streak").ratio)
    assert 0.5 < balanced_precision(runs, "streak") < 1.0
    assert balanced_precision(runs, "never") > 0.4


READINGS = Readings(scores={"streak": 0.8}, fired=("streak",))


def test_actions_are_worth_what_their_signals_are() -> None:
    """Expected precision follows the signals that show, 0.5 without any."""
    known = shipped_calibration()
    assert (
        expected_precision("monitor_text", FSMState.NORMAL, READINGS, known)
        == (known.precision["streak"])
    )
    assert expected_precision("e2", FSMState.NORMAL, None, known) == 0.5
    assert expected_precision("route_slow", FSMState.SLOW, None, known) == known.precision["SLOW"]
    assert expected_precision("route_slow", FSMState.NORMAL, READINGS, known) == 0.5
    assert expected_precision("route_fast", FSMState.FAST, None, known) > 0.5
    assert expected_precision("route_fast", FSMState.SLOW, None, known) == 0.5
    assert expected_precision("e1", FSMState.SLOW, READINGS, known) >= known.precision["streak"]
    with pytest.raises(ValueError, match="not one of"):
        expected_precision("dance", FSMState.FAST, None, known)


def test_the_bar_decides() -> None:
    """An action below its bar is left out, one at or above it is taken."""
    known = shipped_calibration()
    alarm = ActionSignal(state=FSMState.NORMAL, readings=READINGS)
    at = ("monitor_text", alarm, known)
    assert meets_precision_bar(*at, ActSettings())
    assert not meets_precision_bar(*at, ActSettings(act_above={"monitor_text": 1.0}))
    quiet = ActionSignal(state=FSMState.NORMAL)
    bars = ActSettings(act_above={"e2": 1.0, "route_fast": 0.6})
    assert meets_precision_bar("e2", quiet, known, bars)
    assert not meets_precision_bar("route_fast", quiet, known, bars)


@pytest.mark.parametrize("bad", [{"dance": 0.5}, {"e1": 1.5}, {"e1": True}])
def test_bad_bars_are_refused(bad: dict[str, Any]) -> None:
    """Unknown actions and bars outside [0, 1] are refused by name."""
    with pytest.raises(ValueError, match=r"act_above\."):
        ActSettings(act_above=bad)


def test_the_control_arm_acts_by_chance_alone() -> None:
    """The share is kept over many steps, and the same step always gets the same answer."""
    drawn = [random_switch("x", "unit", step, 0.3) for step in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.3, abs=0.04)
    assert drawn == [random_switch("x", "unit", step, 0.3) for step in range(2000)]
    assert not any(random_switch("x", "unit", step, 0.0) for step in range(50))
