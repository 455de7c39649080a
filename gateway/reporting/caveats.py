"""Reasons not to trust an experiment's results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from gateway.reporting.rates import SampleRatio
from gateway.reporting.results import Arm, Caveat, Comparison
from gateway.stores.totals import ExperimentRun

FEW_RUNS = 30
"""Judged runs that an arm needs for a conclusion: the usual minimum for a normal approximation."""

_NOTABLE_POINTS = 0.05  # the difference of success that a sample should be able to show
_UNEVEN_SHARE = 0.05
_UNEVEN_DOSE = 0.25  # of the texts of the arm that gave more
_UNEVEN_MODELS = 0.1  # of the calls


def caveats_of(
    arms: Sequence[Arm],
    comparisons: Sequence[Comparison],
    ratio: SampleRatio | None,
    runs: Sequence[ExperimentRun],
    *,
    checked: bool,
) -> tuple[Caveat, ...]:
    """The caveats, the most serious first. `checked`: the shares of the arms are known."""
    found = [
        *_about_assignment(arms, ratio, runs, checked),
        *_about_outcomes(arms),
        *_about_size(arms, comparisons),
        *_about_dose(runs),
        *_about_cost(arms),
        *_about_runs(runs),
    ]
    return tuple(Caveat(code=code, message=message) for code, message in found)


Found = Iterator[tuple[str, str]]


def _about_assignment(
    arms: Sequence[Arm], ratio: SampleRatio | None, runs: Sequence[ExperimentRun], checked: bool
) -> Found:
    if ratio is not None and ratio.suspicious:
        seen = ", ".join(f"{arm} {count}" for arm, count in ratio.observed.items())
        wanted = ", ".join(f"{arm} {share:.0%}" for arm, share in ratio.expected.items())
        yield (
            "sample_ratio",
            f"The arms did not get their shares of the units ({seen}; wanted {wanted}): the "
            "assignment is broken, or runs of one arm are lost. Do not use these results.",
        )
    if not checked and runs:
        yield (
            "shares_unknown",
            "The configured shares of the arms are not known, so the split could not be checked.",
        )
    crossed = _crossed_units(runs)
    if crossed:
        yield (
            "crossed_units",
            f"{crossed} units have runs in several arms, so the arms are not independent.",
        )
    if not any(arm.arm != "on" for arm in arms) or len(arms) < 2:
        yield "no_comparison", "There are no runs of two arms to compare."


def _about_outcomes(arms: Sequence[Arm]) -> Found:
    if not any(arm.success for arm in arms):
        yield (
            "no_outcomes",
            "No outcome was reported (header x-gateway-outcome, POST /api/runs/{id}/outcome): "
            "success cannot be compared.",
        )
        return
    missing = {arm.arm: arm.unfinished / arm.runs for arm in arms}
    if max(missing.values()) - min(missing.values()) > _UNEVEN_SHARE:
        listed = ", ".join(f"{arm} {share:.0%}" for arm, share in missing.items())
        yield (
            "uneven_outcomes",
            f"Outcomes are missing more often in one arm than in another ({listed}). If runs "
            "without an outcome fail more often, the difference of success is wrong.",
        )


def _about_size(arms: Sequence[Arm], comparisons: Sequence[Comparison]) -> Found:
    judged = {arm.arm: arm.success.trials for arm in arms if arm.success}
    small = [arm for arm, count in judged.items() if count < FEW_RUNS]
    if small:
        yield (
            "few_runs",
            f"Fewer than {FEW_RUNS} judged runs in {', '.join(small)}: too few for a conclusion.",
        )
    for comparison in comparisons:
        success = comparison.success
        if success is not None and success.low <= 0 <= success.high:
            yield (
                "inconclusive",
                f"{comparison.arm} against {comparison.baseline}: success may have changed by "
                f"anything from {success.low * 100:+.1f} to {success.high * 100:+.1f} points. To "
                f"see a change of {_NOTABLE_POINTS * 100:.0f} points, about "
                f"{_runs_needed(arms)} judged runs per arm are needed.",
            )
        if success is not None and success.design_effect > 1:
            yield (
                "repeated_units",
                f"{comparison.arm} against {comparison.baseline}: units have several runs; the "
                f"intervals are widened for that (design effect {success.design_effect:.2f}).",
            )


def _runs_needed(arms: Sequence[Arm]) -> int:
    """Runs per arm that show the notable difference at 95 % in 4 of 5 experiments.

    Source: Lehr's rule, n = 16 * variance / difference^2.
    """
    known = [arm.success for arm in arms if arm.success]
    rate = sum(r.successes for r in known) / sum(r.trials for r in known)
    variance = max(rate * (1 - rate), 0.01)
    return math.ceil(16 * variance / _NOTABLE_POINTS**2 / 10) * 10


def _about_dose(runs: Sequence[ExperimentRun]) -> Found:
    """Whether `on` and `random` acted equally often: only then do they differ in timing alone."""
    on, random = ([run for run in runs if run.arm == arm] for arm in ("on", "random"))
    if min(len(on), len(random)) < FEW_RUNS:
        return
    given, given_random = _guidance(on), _guidance(random)
    most = max(given, given_random)
    apart = _models_apart(on, random)
    if abs(given - given_random) > _UNEVEN_DOSE * most or apart > _UNEVEN_MODELS:
        yield (
            "uneven_dose",
            f"on and random did not act equally often (texts per run: on {given:.1f}, random "
            f"{given_random:.1f}; calls that went to other models: {apart:.0%}), so they differ in "
            "more than timing. experiment.random_routing_share and random_guidance_share set how "
            "often random acts.",
        )


def _guidance(runs: Sequence[ExperimentRun]) -> float:
    return sum(run.injections for run in runs) / len(runs)


def _models_apart(one: Sequence[ExperimentRun], other: Sequence[ExperimentRun]) -> float:
    """Share of the calls by which two groups' models differ: their total variation, in [0, 1]."""
    shares = []
    for runs in (one, other):
        calls = Counter[str]()
        for run in runs:
            calls.update(run.models)
        shares.append({model: count / calls.total() for model, count in calls.items()})
    models = shares[0].keys() | shares[1].keys()
    return sum(abs(shares[0].get(m, 0.0) - shares[1].get(m, 0.0)) for m in models) / 2


