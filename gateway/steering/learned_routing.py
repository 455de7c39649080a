"""Routing that learns: the cheapest model whose chance of success is close to the best one's.

A *workload* is what one client asks of one model with one set of tools, for one tenant. Of each
model on which its runs began, the outcomes so far give a Beta posterior. A run gets its model once,
when it begins, because each switch loses the provider's prompt cache; trouble may move it to a
model with a better chance, never back. A share of the runs is given a model by chance, so that the
knowledge of each keeps growing. Each decision is logged with its probability, so that the policy
can be evaluated from the log alone."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import hypot, sqrt

from msgspec.structs import replace

from gateway.core.fsm import HARD_STATES, FSMState
from gateway.core.routing import (
    ROUTED_STATES,
    ModelPin,
    RoutedModel,
    Routes,
    RunChoice,
    Serves,
    pin,
)
from gateway.steering.identity.ids import draw
from gateway.values import Value

# Weight, in runs, of a model's outcomes in the tenant's other workloads (half solved without any):
# a few outcomes of a new workload do not decide yet.
PRIOR_RUNS = 4.0
# Standard errors by which a model has to be too far from the best one before it is left. A model
# with few outcomes also has to be as surely close enough: luck in its first runs decides nothing.
CONFIDENCE = 0.5
# Outcomes below which a cheaper model is on trial, as long as it may be close enough.
TRIAL_RUNS = 20.0
TRIAL_SHARE = 5.0
# Share of the runs that a model on trial gets, and one that may be better than the chosen one, as
# multiples of what is explored: most runs are kept from a model of which little is known, also
# while outcomes come late, and luck that made the choice is found out.
DOUBT_SHARE = 1.5
# Standard errors below which it is open which of two models is to be chosen.
DOUBT = 1.0
# Runs of a workload with an outcome, after which an earlier outcome counts half: a model that
# changes under its name is learned again.
HALF_LIFE = 200.0

_REQUESTED_PLACE = ROUTED_STATES.index("NORMAL")
_DIGITS = 4  # of the probabilities that are logged


class WorkloadPrior(Value, array_like=True):
    """Finished runs of one workload on one model. Earlier outcomes fade, so that neither number
    is whole."""

    solved: float = 0  # runs that succeeded, 0 or more
    failed: float = 0  # runs that failed, 0 or more


NO_OUTCOMES = WorkloadPrior()


class WorkloadRates(Value):
    """Knowledge of a run's workload when its model is decided."""

    key: str  # of the workload: client, tools and requested model; seeds the draws
    run: str  # id of the run; with `key` it decides whether and what the run explores
    outcomes: Mapping[str, WorkloadPrior] = {}  # of the workload's runs, by the model they began on
    elsewhere: Mapping[str, WorkloadPrior] = {}  # of the tenant's other workloads, by model
    # US dollars for one step of an average run, by model, where known
    prices: Mapping[str, float] = {}

    def rate(self, model: str) -> float:
        """The posterior mean of the model's success on this workload, in (0, 1)."""
        other, own = (all_.get(model, NO_OUTCOMES) for all_ in (self.elsewhere, self.outcomes))
        solved = 1.0
        failed = 1.0  # on the workload's other models: how hard the workload is
        for name, known in self.outcomes.items():
            if name != model:
                solved = solved + known.solved
                failed = failed + known.failed
        hard = solved / (solved + failed)
        before = (other.solved + 2.0 * hard) / (other.solved + other.failed + 2.0)
        return (own.solved + PRIOR_RUNS * before) / (own.solved + own.failed + PRIOR_RUNS)

    def error(self, model: str) -> float:
        """The standard deviation of the posterior."""
        rate = self.rate(model)
        return sqrt(rate * (1.0 - rate) / (self.runs(model) + PRIOR_RUNS + 1.0))

    def runs(self, model: str) -> float:
        """Outcomes of this workload's runs that began on the model."""
        known = self.outcomes.get(model, NO_OUTCOMES)
        return known.solved + known.failed

    def knows(self, model: str) -> bool:
        """Whether a run of this workload that began on the model has an outcome."""
        return self.runs(model) > 0

    def closer(self, model: str, other: str, regret: float) -> float:
        """Standard errors by which the model is at most `regret` points below the other."""
        error = hypot(self.error(model), self.error(other))
        return (self.rate(model) - self.rate(other) + regret / 100.0) / error


def candidates(routes: Routes, requested: str) -> dict[str, int]:
    """The models of a run's routes and its own, with their places by cost: those of the states."""
    models = routes.models(requested)
    places = {models[state]: place for place, state in enumerate(ROUTED_STATES) if state in models}
    return {requested: _REQUESTED_PLACE} | places


def close_to_best(
    rates: WorkloadRates, models: Sequence[str], default: str, regret: float
) -> list[str]:
    """The models that may be at most `regret` points worse than the best, as far as is known. The
    default and models with enough outcomes stay until there is CONFIDENCE against them; one with
    few needs it, towards the best and the default."""
    best = max(models, key=rates.rate)

    def is_close(model: str) -> bool:
        if model == default or rates.runs(model) >= TRIAL_RUNS:
            return model == best or rates.closer(model, best, regret) >= -CONFIDENCE
        others = {best, default} - {model}
        return all(rates.closer(model, other, regret) >= CONFIDENCE for other in others)

    return [model for model in models if is_close(model)] or [default]


