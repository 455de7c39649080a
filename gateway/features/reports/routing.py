"""Value of a routing policy, from a log of decisions drawn with known probability.

If another policy would have given a run the same first model, the run counts for that policy,
with the inverse of the model's probability as weight. So one log tells the success and cost of
policies that were not followed, as far as exploration has tried their models."""

import math
from collections.abc import Callable, Sequence

from gateway.backends import Stores
from gateway.reporting.evidence import Z
from gateway.stores.learning import DecidedRun, WorkloadRate
from gateway.tasks import off_loop
from gateway.values import FieldDict, frozen

FOLLOWED = "learned"
BY_STATE = "states"
Weight = Callable[[DecidedRun], float]


@frozen
class PolicyValue:
    """Expected results of runs under one policy."""

    policy: str  # its name
    runs: int  # of the log that speak for it
    effective: float  # how many equally weighted runs that is
    success: float  # expected share, in [0, 1]
    low: float  # lower end of its 95 % interval
    high: float  # upper end of it
    cost_usd: float | None  # US dollars of a run; None where no cost is known
    # points of success above the states' policy, with their 95 % interval; None for that policy
    # itself
    over_states: tuple[float, float, float] | None = None


@frozen
class RoutingReport:
    """Outcomes by workload, and the value of each policy."""

    workloads: tuple[WorkloadRate, ...]  # those that changed last first
    decided: int  # runs that the learned policy decided
    values: tuple[PolicyValue, ...]  # of each policy


async def read_routing(
    stores: Stores, tenant: str | None, since: float = 0.0
) -> RoutingReport | None:
    """Returns the report on decisions after a time, as the store has it now; None if the store
    keeps no workloads. Raises: StoreError."""
    store = stores.workloads
    if store is None:
        return None
    own = [rate for rate in await store.rates() if tenant in (None, rate.tenant)]
    decided = await store.decided(tenant=tenant, since=since)
    values = await off_loop(policy_values, decided)
    return RoutingReport(workloads=tuple(own), decided=len(decided), values=tuple(values))


def policy_values(decided: Sequence[DecidedRun]) -> list[PolicyValue]:
    """Returns the values of three kinds of policy: the one that was followed, the states', and
    each model for all runs; [] without outcomes. Runs that the states decided because nothing
    was known do not count."""
    known = [row for row in decided if row.outcome is not None and _choice(row).get("learned")]
    models = sorted({model for row in known for model in _choice(row)["probabilities"]})
    policies: dict[str, Weight] = {FOLLOWED: lambda row: 1.0, BY_STATE: _by_state}
    policies |= {f"always {model}": _always(model) for model in models}
    values = [_value(name, known, weight) for name, weight in policies.items()]
    return [value for value in values if value is not None]


def _choice(row: DecidedRun) -> FieldDict:
    return row.run.choice or {}


def _by_state(row: DecidedRun) -> float:
    if row.run.model == _choice(row)["default"]:
        return _inverse(row)
    return 0.0


def _always(model: str) -> Weight:
    return lambda row: _inverse(row) if row.run.model == model else 0.0


def _inverse(row: DecidedRun) -> float:
    choice = _choice(row)
    model = row.run.model
    if model != choice["model"]:
        return 0.0  # the chosen model failed, and this one was not drawn
    share = float(choice["probabilities"].get(model, 0.0))
    if share > 0:
        return 1.0 / share
    return 0.0


def _value(name: str, known: Sequence[DecidedRun], weight: Weight) -> PolicyValue | None:
    weights = [weight(row) for row in known]
    total = sum(weights)
    if total <= 0:
        return None
    solved = [float(row.outcome == "success") for row in known]
    rate = _mean(solved, weights)
    error = math.sqrt(sum((w * (y - rate)) ** 2 for w, y in zip(weights, solved, strict=True)))
    costs = [(row.cost_usd, w) for row, w in zip(known, weights, strict=True)]
    priced = [(cost, w) for cost, w in costs if cost is not None and w > 0]
    return PolicyValue(
        policy=name,
        runs=sum(w > 0 for w in weights),
        effective=total**2 / sum(w * w for w in weights),
        success=rate,
        low=max(0.0, rate - Z * error / total),
        high=min(1.0, rate + Z * error / total),
        cost_usd=_mean(*map(list, zip(*priced, strict=True))) if priced else None,
        over_states=_over_states(known, solved) if name == FOLLOWED else None,
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _over_states(
    known: Sequence[DecidedRun], solved: Sequence[float]
) -> tuple[float, float, float] | None:
    """Returns the points of success by which a policy is above the states' policy, on the same
    runs."""
    weights = [_by_state(row) for row in known]
    total = sum(weights)
    count = len(known)
    if total <= 0:
        return None
    own = sum(solved) / count
    other = _mean(solved, weights)
    parts = [
        (y - own) / count - w * (y - other) / total for y, w in zip(solved, weights, strict=True)
    ]
    error = math.sqrt(sum(part * part for part in parts))
    gain = own - other
    return 100 * gain, 100 * (gain - Z * error), 100 * (gain + Z * error)
