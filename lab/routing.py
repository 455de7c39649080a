"""The value of acting on a signal, on scenarios that two models ran.

Of two models of one source the one with the lower success rate is the cheap one. A restart gives
the scenario to the other model when the cheap one's run shows the signal: its success then is that
of the other model's runs. Recorded runs cannot show more than that. The learned policy is decided
for each scenario by the others of its source: the cheap model is the requested one.

Routing policies are judged on tasks that several models ran: `python -m lab routing`. A run is
given whole to the model that a policy chooses; its success and cost are those of the runs of that
model on the same task. What is known of a workload (the runs of one source) comes from the other
tasks only. Recorded runs were not drawn by chance, so models are compared on common tasks alone. A
policy is set against a coin that sends as much money to the dearest model, and the rest to the
cheapest: any router can buy success, a good one buys it where it is to be had.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import orjson
from rich.table import Table

from gateway.core.routing import RoutingSettings
from gateway.errors import ConfigError
from gateway.offline.playback import ReplayPolicy
from gateway.offline.replay import Work, replay_files
from gateway.steering.learned_routing import (
    NO_OUTCOMES,
    WorkloadPrior,
    WorkloadRates,
    begin,
    escalate,
)
from gateway.text import formatting
from gateway.upstream.model_abilities import INPUT_PER_OUTPUT
from gateway.upstream.model_costs import capabilities
from lab.evaluation import Estimate, Floats, RunReading, folds_of, with_scorer
from lab.prices import Price
from lab.signals import by
from lab.tables import report_console, report_table

ROUNDS = 500
SEED = 20240917
FOLDS = 10
_SIGNALS = ("SLOW", "SKIP")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """A run of the cheap model, and all runs of a stronger one on the same scenario."""

    cheap: RunReading
    strong: tuple[RunReading, ...]

    @property
    def gain(self) -> float:
        """Success of the strong model less that of the cheap run, in [-1, 1]."""
        return float(np.mean([not run.failed for run in self.strong])) - (not self.cheap.failed)


def model_pairs(runs: Sequence[RunReading]) -> Iterator[ModelPair]:
    """Every run with every stronger model that ran its scenario."""
    success = {
        name: float(np.mean([not run.failed for run in own]))
        for name, own in by(runs, lambda run: f"{run.label.source} {run.label.model}").items()
    }
    for own in by(runs, lambda run: f"{run.label.source} {run.label.group}").values():
        models = by(own, lambda run: f"{run.label.source} {run.label.model}")
        for cheap in models:
            for strong in models:
                if success[strong] > success[cheap]:
                    for run in models[cheap]:
                        yield ModelPair(cheap=run, strong=tuple(models[strong]))


def left_at(pair: ModelPair, signal: str) -> float | None:
    """Share of the cheap run that is left when it first shows the signal; None if it never does."""
    at = pair.cheap.first.get(signal)
    return None if at is None else 1.0 - (at + 1) / pair.cheap.steps


def restart_value(pairs: Sequence[ModelPair], signal: str) -> Estimate:
    """Points of success that restarting at a signal gains over restarting as often by chance."""
    return escalation_value(pairs, [left_at(pair, signal) for pair in pairs])


def escalation_value(
    pairs: Sequence[ModelPair], left: Sequence[float | None], *, take_over: bool = False
) -> Estimate:
    """Points of success that escalating gains over doing it as often by chance.

    `left`: the share of each pair's cheap run that was left, in [0, 1]; None = not escalated. With
    `take_over` the stronger model continues the run: it then has its own success for the share that
    was left, the cheap run's for the rest; chance takes over at any step. The interval is a
    bootstrap over scenarios; `pairs` of the estimate is the number of escalations.
    """
    gain = np.array([pair.gain for pair in pairs])
    if not len(gain):
        return Estimate(value=float("nan"), low=float("nan"), high=float("nan"), pairs=0)
    shown = np.array([each is not None for each in left], dtype=np.float64)
    own, drawn = shown, np.ones(len(gain))
    if take_over:
        steps = np.array([pair.cheap.steps for pair in pairs], dtype=np.float64)
        own, drawn = np.array([each or 0.0 for each in left]), (steps - 1.0) / (2.0 * steps)
    values = np.stack([gain * own, shown, gain * drawn])
    _, group = np.unique([pair.cheap.label.group for pair in pairs], return_inverse=True)
    draw = np.random.default_rng(SEED)
    count = int(group.max()) + 1
    samples = []
    for _ in range(ROUNDS):
        weight = np.bincount(draw.integers(0, count, count), minlength=count)[group]
        if weight.sum():
            samples.append(_over_chance(values, weight.astype(np.float64)))
    low, high = np.percentile(samples, [2.5, 97.5])
    value = _over_chance(values, np.ones(len(gain)))
    return Estimate(value=value, low=float(low), high=float(high), pairs=int(shown.sum()))


def _over_chance(values: Floats, weight: Floats) -> float:
    acted, shown, drawn = values @ (weight / weight.sum())
    return 100.0 * float(acted - shown * drawn)


def fast_safety(pairs: Sequence[ModelPair], signal: str = "FAST") -> tuple[float, float, int]:
    """Success of the cheap model where the strong run went FAST, elsewhere, and the first count."""
    where: list[bool] = []
    elsewhere: list[bool] = []
    for pair in pairs:
        for strong in pair.strong:
            (where if signal in strong.first else elsewhere).append(not pair.cheap.failed)
    rates = [float(np.mean(found)) if found else float("nan") for found in (where, elsewhere)]
    return rates[0], rates[1], len(where)


def learned_escalations(pairs: Sequence[ModelPair]) -> list[float | None]:
    """The share of each pair's cheap run that is left when it is escalated; None = never.

    1 when it is given to the stronger model as it begins.
    """
    fold = folds_of((pair.cheap.label.group for pair in pairs), FOLDS, SEED)
    known: dict[tuple[str, str, str, int], dict[str, WorkloadPrior]] = {}
    for pair in pairs:
        for number in set(range(FOLDS)) - {fold[pair.cheap.label.group]}:
            outcomes = known.setdefault((*_models(pair), number), {})
            for run in (pair.cheap, *pair.strong):
                prior = outcomes.get(run.label.model, NO_OUTCOMES)
                outcomes[run.label.model] = _with_outcome(prior, failed=run.failed)
    return [
        _escalated(pair, known.get((*_models(pair), fold[pair.cheap.label.group]), {}))
        for pair in pairs
    ]


def _with_outcome(known: WorkloadPrior, *, failed: bool) -> WorkloadPrior:
    return WorkloadPrior(solved=known.solved + (not failed), failed=known.failed + failed)


def _models(pair: ModelPair) -> tuple[str, str, str]:
    return pair.cheap.label.source, pair.cheap.label.model, pair.strong[0].label.model


def _escalated(pair: ModelPair, outcomes: dict[str, WorkloadPrior]) -> float | None:
    _, cheap, strong = _models(pair)
    run, regret = pair.cheap, RoutingSettings().regret
    rates = WorkloadRates(key=run.label.source, run=run.label.id, outcomes=outcomes)
    models = {cheap: 0, strong: 1}
    if begin(rates, models, cheap, regret=regret, explore=0.0).model == strong:
        return 1.0
    for at in sorted({run.first[signal] for signal in _SIGNALS if signal in run.first}):
        if escalate(rates, models, cheap, strong, regret=regret) == strong:
            return 1.0 - (at + 1) / run.steps
    return None


# Routing policies on tasks that several models ran.

DRAWS = 2000
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


def run_routing(
    files: Sequence[Path],
    policies: Sequence[str],
    *,
    policy: ReplayPolicy | None = None,
    as_json: bool = False,
    prices: Mapping[str, Price] | None = None,
    jobs: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Replay runs, and judge routing policies by their outcomes; `policy` has the regret.

    Returns the exit status: 0 done, 1 some recordings could not be read.

    Raises:
        ConfigError: a path that cannot be read, an unknown policy, or no task to compare on.
    """
    out, err = out or sys.stdout, err or sys.stderr
    for name in policies:
        if name not in NAMED and not name.startswith(ALWAYS):
            raise ConfigError(f"--policy {name}: not one of {', '.join(NAMED)}, {ALWAYS}MODEL")
    policy = with_scorer(policy or ReplayPolicy(), None, "robust")
    kept, problems = replay_files(files, Work(policy=policy), jobs=jobs, out=out, err=err)
    played = [replayed.played for replayed in kept if replayed.played is not None]
    regret = policy.rules.routing.regret
    results = compare_policies(played, policies or NAMED, prices or {}, regret=regret)
    if as_json:
        out.write(orjson.dumps(results, option=orjson.OPT_APPEND_NEWLINE).decode())
    else:
        report_console(out).print(policy_table(results))
    return 1 if problems else 0


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
                    prior = _with_outcome(prior, failed=not run.solved)
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
    drawn = [rows[draw.integers(0, len(rows), len(rows))].mean(axis=0) for _ in range(DRAWS)]
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
