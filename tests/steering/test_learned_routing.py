"""The learned policy as values: what it chooses, how it explores, what it loses while it learns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from gateway.core.routing import Routes, RunChoice
from gateway.steering.learned_routing import (
    HALF_LIFE,
    WorkloadPrior,
    WorkloadRates,
    begin,
    candidates,
    escalate,
)
from tests.examples import by_day

PRICES = {"big": 10.0, "small": 1.0}
MODELS = {"small": 0, "big": 1}


def rates(run: str = "r", /, **outcomes: tuple[int, int]) -> WorkloadRates:
    known = {name: WorkloadPrior(solved=s, failed=f) for name, (s, f) in outcomes.items()}
    return WorkloadRates(key="w", run=run, outcomes=known, prices=PRICES)


def choose(known: WorkloadRates, *, default: str = "big", explore: float = 0.0) -> RunChoice:
    return begin(known, MODELS, default, regret=3.0, explore=explore)


def test_what_is_chosen() -> None:
    """The cheapest model that is close to the best; without outcomes the states' model."""
    assert not choose(rates()).learned
    assert choose(rates()).model == "big"
    assert choose(rates(big=(80, 20))).model == "big"
    assert choose(rates(big=(80, 20), small=(60, 40))).model == "big"
    assert choose(rates(big=(80, 20), small=(85, 15))).model == "small"
    assert choose(rates(big=(60, 40), small=(90, 10))).model == "small"
    # A few runs decide nothing.
    assert choose(rates(big=(8, 2), small=(1, 0))).model == "big"
    # A requested model that fails is left for a dearer one.
    assert choose(rates(big=(90, 10), small=(10, 90)), default="small").model == "big"


def test_other_workloads_count_a_little() -> None:
    """What a model did elsewhere is where its rate begins, and its own outcomes move it."""
    elsewhere = {"small": WorkloadPrior(solved=90, failed=10)}
    known = WorkloadRates(key="w", run="r", elsewhere=elsewhere)
    assert known.rate("small") == pytest.approx(91 / 102)
    assert known.rate("big") == 0.5
    own = {"small": WorkloadPrior(failed=40)}
    assert WorkloadRates(key="w", run="r", outcomes=own, elsewhere=elsewhere).rate("small") < 0.1


def test_exploration_needs_no_memory() -> None:
    """The same run explores the same model; over runs each is drawn as often as its share says."""

    def draws() -> list[RunChoice]:
        known = [rates(f"r{n}", big=(80, 20), small=(60, 40)) for n in range(2000)]
        return [choose(each, explore=0.4) for each in known]

    drawn = draws()
    assert drawn == draws()
    counts = Counter(choice.model for choice in drawn)
    assert drawn[0].probabilities == {"small": 0.2, "big": 0.8}
    assert 340 < counts["small"] < 460
    assert sum(choice.explored for choice in drawn) / 2000 == pytest.approx(0.4, abs=0.04)


def test_trouble_moves_a_run_up_and_never_down() -> None:
    """A run in trouble gets a model with a better chance; without outcomes, what the states say."""

    def after(current: str, fallback: str = "big", **known: tuple[int, int]) -> str:
        return escalate(rates(**known), MODELS, current, fallback, regret=3.0)

    assert after("small", big=(80, 20), small=(60, 40)) == "big"
    assert after("small", big=(60, 40), small=(80, 20)) == "small"
    assert after("big", big=(80, 20), small=(80, 20)) == "big"
    assert after("small", small=(60, 40)) == "big"


def test_candidates_are_the_routes_models() -> None:
    """Those of the requested name's own map where it has one, and the requested model."""
    routes = Routes(by_state={"SLOW": "big", "FAST": "small"}, by_model={"own": {"FAST": "tiny"}})
    assert candidates(routes, "asked") == {"asked": 1, "small": 0, "big": 2}
    assert candidates(routes, "own") == {"own": 1, "tiny": 0}
    assert candidates(Routes(), "asked") == {"asked": 1}


def test_without_prices_the_states_say_what_is_cheap() -> None:
    """FAST's model is cheaper than the requested one, and that cheaper than SLOW's."""
    same = WorkloadPrior(solved=80, failed=20)
    routed = candidates(Routes(by_state={"FAST": "fast", "SLOW": "slow"}), "asked")
    known = WorkloadRates(key="w", run="r", outcomes=dict.fromkeys(routed, same))
    dearer = {name: place for name, place in routed.items() if name != "fast"}
    for models, cheapest in ((routed, "fast"), (dearer, "asked")):
        assert begin(known, models, "asked", regret=5.0, explore=0.0).model == cheapest


