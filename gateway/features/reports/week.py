"""The report of one week, by the runs that began in it: cost, results, trouble, and the ledger."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from gateway.backends import Stores
from gateway.core.pattern import Status
from gateway.data_files import read_toml
from gateway.features.reports.savings import read_savings
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.filters import RunFilter
from gateway.stores.learning import LessonFilter
from gateway.stores.severity import run_severity, streaks
from gateway.stores.totals import HAND_OVER, ExperimentRun, plus
from gateway.stores.usage import BUCKET_S, bucket_start
from gateway.text.formatting import iso
from gateway.text.page import rendered
from gateway.values import FieldDict

_WEEK_S = BUCKET_S["week"]
_STRETCHES = 5
_SAID = 3
_PARTS = read_toml(__package__, "week.toml")


def monday_of(day: str | None, now: float) -> int:
    """Returns the beginning (epoch) of the week that contains `date` (YYYY-MM-DD); without a
    date, of the last whole week. Raises: ValueError."""
    try:
        if day:
            at = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
        else:
            at = now - _WEEK_S
    except ValueError:
        raise ValueError(f"{day!r} is not a day like 2026-11-23") from None
    return bucket_start(at, "week")


async def read_week(stores: Stores, monday: int, tenant: str | None) -> FieldDict:
    """The week from `monday` on, as pages show it. Raises: StoreError."""
    until = monday + _WEEK_S
    sums = stores.attribution
    own = RunFilter(tenant=tenant, since=monday, until=until)
    earlier = RunFilter(tenant=tenant, since=monday - _WEEK_S, until=monday)
    savings, runs = await read_savings(stores, monday, until, tenant=tenant)
    costs = sorted(run.cost_usd for run in runs if run.cost_usd is not None)
    bad = [
        run
        for run in runs
        if run_severity(run.composite_peak, run.counts["fired"], run.counts["states"]) == "danger"
    ]
    bad.sort(key=lambda run: -sum(run.counts["fired"].values()))
    stopped = [run for run in runs if run.stopped]
    heard = [run for run in runs if run.human]
    handed = [run for run in runs if HAND_OVER in run.acts]
    wanted = LessonFilter(tenant=tenant, statuses=(Status.ACTIVE, Status.RETIRED), since=monday)
    week = {
        "day": iso(monday)[:10],
        "around": (iso(monday - _WEEK_S)[:10], iso(until)[:10]),
        "now": await stores.runs.health_summary(own),
        "before": await stores.runs.health_summary(earlier),
        "p50_usd": costs[len(costs) // 2] if costs else None,
        "p95_usd": costs[len(costs) * 19 // 20] if costs else None,
        "parts": {
            name: [await sums.groups(which, by) for which in (own, earlier)]
            for name, by in _PARTS.items()
            if sums is not None
        },
        "troubled": len(bad),
        "trouble_usd": _cost(bad),
        "stopped_usd": _cost(stopped),
        "handed": handed,
        "handed_usd": _cost(handed),
        "heard": len(heard),
        "heard_usd": _cost(heard),
        "said": [each for run in heard[:_STRETCHES] for each in await _said(stores, run)],
        "stretches": [await _stretch(stores, run) for run in bad[:_STRETCHES]],
        "human": sum((Counter(run.human) for run in runs), Counter()),
        "stopped": stopped,
        "lessons": [x for x in await stores.learning.lessons(wanted) if x.updated_at < until],
        "savings": savings,
    }
    lines = rendered(__package__, "week_summary.txt", week).splitlines()
    return {**week, "title": f"Week of {week['day']}", "summary": lines}


def _cost(runs: Sequence[ExperimentRun]) -> float | None:
    return reduce(plus, [run.cost_usd for run in runs], None)


async def _said(stores: Stores, run: ExperimentRun) -> list[tuple[Any, ...]]:
    """Returns the first acts of people in a run, with their words: (run, step, kind, words)."""
    trace = await stores.runs.get_run(run.id, tenant=run.tenant)
    acts = [
        (run, step.step_index, KIND_LABELS.get(act.kind, act.kind), act.words)
        for step in (trace.steps if trace else ())
        for act in (step.content.human if step.content else ())
        if act.words
    ]
    return acts[:_SAID]


async def _stretch(stores: Stores, run: ExperimentRun) -> tuple[Any, ...]:
    """Returns a run with its task, its longest series of steps with alarms, and the cost of the
    calls of that series."""
    trace = await stores.runs.get_run(run.id, tenant=run.tenant, content=False)
    steps = trace.steps if trace else ()
    length, end = max(zip(streaks(steps), range(1, len(steps) + 1), strict=True), default=(0, 0))
    calls = [step.call.cost_usd for step in steps[end - length : end] if step.call]
    return run, trace.run.title if trace else "", length, reduce(plus, calls, None)
