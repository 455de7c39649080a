"""The results of an experiment, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.reporting.amounts import Amount, AmountRatio
from gateway.reporting.rates import Difference, Rate, SampleRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """A reason for doubt: a code for programs, a sentence for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm's runs.

    `unfinished`: runs without an outcome; `success` is over the others. `unpriced`: runs with a
    call of unknown price, which `cost_usd` leaves out. `estimated_calls`: calls of all runs whose
    provider reported no usage; `estimated_tokens` and `estimated_usd`: their part of what all runs
    spent. `cached_share`: cached of all input tokens.
    `clean_run_rate`: share of the runs that never reached a composite of 0.35.
    """

    arm: str
    runs: int
    units: int
    outcomes: Mapping[str, int]
    unfinished: int
    success: Rate | None
    tokens: Amount | None
    steps: Amount | None
    cost_usd: Amount | None
    unpriced: int
    estimated_calls: int
    estimated_tokens: int
    estimated_usd: float
    cached_share: float
    clean_run_rate: float
    mean_composite: float
    injections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against its baseline. Ratios below 1 are less; None: cannot be computed."""

    arm: str
    baseline: str
    success: Difference | None
    success_stratified: Difference | None
    cost_usd: AmountRatio | None
    tokens: AmountRatio | None
    steps: AmountRatio | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumArm:
    """One arm's runs within a stratum; `estimated_usd`: the estimated part of their cost."""

    arm: str
    runs: int
    success: Rate | None
    cost_usd: Amount | None
    estimated_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Similar runs; `differences` of success against the baseline by arm."""

    name: str
    arms: tuple[StratumArm, ...]
    differences: Mapping[str, Difference]


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """One arm's runs that started on one day, UTC."""

    date: str
    arm: str
    runs: int
    judged: int
    successes: int
    tokens: float
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentReport:
    """The results of an experiment, and the reasons to doubt them.

    `baseline`: off if there is such an arm, else shadow, else random, else None. `comparisons`:
    every other arm with the baseline, and on with random, which shows the effect of timing.
    `policies`: digests of the policies that steered its runs.
    """

    experiment: str
    runs: int
    first_at: float | None
    last_at: float | None
    baseline: str | None
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    sample_ratio: SampleRatio | None
    stratum: str
    strata: tuple[Stratum, ...]
    daily: tuple[Day, ...]
    policies: tuple[str, ...]
    caveats: tuple[Caveat, ...]
