"""The calibrated scorer and its weights file."""

from __future__ import annotations

import json
import random
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.steering.evidence.observation import RunObserver
from gateway.steering.scoring.calibrated import NEUTRAL, CalibratedScorer, StretchFeatures
from gateway.steering.scoring.calibration import (
    FEATURES,
    SHIPPED,
    SIGNS,
    calibration_from_json,
    shipped_calibration,
)
from gateway.steering.scoring.scorer import DifficultySettings, make_scorer
from gateway.steering.transcript.steps import Action, Step
from tests.examples import examples
from tests.steering.robust.planting import edit_test_edit, identical_call, pagination, say, step
from tests.steering.robust.test_planted import coding_run


def scores(steps: list[Step]) -> list[float]:
    """The scores of a run under the shipped weights."""
    scorer = CalibratedScorer(DifficultySettings())
    return [scorer.push(each) for each in steps]


def test_a_loop_raises_the_score_and_recovery_lowers_it() -> None:
    """Hard within four repetitions; below 0.6 three steps after the loop, easy after eight."""
    rng = random.Random(1)
    healthy = coding_run(1)
    loop = identical_call(rng, healthy, 8)
    found = scores([*healthy, *loop, *pagination(rng, healthy)])
    start, end = len(healthy), len(healthy) + len(loop)
    assert found[start - 1] < 0.3
    assert found[start + 4] > 0.6
    assert found[end + 2] < 0.6
    assert found[end + 7] < 0.2


def test_the_number_of_the_step_changes_nothing() -> None:
    """The same stretch late in a run is as hard as early; an unknown one is neither."""
    stretch = [step("search", {"query": f"q{n}"}, f"found {n} things") for n in range(300)]
    found = scores(stretch)
    assert found[299] == pytest.approx(found[40], abs=0.02)
    assert scores([say("")])[0] == pytest.approx(NEUTRAL, abs=0.05)


def test_a_run_of_failing_tools_is_harder_than_one_of_working_ones() -> None:
    """Terse thoughts do not hide failing tools."""
    good = [step("bash", {"command": f"./do {i}"}, f"done part {i} of the job") for i in range(8)]
    bad = [step("bash", {"command": f"./do {i}"}, f"Error: part {i} broke") for i in range(8)]
    assert scores(bad)[-1] > scores(good)[-1]


def test_waiting_for_a_job_costs_nothing() -> None:
    """A poll that finds the job running does not make the run harder."""
    waits = [step("job_status", {"id": 1}, '{"status": "running"}') for _ in range(10)]
    found = scores([*coding_run(4), *waits])
    assert found[-1] <= found[-11] + 0.01


def test_tests_that_fail_less_are_progress() -> None:
    """The same call with another result is easier than the same without."""
    rng = random.Random(5)
    moving = edit_test_edit(rng, [], 4)
    stuck = [moving[0], moving[1]] * 5
    assert scores(moving)[-1] < scores(stuck)[-1]


def test_thoughts_of_tool_less_agents_are_scored_too() -> None:
    """A run without a single call has scores like any other."""
    assert all(0.0 < score < 1.0 for score in scores([say("hello")] * 10))


def test_the_scorer_is_the_one_that_config_names() -> None:
    """`difficulty.scorer: calibrated` gives the shipped scorer."""
    scorer = make_scorer(DifficultySettings(scorer="calibrated"))
    assert scorer.push(say("x")) == CalibratedScorer(DifficultySettings()).push(say("x"))


texts = st.text(max_size=80)
actions = st.builds(
    Action,
    name=st.sampled_from(["bash", "edit", "search", "", "run_tests"]),
    arguments=texts | st.sampled_from(['{"command": "pytest"}', '{"path": "a", "text": "b"}']),
    observation=texts | st.just("Error: no"),
    is_error=st.booleans(),
)
steps = st.builds(
    Step,
    index=st.just(0),
    thought=texts,
    reasoning=texts,
    actions=st.lists(actions, max_size=3).map(tuple),
)


@examples(50)
@given(st.lists(steps, max_size=12))
def test_scores_are_numbers_in_range_for_any_run(run: list[Step]) -> None:
    """Whatever the steps hold, every score lies strictly between 0 and 1."""
    assert all(0.0 < score < 1.0 for score in scores(run))


@examples(50)
@given(st.lists(steps, max_size=10), st.lists(steps, max_size=5))
def test_a_score_uses_nothing_after_its_step(run: list[Step], later: list[Step]) -> None:
    """What follows a step does not change its score."""
    assert scores([*run, *later])[: len(run)] == scores(run)


@examples(50)
@given(st.lists(steps, min_size=1, max_size=10))
def test_trouble_never_lowers_a_score(run: list[Step]) -> None:
    """Each weight pushes its feature's way: the score is monotone in every feature."""
    observer, features = RunObserver(), StretchFeatures()
    for each in run:
        features.push(observer.observe(each))
    values = features.values()
    calibration = shipped_calibration()
    for i, name in enumerate(FEATURES):
        worse = [*values]
        worse[i] += SIGNS[name] * 0.1
        assert calibration.log_odds(tuple(worse)) >= calibration.log_odds(values)


def test_the_shipped_weights_say_where_they_come_from() -> None:
    """Data digest, size, seed and held-out figures travel with the weights."""
    provenance = shipped_calibration().provenance
    assert len(provenance["data_sha256"]) == 64
    assert provenance["runs"] > 600
    difficulty = provenance["held_out"]["difficulty"]
    assert difficulty["auroc"]["pooled"] >= 0.9
    assert difficulty["auroc"]["inside_runs"] >= 0.73
    assert abs(difficulty["step_correlation"]["median"]) <= 0.25
    assert difficulty["states"]["FAST"]["commonest_share"] <= 0.35
    assert provenance["method"]["seed"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "format"),
        ({"format": True}, "format"),
        ({"bias": "x"}, "bias: expected a finite number"),
        ({"bias": None}, "bias: a finite number is missing"),
        ({"weights": {}}, r"weights\.trouble\.newest: a finite number is missing"),
        ({"weights": [1]}, "weights: expected an object"),
        ({"weights": {"novelty": 1}}, r"weights\.novelty: unknown"),
    ],
)
def test_a_bad_weights_file_is_refused_with_the_key(change: dict, message: str) -> None:
    """What is wrong with a weights file is said by its key."""
    shipped = resources.files("gateway.steering.scoring").joinpath(SHIPPED).read_text()
    data = json.loads(shipped) | change
    with pytest.raises(ValueError, match=message):
        calibration_from_json(json.dumps(data))


def test_text_that_is_no_json_is_refused() -> None:
    """A weights file that is no JSON is named as such."""
    with pytest.raises(ValueError, match="not JSON"):
        calibration_from_json("{")


def test_a_weight_of_the_wrong_sign_is_refused() -> None:
    """Evidence of trouble must not lower a score."""
    shipped = shipped_calibration()
    wrong = tuple(-weight for weight in shipped.weights)
    with pytest.raises(ValueError, match="wrong way"):
        replace(shipped, weights=wrong)
    with pytest.raises(ValueError, match="expected 22"):
        replace(shipped, weights=shipped.weights[:3])
    with pytest.raises(ValueError, match="bias"):
        replace(shipped, bias=float("nan"))
