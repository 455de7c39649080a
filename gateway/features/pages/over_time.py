"""The page of sums over time, by bucket and by what they are grouped by."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Annotated, Any

from pydantic import Field

from gateway.api.params import OneOf, TenantParameter, Text, naming
from gateway.data_files import read_toml
from gateway.features.pages.pages import FragmentParameters, Page, Visit, kept
from gateway.features.pages.runs import facets_of
from gateway.stores import usage
from gateway.stores.filters import LIVE, RunFilter
from gateway.stores.lists import PageRequest
from gateway.values import FieldDict

SPANS: Mapping[str, int] = {"hour": 48, "day": 30, "week": 26}  # buckets shown of each length
_SERIES = 6  # names with a series each; the others share one more
OTHERS = "all others"


_BY = rf"^({'|'.join(usage.DIMENSIONS)}|{usage.TAG}.+)$"


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
        points = await kept(visit, partial(store.usage, query), query)
    names = most_used(points)
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
    }
    if visit.fragment:
        return Page(template="time_body.html", values=shown)
    facets = await facets_of(visit)
    tags = {*facets.tags, usage.tag_of(values["by"] or "")} - {""}
    shown |= {
        "chosen": {**values, "bucket": bucket},
        "facets": facets,
        "dimensions": (*usage.DIMENSIONS, *(f"{usage.TAG}{name}" for name in sorted(tags))),
    }
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


_PANELS = read_toml(__package__, "panels.toml")


def panels(rows: Sequence[Row]) -> Iterator[FieldDict]:
    """Every chart of the page: title, unit, and its values by name, then by bucket. Shares and
    seconds are drawn as lines, what can be added up as bars."""
    for title, panel in _PANELS.items():
        values = [[point and getattr(point, panel["value"]) for point in row] for row in rows]
        yield {"title": title, "unit": panel["unit"], "values": values}
