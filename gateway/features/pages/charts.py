"""Drawings as SVG: a run by step, shares, sparklines, intervals, and charts over time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from markupsafe import Markup

from gateway.stores import totals
from gateway.stores.queries import RecentRun, RunTrace
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.usage import UsagePoint
from gateway.text import formatting, svg
from gateway.text.sanitize import one_line
from gateway.values import frozen

DIFFICULTY_PX = 190
COMPOSITE_PX = 60
TOKENS_PX = 60
LANE_PX = 14
_DOTS_UP_TO = 150  # steps; with more, dots overlap
_MODEL_COLOURS = 6
_TICKS = 8


@frozen
class RunChart:
    """A run's steps in order, each in a slot of equal width."""

    steps: Sequence[StepRow]  # scored or not, in their order
    guidance: Mapping[int, Sequence[InjectionRow]]  # by step
    thresholds: Mapping[str, float]  # by name, in force now

    @classmethod
    def of(cls, trace: RunTrace, thresholds: Mapping[str, float]) -> "RunChart":
        """The chart of a trace; the texts of its steps are not needed."""
        rows = sorted(trace.injections, key=lambda row: row.step_index)
        by_step = {index: list(group) for index, group in groupby(rows, lambda r: r.step_index)}
        return cls(steps=trace.steps, guidance=by_step, thresholds=thresholds)

    @property
    def slots(self) -> int:
        """Number of steps that share the width; at least one."""
        return max(1, len(self.steps))

    def left(self, slot: float) -> str:
        """Left edge of a slot."""
        return svg.share(slot, self.slots)

    def models(self) -> list[str]:
        """The models asked, in the order of their first call."""
        return list(dict.fromkeys(step.call.model_asked for step in self.steps if step.call))


def _rect(x: str, y: float, width: str, height: float, class_: str, *inside: Markup) -> Markup:
    sides = {"x": x, "y": round(y, 2), "width": width, "height": round(height, 2)}
    return svg.element("rect", *inside, **sides, class_=class_)


def difficulty_chart(chart: RunChart) -> Markup:
    """The difficulty curve over bands of the states, with thresholds and guidance markers."""
    height = DIFFICULTY_PX
    difficulties = [step.difficulty for step in chart.steps]
    fired = [bool(step.fired) for step in chart.steps]
    dots = svg.step_dots(difficulties, fired, height) if len(fired) <= _DOTS_UP_TO else ()
    return svg.drawing(
        height,
        svg.joined(svg.state_bands([step.state for step in chart.steps], height)),
        svg.joined(svg.threshold_lines(chart.thresholds, height)),
        svg.slot_curve(difficulties, height, class_="curve"),
        svg.joined(dots),
        svg.joined(_markers(chart)),
        class_="plot difficulty",
        role="group",  # its markers are links
        aria_label="Difficulty by step, on bands of the run's states",
    )


def difficulty_axis(chart: RunChart) -> Markup:
    """The names and values of the thresholds at their height."""
    labels = []
    for name in svg.STATE_THRESHOLDS:
        value = chart.thresholds[name]
        y = svg.level_y(chart.thresholds[name], DIFFICULTY_PX) + 3.5
        labels.append(svg.element("text", f"{name} {value:g}", x="0", y=y, class_=f"axis-{name}"))
    return svg.drawing(DIFFICULTY_PX, *labels, class_="axis")


def composite_chart(chart: RunChart) -> Markup:
    """One bar per step, coloured by severity, with lines where warning and danger begin."""
    height = COMPOSITE_PX
    bars = []
    for slot, (step, stuck) in enumerate(
        zip(chart.steps, totals.streaks(chart.steps), strict=True)
    ):
        if step.composite:
            top = svg.level_y(step.composite, height)
            bars.append(_bar(chart, slot, top, height - top, totals.step_severity(step, stuck)))
    lines = svg.threshold_lines(chart.thresholds, height, ("warn", "danger"))
    return svg.drawing(height, *lines, *bars, class_="plot composite")


def monitor_strip(chart: RunChart, name: str) -> Markup:
    """One monitor's readings by step: the higher, the darker."""
    fire = chart.thresholds["fire"]
    levels = svg.stretches(svg.heat(step.scores.get(name), fire) for step in chart.steps)
    cells = [
        _rect(chart.left(first), 1, chart.left(length), LANE_PX - 2, f"heat-{level}")
        for first, length, level in levels
        if level
    ]
    return svg.drawing(
        LANE_PX, *cells, class_="plot strip", role="img", aria_label=f"{name} by step"
    )