def _about_cost(arms: Sequence[Arm]) -> Found:
    unpriced = {arm.arm: arm.unpriced for arm in arms if arm.unpriced}
    if unpriced:
        listed = ", ".join(f"{arm} {count}" for arm, count in unpriced.items())
        yield (
            "unpriced",
            f"The cost leaves out runs with calls of unknown price ({listed}).",
        )
    estimated = {arm.arm: arm.estimated_calls for arm in arms if arm.estimated_calls}
    if estimated:
        listed = ", ".join(f"{arm} {count}" for arm, count in estimated.items())
        yield (
            "estimated",
            f"The provider reported no usage for some calls ({listed}): their tokens and cost are "
            "estimated.",
        )


def _about_runs(runs: Sequence[ExperimentRun]) -> Found:
    policies = {run.policy_digest for run in runs if run.arm in ("on", "random")}
    if len(policies) > 1:
        yield (
            "policy_changed",
            f"The policy changed during the experiment ({len(policies)} versions): the results "
            "mix these versions.",
        )
    if runs:
        yield (
            "looks",
            "The intervals hold for one look at a sample size chosen in advance; stopping at the "
            "first good result is wrong more often than 1 time in 20.",
        )


def _crossed_units(runs: Sequence[ExperimentRun]) -> int:
    seen = {(run.unit, run.arm) for run in runs if run.arm is not None}
    arms = Counter([unit for unit, _ in seen])
    return sum([count > 1 for count in arms.values()])
