"""Presets: named sets of values that take the place of defaults.

A value of the file that is not the default, and any value of the environment, wins over the
preset's. A file may therefore name every key, as the shipped `config.yaml` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

PresetName = Literal["default", "seeds"]

# Source: reference sections 2, 3, 4 (scorer, SKIP, suite), 5 (caps, cooldowns, gate of E1), 6.1
# (look-ups, similarity gates; written for other embedders), 7 (placement) and contradiction C1.
# Where the reference has no rule of its own, an action is never held back or taken early.
SEEDS: Mapping[str, Any] = {
    "difficulty": {"scorer": "heuristic"},
    "fsm": {"skip_exit": "demote"},
    "monitors": {"suite": "reference"},
    "conversations": {"run_boundary": "never"},
    "steering": {
        "act_above": {
            "route_fast": 0.0,
            "route_slow": 0.0,
            "monitor_text": 0.0,
            "e1": 0.0,
            "e2": 0.0,
            "skip_directive": 0.0,
        }
    },
    "routing": {"escalate_at_severity": 0},
    "etraces": {
        "e1_per_run": 1,
        "e1_steps": 3,
        "e1_top_k": 1,
        "e1_composite": 0.15,
        "e1_lookback_steps": 2,
        "e1_gate": 0.8,
        "e2_per_type": 1,
        "e2_steps": 5,
        "e2_top_k": 2,
        "e2_gate": 0.7,
        "e2_when": "always",
        "e2_by_cause": False,
        "e3_max": 32,
        "e3_max_tokens": 0,
        "e3_when": "always",
        "e3_by_kind": False,
    },
    "injection": {
        "placement": "system",
        "lifetime": "call",
        "monitor_cap": 5,
        "monitor_composite": 0.35,
        "cooldown_steps": {"FAST": 5, "NORMAL": 3, "SLOW": 2, "SKIP": 2},
    },
}

PRESETS: Mapping[str, Mapping[str, Any]] = {"default": {}, "seeds": SEEDS}
assert set(PRESETS) == set(get_args(PresetName))


def fill(values: dict[str, Any], name: object, defaults: object) -> None:
    """Put the values of preset `name` into `values` where they have none but the default.

    `defaults`: the settings without any file. An unknown name adds nothing.
    """
    if isinstance(name, str):
        _fill(values, PRESETS.get(name, {}), defaults)


def _fill(values: dict[str, Any], preset: Mapping[str, Any], defaults: object) -> None:
    for key, wanted in preset.items():
        default = getattr(defaults, key, None)
        own = values.get(key)
        if not isinstance(wanted, Mapping):
            if key not in values or own == default:
                values[key] = wanted
        elif own is None or isinstance(own, dict):
            values[key] = own or {}
            _fill(values[key], wanted, default)
