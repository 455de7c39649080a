"""The first page: the runs under way, worst first, and what is spent on them; and the page of cost,
tokens, calls, success and trouble over time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated, Any

from pydantic import Field

from gateway.api.params import OneOf, TenantParameter, Text, naming
from gateway.features.pages.pages import FragmentParameters, Page, Visit, base_url, redirect
from gateway.features.pages.runs import RunsParameters, facets_of, row_of
from gateway.hooks import given
from gateway.stores import usage
from gateway.stores.filters import ANY, LIVE, RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.severity import SEVERITIES
from gateway.stores.totals import plus
from gateway.stores.under_way import LIVE_RUNS, LIVE_S, LONGEST_S, LiveQuery, LiveRun
from gateway.stores.usage import UsagePoint, UsageQuery, bucket_start
from gateway.text.formatting import amount
from gateway.values import FieldDict

SPENT_S = 600.0  # over how long the rate of spending is measured, in seconds
_FINISHED = 6
_ACCOUNTS = 200
_BUDGETS = 6
_STOPS = 5
_SHOWN = 20  # runs under way, the worst first; the others are a number and a link
_DAY_S = 86_400.0


class NowParameters(RunsParameters):
    """The tenant; links to the list of runs, once the first page, are redirected to it."""


async def show(visit: Visit) -> Page:
    """The page, or the part of it that changes."""
    if any(name not in ("tenant", "fragment") for name in visit.given):
        return redirect(f"/dashboard/runs{visit.query()}")
    now = time.time()
    store = visit.runtime.runs
    tenant = visit.tenant
    found = await store.live_runs(LiveQuery.at(now, tenant=tenant, spent_s=SPENT_S))
    # By severity, then by how long they are stuck, then by what they cost.
    live = sorted([one for one in found if not one.run.stopped], key=_worst, reverse=True)
    begun = bucket_start(now, "day")
    today = await store.usage(UsageQuery(since=begun, until=begun + _DAY_S, tenant=tenant))
    recent = PageRequest(limit=LIVE_RUNS, sort="updated_at")
    wanted = RunFilter(tenant=tenant, mode=LIVE, stopped=ANY, since=now - LONGEST_S)
    stops = (await store.list_runs(wanted, recent)).runs
    stopped = [run for run in stops if run.stopped and run.stopped.at >= now - _DAY_S]
    stopped.sort(
        key=lambda r: (r.stopped.action == "ask", r.stopped.at) if r.stopped else (), reverse=True
    )
    shown = {run.id for run in (*(one.run for one in live), *stopped)}
    page = PageRequest(limit=_FINISHED + len(shown), sort="updated_at")
    newest = await store.list_runs(RunFilter(tenant=tenant, mode=LIVE), page)
    parts = [part for read in given("now_part") if (part := await read(visit, shown))]
    values: FieldDict = {
        "title": "Now",
        "live_runs": live,
        "shown_runs": _SHOWN,
        "under_way": f"{len(live)}+" if len(found) == LIVE_RUNS else str(len(live)),
        "stopped": stopped,
        "shown_stops": _STOPS,
        "counts": {name: sum(run.severity == name for run in live) for name in SEVERITIES},
        "spending": _spending(found, today),
        "today": today[0] if today else UsagePoint(start=begun),
        "finished": [row_of(r, now) for r in newest.runs if r.id not in shown][:_FINISHED],
        "parts": [part for part in parts if not part.wide],
        "wide_parts": [part for part in parts if part.wide],
        **await _budgets(visit, live[:_SHOWN]),
        "dry_seats": not tenant and visit.runtime.services.dispatcher.dry.shown(now),
        "now": now,
        "live_min": int(LIVE_S // 60),
        "spent_min": int(SPENT_S // 60),
        "per_hour": 3600 / SPENT_S,
        "base_url": base_url(visit),
    }
    return Page(template="now_body.html" if visit.fragment else "now.html", values=values)


def _worst(one: LiveRun) -> tuple[int, int, float]:
    return SEVERITIES.index(one.severity), one.stuck_steps, one.run.totals.cost_usd or 0.0


def _spending(live: Sequence[LiveRun], today: Sequence[UsagePoint]) -> dict[str, float | None]:
    """Cost of active runs: in the last `SPENT_S` seconds, as an hourly rate, and in all, with the
    part that is estimated; and of all calls today. None where no price is known."""
    recent = reduce(plus, (one.spent_usd for one in live), None)
    return {
        "recent_usd": recent,
        "hourly_usd": None if recent is None else recent * 3600 / SPENT_S,
        "total_usd": reduce(plus, (one.run.totals.cost_usd for one in live), None),
        "total_estimated": sum(one.run.totals.estimated.get("cost_usd", 0.0) for one in live),
        "today_usd": reduce(plus, (point.cost_usd for point in today), None),
    }


async def _budgets(visit: Visit, live: Sequence[LiveRun]) -> FieldDict:
    """Budget usage: the most used budget of each active run, and the budgets shared by several
    runs."""
    views = await visit.runtime.accounting.views(visit.tenant, _ACCOUNTS)
    views.sort(key=lambda view: -view["used"])
    of_subject: dict[str, FieldDict] = {}
    for view in views:
        of_subject.setdefault(view["subject"], view)
    shared = [v for v in views if v["scope"] not in ("run", "tree", None) and v["limits"]]
    used = {}
    for run in (one.run for one in live):
        found = [of_subject.get(name) for name in (run.id, run.conversation_id)]
        if known := [view for view in found if view]:
            used[run.id] = max(known, key=lambda view: view["used"])
    return {"budgets": shared[:_BUDGETS], "used": used, "amount": amount}


SPANS: Mapping[str, int] = {"hour": 48, "day": 30, "week": 26}  # buckets shown of each length
_SERIES = 6  # names with a series each; the others share one more
OTHERS = "all others"


_BY = rf"^({'|'.join(usage.DIMENSIONS)}|{usage.TAG}.+)$"
_RUNS_WITH_TAGS = 100


class TimeParameters(FragmentParameters, TenantParameter):
    """Bucket of time and key by which calls are grouped."""

    # None: by the length of the period
    bucket: Annotated[str, OneOf(tuple(usage.BUCKET_S))] | None = None
    # what calls are grouped by; None: not grouped
    by: Annotated[str, Field(pattern=_BY)] | None = None
    model: Text | None = None  # only calls that asked it
    agent: Text | None = None  # only calls of this client


async def show_time(visit: Visit) -> Page:
    """The charts, and their numbers as a table."""
    values = visit.values
    store = visit.runtime.runs
    bucket: Any = values["bucket"] or await _bucket(visit)
    width = usage.BUCKET_S[bucket]
    last = usage.bucket_start(time.time(), bucket)
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
    names = most_used(points)
    label = label_of(bucket)
    by_name = grouped(points, names)
    rows = [[each.get(start) for start in starts] for each in by_name.values()]
    total = reduce(usage.UsagePoint.plus, points, usage.UsagePoint(start=0))
    filled = [point for points_of in by_name.values() for point in points_of.values()]
    shown: FieldDict = {
        "title": "Over time",
        "panels": list(panels(rows)),
        "starts": starts,
        "width": width,
        "within": visit.query(fragment=None, bucket=None, by=None).removeprefix("?"),
        "names": [(name, at) for at, name in enumerate(names)] if query.by else [],
        "rows": sorted(filled, key=lambda point: (-point.start, point.name)),
        "total": total,
        "by": query.by,
        "bucket": bucket,
        "label": label,
    }
    if visit.fragment:
        return Page(template="time_body.html", values=shown)
    facets = await facets_of(visit)
    newest = await store.list_runs(
        RunFilter(tenant=visit.tenant, mode=LIVE), PageRequest(limit=_RUNS_WITH_TAGS)
    )
    chosen = usage.tag_of(values["by"] or "")
    tags = sorted({name for run in newest.runs for name in run.tags} | ({chosen} - {""}))
    shown |= {
        "chosen": {**values, "bucket": bucket},
        "models": facets.models,
        "agents": facets.agents,
    }
    shown["buckets"] = tuple(usage.BUCKET_S)
    shown["dimensions"] = (*usage.DIMENSIONS, *(f"{usage.TAG}{name}" for name in tags))
    return Page(template="time.html", values=shown)


async def _bucket(visit: Visit) -> str:
    """Days, or hours while the first run is younger than two days."""
    first = PageRequest(limit=1, descending=False)
    found = await visit.runtime.runs.list_runs(RunFilter(tenant=visit.tenant, mode=LIVE), first)
    if found.runs and time.time() - found.runs[0].started_at < 2 * 86400:
        return "hour"
    return "day"


def most_used(points: Sequence[usage.UsagePoint]) -> list[str]:
    """The names with the highest cost, then the most tokens; the rest under one more name."""
    sums: dict[str, tuple[float, int]] = {}
    for point in points:
        cost, tokens = sums.get(point.name, (0.0, 0))
        sums[point.name] = (cost + (point.cost_usd or 0.0), tokens + point.tokens)
    ranked = sorted(sums, key=lambda name: (sums[name], name), reverse=True)
    if len(ranked) <= _SERIES:
        return ranked
    return [*ranked[: _SERIES - 1], OTHERS]


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


Row = Sequence[usage.UsagePoint | None]  # the points of one name by bucket; None without a call


_PANELS = (
    ("Cost", "cost_usd", "usd"),
    ("Tokens", "tokens", "count"),
    ("Calls", "calls", "count"),
    ("Success", "success_rate", "percent"),
    ("Alarms", "alarms", "count"),
    ("Input from cache", "cached_share", "percent"),
    ("Mean latency", "mean_latency_s", "seconds"),
    ("Failed calls", "errors", "count"),
    ("Unsteered calls", "unsteered", "count"),
)
"""The charts of the page: title, value of a point, and its unit: shares and seconds are drawn as
lines, what can be added up as bars."""


def panels(rows: Sequence[Row]) -> Iterator[FieldDict]:
    """Every chart of the page: title, unit, and its values by name, then by bucket."""
    for title, name, unit in _PANELS:
        values = [[point and getattr(point, name) for point in row] for row in rows]
        yield {"title": title, "unit": unit, "values": values}


def label_of(bucket: str) -> Any:
    """Label of a bucket: its beginning in UTC."""
    form = "%Y-%m-%d"
    if bucket == "hour":
        form = "%m-%d %H:%M"
    return lambda start: datetime.fromtimestamp(start, UTC).strftime(form)
