"""The health of many runs: their sums, rates, spread and newest ones, made from rows of a store."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import orjson
from msgspec import Struct

from gateway.stores.severity import (
    SEVERITY_WORDS,
    Severity,
    SeverityWord,
    run_severity,
)
from gateway.stores.totals import CallTotals, CountedSteps
from gateway.values import FieldDict, Fields, Value, frozen

# Most runs of one health summary: their JSON counters take time to add up, and a store gives up a
# read that takes too long.
HEALTH_RUNS = 20_000
# Most runs of the health of a page.
SHOWN_RUNS = 1000
# Most runs of which median and 95th percentile are counted: the list shows them at every visit.
SPREAD_RUNS = 200


class Spread(Value):
    """The spread of runs; a value of None where no run has one."""

    runs: int  # those that were read, at most the newest SPREAD_RUNS
    p50: Mapping[str, float | None]  # median by quantity, see SPREAD
    p95: Mapping[str, float | None]  # 95th percentile by quantity


SPREAD = ("duration_s", "cost_usd", "calls")


def spread(rows: Sequence[Sequence[Any]]) -> Spread:
    """The spread of runs, each the values of SPREAD."""
    known = [sorted([v for v in values if v is not None]) for values in zip(*rows, strict=True)]
    parts = {
        part: {
            n: v[ceil(part * len(v) / 100) - 1] for n, v in zip(SPREAD, known, strict=False) if v
        }
        for part in (50, 95)
    }
    none = dict.fromkeys(SPREAD)
    return Spread(runs=len(rows), p50={**none, **parts[50]}, p95={**none, **parts[95]})


@frozen
class AgentHealth:
    """One agent's runs."""

    agent: str  # the client's program, as its user agent names it
    runs: int  # those that the filter selects
    mean_composite: float  # mean of the runs' means, in [0, 1]
    peak_composite: float  # highest peak of a run, in [0, 1]


@frozen
class RecentRun:
    """One run as a point of a sparkline."""

    run_id: str  # for the link to its page
    started_at: float  # epoch seconds
    steps: int  # scored ones
    mean_composite: float  # of its scored steps, in [0, 1]
    peak_composite: float  # of its scored steps, in [0, 1]
    severity_word: SeverityWord = "no-alarm"  # the worst that it came to
    severity: Severity = "low"  # an alias of `severity_word`: low, warn or danger


class RunCounts(CountedSteps):
    """Numbers of runs."""

    total_runs: int = 0  # those that the filter selects
    total_steps: int = 0  # their scored steps
    success_runs: int = 0  # with outcome success
    failure_runs: int = 0  # with outcome failure
    runs_with_fires: int = 0  # a monitor fired at one step or more
    clean_runs: int = 0  # never reached a composite of 0.35
    clean_run_rate: float = 0.0  # clean of all runs, in [0, 1]


class GradedRuns(RunCounts):
    """Runs and their steps by severity."""

    steps_by_severity: Mapping[str, int] = {}  # scored steps
    runs_by_severity: Mapping[str, int] = {}  # runs by the worst severity they came to
    # an alias of `runs_by_severity`, with the names of earlier versions: low, warn and danger
    severity_runs: Mapping[str, int] = {}


class HealthSummary(GradedRuns):
    """The health of the runs that a filter selects. `fires`, `severity` and `states` count
    scored steps. Ratios and composites are in [0, 1], rounded to 4 decimals. `saved_usd`
    covers the calls whose price is known with and without steering."""

    mean_composite: float = 0.0  # over all scored steps
    peak_composite: float = 0.0  # the highest of a step
    cached_share: float = 0.0  # cached of all input tokens
    fires: Mapping[str, int] = {}  # scored steps at which a monitor fired, by monitor
    by_agent: tuple[AgentHealth, ...] = ()  # the agents with the most runs
    recent: tuple[RecentRun, ...] = ()  # the last 30 runs, oldest first
    limited: bool = False  # more runs match, and only the newest are in it


# Source: docs/names.md, the dashboard: a sparkline of the last 30 runs, numbers to 4 decimals.
RECENT_RUNS = 30
_DECIMALS = 4

# The fields whose unknown values are skipped in a sum; unknown when all are.
COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
SUMMED = tuple([name for name in CallTotals.__struct_fields__ if name not in COSTS])


class Counted(Struct, frozen=True):
    """The counters of runs, added up."""

    counters: Mapping[str, Fields]  # by name of the counter, then by what it counts
    severity_runs: Mapping[str, int]  # runs by the worst severity they came to


def add_up(runs: Iterable[Sequence[Any]]) -> Counted:
    """The sums over runs, each as (highest composite, counters as JSON). SQL takes ten times as
    long to group what it finds in JSON."""
    counters: dict[str, FieldDict] = {}
    severity_runs: dict[str, int] = {}
    for peak, text in runs:
        found = orjson.loads(text)
        severity = run_severity(peak, found["fired"], found["states"])
        severity_runs[severity] = severity_runs.get(severity, 0) + 1
        for counter, counts in found.items():
            sums = counters.setdefault(counter, {})
            for name, count in (counts or {}).items():
                sums[name] = sums.get(name, 0) + count
    return Counted(counters, severity_runs)


def agent_health(agent: str, runs: int, mean: float, peak: float) -> AgentHealth:
    """One agent's row, rounded."""
    return AgentHealth(
        agent=agent, runs=runs, mean_composite=rounded(mean), peak_composite=rounded(peak)
    )


def recent_run(
    run_id: str, started_at: float, steps: int, mean: float, peak: float, counts: str
) -> RecentRun:
    """One point of the sparkline, rounded; `counts`: the run's counters as JSON."""
    counters = orjson.loads(counts)
    severity = run_severity(peak, counters["fired"], counters["states"])
    return RecentRun(
        run_id=run_id,
        started_at=started_at,
        steps=steps,
        mean_composite=rounded(mean),
        peak_composite=rounded(peak),
        severity_word=SEVERITY_WORDS[severity],
        severity=severity,
    )


def ratio(part: float, whole: float) -> float:
    """A share in [0, 1], rounded; 0 of nothing."""
    if whole:
        return rounded(part / whole)
    return 0.0


def rounded(value: float) -> float:
    """A value as summaries show it."""
    return round(value, _DECIMALS)
