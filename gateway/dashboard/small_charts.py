"""Small drawings: shares of a whole, sparklines, intervals, daily lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from gateway.dashboard.svg import curve, drawing, element, share, stretched
from gateway.reporting.effects import Effect
from gateway.reporting.results import Day
from gateway.stores.queries import RecentRun
from gateway.stores.totals import DANGER_COMPOSITE, WARN_COMPOSITE, severity_of

SPARK_PX = 72
_INTERVAL_PX = 26
_DAILY_PX = 110


def stacked(parts: Mapping[str, int], order: Sequence[str], kind: str, height: int = 8) -> Markup:
    """One bar in parts, in a fixed order; `kind` and the part's name make its class."""
    total, at, drawn = sum(parts.values()), 0, []
    for name in (*order, *sorted(set(parts) - set(order))):
        if count := parts.get(name):
            drawn.append(
                element(
                    "rect",
                    element("title", f"{name}: {count} ({count / total:.0%})"),
                    x=share(at, total),
                    y=0,
                    width=share(count, total),
                    height=height,
                    class_=f"{kind}-{name if name in order else 'other'}",
                )
            )
            at += count
    return drawing(height, *drawn, class_="stacked")


def level(value: float, *, whole: float = 1.0, kind: str = "level") -> Markup:
    """One bar of `value` out of `whole`."""
    return drawing(
        6,
        element("rect", x=0, y=0, width="100%", height=6, rx=3, class_="track"),
        element("rect", x=0, y=0, width=share(min(value, whole), whole), height=6, rx=3)
        if value > 0
        else Markup(""),
        class_=f"level {kind}",
    )


def peak(value: float) -> Markup:
    """A run's highest composite, coloured by severity."""
    return level(value, kind=f"severity-{severity_of(value)}")


def sparkline(runs: Sequence[RecentRun]) -> Markup:
    """The last runs, oldest first: peak composite as bars, their mean as a line."""
    slots, height = max(1, len(runs)), SPARK_PX
    lines = [
        element(
            "line",
            x1="0",
            x2="100%",
            y1=(height - 2) * (1 - value),
            y2=(height - 2) * (1 - value),
            class_=f"threshold threshold-{name}",
        )
        for name, value in (("warn", WARN_COMPOSITE), ("danger", DANGER_COMPOSITE))
    ]
    bars = []
    for slot, run in enumerate(runs):
        tall = max(1.5, run.peak_composite * (height - 2))
        link = element(
            "a",
            element("title", f"{run.run_id}: peak {run.peak_composite}, {run.steps} steps"),
            element(
                "rect",
                x=share(slot + 0.12, slots),
                y=round(height - tall, 2),
                width=share(0.76, slots),
                height=round(tall, 2),
                class_=f"bar bar-{severity_of(run.peak_composite)}",
            ),
            href=f"/dashboard/runs/{run.run_id}",
        )
        bars.append(link)
    points = [(slot + 0.5, (height - 2) * (1 - r.mean_composite)) for slot, r in enumerate(runs)]
    mean = stretched(height, curve(points, class_="curve-mean"), box=(slots, height))
    return drawing(height, *lines, *bars, mean, class_="plot spark")


def interval(effect: Effect) -> Markup:
    """An estimate with its interval on its scale, and a line where there is no effect."""
    start, width = effect.bounds[0], effect.bounds[1] - effect.bounds[0]

    def x(value: float) -> str:
        return share(min(max(value - start, 0.0), width), width)

    middle, none = _INTERVAL_PX / 2, x(effect.none)
    low, high = x(effect.low), x(effect.high)
    return drawing(
        _INTERVAL_PX,
        element("line", x1=none, x2=none, y1=0, y2=_INTERVAL_PX, class_="no-effect"),
        element("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker"),
        element("line", x1=low, x2=low, y1=middle - 4, y2=middle + 4, class_="whisker"),
        element("line", x1=high, x2=high, y1=middle - 4, y2=middle + 4, class_="whisker"),
        element("circle", cx=x(effect.estimate), cy=middle, r=4.5, class_="estimate"),
        class_="interval sure" if effect.sure else "interval unsure",
    )


def daily(days: Sequence[Day], arms: Sequence[str]) -> Markup:
    """Success rate by day, a line an arm; days without a judged run are gaps."""
    dates = sorted({day.date for day in days})
    known = {(day.date, day.arm): day for day in days}
    slots, height = max(1, len(dates)), _DAILY_PX
    lines = []
    for arm in arms:
        points: list[tuple[float, float] | None] = []
        for slot, date in enumerate(dates):
            day = known.get((date, arm))
            rate = day.successes / day.judged if day is not None and day.judged else None
            points.append(None if rate is None else (slot + 0.5, 4 + (height - 8) * (1 - rate)))
        lines.append(curve(points, class_=f"curve-arm arm-{arm}"))
        lines.extend(
            curve([point, (point[0] + 0.0001, point[1])], class_=f"curve-dot arm-{arm}")
            for point in points
            if point is not None
        )
    grid = [
        part
        for label, y in (("100 %", 4), ("50 %", height / 2), ("0", height - 4))
        for part in (
            element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"),
            element("text", label, x=0, y=y + (11 if y < height / 2 else -3)),
        )
    ]
    return drawing(
        height, *grid, stretched(height, *lines, box=(slots, height)), class_="plot daily"
    )
