"""A config of an earlier version starts, and every setting that is gone is named once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.config import Settings, load_settings, removed_keys, settings_from_dict
from gateway.errors import ConfigError
from gateway.features.alerts.settings import AlertSettings
from gateway.features.learning.settings import LearningSettings

OLD = {"learning": {"model": "small", "max_general": 7, "trials": "on"}}
VARIABLES = {"GATEWAY_LEARNING__MODEL": "small", "GATEWAY_LEARNING__MAX_GENERAL": "7"}


def test_a_renamed_setting_is_refused_with_its_new_name() -> None:
    """From a file and from the environment: what the model may use must not vanish quietly."""
    for raw, env in ((OLD, {}), ({}, VARIABLES)):
        with pytest.raises(ConfigError) as refused:
            settings_from_dict(raw, env)
        (fault,) = refused.value.faults
        assert fault.startswith("learning.model: is gone: write reader.model")


def test_each_is_named_as_it_is_written() -> None:
    """With what takes its place; a config without one says nothing."""
    found = removed_keys(OLD, VARIABLES)
    assert set(found) == {"learning.model", "learning.max_general", *VARIABLES}
    assert "reader.model" in found["learning.model"]
    assert "no lessons are made" in found["GATEWAY_LEARNING__MAX_GENERAL"]
    assert removed_keys({"learning": {"trials": "on"}, "storage": None}, {}) == {}


def test_a_setting_may_stand_deeper() -> None:
    """In a file and in the environment; a receiver may still name the rule."""
    old: dict[str, Any] = {"rules": {"error_rate": 0.2, "run_stuck": 7}}
    old |= {"sinks": [{"name": "ops", "url": "http://x", "rules": ["error_rate"]}]}
    variable = "GATEWAY_ALERTS__RULES__MIN_CALLS"
    settings = settings_from_dict({"alerts": old}, {variable: "20"}).of(AlertSettings)
    assert settings.rules.run_stuck == 7
    assert settings.sinks_of("run_stuck") == ()
    found = removed_keys({"alerts": old}, {variable: "20"})
    assert list(found) == ["alerts.rules.error_rate", variable]


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"control": {"at_risk": "end"}}, "control.at_risk"),
        ({"control": {"at_risk": "ask"}}, "control.at_risk"),
        ({"steering": {"stop_above": 0.8}}, "steering.stop_above"),
    ],
)
def test_a_limit_that_is_gone_is_refused(raw: dict[str, Any], key: str) -> None:
    """It ended or stopped runs, which must not vanish quietly: one line says what replaces it."""
    with pytest.raises(ConfigError) as refused:
        settings_from_dict(raw)
    (fault,) = refused.value.faults
    assert fault.startswith(f"{key}: is gone: write control.on_trouble: ")


def test_a_limit_that_was_off_stops_no_start() -> None:
    """Nor one that only handed runs over; each is named, like every number of the risk."""
    for value in ("off", False, "hand_over"):
        assert settings_from_dict({"control": {"at_risk": value, "end_at": 0.9}}) == Settings()
    raw = {"steering": {"stop_above": None, "act_above": {}}, "routing": {"own_risk": False}}
    assert settings_from_dict(raw) == Settings()
    assert set(removed_keys(raw, {})) == {
        "steering.stop_above",
        "steering.act_above",
        "routing.own_risk",
    }


def test_check_config_says_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is no fault, and the warning names the place."""
    path = tmp_path / "config.yaml"
    path.write_text("learning:\n  trials: 'on'\n  mining: false\n")
    assert load_settings(path, {}).of(LearningSettings).trials == "on"
    assert main(["check-config", "--config", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    said = "line 3: learning.mining: has no effect: no rule is made"
    assert [each for each in report["warnings"] if said in each]
