"""The chart of one run by step: difficulty, models, composite, monitors, guidance, tokens, cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from markupsafe import Markup

from gateway.stores.queries import RunTrace
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import step_severity, streaks
from gateway.text import formatting
from gateway.text.difficulty_chart import (
    STATE_THRESHOLDS,
    state_bands,
    step_dots,
    threshold_lines,
)
from gateway.text.scales import heat, stretches
from gateway.text.svg import drawing, element, joined, level_y, share, slot_curve

DIFFICULTY_PX = 190
COMPOSITE_PX = 60
TOKENS_PX = 60
LANE_PX = 14
_DOTS_UP_TO = 150  # steps; with more, dots overlap
_MODEL_COLOURS = 6
_TICKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChart:
    """What is drawn of a run: its steps in order, each in a slot of equal width."""

    steps: Sequence[StepRow]
    guidance: Mapping[int, Sequence[InjectionRow]]
    thresholds: Mapping[str, float]

    @classmethod
    def of(cls, trace: RunTrace, thresholds: Mapping[str, float]) -> RunChart:
        """The chart of a trace; the texts of its steps are not needed."""
        rows = sorted(trace.injections, key=lambda row: row.step_index)
        by_step = {index: list(group) for index, group in groupby(rows, lambda r: r.step_index)}
        return cls(steps=trace.steps, guidance=by_step, thresholds=thresholds)

    @property
    def slots(self) -> int:
        """How many steps share the width; at least one."""
        return max(1, len(self.steps))

    def left(self, slot: float) -> str:
        """Where a slot begins."""
        return share(slot, self.slots)

    def centre(self, slot: int) -> str:
        """The middle of a slot."""
        return share(slot + 0.5, self.slots)

    def models(self) -> list[str]:
        """The models asked, in the order of their first call."""
        asked = [step.call.model_asked for step in self.steps if step.call is not None]
        return list(dict.fromkeys(asked))


def difficulty_chart(chart: RunChart) -> Markup:
    """The difficulty curve over bands of the states, with thresholds and guidance markers."""
    height = DIFFICULTY_PX
    difficulties = [step.difficulty for step in chart.steps]
    fired = [bool(step.fired) for step in chart.steps]
    dots = step_dots(difficulties, fired, height) if len(fired) <= _DOTS_UP_TO else ()
    return drawing(
        height,
        joined(state_bands([step.state for step in chart.steps], height)),
        joined(threshold_lines(chart.thresholds, height)),
        slot_curve(difficulties, height, class_="curve"),
        joined(dots),
        joined(_markers(chart)),
        class_="plot difficulty",
        role="group",  # its markers are links
        aria_label="Difficulty by step, on bands of the run's states",
    )


def difficulty_axis(chart: RunChart) -> Markup:
    """The names and values of the thresholds at their height."""
    labels = [
        element(
            "text",
            f"{name} {chart.thresholds[name]:g}",
            x="0",
            y=level_y(chart.thresholds[name], DIFFICULTY_PX) + 3.5,
            class_=f"axis-{name}",
        )
        for name in STATE_THRESHOLDS
    ]
    return drawing(DIFFICULTY_PX, *labels, class_="axis")


def composite_chart(chart: RunChart) -> Markup:
    """One bar per step, coloured by severity, with lines where warning and danger begin."""
    height = COMPOSITE_PX
    bars = []
    for slot, (step, stuck) in enumerate(zip(chart.steps, streaks(chart.steps), strict=True)):
        if step.composite:
            top = level_y(step.composite, height)
            bars.append(_bar(chart, slot, top, height - top, step_severity(step, stuck)))
    lines = threshold_lines(chart.thresholds, height, ("warn", "danger"))
    return drawing(height, *lines, *bars, class_="plot composite")


def monitor_strip(chart: RunChart, name: str) -> Markup:
    """One monitor's readings by step: the higher, the darker."""
    fire = chart.thresholds["fire"]
    cells = [
        element(
            "rect",
            x=chart.left(first),
            y=1,
            width=chart.left(length),
            height=LANE_PX - 2,
            class_=f"heat-{level}",
        )
        for first, length, level in stretches(
            heat(step.scores.get(name), fire) for step in chart.steps
        )
        if level
    ]
    return drawing(LANE_PX, *cells, class_="plot strip", role="img", aria_label=f"{name} by step")


