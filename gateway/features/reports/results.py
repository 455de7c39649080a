"""Results of an experiment as values, their caveats, and their effects for a forest plot."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal

from gateway.data_files import read_toml
from gateway.features.reports.amounts import Amount, AmountRatio, Ratio
from gateway.features.reports.rates import Difference, Rate, SampleRatio
from gateway.stores.totals import ExperimentRun
from gateway.values import FieldDict, Value, frozen


@frozen
class Caveat:
    """A reason for doubt."""

    code: str  # for programs
    message: str  # for people


@frozen
class Arm:
    """One arm's runs."""

    arm: str  # on, random, shadow or off
    runs: int  # with and without an outcome
    units: int  # what was drawn into the arm; several runs may be one unit
    outcomes: Mapping[str, int]  # runs by outcome
    unfinished: int  # runs without an outcome
    success: Rate | None  # over the runs with an outcome; None without any
    tokens: Amount | None  # input and output of a run
    steps: Amount | None  # of a run
    duration_s: Amount | None  # seconds of a run
    interventions: Amount | None  # acts of a person in a run
    cost_usd: Amount | None  # US dollars of a run, those of unknown price left out
    unpriced: int  # runs with a call of unknown price
    estimated_calls: int  # calls whose provider reported no usage
    estimated_tokens: int  # their tokens
    estimated_usd: float  # their cost
    cached_share: float  # cached of all input tokens, in [0, 1]
    clean_run_rate: float  # share of runs that never reached a composite of 0.35
    mean_composite: float  # over all scored steps, in [0, 1]
    injections: int  # pieces of guidance that reached the model


@frozen
class Comparison:
    """One arm against its baseline. Ratios below 1 are less; None: cannot be computed."""

    arm: str  # that is compared
    baseline: str  # that it is compared with
    success: Difference | None  # difference of the rates
    # the same within strata of similar runs, combined; None with fewer than two
    success_stratified: Difference | None
    cost_usd: AmountRatio | None  # of a run
    tokens: AmountRatio | None  # of a run
    steps: AmountRatio | None  # of a run
    others: Mapping[str, AmountRatio | None]  # of `duration_s` and of `interventions`


@frozen
class StratumArm:
    """One arm's runs within a stratum."""

    arm: str  # on, random, shadow or off
    runs: int  # with and without an outcome
    success: Rate | None  # over the runs with an outcome; None without any
    cost_usd: Amount | None  # US dollars of a run
    estimated_usd: float  # the estimated part of their cost


@frozen
class Stratum:
    """Similar runs."""

    name: str  # value of the key that they share
    arms: tuple[StratumArm, ...]  # that have runs in it
    differences: Mapping[str, Difference]  # of success against the baseline, by arm


@frozen
class ExperimentReport:
    """The results of an experiment, and the reasons to doubt them."""

    experiment: str  # its id
    runs: int  # of all arms
    first_at: float | None  # epoch seconds at which the first run began; None without runs
    last_at: float | None  # epoch seconds at which the last run began
    baseline: str | None  # off if there is such an arm, else shadow, else random, else None
    arms: tuple[Arm, ...]  # in the order of MODES
    # every other arm with the baseline, and on with random, which shows the effect of timing
    comparisons: tuple[Comparison, ...]
    sample_ratio: SampleRatio | None  # None when no shares are known
    stratum: str  # key by which runs are grouped into similar ones
    strata: tuple[Stratum, ...]  # largest first
    policies: tuple[str, ...]  # digests of the policies that steered its runs
    caveats: tuple[Caveat, ...]  # reasons for doubt


# Judged runs that an arm needs for a conclusion: the usual minimum for a normal approximation.
FEW_RUNS = 30
_NOTABLE_POINTS = 0.05  # the difference of success that a sample should be able to show
_UNEVEN_SHARE = 0.05


Found = Iterator[tuple[str, FieldDict]]  # codes, and what their sentences say


@cache
def _sentences() -> dict[str, str]:
    return read_toml(__package__, "caveats.toml")


def caveats_of(
    arms: Sequence[Arm],
    comparisons: Sequence[Comparison],
    ratio: SampleRatio | None,
    runs: Sequence[ExperimentRun],
    *,
    checked: bool,
) -> tuple[Caveat, ...]:
    """The caveats, the most serious first. `checked`: the shares of the arms are known."""
    found = (
        *_about_assignment(arms, ratio, runs, checked=checked),
        *_about_outcomes(arms),
        *_about_size(arms, comparisons),
        *_about_cost(arms),
        *_about_runs(runs),
    )
    said = _sentences()
    return tuple(Caveat(code=code, message=said[code].format(**named)) for code, named in found)


def _listed(by_arm: Mapping[str, float], form: str = "") -> str:
    return ", ".join(f"{arm} {value:{form}}" for arm, value in by_arm.items())


def _about_assignment(
    arms: Sequence[Arm], ratio: SampleRatio | None, runs: Sequence[ExperimentRun], checked: bool
) -> Found:
    if ratio is not None and ratio.suspicious:
        seen = _listed(ratio.observed)
        wanted = _listed(ratio.expected, ".0%")
        yield "sample_ratio", {"seen": seen, "wanted": wanted}
    if not checked and runs:
        yield "shares_unknown", {}
    seen_in = Counter([unit for unit, arm in {(run.unit, run.arm) for run in runs} if arm])
    if crossed := sum([count > 1 for count in seen_in.values()]):
        yield "crossed_units", {"units": crossed}
    if not any(arm.arm != "on" for arm in arms) or len(arms) < 2:
        yield "no_comparison", {}


