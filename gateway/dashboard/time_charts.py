"""Charts over time: stacked bars for sums, lines for shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gateway.stores.usage import UsagePoint
from gateway.text.svg import Point, curve, drawing, element, share, stretched

TIME_PX = 96
_MARGIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Points by name and start; `starts` are all buckets that are shown, in order."""

    starts: Sequence[int]
    by_name: Mapping[str, Mapping[int, UsagePoint]]


def bars(series: TimeSeries, value: Callable[[UsagePoint], float]) -> tuple[Markup, float]:
    """One bar per bucket, a part for each name; and the highest bar's value."""
    slots = max(1, len(series.starts))
    heights = [
        [value(by[start]) if start in by else 0.0 for by in series.by_name.values()]
        for start in series.starts
    ]
    top = max([sum(parts) for parts in heights], default=0.0)
    drawn = [_grid()]
    for slot, parts in enumerate(heights):
        below = 0.0
        for number, part in enumerate(parts if top else ()):
            if part <= 0:
                continue
            tall = part / top * (TIME_PX - 2 * _MARGIN)
            below += tall
            drawn.append(
                element(
                    "rect",
                    x=share(slot + 0.1, slots),
                    y=round(TIME_PX - _MARGIN - below, 2),
                    width=share(0.8, slots),
                    height=round(max(tall, 1.0), 2),
                    class_=f"series-{number}",
                )
            )
    return drawing(TIME_PX, *drawn, class_="plot time"), top


def line(
    series: TimeSeries, value: Callable[[UsagePoint], float | None], *, top: float | None = None
) -> tuple[Markup, float]:
    """One line per name, broken where there is no value; and the value at the upper edge."""
    values = [
        [value(by[start]) if start in by else None for start in series.starts]
        for by in series.by_name.values()
    ]
    highest = max([v for row in values for v in row if v is not None], default=0.0)
    whole = top or highest or 1.0
    lines = []
    for number, row in enumerate(values):
        points: list[Point | None] = [
            None if v is None else (slot + 0.5, _height(v / whole)) for slot, v in enumerate(row)
        ]
        lines.append(curve(points, class_=f"time-line line-{number}"))
        # A value between two gaps would have no line.
        lines += [
            curve([point, (point[0] + 0.0001, point[1])], class_=f"time-dot line-{number}")
            for point in points
            if point is not None
        ]
    box = (max(1, len(series.starts)), TIME_PX)
    return (
        drawing(TIME_PX, _grid(), stretched(TIME_PX, *lines, box=box), class_="plot time"),
        whole,
    )


def _height(part: float) -> float:
    return _MARGIN + (TIME_PX - 2 * _MARGIN) * (1 - min(part, 1.0))


def _grid() -> Markup:
    lines = [
        element("line", x1="0", x2="100%", y1=_height(part), y2=_height(part), class_="grid")
        for part in (0, 0.5, 1)
    ]
    return Markup("").join(lines)
