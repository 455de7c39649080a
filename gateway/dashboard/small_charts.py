"""Small charts: shares of a whole, sparklines, intervals, daily curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from gateway.reporting.effects import Effect
from gateway.reporting.results import Day
from gateway.stores.queries import RecentRun
from gateway.stores.totals import DANGER_COMPOSITE, SEVERITY_WORDS, WARN_COMPOSITE
from gateway.text.scales import fraction
from gateway.text.svg import curve, drawing, element, level_y, share, slot_curve, stretched

SPARK_PX = 72
_INTERVAL_PX = 26
_DAILY_PX = 110


def stacked(parts: Mapping[str, int], order: Sequence[str], kind: str, height: int = 8) -> Markup:
    """One bar divided into parts in a fixed order; a part's class is `kind` and its name."""
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


def peak(value: float, severity: str) -> Markup:
    """A highest composite, coloured by the severity of what it belongs to."""
    return level(value, kind=f"severity-{severity}")


def sparkline(runs: Sequence[RecentRun]) -> Markup:
    """The newest runs, oldest first: peak composite as bars, mean composite as a curve."""
    slots, height = max(1, len(runs)), SPARK_PX
    lines = [
        element("line", x1="0", x2="100%", y1=y, y2=y, class_=f"threshold threshold-{name}")
        for name, value in (("warn", WARN_COMPOSITE), ("danger", DANGER_COMPOSITE))
        for y in (level_y(value, height, 1),)
    ]
    bars = [_run_bar(run, slot, slots) for slot, run in enumerate(runs)]
    mean = slot_curve([run.mean_composite for run in runs], height, margin=1, class_="curve-mean")
    label = "Highest composite of the newest runs, oldest first, with links to them"
    return drawing(height, *lines, *bars, mean, class_="plot spark", aria_label=label)


def _run_bar(run: RecentRun, slot: int, slots: int) -> Markup:
    """The peak of one run, with a link to its page; runs without trouble keep a visible stump."""
    words = SEVERITY_WORDS[run.severity]
    top = min(level_y(run.peak_composite, SPARK_PX, 1), SPARK_PX - 1.5)
    return element(
        "a",
        element("title", f"{run.run_id}: peak {run.peak_composite}, {run.steps} steps, {words}"),
        element(
            "rect",
            x=share(slot + 0.12, slots),
            y=round(top, 2),
            width=share(0.76, slots),
            height=round(SPARK_PX - top, 2),
            class_=f"bar bar-{run.severity}",
        ),
        href=f"/dashboard/runs/{run.run_id}",
    )


def interval(effect: Effect) -> Markup:
    """An estimate with its interval on its scale, and a line where there is no effect."""

    def x(value: float) -> str:
        return share(fraction(value, *effect.bounds), 1.0)

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
    """Success rate by day, one curve per arm; days without a judged run are gaps."""
    dates = sorted({day.date for day in days})
    known = {(day.date, day.arm): day for day in days}
    slots, height = max(1, len(dates)), _DAILY_PX
    lines = []
    for arm in arms:
        points: list[tuple[float, float] | None] = []
        for slot, date in enumerate(dates):
            day = known.get((date, arm))
            rate = day.successes / day.judged if day is not None and day.judged else None
            points.append(None if rate is None else (slot + 0.5, level_y(rate, height)))
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
