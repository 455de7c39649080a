"""Routing policies on recorded tasks that several models ran: success and cost, tasks held out.

A run is given whole to the model that a policy chooses; its success and cost are those of the runs
of that model on the same task. What is known of a workload (the runs of one source) comes from the
other tasks only. Recorded runs were not drawn by chance, so models are compared on common tasks
alone. A policy is set against a coin that sends as much money to the dearest model, and the rest to
the cheapest: any router can buy success, a good one buys it where it is to be had."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from gateway.errors import ConfigError
from gateway.offline.evaluation import Estimate, Floats
from gateway.offline.playback import Price
from gateway.offline.recordings import report_table
from gateway.steering.routing_policy import WorkloadRates, begin
from gateway.steering.scoring.risk import NO_OUTCOMES, WorkloadPrior
from gateway.text import formatting
from gateway.upstream.catalogue import INPUT_PER_OUTPUT
from gateway.upstream.prices import capabilities

ROUNDS = 2000
SEED = 20240917
ALWAYS = "always:"
NAMED = ("learned", "states", "cheapest", "dearest")
_TROUBLE = ("SLOW", "SKIP")

Outcome = tuple[float, float]  # success in [0, 1], and cost in US dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRun:
    """One recorded run: `trouble` is the share of it that was over when SLOW or SKIP first showed,
    in [0, 1]; None when neither did."""

    solved: float
    cost: float
    trouble: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task with the runs of the models that ran it, and its models from cheap to dear."""

    source: str
    group: str
    runs: Mapping[str, Sequence[PricedRun]]
    models: tuple[str, ...]

    def outcome(self, model: str) -> Outcome:
        """Result of the task when the model gets it."""
        own = self.runs[model]
        return _mean([run.solved for run in own]), _mean([run.cost for run in own])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """A policy over `tasks` of them: success and cost a run, and points over the coin, each with
    its interval by task. `given`: tasks by the model that they were given to."""

    policy: str
    tasks: int
    success: Estimate
    cost_usd: float
    over_coin: Estimate
    given: Mapping[str, int]


def is_policy(name: str) -> bool:
    """True if a text names a routing policy, and not a file."""
    return name in NAMED or name.startswith(ALWAYS)


def compare_policies(
    played: Sequence[Mapping[str, Any]],
    policies: Sequence[str],
    prices: Mapping[str, Price],
    *,
    regret: float,
) -> list[PolicyResult]:
    """Each policy on the tasks that several priced models ran; `played`: see `playback.play`;
    `regret` in points. Raises ConfigError: no such task, or a policy that applies to none."""
    tasks = _tasks(played, prices)
    if not tasks:
        raise ConfigError("no task with an outcome that two models with a known price ran")
    return [_result(name, tasks, _chooser(name, tasks, prices, regret)) for name in policies]


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price that is given for a model, else the one of the price list."""
    if model in prices:
        return prices[model]
    info = capabilities(model)
    rates = info.rates if info is not None else {}
    if "input" not in rates or "output" not in rates:
        return None
    return Price(input=rates["input"] * 1e6, output=rates["output"] * 1e6)


def _tasks(played: Sequence[Mapping[str, Any]], prices: Mapping[str, Price]) -> list[Task]:
    known = {name: price_of(name, prices) for name in {run["model"] for run in played}}
    tasks: dict[tuple[str, str], dict[str, list[PricedRun]]] = {}
    for run in played:
        if run["success"] is not None and (price := known[run["model"]]) is not None:
            models = tasks.setdefault((run["source"], run["group"]), {})
            models.setdefault(run["model"], []).append(_priced(run, price))
    found = []
    for (source, group), models in tasks.items():
        if len(models) > 1:
            ranks = _ranks(models, prices)
            ranked = tuple(sorted(ranks, key=lambda name: (ranks[name], name)))
            found.append(Task(source=source, group=group, runs=models, models=ranked))
    return found


def _ranks(models: Iterable[str], prices: Mapping[str, Price]) -> dict[str, float]:
    """The size of each model's price."""
    known = {name: price for name in models if (price := price_of(name, prices)) is not None}
    return {name: each.input * INPUT_PER_OUTPUT + each.output for name, each in known.items()}


def _priced(run: Mapping[str, Any], price: Price) -> PricedRun:
    used = run["tokens"].values()
    sent, received = (sum(row[name] for row in used) for name in ("input", "output"))
    first = [run["first"][state] for state in _TROUBLE if state in run["first"]]
    steps = max(len(run["steps"]), 1)
    return PricedRun(
        solved=float(run["success"]),
        cost=(sent * price.input + received * price.output) / 1e6,
        trouble=(min(first) + 1) / steps if first else None,
    )


Choose = Callable[[Task], tuple[str, Outcome] | None]
"""The model that gets a task first, and the result; None where that is unknown."""


