"""Presets: other defaults in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Settings, settings_from_dict
from gateway.config.presets import SEEDS
from gateway.errors import ConfigError
from gateway.steering.acting import ACTIONS

SHIPPED = Path(__file__).parents[2] / "config.yaml"


def leaves(preset: Any, settings: Any) -> list[tuple[Any, Any]]:
    """Each value of a preset with that of the settings."""
    found = []
    for key, wanted in preset.items():
        own = settings[key] if isinstance(settings, dict) else getattr(settings, key)
        found += leaves(wanted, own) if isinstance(wanted, dict) else [(wanted, own)]
    return found


@pytest.mark.parametrize("shipped", [False, True])
def test_seeds_sets_everything_in_one_line(shipped: bool) -> None:
    """Alone, and in the shipped file, which names every key with its default."""
    raw = yaml.safe_load(SHIPPED.read_text()) if shipped else {}
    settings = settings_from_dict({**raw, "preset": "seeds"}, {})
    assert all(wanted == own for wanted, own in leaves(SEEDS, settings))
    assert settings.difficulty.scorer == "heuristic"
    assert settings.monitors.suite == "reference"
    assert settings.etraces.e2_when == "always"
    assert set(settings.steering.act_above) == set(ACTIONS)
    assert settings_from_dict({"preset": "default"}, {}) == Settings()


def test_own_values_win_over_the_preset() -> None:
    """Keys of the file that are not the default, and those of the environment."""
    raw = {"preset": "seeds", "injection": {"monitor_cap": 9}, "steering": {"mode": "shadow"}}
    settings = settings_from_dict(raw, {"GATEWAY_MONITORS__SUITE": "robust"})
    assert settings.injection.monitor_cap == 9
    assert settings.steering.mode == "shadow"
    assert settings.monitors.suite == "robust"
    assert settings.injection.lifetime == "call"


def test_an_unknown_preset_is_refused_by_name() -> None:
    """With the nearest that there is."""
    with pytest.raises(ConfigError, match="preset: 'seed' is not one of default, seeds"):
        settings_from_dict({"preset": "seed"}, {})
