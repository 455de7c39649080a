"""Runs of experiments, as the store would give them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from gateway.steering.experiments import ExperimentSettings, assign
from gateway.stores.totals import ExperimentRun

START = 1_760_000_000.0
DAY = 86_400.0


def a_run(number: int = 0, **changes: Any) -> ExperimentRun:
    """One judged run of the arm `on`."""
    values: dict[str, Any] = {
        "id": f"c{number}.0",
        "started_at": START + number * 600.0,
        "arm": "on",
        "unit": f"u{number}",
        "outcome": "success",
        "profile": "coding",
        "agent": "coder",
        "model_requested": "large",
        "tenant": "acme",
        "policy_digest": "p",
        "steps": 10,
        "scored_steps": 10,
        "input_tokens": 900,
        "cached_tokens": 450,
        "tokens": 1000,
        "cost_usd": 0.5,
        "composite_peak": 0.0,
        "composite_sum": 0.0,
        "injections": 0,
        "updated_at": START + number * 600.0 + 60.0,
        "models": {},
        "estimated": {},
        "human": {},
        "acts": {},
    }
    return ExperimentRun(**(values | changes))


def simulated(
    seed: int,
    units: int,
    *,
    success: dict[str, float],
    cost: dict[str, float],
    arm_of: Callable[[str], str] | None = None,
) -> list[ExperimentRun]:
    """Runs whose arms truly succeed and cost as said; costs vary by a factor of about two."""
    chance = random.Random(seed)
    settings = ExperimentSettings(id=f"e{seed}", arms=dict.fromkeys(success, 1.0))
    runs = []
    for number in range(units):
        unit = f"task-{number}"
        arm = arm_of(unit) if arm_of else assign(settings, unit)
        spent = cost[arm] * math.exp(chance.gauss(0, 0.7))
        runs.append(
            a_run(
                number,
                arm=arm,
                unit=unit,
                outcome="success" if chance.random() < success[arm] else "failure",
                cost_usd=spent,
                tokens=round(2000 * spent) + 100,
            )
        )
    return runs
