"""A run's course drawn: difficulty on its states, composite, monitors, guidance, models, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from gateway import figures
from gateway.dashboard.svg import curve, drawing, element, joined, share, stretched
from gateway.stores.queries import RunTrace
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import severity_of

MONITORS = ("streak", "call_count", "edit_revert", "test_repeat", "diversity", "hedge")

DIFFICULTY_PX = 190
COMPOSITE_PX = 60
TOKENS_PX = 60
LANE_PX = 14
_DOTS_UP_TO = 150  # steps; beyond, dots run into one another
# Shares of the width that a state's name takes: in a wide window, and on a telephone.
_NAMED_FROM = 0.085
_NARROW_BELOW = 0.25
_MODEL_COLOURS = 6
_TICKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is drawn of a run: its steps in order, each in a slot of equal width."""

    steps: Sequence[StepRow]
    guidance: Mapping[int, Sequence[InjectionRow]]
    thresholds: Mapping[str, float]

    @classmethod
    def of(cls, trace: RunTrace, thresholds: Mapping[str, float]) -> Course:
        """The course of a trace; its texts are not needed."""
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
        """The models that were asked, in the order they appeared."""
        asked = [step.call.model_asked for step in self.steps if step.call is not None]
        return list(dict.fromkeys(asked))


def stretches(
    steps: Sequence[StepRow], key: Callable[[StepRow], str | None]
) -> Iterator[tuple[int, int, str]]:
    """(first slot, slots, value) of neighbouring steps with one value; None is left out."""
    at = 0
    for value, group in groupby(steps, key):
        length = len(list(group))
        if value is not None:
            yield at, length, value
        at += length


def difficulty_chart(course: Course) -> Markup:
    """The difficulty curve over bands of the states, with thresholds and guidance markers."""
    height = DIFFICULTY_PX
    return drawing(
        height,
        joined(_bands(course, height)),
        joined(_threshold_lines(course, height)),
        _difficulty_curve(course, height),
        joined(_dots(course, height)),
        joined(_markers(course)),
        class_="plot difficulty",
        role="group",  # its markers are links
        aria_label="Difficulty by step, on bands of the run's states",
    )


def difficulty_axis(course: Course) -> Markup:
    """The scale, and the names of the thresholds at their height."""
    names = [("fast", "fast"), ("slow", "slow"), ("skip", "skip")]
    labels = [
        element(
            "text",
            f"{label} {course.thresholds[name]:g}",
            x="0",
            y=_y(course.thresholds[name], DIFFICULTY_PX) + 3.5,
            class_=f"axis-{name}",
        )
        for name, label in names
    ]
    return drawing(DIFFICULTY_PX, *labels, class_="axis")


def composite_chart(course: Course) -> Markup:
    """A bar a step, coloured by severity, with the lines of warning and danger."""
    height = COMPOSITE_PX
    bars = []
    for slot, step in enumerate(course.steps):
        if step.composite:
            top = _y(step.composite, height)
            bars.append(_bar(course, slot, top, height - top, severity_of(step.composite)))
    lines = [_line(course.thresholds[name], height, name) for name in ("warn", "danger")]
    return drawing(height, *lines, *bars, class_="plot composite")


def monitor_strip(course: Course, name: str) -> Markup:
    """One monitor's readings: the higher, the darker."""
    fire = course.thresholds["fire"]
    cells = [
        element(
            "rect",
            x=course.left(first),
            y=1,
            width=course.left(length),
            height=LANE_PX - 2,
            class_=level,
        )
        for first, length, level in stretches(
            course.steps, lambda step: heat(step.scores.get(name), fire)
        )
        if level != "heat-0"
    ]
    return drawing(LANE_PX, *cells, class_="plot strip", role="img", aria_label=f"{name} by step")


def heat(value: float | None, fire: float) -> str | None:
    """The class of a reading: heat-0 to heat-5, the last for what fired; None unread."""
    if value is None:
        return None
    if value >= fire:
        return "heat-5"
    return f"heat-{min(4, int(5 * value / fire) if fire else 0)}"


def model_lane(course: Course) -> Markup:
    """Which model was asked at each step."""
    numbers = {name: at for at, name in enumerate(course.models())}

    def asked(step: StepRow) -> str | None:
        return None if step.call is None else step.call.model_asked

    parts = [
        element(
            "rect",
            element("title", name),
            x=course.left(first),
            y=2,
            width=course.left(length),
            height=LANE_PX - 4,
            class_=f"model-{numbers[name] % _MODEL_COLOURS}",
        )
        for first, length, name in stretches(course.steps, asked)
    ]
    return drawing(LANE_PX, *parts, *_failures(course), class_="plot strip models")


def _failures(course: Course) -> Iterator[Markup]:
    for slot, step in enumerate(course.steps):
        if step.call is not None and step.call.failed:
            yield element(
                "rect",
                element("title", f"The call at step {step.step_index} failed"),
                x=course.left(slot),
                y=0,
                width=course.left(1),
                height=LANE_PX,
                class_="call-failed",
            )


