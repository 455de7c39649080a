"""Settings, weights, composite and failure type: what all suites share."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import (
    FAILURE_TYPES,
    MONITORS,
    PROFILES,
    MonitorSettings,
    Readings,
    RobustSettings,
    SuiteName,
    combine,
    make_suite,
)
from gateway.core.monitors.reference import ReferenceSuite
from gateway.core.monitors.table import TABLE, monitor_classes
from gateway.steering.evidence.action_facts import describe
from tests.steering.builders import acts, evaluate, evaluate_reference, reference, thinks

SCORES = st.fixed_dictionaries({name: st.floats(0, 1) for name in MONITORS})


def combined(scores: dict[str, float], settings: MonitorSettings | None = None) -> Readings:
    settings = settings or reference()
    full = {name: scores.get(name, 0.0) for name in MONITORS}
    weights, fire = settings.resolved_weights(), settings.fire_threshold
    return combine(full, {}, weights=weights, fire_threshold=fire)


def test_the_six_monitors_and_their_order() -> None:
    """C15: the six of the monitors page, in its order."""
    assert MONITORS == ("streak", "call_count", "edit_revert", "test_repeat", "diversity", "hedge")
    assert tuple(evaluate_reference([]).scores) == MONITORS


def test_the_composite_is_the_weighted_sum() -> None:
    """0.35 x streak + 0.15 x call_count + edit_revert + test_repeat, + 0.10 x diversity, hedge."""
    weights = reference().resolved_weights()
    assert weights == dict(zip(MONITORS, (0.35, 0.15, 0.15, 0.15, 0.10, 0.10), strict=True))
    assert combined(dict.fromkeys(MONITORS, 1.0)).composite == 1.0
    assert combined({"streak": 1.0, "hedge": 0.5}).composite == 0.4


@pytest.mark.parametrize(
    ("profile", "weights"),
    [
        ("coding", (0.35, 0.15, 0.15, 0.15, 0.10, 0.10)),
        ("pr_review", (0.45, 0.15, 0.0, 0.0, 0.20, 0.20)),
        ("qa", (0.30, 0.05, 0.05, 0.10, 0.15, 0.35)),
    ],
)
def test_the_built_in_profiles(profile: str, weights: tuple[float, ...]) -> None:
    """C16: coding as the monitors page, pr_review and qa from the second generation."""
    settings = reference(profile=profile)
    assert settings.resolved_weights() == dict(zip(MONITORS, weights, strict=True))


def test_useful_numbers() -> None:
    """Two equal calls give at least 0.155, three 0.2325; eight shell calls 0.51; rotation 0.09."""
    assert evaluate_reference([acts("x"), acts("x")]).composite == 0.155
    assert evaluate_reference([acts("x")] * 3).composite == 0.2325
    shell = evaluate_reference([acts("bash", observation="plain")] * 8)
    assert (shell.composite, shell.scores["streak"], shell.scores["diversity"]) == (0.51, 1, 1)
    rotation = evaluate_reference([acts(name) for name in ("read", "edit", "check")] * 4)
    assert (rotation.composite, rotation.fired) == (0.09, ("call_count",))


def test_the_composite_is_rounded_to_four_decimals() -> None:
    """total = sum of weight x score, rounded to 4 decimals (C33: never the largest score)."""
    assert combined({"streak": 1 / 3}).composite == 0.1167


def test_a_monitor_fires_at_the_threshold() -> None:
    """Fires at score >= 0.6, in the order of the monitors (C21: whatever is done about it)."""
    readings = combined({"hedge": 0.6, "streak": 0.6, "diversity": 0.59})
    assert readings.fired == ("streak", "hedge")


def test_the_failure_type_is_the_label_of_the_worst_weighted_fired_monitor() -> None:
    """C26: loop, budget, edit_revert, test_repeat, diversity, hedge; none when none fired."""
    assert combined({"streak": 0.6, "test_repeat": 1.0}).failure_type == "loop"
    assert combined({"streak": 0.5, "test_repeat": 1.0}).failure_type == "test_repeat"
    assert combined({"call_count": 1.0, "edit_revert": 1.0}).failure_type == "budget"
    assert combined({"streak": 0.59}).failure_type is None
    assert list(FAILURE_TYPES.values()) == [
        "loop",
        "budget",
        "edit_revert",
        "test_repeat",
        "diversity",
        "hedge",
    ]


def test_a_fired_monitor_of_weight_zero_still_names_the_failure() -> None:
    """With nothing else fired its label is all there is to say."""
    settings = reference(profile="pr_review")
    assert combined({"test_repeat": 1.0}, settings).failure_type == "test_repeat"


@given(SCORES, st.sampled_from(sorted(PROFILES)))
def test_readings_follow_from_the_scores(scores: dict[str, float], profile: str) -> None:
    """The composite stays in [0, 1] under every profile; a failure type means something fired."""
    readings = combined(scores, reference(profile=profile))
    assert 0.0 <= readings.composite <= 1.0001
    assert (readings.failure_type is None) == (not readings.fired)
    assert readings.fired == tuple(name for name in MONITORS if scores[name] >= 0.6)


def test_overrides_come_last_and_are_clamped() -> None:
    """Defaults <- profile <- overrides; negatives become 0, each weight at most 1."""
    settings = reference(profile="qa", weights={"streak": 7, "hedge": -1})
    weights = settings.resolved_weights()
    assert (weights["streak"], weights["hedge"], weights["diversity"]) == (1.0, 0.0, 0.15)


def test_an_own_profile_keeps_default_weights_it_does_not_name() -> None:
    """Custom profiles live beside the built-in ones."""
    settings = reference(profile="mine", profiles={"mine": {"streak": 0.5}})
    assert settings.resolved_weights() == {**PROFILES["coding"], "streak": 0.5}


def test_only_listed_monitors_run() -> None:
    """C34: `monitors` is an allowlist; the others are neither scored nor weighed."""
    settings = reference(monitors=("hedge", "streak"))
    readings = evaluate_reference([acts("bash", thought="never mind")] * 9, settings)
    assert readings.scores == {"streak": 1.0, "hedge": 1.0}
    assert readings.composite == 0.45
    assert evaluate_reference([acts("bash")], reference(monitors=())).scores == {}


def test_the_parameters_of_the_monitors_can_be_set() -> None:
    """cap 5, budget 20, window 5 and minimum 8 are defaults."""
    settings = reference(streak_cap=2, call_budget=4, diversity_window=2, diversity_min_total=2)
    scores = evaluate_reference([acts("a"), acts("a")], settings).scores
    assert (scores["streak"], scores["call_count"], scores["diversity"]) == (1.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"profile": "x"}, "profile: 'x' is not one of coding, pr_review, qa"),
        ({"weights": {"loop": 1}}, "weights: 'loop' is not one of streak"),
        ({"profiles": {"qa": {}}}, "profiles.qa: a built-in profile cannot be changed"),
        ({"profiles": {"p": {"x": 1}}}, "profiles.p: 'x' is not one of streak"),
        ({"monitors": ("streak", "x")}, "monitors: 'x' is not one of streak"),
        ({"fire_threshold": 0}, r"fire_threshold: expected a number in \(0, 1\], got 0"),
        ({"fire_threshold": math.nan}, "fire_threshold: expected a number"),
        ({"streak_cap": 0}, "streak_cap: expected a whole number of at least 1, got 0"),
        ({"call_budget": 0}, "call_budget: expected a whole number"),
    ],
)
def test_bad_settings_are_refused_by_field(values: dict[str, Any], message: str) -> None:
    """Unknown names and values out of range never load, and the message says where."""
    with pytest.raises(ValueError, match=message):
        MonitorSettings(**{"suite": "reference", **values})


def test_evaluate_takes_plain_records_and_steps_alike() -> None:
    """Step records are accepted as mappings, mixed with steps (C14: one implementation)."""
    record = {"action": "bash", "action_input": None, "thought": "maybe", "observation": 5}
    mixed = evaluate_reference([record, acts("bash", thought="maybe")])
    assert mixed == evaluate_reference([acts("bash", thought="maybe")] * 2)


def test_an_unreadable_input_counts_as_empty_text() -> None:
    """Only strings count as action_input; an object gives no path and no trigrams."""
    edits = [
        {"action": "edit", "action_input": {"path": "a.py", "new": str(i)}, "is_error": True}
        for i in range(3)
    ]
    assert evaluate_reference(edits).scores["edit_revert"] == 0.0


def test_the_robust_suite_is_the_default() -> None:
    """It raises far fewer alarms on successful runs (`python -m lab evidence`)."""
    assert MonitorSettings().suite == "robust"


def test_a_suite_is_made_afresh_each_time() -> None:
    """Two runs share nothing."""
    first, second = make_suite(reference()), make_suite(reference())
    assert isinstance(first, ReferenceSuite)
    first.push(Ledger(describe).observe(thinks("never mind")))
    assert second.readings().scores["hedge"] == 0


LOADED = """
import sys
from gateway.core.monitors import MonitorSettings, make_suite

