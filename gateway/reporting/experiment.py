"""The report of one experiment, from its runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from gateway.reporting.amounts import AmountRatio, Spent, amount_of, amount_ratio
from gateway.reporting.caveats import caveats_of
from gateway.reporting.rates import Sample, newcombe, rate_of, sample_ratio, stratified
from gateway.reporting.results import Arm, Comparison, Day, ExperimentReport, Stratum, StratumArm
from gateway.steering.experiments import ARMS
from gateway.stores.totals import WARN_COMPOSITE, RunRecord

STRATA: Mapping[str, Callable[[RunRecord], str]] = {
    "profile": lambda run: run.profile,
    "agent": lambda run: run.agent,
    "model": lambda run: run.model_requested,
    "tenant": lambda run: run.tenant,
}
"""How runs can be divided, so that like is compared with like."""

BASELINES = ("off", "shadow", "random")
"""Arms that serve as the baseline, in order of preference."""


def report(
    experiment: str,
    runs: Sequence[RunRecord],
    *,
    shares: Mapping[str, float] | None = None,
    stratum: str = "profile",
) -> ExperimentReport:
    """The report of `runs`, all of one experiment.

    `shares`: the configured share of each arm; None when it is no longer known, and the split is
    then not checked. Raises: ValueError for a `stratum` that is not among STRATA.
    """
    if stratum not in STRATA:
        raise ValueError(f"stratum: must be one of {', '.join(STRATA)}, not {stratum!r}")
    groups = {arm: [run for run in runs if run.arm == arm] for arm in ARMS}
    groups = {arm: group for arm, group in groups.items() if group}
    baseline = next((arm for arm in BASELINES if arm in groups), None)
    arms = tuple(_arm(arm, group) for arm, group in groups.items())
    strata = _strata(runs, stratum)
    comparisons = tuple(
        _compare(experiment, arm, groups[arm], control, groups[control], strata)
        for arm, control in _compared(groups, baseline)
    )
    ratio = None if shares is None else sample_ratio(_units_per_arm(runs), shares)
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
        stratum=stratum,
        strata=tuple(_stratum(name, groups, baseline) for name, groups in strata.items()),
        daily=_daily(runs),
        policies=tuple(sorted({run.policy_digest for run in runs})),
        caveats=caveats_of(arms, comparisons, ratio, runs, checked=shares is not None),
    )


def _arm(arm: str, runs: Sequence[RunRecord]) -> Arm:
    totals = [run.totals for run in runs]
    scored = sum(t.scored_steps for t in totals)
    entered = sum(t.input_tokens for t in totals)
    outcomes = Counter(run.outcome for run in runs if run.outcome is not None)
    return Arm(
        arm=arm,
        runs=len(runs),
        units=len({_unit(run) for run in runs}),
        outcomes=dict(sorted(outcomes.items())),
        unfinished=len(runs) - outcomes.total(),
        success=rate_of(_sample(runs)),
        tokens=amount_of(_spent(runs, _tokens)),
        steps=amount_of(_spent(runs, _steps)),
        cost_usd=amount_of(_spent(runs, _cost)),
        unpriced=sum(_cost(run) is None for run in runs),
        cached_share=sum(t.cached_tokens for t in totals) / entered if entered else 0.0,
        clean_run_rate=sum(t.composite_peak < WARN_COMPOSITE for t in totals) / len(runs),
        mean_composite=sum(t.composite_sum for t in totals) / scored if scored else 0.0,
        injections=sum(t.injections for t in totals),
    )


Groups = Mapping[str, Sequence[RunRecord]]


def _compared(groups: Groups, baseline: str | None) -> list[tuple[str, str]]:
    """(arm, control) for each comparison."""
    pairs = [(arm, baseline) for arm in groups if baseline not in (None, arm)]
    if {"on", "random"} <= groups.keys() and baseline != "random":
        pairs.append(("on", "random"))
    return [(arm, control) for arm, control in pairs if control is not None]


def _compare(
    experiment: str,
    arm: str,
    treated: Sequence[RunRecord],
    baseline: str,
    control: Sequence[RunRecord],
    strata: Mapping[str, Groups],
) -> Comparison:
    def ratio(name: str, amount: Callable[[RunRecord], float | None]) -> AmountRatio | None:
        seed = f"{experiment}\x00{arm}\x00{name}"
        return amount_ratio(_spent(treated, amount), _spent(control, amount), seed=seed)

    pairs = [
        (_sample(groups.get(arm, ())), _sample(groups.get(baseline, ())))
        for groups in strata.values()
    ]
    return Comparison(
        arm=arm,
        baseline=baseline,
        success=newcombe(_sample(treated), _sample(control)),
        success_stratified=stratified(pairs) if len(pairs) > 1 else None,
        cost_usd=ratio("cost", _cost),
        tokens=ratio("tokens", _tokens),
        steps=ratio("steps", _steps),
    )


def _strata(runs: Sequence[RunRecord], stratum: str) -> dict[str, dict[str, list[RunRecord]]]:
    """Runs by stratum and arm; the largest stratum comes first."""
    found: dict[str, dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.arm is not None:
            found[STRATA[stratum](run)][run.arm].append(run)
    return dict(sorted(found.items(), key=lambda item: -sum(map(len, item[1].values()))))


def _stratum(name: str, groups: Groups, baseline: str | None) -> Stratum:
    arms = [arm for arm in ARMS if groups.get(arm)]
    control = _sample(groups.get(baseline or "", ()))
    differences = {
        arm: newcombe(_sample(groups[arm]), control) for arm in arms if baseline not in (None, arm)
    }
    return Stratum(
        name=name,
        arms=tuple(
            StratumArm(
                arm=arm,
                runs=len(groups[arm]),
                success=rate_of(_sample(groups[arm])),
                cost_usd=amount_of(_spent(groups[arm], _cost)),
            )
            for arm in arms
        ),
        differences={arm: found for arm, found in differences.items() if found is not None},
    )


def _daily(runs: Sequence[RunRecord]) -> tuple[Day, ...]:
    days: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for run in runs:
        if run.arm is not None:
            date = datetime.fromtimestamp(run.started_at, UTC).date().isoformat()
            days[date, run.arm].append(run)
    return tuple(_day(date, arm, group) for (date, arm), group in sorted(days.items()))


def _day(date: str, arm: str, runs: Sequence[RunRecord]) -> Day:
    sample, spent = _sample(runs), _spent(runs, _cost).runs
    return Day(
        date=date,
        arm=arm,
        runs=len(runs),
        judged=sample.trials,
        successes=sample.successes,
        tokens=sum(map(_tokens, runs)) / len(runs),
        cost_usd=sum(cost for _, cost in spent) / len(spent) if spent else None,
    )


def _units_per_arm(runs: Sequence[RunRecord]) -> dict[str, int]:
    """How many units each arm has; a unit in several arms counts in the first one."""
    first: dict[str, str] = {}
    for run in runs:
        if run.arm is not None:
            first.setdefault(_unit(run), run.arm)
    return dict(Counter(first.values()))


def _sample(runs: Sequence[RunRecord]) -> Sample:
    judged = [run for run in runs if run.outcome is not None]
    return Sample(outcomes=[(_unit(run), run.outcome == "success") for run in judged])


def _spent(runs: Sequence[RunRecord], amount: Callable[[RunRecord], float | None]) -> Spent:
    known = [(_unit(run), amount(run)) for run in runs]
    return Spent(runs=[(unit, value) for unit, value in known if value is not None])


def _unit(run: RunRecord) -> str:
    return run.unit or run.conversation_id


def _tokens(run: RunRecord) -> float:
    return run.totals.input_tokens + run.totals.output_tokens


def _steps(run: RunRecord) -> float:
    return run.totals.steps


def _cost(run: RunRecord) -> float | None:
    return None if run.totals.unpriced_calls else run.totals.cost_usd
