"""Patterns for every tier: those that ship, and one that the tenant of keyless requests owns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gateway.library
from steering_gateway_testing.fleet import ENVIRONMENT
from steering_gateway_testing.processes import run
from tests.live.test_guidance_rules import NEAR_MANY

EAGER: dict[str, Any] = {"etraces": {"e2_gate": 0.3, "recall_threshold": 0.0}}
"""Settings with which the searched tiers are given at most runs, as far as their caps allow."""

_STARTER = Path(gateway.library.__file__).with_name("starter.jsonl")


def store_patterns(directory: Path, config: Mapping[str, Any]) -> None:
    """Put the patterns into the store of a config; the gateways have yet to start."""
    (settings := directory / "patterns.yaml").write_text(json.dumps(config))
    own = {**NEAR_MANY, "tenant": "default"}
    (file := directory / "patterns.jsonl").write_text(f"{_STARTER.read_text()}{json.dumps(own)}\n")
    command = ("patterns", "import", str(file), "--config", str(settings))
    ended = run(*command, directory=directory, env=ENVIRONMENT)
    assert ended.returncode == 0, ended.stderr