def model_lane(chart: RunChart) -> Markup:
    """The model asked at each step, in a colour per model, and the calls that failed."""
    numbers = {name: at for at, name in enumerate(chart.models())}
    asked = (None if step.call is None else step.call.model_asked for step in chart.steps)
    parts = []
    for first, length, name in svg.stretches(asked):
        left = chart.left(first)
        width = chart.left(length)
        class_ = f"model-{numbers[name] % _MODEL_COLOURS}"
        parts.append(
            _rect(left, 2, width, LANE_PX - 4, class_, svg.element("title", one_line(name, 80)))
        )
    for slot, step in enumerate(chart.steps):
        if step.call is not None and step.call.failed:
            title = svg.element("title", f"The call at step {step.step_index} failed")
            parts.append(_rect(chart.left(slot), 0, chart.left(1), LANE_PX, "call-failed", title))
    return svg.drawing(LANE_PX, *parts, class_="plot strip models")


def token_chart(chart: RunChart) -> Markup:
    """One bar per step (cached input, other input, output), and the cost so far as a curve."""
    height = TOKENS_PX
    most = _most_tokens(chart)
    bars: list[Markup] = []
    for slot, step in enumerate(chart.steps):
        call = step.call
        if call is None or not most:
            continue
        cached = call.cached_tokens or 0
        output = call.output_tokens or 0
        fresh = max(0, (call.input_tokens or 0) - cached)
        base = float(height)
        for kind, part in (("cached", cached), ("fresh", fresh), ("output", output)):
            tall = part / most * (height - 2)
            base -= tall
            if tall > 0.2:
                bars.append(_bar(chart, slot, base, tall, kind))
    costs = [(step.call.cost_usd or 0.0) if step.call else 0.0 for step in chart.steps]
    if (total := sum(costs)) > 0:
        shares = [so_far / total for so_far in accumulate(costs)]
        bars.append(svg.slot_curve(shares, height, margin=2, class_="curve-cost"))
    return svg.drawing(height, *bars, class_="plot tokens")


def _most_tokens(chart: RunChart) -> int:
    calls = [step.call for step in chart.steps if step.call is not None]
    return max(((c.input_tokens or 0) + (c.output_tokens or 0) for c in calls), default=0)


def token_axis(chart: RunChart) -> Markup:
    """The tokens of the highest bar, and the cost of the whole run."""
    costs = [s.call.cost_usd for s in chart.steps if s.call and s.call.cost_usd is not None]
    most = _most_tokens(chart)
    total = sum(costs) if costs else None
    return svg.drawing(
        TOKENS_PX,
        svg.element("text", formatting.count(most), x="0", y=10, class_="axis-text"),
        svg.element("text", formatting.money(total), x="0", y=24, class_="axis-cost"),
        class_="axis",
    )


