"""Runs of experiments, as the store would give them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from gateway.steering.experiments import ExperimentSettings, assign
from gateway.stores.totals import RunRecord, RunTotals

START = 1_760_000_000.0
DAY = 86_400.0


def a_run(number: int = 0, **changes: Any) -> RunRecord:
    """One judged run of the arm `on`."""
    totals = changes.pop("totals", {})
    values: dict[str, Any] = {
        "id": f"c{number}.0",
        "conversation_id": f"c{number}",
        "tenant": "acme",
        "sequence": 0,
        "started_at": START + number * 600.0,
        "updated_at": START + number * 600.0 + 60,
        "ended_at": None,
        "state": "END",
        "outcome": "success",
        "outcome_source": "header",
        "agent": "coder",
        "task_preview": "",
        "profile": "coding",
        "mode": "on",
        "experiment": "e",
        "arm": "on",
        "unit": f"u{number}",
        "policy_digest": "p",
        "identity_source": "new",
        "model_requested": "large",
    }
    usual: dict[str, Any] = {
        "steps": 10,
        "scored_steps": 10,
        "calls": 11,
        "input_tokens": 900,
        "cached_tokens": 450,
        "output_tokens": 100,
        "cost_usd": 0.5,
    }
    return RunRecord(**(values | changes), totals=RunTotals(**(usual | totals)))


def simulated(
    seed: int,
    units: int,
    *,
    success: dict[str, float],
    cost: dict[str, float],
    arm_of: Callable[[str], str] | None = None,
) -> list[RunRecord]:
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
                mode=arm,
                unit=unit,
                outcome="success" if chance.random() < success[arm] else "failure",
                totals={"cost_usd": spent, "input_tokens": round(2000 * spent)},
            )
        )
    return runs