Chances = Mapping[str, float]


def simulated(
    chances: Chances, seed: int, runs: int, *, default: str = "big", later: Chances | None = None
) -> list[str]:
    """The models of a workload's runs, whose outcomes are known at once and fade; from run 500 on
    their chances are those of `later`."""
    chance, known, given = random.Random(seed), dict[str, WorkloadPrior](), list[str]()
    kept = 0.5 ** (1.0 / HALF_LIFE)
    for number in range(runs):
        now = later if later is not None and number >= 500 else chances
        state = WorkloadRates(key=f"{seed}", run=str(number), outcomes=known, prices=PRICES)
        model = choose(state, default=default, explore=0.05).model
        failed = chance.random() >= now[model]
        known = {
            name: WorkloadPrior(solved=kept * each.solved, failed=kept * each.failed)
            for name, each in known.items()
        }
        own = known.get(model, WorkloadPrior())
        known[model] = WorkloadPrior(solved=own.solved + (not failed), failed=own.failed + failed)
        given.append(model)
    return given


def share(found: list[list[str]], model: str, first: int, last: int) -> float:
    """Share of the model in the runs from `first` to `last`, over all seeds."""
    return sum(given[first:last].count(model) for given in found) / len(found) / (last - first)


def test_an_equally_good_cheap_model_is_found() -> None:
    """Within 300 runs it gets four of five; one that does well is not left for ever by bad luck."""
    for chance in (0.8, 0.95):
        found = [simulated({"big": chance, "small": chance}, seed, 500) for seed in range(20)]
        assert share(found, "small", 250, 500) > 0.79


@pytest.mark.parametrize(
    ("default", "before", "later"),
    by_day(
        [
            ("big", {"big": 0.8, "small": 0.7}, {"big": 0.4, "small": 0.7}),
            ("big", {"big": 0.9, "small": 0.8}, {"big": 0.6, "small": 0.8}),
            ("small", {"big": 0.8, "small": 0.8}, {"big": 0.8, "small": 0.5}),
        ],
        1,
    ),
)
def test_a_requested_model_that_got_worse_is_left(
    default: str, before: Chances, later: Chances
) -> None:
    """After 300 runs few still go there, also where the other one is dearer."""
    found = [simulated(before, seed, 900, default=default, later=later) for seed in range(30)]
    assert share(found, default, 800, 900) < 0.15


WORKLOADS = (
    # (chances, most points lost on average after 200 and after 1,000 runs)
    ({"big": 0.8, "small": 0.6}, 4.0, 2.0),
    ({"big": 0.8, "small": 0.79}, 1.0, 1.1),
    ({"big": 0.5, "small": 0.2}, 4.0, 2.0),
    # The requested model is the worse one: that has to be found out by a trial.
    ({"big": 0.6, "small": 0.75}, 5.0, 2.0),
)


def lost(chances: Chances, given: list[str]) -> float:
    """Points of success a run that were lost against the better model."""
    return 100 * sum(max(chances.values()) - chances[model] for model in given) / len(given)


@pytest.mark.parametrize(("chances", "soon", "late"), WORKLOADS)
def test_a_workload_loses_little_while_it_learns(
    chances: dict[str, float], soon: float, late: float
) -> None:
    """Mean over seeds after 200 runs."""
    found = [lost(chances, simulated(chances, seed, 200)) for seed in range(20)]
    assert sum(found) / len(found) < soon


@pytest.mark.nightly
@pytest.mark.parametrize(("chances", "soon", "late"), WORKLOADS)
def test_regret_after_a_thousand_runs(chances: dict[str, float], soon: float, late: float) -> None:
    """Regret falls with what is known, for every workload on average and in the worst of 40."""
    found = [lost(chances, simulated(chances, seed, 1000)) for seed in range(40)]
    assert sum(found) / len(found) < late
    assert max(found) < 9.0


def test_a_trial_has_a_known_probability() -> None:
    """A cheaper model with few outcomes is drawn more often, and the log says how often."""
    known = [rates(f"r{n}", big=(80, 20)) for n in range(1000)]
    drawn = [choose(each, explore=0.04) for each in known]
    assert drawn[0].probabilities == {"small": 0.22, "big": 0.78}
    assert Counter(each.model for each in drawn)["small"] / 1000 == pytest.approx(0.22, abs=0.04)
    assert "small" not in {choose(each).model for each in known}, "nothing is tried unexplored"