def step_axis(chart: RunChart) -> Markup:
    """The numbers of some steps, at their slots."""
    every = max(1, -(-len(chart.steps) // _TICKS))
    labels = [
        svg.element(
            "text", str(step.step_index), x=chart.left(slot + 0.5), y=11, text_anchor="middle"
        )
        for slot, step in enumerate(chart.steps)
        if slot % every == 0
    ]
    return svg.drawing(16, *labels, class_="plot ticks")


def _markers(chart: RunChart) -> Iterator[Markup]:
    """A flag at each step with guidance, which leads to its exact text."""
    for slot, step in enumerate(chart.steps):
        rows = chart.guidance.get(step.step_index)
        if not rows:
            continue
        kinds = ", ".join(dict.fromkeys(row.source for row in rows))
        applied = any(row.applied for row in rows)
        link = svg.element(
            "a",
            svg.element("title", f"Guidance at step {step.step_index}: {kinds}"),
            svg.element("line", x1=0, x2=0, y1=12, y2=DIFFICULTY_PX, class_="marker-line"),
            svg.element("path", d="M-5 2h10v7l-5 5l-5-5z", class_="marker-flag"),
            href=f"#step-{step.step_index}",
            class_="marker" if applied else "marker marker-shadow",
            data_step=step.step_index,
            aria_label=f"Guidance at step {step.step_index}: {kinds}",
        )
        yield svg.element("svg", link, x=chart.left(slot + 0.5), overflow="visible")


def _bar(chart: RunChart, slot: int, top: float, tall: float, kind: str) -> Markup:
    # Narrow slots get no gap: it would be wider than the bar.
    inset = 0.14 if chart.slots <= _DOTS_UP_TO else 0.0
    left = chart.left(slot + inset)
    width = chart.left(1 - 2 * inset)
    return _rect(left, top, width, tall, f"bar bar-{kind}")


SPARK_PX = 72


def stacked(parts: Mapping[str, int], order: Sequence[str], kind: str, height: int = 8) -> Markup:
    """One bar divided into parts in a fixed order; a part's class is `kind` and its name."""
    total = sum(parts.values())
    at = 0
    drawn = []
    for name in (*order, *sorted(set(parts) - set(order))):
        if count := parts.get(name):
            title = svg.element("title", f"{name}: {count} ({count / total:.0%})")
            class_ = f"{kind}-{name if name in order else 'other'}"
            drawn.append(
                _rect(svg.share(at, total), 0, svg.share(count, total), height, class_, title)
            )
            at += count
    return svg.drawing(height, *drawn, class_="stacked")


def level(value: float, *, whole: float = 1.0, kind: str = "level") -> Markup:
    """One bar of `value` out of `whole`."""
    bars = [svg.element("rect", x=0, y=0, width="100%", height=6, rx=3, class_="track")]
    if value > 0:
        width = svg.share(min(value, whole), whole)
        bars.append(svg.element("rect", x=0, y=0, width=width, height=6, rx=3))
    return svg.drawing(6, *bars, class_=f"level {kind}")


def peak(value: float, severity: str) -> Markup:
    """A highest composite, coloured by the severity of what it belongs to."""
    return level(value, kind=f"severity-{severity}")


def sparkline(runs: Sequence[RecentRun]) -> Markup:
    """The newest runs, oldest first: peak composite as bars, mean composite as a curve."""
    slots = max(1, len(runs))
    height = SPARK_PX
    lines = []
    for name, value in (("warn", totals.WARN_COMPOSITE), ("danger", totals.DANGER_COMPOSITE)):
        y = svg.level_y(value, height, 1)
        class_ = f"threshold threshold-{name}"
        lines.append(svg.element("line", x1="0", x2="100%", y1=y, y2=y, class_=class_))
    bars = []
    for slot, run in enumerate(runs):
        words = f"{run.run_id}: peak {run.peak_composite}, {run.steps} steps, "
        title = svg.element("title", words + totals.SEVERITY_WORDS[run.severity])
        # Runs without trouble keep a visible stump.
        top = min(svg.level_y(run.peak_composite, SPARK_PX, 1), SPARK_PX - 1.5)
        left = svg.share(slot + 0.12, slots)
        width = svg.share(0.76, slots)
        bar = _rect(left, top, width, SPARK_PX - top, f"bar bar-{run.severity}")
        bars.append(svg.element("a", title, bar, href=f"/dashboard/runs/{run.run_id}"))
    mean = svg.slot_curve(
        [run.mean_composite for run in runs], height, margin=1, class_="curve-mean"
    )
    label = "Highest composite of the newest runs, oldest first, with links to them"
    return svg.drawing(height, *lines, *bars, mean, class_="plot spark", aria_label=label)


def _broken(points: Sequence[svg.Point | None], line: str, dot: str) -> list[Markup]:
    """A curve with gaps, and a dot at each point: one between two gaps would have no line."""
    known = [point for point in points if point is not None]
    dots = (svg.curve([(x, y), (x + 0.0001, y)], class_=dot) for x, y in known)
    return [svg.curve(points, class_=line), *dots]


TIME_PX = 96
_MARGIN = 3


@frozen
class TimeSeries:
    """Points by name and time."""

    starts: Sequence[int]  # epoch seconds of all buckets that are shown, in order
    by_name: Mapping[str, Mapping[int, UsagePoint]]  # points by the start of their bucket, by name


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
            left = svg.share(slot + 0.1, slots)
            width = svg.share(0.8, slots)
            y = TIME_PX - _MARGIN - below
            drawn.append(_rect(left, y, width, max(tall, 1.0), f"series-{number}"))
    return svg.drawing(TIME_PX, *drawn, class_="plot time"), top


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
        points: list[svg.Point | None] = [
            None if v is None else (slot + 0.5, _height(v / whole)) for slot, v in enumerate(row)
        ]
        lines += _broken(points, f"time-line line-{number}", f"time-dot line-{number}")
    box = (max(1, len(series.starts)), TIME_PX)
    plot = svg.stretched(TIME_PX, *lines, box=box)
    return svg.drawing(TIME_PX, _grid(), plot, class_="plot time"), whole


def _height(part: float) -> float:
    return _MARGIN + (TIME_PX - 2 * _MARGIN) * (1 - min(part, 1.0))


def _grid() -> Markup:
    lines = [
        svg.element("line", x1="0", x2="100%", y1=_height(part), y2=_height(part), class_="grid")
        for part in (0, 0.5, 1)
    ]
    return Markup("").join(lines)
