"""Results of an experiment as values, their caveats, and their effects by name."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from gateway.data_files import read_toml
from gateway.features.reports.success_rates import Difference, Rate
from gateway.features.reports.winsorised_means import Amount, AmountRatio, Ratio
from gateway.stores.totals import ExperimentRun
from gateway.values import FieldDict, frozen


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
    cost_usd: AmountRatio | None  # of a run
    tokens: AmountRatio | None  # of a run
    steps: AmountRatio | None  # of a run
    others: Mapping[str, AmountRatio | None]  # of `duration_s` and of `interventions`


@frozen
class SampleRatio:
    """Test that the arms have their shares of the units."""

    expected: Mapping[str, float]  # units by arm, by the shares
    observed: Mapping[str, int]  # units by arm
    chi_square: float | None  # test value; None when an arm has units but no share
    degrees: int  # of freedom of the test
    p_value: float  # probability of such a deviation by chance
    suspicious: bool  # p below 0.001


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
    policies: tuple[str, ...]  # digests of the policies that steered its runs
    caveats: tuple[Caveat, ...]  # reasons for doubt


# Judged runs that an arm needs for a conclusion: the usual minimum for a normal approximation.
FEW_RUNS = 30
_NOTABLE_POINTS = 0.05  # the difference of success that a sample should be able to show
_UNEVEN_SHARE = 0.05


Found = Iterator[tuple[str, FieldDict]]  # codes, and what their sentences say


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
        *_about_runs(arms, runs),
    )
    said = read_toml(__package__, "caveats.toml")
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
    needed = ceil(16 * max(rate * (1 - rate), 0.01) / _NOTABLE_POINTS**2 / 10) * 10
    for comparison in comparisons:
        success = comparison.success
        pair = f"{comparison.arm} against {comparison.baseline}"
        if success is not None and success.low <= 0 <= success.high:
            change = {"low": success.low * 100, "high": success.high * 100}
            notable = {"points": _NOTABLE_POINTS * 100, "needed": needed}
            yield "inconclusive", {"pair": pair, **change, **notable}
        if success is not None and success.design_effect > 1:
            yield "repeated_units", {"pair": pair, "effect": success.design_effect}


def _about_runs(arms: Sequence[Arm], runs: Sequence[ExperimentRun]) -> Found:
    if unpriced := {arm.arm: arm.unpriced for arm in arms if arm.unpriced}:
        yield "unpriced", {"arms": _listed(unpriced)}
    if estimated := {arm.arm: arm.estimated_calls for arm in arms if arm.estimated_calls}:
        yield "estimated", {"arms": _listed(estimated)}
    policies = {run.policy_digest for run in runs if run.arm == "on"}
    if len(policies) > 1:
        yield "policy_changed", {"versions": len(policies)}
    if runs:
        yield "looks", {}


Effect = tuple[str, str, Difference | Ratio]


def effects_of(comparison: Comparison) -> list[Effect]:
    """The name of each known effect, the filter of templates that shows it (`points`: a difference
    of shares, `change`: a ratio), and the effect."""
    found: list[tuple[str, str, Difference | Ratio | None]] = [
        ("Success", "points", comparison.success),
    ]
    amounts = {
        "Cost": comparison.cost_usd,
        "Tokens": comparison.tokens,
        "Steps": comparison.steps,
        "Time": comparison.others["duration_s"],
        "Interventions": comparison.others["interventions"],
    }
    for name, amount in amounts.items():
        if amount is not None:
            found.append((f"{name} per run, mean", "change", amount.mean))
            found.append((f"{name} per run, median", "change", amount.median))
    return [(name, show, effect) for name, show, effect in found if effect is not None]