def _about_outcomes(arms: Sequence[Arm]) -> Found:
    if not any(arm.success for arm in arms):
        yield "no_outcomes", {}
        return
    missing = {arm.arm: arm.unfinished / arm.runs for arm in arms}
    if max(missing.values()) - min(missing.values()) > _UNEVEN_SHARE:
        yield "uneven_outcomes", {"missing": _listed(missing, ".0%")}


def _about_size(arms: Sequence[Arm], comparisons: Sequence[Comparison]) -> Found:
    judged = {arm.arm: arm.success.trials for arm in arms if arm.success}
    if small := [arm for arm, count in judged.items() if count < FEW_RUNS]:
        yield "few_runs", {"few": FEW_RUNS, "arms": ", ".join(small)}
    # Runs per arm that show the notable difference at 95 % in 4 of 5 experiments. Source: Lehr's
    # rule, n = 16 * variance / difference^2.
    rates = [arm.success for arm in arms if arm.success]
    rate = sum(r.successes for r in rates) / max(1, sum(r.trials for r in rates))
    needed = math.ceil(16 * max(rate * (1 - rate), 0.01) / _NOTABLE_POINTS**2 / 10) * 10
    for comparison in comparisons:
        success = comparison.success
        pair = f"{comparison.arm} against {comparison.baseline}"
        if success is not None and success.low <= 0 <= success.high:
            change = {"low": success.low * 100, "high": success.high * 100}
            notable = {"points": _NOTABLE_POINTS * 100, "needed": needed}
            yield "inconclusive", {"pair": pair, **change, **notable}
        if success is not None and success.design_effect > 1:
            yield "repeated_units", {"pair": pair, "effect": success.design_effect}


def _about_cost(arms: Sequence[Arm]) -> Found:
    if unpriced := {arm.arm: arm.unpriced for arm in arms if arm.unpriced}:
        yield "unpriced", {"arms": _listed(unpriced)}
    if estimated := {arm.arm: arm.estimated_calls for arm in arms if arm.estimated_calls}:
        yield "estimated", {"arms": _listed(estimated)}


def _about_runs(runs: Sequence[ExperimentRun]) -> Found:
    policies = {run.policy_digest for run in runs if run.arm == "on"}
    if len(policies) > 1:
        yield "policy_changed", {"versions": len(policies)}
    if runs:
        yield "looks", {}


# Scales reach at least this far to either side, so that small effects look small.
_LEAST_POINTS = 0.1
_LEAST_CHANGE = 0.25
_MARGIN = 1.08


class ChartLine(Value):
    """One line of a chart: an estimate and its interval."""

    name: str  # of the quantity
    kind: Literal["points", "ratio"]  # points = a difference of shares
    estimate: float  # of the effect
    low: float  # lower end of the 95 % interval
    high: float  # upper end of it
    bounds: tuple[float, float]  # ends of the scale
    none: float  # value that means no effect: 0 for points, 1 for a ratio

    @property
    def sure(self) -> bool:
        """True if the interval excludes `none`."""
        return not self.low <= self.none <= self.high

    @property
    def good(self) -> bool | None:
        """True if the arm is better: more success, or less of anything else; None if not sure."""
        if not self.sure:
            return None
        return (self.estimate > self.none) is (self.kind == "points")


def effects_of(comparison: Comparison) -> list[ChartLine]:
    """The lines of a comparison; unknown values are left out."""
    points = [
        ("Success", comparison.success),
        ("Success, like with like", comparison.success_stratified),
    ]
    amounts = (
        ("Cost per run", comparison.cost_usd),
        ("Tokens per run", comparison.tokens),
        ("Steps per run", comparison.steps),
        ("Time per run", comparison.others["duration_s"]),
        ("Interventions per run", comparison.others["interventions"]),
    )
    ratios = [
        (f"{name}, {kind}", ratio)
        for name, amount in amounts
        if amount is not None
        for kind, ratio in (("mean", amount.mean), ("median", amount.median))
    ]
    return [
        *_effects("points", points, none=0.0, least=_LEAST_POINTS),
        *_effects("ratio", ratios, none=1.0, least=_LEAST_CHANGE),
    ]


def _effects(
    kind: Literal["points", "ratio"],
    lines: Sequence[tuple[str, Difference | Ratio | None]],
    *,
    none: float,
    least: float,
) -> list[ChartLine]:
    """Returns the known effects, on one scale around `none` on which every interval fits."""
    known = [(name, found) for name, found in lines if found is not None]
    ends = [end for _, found in known for end in (found.low, found.high) if math.isfinite(end)]
    far = max([least, *(abs(end - none) for end in ends)]) * _MARGIN
    return [
        ChartLine(
            name=name,
            kind=kind,
            estimate=found.estimate,
            low=found.low,
            high=found.high,
            bounds=(none - far, none + far),
            none=none,
        )
        for name, found in known
    ]