def _chooser(
    name: str, tasks: Sequence[Task], prices: Mapping[str, Price], regret: float
) -> Choose:
    match name:
        case "cheapest":
            return lambda task: (task.models[0], task.outcome(task.models[0]))
        case "dearest":
            return lambda task: (task.models[-1], task.outcome(task.models[-1]))
        case "states":
            return lambda task: (task.models[0], _by_state(task))
        case "learned":
            return lambda task: _learned(task, tasks, prices, regret)
    model = name.removeprefix(ALWAYS)
    return lambda task: (model, task.outcome(model)) if model in task.runs else None


def _by_state(task: Task) -> Outcome:
    """The cheapest model, and the dearest from where a run of it is in trouble. A recording cannot
    be continued by another model, so that one starts over; what the cheap run had cost by then is
    paid."""
    solved, cost = task.outcome(task.models[-1])
    outcomes = [
        (run.solved, run.cost) if run.trouble is None else (solved, cost + run.trouble * run.cost)
        for run in task.runs[task.models[0]]
    ]
    return _mean([each for each, _ in outcomes]), _mean([each for _, each in outcomes])


def _learned(
    task: Task, tasks: Sequence[Task], prices: Mapping[str, Price], regret: float
) -> tuple[str, Outcome]:
    """Choice of the gateway's own policy, from the outcomes of the other tasks of the source. The
    requested model is the cheapest, as for the states."""
    known: dict[str, WorkloadPrior] = {}
    for other in tasks:
        if other.source == task.source and other.group != task.group:
            for model, runs in other.runs.items():
                prior = known.get(model, NO_OUTCOMES)
                for run in runs:
                    prior = prior.with_outcome(failed=not run.solved)
                known[model] = prior
    ranks = _ranks(task.models, prices)
    rates = WorkloadRates(key=task.source, run=task.group, outcomes=known, prices=ranks)
    default, models = task.models[0], dict.fromkeys(task.models, 0)
    choice = begin(rates, models, default, regret=regret, explore=0.0)
    return choice.model, task.outcome(choice.model)


def _result(name: str, tasks: Sequence[Task], choose: Choose) -> PolicyResult:
    found = [(task, chosen) for task in tasks if (chosen := choose(task)) is not None]
    if not found:
        raise ConfigError(f"--policy {name}: no task was run by it and another model")
    ends = [(task.outcome(task.models[0]), task.outcome(task.models[-1])) for task, _ in found]
    rows = np.array(
        [[*out, *low, *top] for (_, (_, out)), (low, top) in zip(found, ends, strict=True)]
    )
    draw = np.random.default_rng(SEED)
    drawn = [rows[draw.integers(0, len(rows), len(rows))].mean(axis=0) for _ in range(ROUNDS)]
    middle = rows.mean(axis=0)
    given = Counter(model for _, (model, _) in found)
    return PolicyResult(
        policy=name,
        tasks=len(rows),
        success=_estimate(lambda row: float(row[0]), middle, drawn),
        cost_usd=float(middle[1]),
        over_coin=_estimate(_over_coin, middle, drawn),
        given=dict(sorted(given.items())),
    )


def _over_coin(row: Floats) -> float:
    """Points of success over a coin between the cheapest and the dearest model at equal cost. A
    coin costs between the two: what a policy costs beyond is not made up for."""
    solved, cost, cheap, cheap_cost, dear, dear_cost = row
    share = (cost - cheap_cost) / (dear_cost - cheap_cost) if dear_cost > cheap_cost else 0.0
    return float(100.0 * (solved - cheap - min(max(share, 0.0), 1.0) * (dear - cheap)))


def _estimate(
    value: Callable[[Floats], float], middle: Floats, drawn: Sequence[Floats]
) -> Estimate:
    low, high = np.percentile([value(row) for row in drawn], [2.5, 97.5])
    return Estimate(value=value(middle), low=float(low), high=float(high), pairs=len(drawn))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def policy_table(results: Sequence[PolicyResult]) -> Table:
    """One row a policy: success, cost, and points over the coin at equal cost."""
    title = "routing policies on tasks that several models ran, each task decided by the others"
    columns = ("tasks", "success", "95 %", "cost a run", "over a coin", "95 %")
    table = report_table(title, ("policy",), columns)
    for result in results:
        table.add_row(
            result.policy,
            str(result.tasks),
            formatting.percent(result.success.value, 1),
            _interval(result.success, 100.0),
            formatting.money(result.cost_usd),
            formatting.points(result.over_coin.value / 100),
            _interval(result.over_coin, 1.0),
        )
    return table


def _interval(estimate: Estimate, scale: float) -> str:
    return f"{estimate.low * scale:.1f} to {estimate.high * scale:.1f}"
