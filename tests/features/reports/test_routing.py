"""What a policy is worth, told from runs that another policy decided."""

from __future__ import annotations

import random

from gateway.features.reports.routing import PolicyValue, policy_values
from gateway.stores.learning import DecidedRun, WorkloadRun

CHANCES = {"big": 0.8, "small": 0.5}
COSTS = {"big": 1.0, "small": 0.1}


def logged(runs: int, seed: int, share: float = 0.2) -> list[DecidedRun]:
    """Runs of which a share is given the big model, the states' one; the rest the small one."""
    chance = random.Random(seed)
    shares = {"big": share, "small": 1 - share}
    found = []
    for number in range(runs):
        model = "big" if chance.random() < share else "small"
        choice = {"model": model, "default": "big", "probabilities": shares, "learned": True}
        run = WorkloadRun(
            run_id=f"r{number}",
            tenant="",
            workload="w",
            client="",
            requested="big",
            model=model,
            at=float(number),
            choice=choice,
        )
        outcome = "success" if chance.random() < CHANCES[model] else "failure"
        found.append(DecidedRun(run=run, outcome=outcome, cost_usd=COSTS[model]))
    return found


def by_name(decided: list[DecidedRun]) -> dict[str, PolicyValue]:
    return {value.policy: value for value in policy_values(decided)}


def test_policies_that_were_not_followed_are_told_from_the_log() -> None:
    """Over many logs the estimates are right on average, and their intervals hold."""
    truth = {"learned": 0.56, "states": 0.8, "always big": 0.8, "always small": 0.5}
    found = [by_name(logged(300, seed)) for seed in range(60)]
    for policy, success in truth.items():
        values = [each[policy] for each in found]
        assert abs(sum(v.success for v in values) / len(values) - success) < 0.02
        assert sum(v.low <= success <= v.high for v in values) / len(values) > 0.85
    gains = [each["learned"].over_states for each in found]
    means = [gain[0] for gain in gains if gain is not None]
    assert abs(sum(means) / len(means) + 24) < 2
    costs = [each["states"].cost_usd for each in found]
    assert costs == [1.0] * len(costs)
    assert all(each["states"].effective <= each["states"].runs < 300 for each in found)


def test_runs_that_say_nothing_are_left_out() -> None:
    """Without outcomes there is no value; a fallback's model has no weight."""
    runs = [DecidedRun(run=row.run, outcome=None, cost_usd=1.0) for row in logged(5, 1)]
    assert policy_values(runs) == []
    assert policy_values([]) == []
    (fallback,) = logged(1, 1)
    assert fallback.run.choice is not None
    fallback.run.choice["model"] = "other"
    assert by_name([fallback]).keys() == {"learned"}