def trials(
    rates: WorkloadRates,
    models: Sequence[str],
    best: str,
    regret: float,
    costs: Mapping[str, float],
) -> dict[str, float]:
    """Returns the model to try more often than the others, with the share of its runs in
    multiples of what is explored. That is a cheaper model with few outcomes that may be close to
    `best`, the chosen one, or a model for which the outcomes do not decide yet whether it should
    be chosen instead."""
    for model in sorted(models, key=costs.__getitem__):
        cheaper = costs[model] < costs[best]
        margin = rates.closer(*((model, best) if cheaper else (best, model)), regret)
        if cheaper and rates.runs(model) < TRIAL_RUNS and margin >= -CONFIDENCE:
            return {model: TRIAL_SHARE}
        if model != best and rates.knows(model) and abs(margin) < DOUBT:
            return {model: DOUBT_SHARE}
    return {}


def begin(
    rates: WorkloadRates, models: Mapping[str, int], default: str, *, regret: float, explore: float
) -> RunChoice:
    """Returns the model on which a run begins, among the `models` that can serve it. Only the
    default and models with outcomes compete; the others are tried: every candidate equally by
    exploration, and a cheaper one more often. Without any outcome the states decide."""
    if len(models) < 2 or not any(map(rates.knows, models)):
        certain = {default: 1.0}
        return RunChoice(model=default, default=default, probabilities=certain, learned=False)
    known = [model for model in models if model == default or rates.knows(model)]
    chances = {model: rates.rate(model) for model in models}
    close = close_to_best(rates, known, default, regret=regret)
    costs = _costs(rates, models)
    best = min(close, key=lambda model: (costs[model], -chances[model]))
    shares = dict.fromkeys(models, explore / len(models))
    for tried, times in trials(rates, list(models), best, regret=regret, costs=costs).items():
        shares[tried] += min(times * explore, 1.0 - explore)
    rest = 1.0 - sum(shares.values())
    probabilities = {
        model: round(share + rest * (model == best), _DIGITS) for model, share in shares.items()
    }
    point = draw(f"explore {rates.key}", rates.run)
    ends = zip(shares, accumulate(shares.values()), strict=True)
    chosen = next((model for model, end in ends if point < end), None)
    return RunChoice(
        model=chosen or best,
        default=default,
        probabilities=probabilities,
        chances={name: round(chance, _DIGITS) for name, chance in chances.items()},
        explored=chosen is not None,
    )


def escalate(
    rates: WorkloadRates,
    models: Mapping[str, int],
    current: str,
    fallback: str,
    *,
    regret: float,
) -> str:
    """Returns the model on which a run in trouble continues: the cheapest of the better ones
    that are at most `regret` points below the best, else `current`. `fallback`: the states'
    model, which is taken if it has no outcomes, because nothing shows that it is no better."""
    if fallback != current and not rates.knows(fallback):
        return fallback
    chances = {model: rates.rate(model) for model in models}
    better = [
        model
        for model in models
        if model == current or (rates.knows(model) and chances[model] > chances.get(current, 0.0))
    ]
    least = max(chances[model] for model in better) - regret / 100.0
    close = [model for model in better if chances[model] >= least]
    costs = _costs(rates, models)
    return min(close, key=lambda model: (costs[model], -chances[model]))


class LearnedRouting(Value):
    """The learned policy for one call."""

    rates: WorkloadRates  # what is known of the run's workload
    # all candidates with their place by cost, used where a price is unknown
    models: Mapping[str, int]
    requested: str  # the model that the client named
    regret: float  # points of success, 0 to 100, that the chosen model may be below the best
    explore: float  # share of the workload's runs, in [0, 1], whose model is drawn
    serves: Serves | None = None  # why a model cannot serve the request; None = every model can

    def decide(
        self,
        choice: RunChoice | None,
        by_state: RoutedModel,
        pinned: ModelPin | None,
        step: int,
        state: FSMState,
    ) -> tuple[RoutedModel, RunChoice]:
        """The model of a call, and its run's choice, which is made here where `choice` is None.
        `by_state`: the route that the states choose, `state` the state that selects it. A hard
        state may move a run to any better model, or to one of which nothing is known."""
        reasons: tuple[str, ...] = ()
        if choice is None:
            able = self._able(by_state.model)
            default = by_state.model
            choice = begin(self.rates, able, default, regret=self.regret, explore=self.explore)
            reasons = (choice.reason,)
        if pinned is not None:
            current = pinned.model
        else:
            current = choice.model
        problem = None
        if choice.learned:
            problem = self._refusal(current)
        if problem is not None:
            reasons = (*reasons, f"routing: {current} not used: {problem}")
        if problem is not None or not choice.learned:
            return replace(by_state, reasons=(*reasons, *by_state.reasons)), choice
        model = current
        if state in HARD_STATES:
            able = self._able(current)
            model = escalate(self.rates, able, current, fallback=by_state.model, regret=self.regret)
        moved = (f"routing: {current} -> {model}, trouble",) if model != current else ()
        routed = RoutedModel(
            model=model, pin=pin(model, state, step, before=pinned), reasons=(*reasons, *moved)
        )
        return routed, choice

    def _able(self, certain: str) -> dict[str, int]:
        """The candidates that can serve the request; `certain` is one of them."""
        return {
            model: place
            for model, place in self.models.items()
            if model == certain or self._refusal(model) is None
        }

    def _refusal(self, model: str) -> str | None:
        if model == self.requested or self.serves is None:
            return None
        return self.serves(model)


def _costs(rates: WorkloadRates, models: Mapping[str, int]) -> dict[str, float]:
    """Order of the models by cost: their prices; where one has none, their places."""
    priced = all(model in rates.prices for model in models)
    return {model: rates.prices[model] if priced else place for model, place in models.items()}
