"""Presets: other defaults in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Settings, settings_from_dict
from gateway.config.settings import SEEDS
from gateway.errors import ConfigError

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


def test_the_preset_can_be_named_in_the_environment() -> None:
    """`GATEWAY_PRESET` wins over the file, as any variable does, and is refused by name."""
    settings = settings_from_dict({"preset": "default"}, {"GATEWAY_PRESET": "seeds"})
    assert (settings.preset, settings.monitors.suite) == ("seeds", "reference")
    assert settings_from_dict({"preset": "seeds"}, {"GATEWAY_PRESET": "default"}) == Settings()
    with pytest.raises(ConfigError, match="GATEWAY_PRESET"):
        settings_from_dict({}, {"GATEWAY_PRESET": "seed"})


def test_seeds_gives_every_universal_rule_on_each_first_call() -> None:
    """Without a bound on their tokens, whatever kind of agent asks, with tools or without."""
    etraces = settings_from_dict({"preset": "seeds"}, {}).etraces
    assert (etraces.e3_when, etraces.e3_max, etraces.e3_max_tokens) == ("always", 32, 0)
    assert (etraces.e3_by_kind, etraces.e2_by_cause) == (False, False)
