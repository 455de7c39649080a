"""The report of one experiment, from its runs, and whether chance can have divided them so."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import erfc, exp, sqrt
from typing import Literal, get_args

from gateway.features.reports.results import (
    Arm,
    Comparison,
    ExperimentReport,
    SampleRatio,
    caveats_of,
)
from gateway.features.reports.success_rates import Sample, newcombe, rate_of
from gateway.features.reports.winsorised_means import AmountRatio, Spent, amount_of, amount_ratio
from gateway.steering.experiments import MODES
from gateway.stores.severity import WARN_COMPOSITE
from gateway.stores.totals import ExperimentRun
from gateway.values import FieldDict

# Below it a sample ratio counts as broken. Source: the customary level for this check (Fabijan et
# al., KDD 2019), low because the check is repeated.
SUSPICIOUS_P = 0.001

Kind = Literal["cost_usd", "tokens", "steps", "duration_s", "interventions"]


class RunGroup:
    """Runs of one arm."""

    def __init__(self, runs: Sequence[ExperimentRun]):
        self.runs = runs
        judged = [run for run in runs if run.outcome is not None]
        self.sample = Sample(outcomes=[(run.unit, run.outcome == "success") for run in judged])

    def spent(self, kind: Kind) -> Spent:
        """Returns the spending of each run whose spending is known."""
        known = [(run.unit, getattr(run, kind)) for run in self.runs]
        return [(unit, amount) for unit, amount in known if amount is not None]

    def estimated(self, part: str) -> float:
        """Estimated part of the runs' `calls`, `tokens` or `cost_usd`."""
        return sum([run.estimated.get(part, 0) for run in self.runs if run.estimated])


BASELINES = ("off", "shadow")  # arms that serve as the baseline, in order of preference


def report(
    experiment: str,
    runs: Sequence[ExperimentRun],
    *,
    shares: Mapping[str, float] | None = None,
) -> ExperimentReport:
    """The report of `runs`, all of one experiment. `shares`: the configured share of each arm;
    without them the split is not checked."""
    groups = _by_arm(runs)
    baseline = next((arm for arm in BASELINES if arm in groups), None)
    arms = tuple(_arm(arm, group) for arm, group in groups.items())
    comparisons = tuple(
        _compare(arm, group, baseline, control=groups[baseline])
        for arm, group in groups.items()
        if baseline is not None and baseline != arm
    )
    # A unit in several arms counts in the first one.
    first: dict[str, str] = {}
    for run in runs:
        if run.arm is not None:
            first.setdefault(run.unit, run.arm)
    ratio = None if shares is None else sample_ratio(Counter(first.values()), shares)
    times = [run.started_at for run in runs]
    return ExperimentReport(
        experiment=experiment,
        runs=len(runs),
        first_at=min(times, default=None),
        last_at=max(times, default=None),
        baseline=baseline,
        arms=arms,
        comparisons=comparisons,
        sample_ratio=ratio,
        policies=tuple(sorted({run.policy_digest for run in runs})),
        caveats=caveats_of(arms, comparisons, ratio, runs=runs, checked=shares is not None),
    )


def _by_arm(runs: Sequence[ExperimentRun]) -> dict[str, RunGroup]:
    """The runs of each arm that has any, in the order of MODES."""
    found: dict[str | None, list[ExperimentRun]] = defaultdict(list)
    for run in runs:
        found[run.arm].append(run)
    return {arm: RunGroup(found[arm]) for arm in MODES if arm in found}


def _arm(arm: str, group: RunGroup) -> Arm:
    runs = group.runs
    scored = sum([run.scored_steps for run in runs])
    entered = sum([run.input_tokens for run in runs])
    outcomes = Counter([run.outcome for run in runs if run.outcome is not None])
    spent: FieldDict = {kind: amount_of(group.spent(kind)) for kind in get_args(Kind)}
    return Arm(
        arm=arm,
        runs=len(runs),
        units=len({run.unit for run in runs}),
        outcomes=dict(sorted(outcomes.items())),
        unfinished=len(runs) - outcomes.total(),
        success=rate_of(group.sample),
        **spent,
        unpriced=len(runs) - len(group.spent("cost_usd")),
        estimated_calls=int(group.estimated("calls")),
        estimated_tokens=int(group.estimated("tokens")),
        estimated_usd=group.estimated("cost_usd"),
        cached_share=sum([run.cached_tokens for run in runs]) / entered if entered else 0.0,
        clean_run_rate=sum([run.composite_peak < WARN_COMPOSITE for run in runs]) / len(runs),
        mean_composite=sum([run.composite_sum for run in runs]) / scored if scored else 0.0,
        injections=sum([run.injections for run in runs]),
    )


def _compare(arm: str, treated: RunGroup, baseline: str, control: RunGroup) -> Comparison:
    def ratio(kind: Kind) -> AmountRatio | None:
        return amount_ratio(treated.spent(kind), control.spent(kind))

    return Comparison(
        arm=arm,
        baseline=baseline,
        success=newcombe(treated.sample, control.sample),
        cost_usd=ratio("cost_usd"),
        tokens=ratio("tokens"),
        steps=ratio("steps"),
        others={"duration_s": ratio("duration_s"), "interventions": ratio("interventions")},
    )


def sample_ratio(observed: Mapping[str, int], shares: Mapping[str, float]) -> SampleRatio | None:
    """Pearson's chi-square test of the units per arm against the shares they were drawn with. An
    arm without a share should have no units. None without units or with only one arm."""
    arms = [
        arm
        for arm in dict.fromkeys((*shares, *observed))
        if shares.get(arm, 0) > 0 or observed.get(arm)
    ]
    total = sum(observed.values())
    whole = sum(shares.values())
    if not total or not whole or len(arms) < 2:
        return None
    expected = {arm: shares.get(arm, 0.0) / whole for arm in arms}
    counts = {arm: observed.get(arm, 0) for arm in arms}
    statistic = None
    p_value = 0.0
    if all(expected[arm] or not counts[arm] for arm in arms):
        squares = ((counts[a] - total * expected[a]) ** 2 / (total * expected[a]) for a in arms)
        statistic = sum(squares)
        p_value = chi_square_tail(statistic, len(arms) - 1)
    return SampleRatio(
        expected=expected,
        observed=counts,
        chi_square=statistic,
        degrees=len(arms) - 1,
        p_value=p_value,
        suspicious=p_value < SUSPICIOUS_P,
    )


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The probability of a larger chi-square with one degree of freedom, or with the two of three
    arms: there are no more."""
    if degrees == 1:
        return erfc(sqrt(statistic / 2))
    return exp(-statistic / 2)