def token_chart(course: Course) -> Markup:
    """A bar a step: cached input, other input, output; over them the cost so far as a line."""
    height = TOKENS_PX
    most = max((_tokens(step) for step in course.steps), default=0)
    bars: list[Markup] = []
    for slot, step in enumerate(course.steps):
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
                bars.append(_bar(course, slot, base, tall, kind))
    return drawing(height, *bars, _cost_curve(course, height), class_="plot tokens")


def token_axis(course: Course) -> Markup:
    """The highest bar, and what the run cost in all."""
    most = max((_tokens(step) for step in course.steps), default=0)
    costs = [s.call.cost_usd for s in course.steps if s.call and s.call.cost_usd is not None]
    total = sum(costs) if costs else None
    return drawing(
        TOKENS_PX,
        element("text", figures.count(most), x="0", y=10, class_="axis-text"),
        element("text", figures.money(total), x="0", y=24, class_="axis-cost"),
        class_="axis",
    )


def step_axis(course: Course) -> Markup:
    """The numbers of some steps, at their slots."""
    every = max(1, -(-len(course.steps) // _TICKS))
    labels = [
        element(
            "text",
            str(step.step_index),
            x=course.centre(slot),
            y=11,
            text_anchor="middle",
        )
        for slot, step in enumerate(course.steps)
        if slot % every == 0
    ]
    return drawing(16, *labels, class_="plot ticks")


def _y(value: float, height: int) -> float:
    """Where a value in [0, 1] lies; some room is left above 1 and below 0."""
    return 4 + (height - 8) * (1 - value)


def _bands(course: Course, height: int) -> Iterator[Markup]:
    for first, length, state in stretches(course.steps, lambda step: step.state):
        yield element(
            "rect",
            element("title", f"{state}: {figures.counted(length, 'step')}"),
            x=course.left(first),
            y=0,
            width=course.left(length),
            height=height,
            class_=f"band band-{state}",
        )
        narrow = " narrow" if length / course.slots < _NARROW_BELOW else ""
        if length / course.slots >= _NAMED_FROM:
            yield element(
                "text",
                state,
                x=course.left(first + 0.08),
                y=height - 6,
                dx=4,
                class_=f"band-name name-{state}{narrow}",
            )


def _threshold_lines(course: Course, height: int) -> Iterator[Markup]:
    for name in ("fast", "slow", "skip"):
        yield _line(course.thresholds[name], height, name)


def _line(value: float, height: int, kind: str) -> Markup:
    y = _y(value, height)
    return element("line", x1="0", x2="100%", y1=y, y2=y, class_=f"threshold threshold-{kind}")


def _difficulty_curve(course: Course, height: int) -> Markup:
    points = [
        None if step.difficulty is None else (slot + 0.5, _y(step.difficulty, height))
        for slot, step in enumerate(course.steps)
    ]
    return stretched(height, curve(points, class_="curve"), box=(course.slots, height))


def _dots(course: Course, height: int) -> Iterator[Markup]:
    if len(course.steps) > _DOTS_UP_TO:
        return
    for slot, step in enumerate(course.steps):
        if step.difficulty is not None:
            yield element(
                "circle",
                cx=course.centre(slot),
                cy=_y(step.difficulty, height),
                r=3.5 if step.fired else 2.5,
                class_="dot dot-fired" if step.fired else "dot",
            )


def _markers(course: Course) -> Iterator[Markup]:
    """A flag at each step with guidance, which leads to its exact text."""
    for slot, step in enumerate(course.steps):
        rows = course.guidance.get(step.step_index)
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
        yield element("svg", link, x=course.centre(slot), overflow="visible")


def _bar(course: Course, slot: int, top: float, tall: float, kind: str) -> Markup:
    # Narrow slots get no gap: it would be wider than the bar.
    inset = 0.14 if course.slots <= _DOTS_UP_TO else 0.0
    return element(
        "rect",
        x=course.left(slot + inset),
        y=round(top, 2),
        width=course.left(1 - 2 * inset),
        height=round(tall, 2),
        class_=f"bar bar-{kind}",
    )


def _cost_curve(course: Course, height: int) -> Markup:
    known = [s.call.cost_usd if s.call is not None else None for s in course.steps]
    total = sum(cost for cost in known if cost is not None)
    if total <= 0:
        return Markup("")
    so_far, points = 0.0, list[tuple[float, float] | None]()
    for slot, cost in enumerate(known):
        so_far += cost or 0.0
        points.append((slot + 0.5, 2 + (height - 4) * (1 - so_far / total)))
    return stretched(height, curve(points, class_="curve-cost"), box=(course.slots, height))


def _tokens(step: StepRow) -> int:
    call = step.call
    return 0 if call is None else (call.input_tokens or 0) + (call.output_tokens or 0)