make_suite(MonitorSettings(suite=sys.argv[1]))
print(*[name for name in sys.modules if name.startswith("gateway.core.monitors.")])
"""


@pytest.mark.parametrize(
    ("suite", "module", "other"),
    [("robust", "robust", "reference"), ("reference", "reference", "robust")],
)
def test_only_the_suite_in_use_is_imported(suite: str, module: str, other: str) -> None:
    """The module of a suite costs nothing until it is used."""
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, suite], capture_output=True, text=True, check=True
    )
    loaded = ended.stdout.split()
    assert f"gateway.core.monitors.{module}" in loaded
    assert not [name for name in loaded if name.startswith(f"gateway.core.monitors.{other}")]


@pytest.mark.parametrize("suite", get_args(SuiteName))
def test_every_row_names_a_class_that_exists(suite: SuiteName) -> None:
    """A misspelled reference fails here, not at the first request."""
    assert tuple(monitor_classes(suite)) == MONITORS
    assert MonitorSettings(suite=suite).active == MONITORS


def test_three_monitors_raise_alarms_and_the_others_can_be_switched_on() -> None:
    """Length, diversity and hedging are readings until real sessions prove them; in the reference
    all six fire."""
    assert MonitorSettings().alarming == {"streak", "test_repeat", "edit_revert"}
    assert MonitorSettings(suite="reference").alarming == set(MONITORS)
    long_run = [acts(f"tool_{n}", observation=f"news {n}") for n in range(12)]
    settings = MonitorSettings(robust=RobustSettings(call_budget=10))
    assert evaluate(long_run, settings).fired == ()
    assert evaluate(long_run, settings).scores["call_count"] >= 0.6
    listed = MonitorSettings(robust=RobustSettings(call_budget=10), alarms=("call_count",))
    found = evaluate(long_run, listed)
    assert found.fired == ("call_count",)
    assert [alarm.monitor for alarm in found.alarms] == ["call_count"]
    with pytest.raises(ValueError, match="alarms: 'stopped' is not one of"):
        MonitorSettings(alarms=("stopped",))


def test_texts_have_one_place_for_the_evidence() -> None:
    """A text without it, or with another placeholder, would hide what the monitor saw."""
    for row in TABLE:
        assert [text.count("{evidence}") for text in row.texts] == [1] * len(row.texts)
        assert [text.count("{") for text in row.texts] == [1] * len(row.texts)