def model_lane(chart: RunChart) -> Markup:
    """The model asked at each step, in a colour per model, and the calls that failed."""
    numbers = {name: at for at, name in enumerate(chart.models())}
    asked = (None if step.call is None else step.call.model_asked for step in chart.steps)
    parts = [
        element(
            "rect",
            element("title", name),
            x=chart.left(first),
            y=2,
            width=chart.left(length),
            height=LANE_PX - 4,
            class_=f"model-{numbers[name] % _MODEL_COLOURS}",
        )
        for first, length, name in stretches(asked)
    ]
    return drawing(LANE_PX, *parts, *_failures(chart), class_="plot strip models")


def _failures(chart: RunChart) -> Iterator[Markup]:
    for slot, step in enumerate(chart.steps):
        if step.call is not None and step.call.failed:
            yield element(
                "rect",
                element("title", f"The call at step {step.step_index} failed"),
                x=chart.left(slot),
                y=0,
                width=chart.left(1),
                height=LANE_PX,
                class_="call-failed",
            )


def token_chart(chart: RunChart) -> Markup:
    """One bar per step (cached input, other input, output), and the cost so far as a curve."""
    height = TOKENS_PX
    most = max((_tokens(step) for step in chart.steps), default=0)
    bars: list[Markup] = []
    for slot, step in enumerate(chart.steps):
        call = step.call
        if call is None or not most:
            continue
        cached, output = call.cached_tokens or 0, call.output_tokens or 0
        fresh = max(0, (call.input_tokens or 0) - cached)
        base = float(height)
        for kind, part in (("cached", cached), ("fresh", fresh), ("output", output)):
            tall = part / most * (height - 2)
            base -= tall
            if tall > 0.2:
                bars.append(_bar(chart, slot, base, tall, kind))
    return drawing(height, *bars, _cost_curve(chart, height), class_="plot tokens")


def token_axis(chart: RunChart) -> Markup:
    """The tokens of the highest bar, and the cost of the whole run."""
    most = max((_tokens(step) for step in chart.steps), default=0)
    costs = [s.call.cost_usd for s in chart.steps if s.call and s.call.cost_usd is not None]
    total = sum(costs) if costs else None
    return drawing(
        TOKENS_PX,
        element("text", formatting.count(most), x="0", y=10, class_="axis-text"),
        element("text", formatting.money(total), x="0", y=24, class_="axis-cost"),
        class_="axis",
    )


def step_axis(chart: RunChart) -> Markup:
    """The numbers of some steps, at their slots."""
    every = max(1, -(-len(chart.steps) // _TICKS))
    labels = [
        element("text", str(step.step_index), x=chart.centre(slot), y=11, text_anchor="middle")
        for slot, step in enumerate(chart.steps)
        if slot % every == 0
    ]
    return drawing(16, *labels, class_="plot ticks")


def _markers(chart: RunChart) -> Iterator[Markup]:
    """A flag at each step with guidance, which leads to its exact text."""
    for slot, step in enumerate(chart.steps):
        rows = chart.guidance.get(step.step_index)
        if not rows:
            continue
        kinds = ", ".join(dict.fromkeys(row.source for row in rows))
        applied = any(row.applied for row in rows)
        link = element(
            "a",
            element("title", f"Guidance at step {step.step_index}: {kinds}"),
            element("line", x1=0, x2=0, y1=12, y2=DIFFICULTY_PX, class_="marker-line"),
            element("path", d="M-5 2h10v7l-5 5l-5-5z", class_="marker-flag"),
            href=f"#step-{step.step_index}",
            class_="marker" if applied else "marker marker-shadow",
            data_step=step.step_index,
            aria_label=f"Guidance at step {step.step_index}: {kinds}",
        )
        yield element("svg", link, x=chart.centre(slot), overflow="visible")


def _bar(chart: RunChart, slot: int, top: float, tall: float, kind: str) -> Markup:
    # Narrow slots get no gap: it would be wider than the bar.
    inset = 0.14 if chart.slots <= _DOTS_UP_TO else 0.0
    return element(
        "rect",
        x=chart.left(slot + inset),
        y=round(top, 2),
        width=chart.left(1 - 2 * inset),
        height=round(tall, 2),
        class_=f"bar bar-{kind}",
    )


def _cost_curve(chart: RunChart, height: int) -> Markup:
    costs = [(step.call.cost_usd or 0.0) if step.call else 0.0 for step in chart.steps]
    total = sum(costs)
    if total <= 0:
        return Markup("")
    shares = [so_far / total for so_far in accumulate(costs)]
    return slot_curve(shares, height, margin=2, class_="curve-cost")


def _tokens(step: StepRow) -> int:
    call = step.call
    return 0 if call is None else (call.input_tokens or 0) + (call.output_tokens or 0)
