"""Cost, tokens, calls, success and trouble over time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated, Any

from pydantic import Field

from gateway.api.params import OneOf, TenantParameter, Text, naming
from gateway.dashboard.charts import TimeSeries, bars, line
from gateway.dashboard.pages import FragmentParameters, Page, Visit
from gateway.stores import usage
from gateway.stores.queries import LIVE, PageRequest, RunFilter
from gateway.text import formatting

SPANS: Mapping[str, int] = {"hour": 48, "day": 30, "week": 26}  # buckets shown of each length
_SERIES = 6  # names with a series each; the others share one more
OTHERS = "all others"


_BY = rf"^({'|'.join(usage.DIMENSIONS)}|{usage.TAG}.+)$"
_RUNS_WITH_TAGS = 100


class TimeParameters(FragmentParameters, TenantParameter):
    """Bucket of time and key by which calls are grouped."""

    bucket: Annotated[str, OneOf(tuple(usage.BUCKET_S))] = "day"
    by: Annotated[str, Field(pattern=_BY)] | None = None
    model: Text | None = None
    agent: Text | None = None


async def show(visit: Visit) -> Page:
    """The charts, and their numbers as a table."""
    values, store = visit.values, visit.runtime.runs
    bucket = values["bucket"]
    width, last = usage.BUCKET_S[bucket], usage.bucket_start(time.time(), bucket)
    starts = [last - width * back for back in reversed(range(SPANS[bucket]))]
    query = usage.UsageQuery(
        since=starts[0],
        until=last + width,
        bucket=bucket,
        by=values["by"],
        tenant=visit.tenant,
        model=values["model"],
        agent=values["agent"],
    )
    with naming("by"):
        points = await store.usage(query)
    names, label = most_used(points), label_of(bucket)
    series = TimeSeries(starts=starts, by_name=grouped(points, names))
    total = reduce(usage.UsagePoint.plus, points, usage.UsagePoint(start=0))
    filled = [point for points_of in series.by_name.values() for point in points_of.values()]
    shown: dict[str, Any] = {
        "title": "Over time",
        "panels": panels(series, total),
        "names": [(name, at) for at, name in enumerate(names)] if query.by else [],
        "rows": sorted(filled, key=lambda point: (-point.start, point.name)),
        "total": total,
        "by": query.by,
        "bucket": bucket,
        "label": label,
        "first": label(starts[0]),
        "last": label(starts[-1]),
    }
    if visit.fragment:
        return Page(template="time_body.html", values=shown)
    facets = await store.facets(tenant=visit.tenant)
    newest = await store.list_runs(
        RunFilter(tenant=visit.tenant, mode=LIVE), PageRequest(limit=_RUNS_WITH_TAGS)
    )
    chosen = usage.tag_of(values["by"] or "")
    tags = sorted({name for run in newest.runs for name in run.tags} | ({chosen} - {""}))
    shown |= {"chosen": values, "models": facets.models, "agents": facets.agents}
    shown["buckets"] = tuple(usage.BUCKET_S)
    shown["dimensions"] = (*usage.DIMENSIONS, *(f"{usage.TAG}{name}" for name in tags))
    return Page(template="time.html", values=shown)


def most_used(points: Sequence[usage.UsagePoint]) -> list[str]:
    """The names with the highest cost, then the most tokens; the rest under one more name."""
    sums: dict[str, tuple[float, int]] = {}
    for point in points:
        cost, tokens = sums.get(point.name, (0.0, 0))
        sums[point.name] = (cost + (point.cost_usd or 0.0), tokens + point.tokens)
    ranked = sorted(sums, key=lambda name: (sums[name], name), reverse=True)
    return ranked if len(ranked) <= _SERIES else [*ranked[: _SERIES - 1], OTHERS]


def grouped(
    points: Sequence[usage.UsagePoint], names: Sequence[str]
) -> dict[str, dict[int, usage.UsagePoint]]:
    """The points by name and start, those of other names added up."""
    found: dict[str, dict[int, usage.UsagePoint]] = {name: {} for name in names}
    for point in points:
        at = found[point.name if point.name in found else OTHERS]
        known = at.get(point.start)
        at[point.start] = point if known is None else known.plus(point)
    return found


def panels(series: TimeSeries, total: usage.UsagePoint) -> list[dict[str, Any]]:
    """Every chart of the page: title, drawing, highest value, and what it comes to in all."""
    money, count, percent = formatting.money, formatting.count, formatting.percent
    seconds = formatting.seconds

    def summed(title: str, value: Any, show: Any, note: str) -> dict[str, Any]:
        drawing, top = bars(series, value)
        return {"title": title, "note": note, "drawing": drawing, "top": show(top)}

    def share(title: str, value: Any, note: str) -> dict[str, Any]:
        drawing, _ = line(series, value, top=1.0)
        return {"title": title, "note": note, "drawing": drawing, "top": "100%"}

    latency, slowest = line(series, lambda point: point.mean_latency_s)
    cost, tokens = money(total.cost_usd), count(total.tokens)
    if total.unpriced_calls:
        cost += f", {formatting.counted(total.unpriced_calls, 'call')} unpriced"
    if total.estimated_usd:
        cost += f", {money(total.estimated_usd)} estimated"
    if total.estimated_tokens:
        tokens += f", {count(total.estimated_tokens)} estimated"
    judged = formatting.counted(total.successes + total.failures, "run")
    alarms = percent(total.alarms / total.steps if total.steps else None)
    alarms = f"{total.alarms:,}, {alarms} of the steps"
    mean = seconds(total.mean_latency_s)
    return [
        summed("Cost", lambda point: point.cost_usd or 0.0, money, cost),
        summed("Tokens", lambda point: point.tokens, count, tokens),
        summed("Calls", lambda point: point.calls, count, f"{total.calls:,}"),
        share("Success", lambda p: p.success_rate, f"{percent(total.success_rate)} of {judged}"),
        summed("Alarms", lambda point: point.alarms, count, alarms),
        share("Input from cache", lambda point: point.cached_share, percent(total.cached_share)),
        {"title": "Mean latency", "note": mean, "drawing": latency, "top": seconds(slowest)},
        summed("Failed calls", lambda point: point.errors, count, f"{total.errors:,}"),
        summed("Unsteered calls", lambda point: point.unsteered, count, f"{total.unsteered:,}"),
    ]


def label_of(bucket: str) -> Any:
    """Label of a bucket: its beginning in UTC."""
    form = "%m-%d %H:%M" if bucket == "hour" else "%Y-%m-%d"
    return lambda start: datetime.fromtimestamp(start, UTC).strftime(form)
