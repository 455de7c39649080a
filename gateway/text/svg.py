"""SVG elements as text, every value escaped; scales from values to positions.

Positions are percentages of a drawing that has no view box, so that it fills any width while text
and strokes keep their size. Only curves are drawn in a box with its own units, which is stretched.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from markupsafe import Markup, escape

from gateway.text.formatting import counted

Point = tuple[float, float]


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element. `class_` is `class`, other underscores are hyphens; None leaves one out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(str(escape(child)) for child in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")  # noqa: S704


def joined(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def drawing(height: int, *children: Markup, **attributes: object) -> Markup:
    """A drawing as wide as its place, `height` pixels high. Without an `aria_label` it is hidden
    from screen readers: its content is then also in the text."""
    hidden = {} if "aria_label" in attributes else {"aria_hidden": "true"}
    return element("svg", *children, width="100%", height=height, **attributes, **hidden)


def share(value: float, whole: float) -> str:
    """`value` of `whole` as a percentage; 0 of nothing."""
    return f"{100 * value / whole if whole else 0.0:.3f}%"


def level_y(value: float, height: float, margin: float = 4) -> float:
    """The y of a value in [0, 1] in a drawing that leaves `margin` pixels above 1 and below 0."""
    return margin + (height - 2 * margin) * (1 - value)


def stretched(height: float, *children: Markup, box: tuple[float, float]) -> Markup:
    """A box with its own units, (width, height), stretched over the whole drawing."""
    return element(
        "svg",
        *children,
        width="100%",
        height=height,
        viewBox=f"0 0 {box[0]:g} {box[1]:g}",
        preserveAspectRatio="none",
        overflow="visible",
    )


def curve(points: Sequence[Point | None], **attributes: object) -> Markup:
    """A line through points, broken where one is None."""
    parts = []
    down = False
    for point in points:
        if point is not None:
            parts.append(f"{'L' if down else 'M'}{point[0]:.4g} {point[1]:.4g}")
        down = point is not None
    return element(
        "path", d=" ".join(parts) or "M0 0", vector_effect="non-scaling-stroke", **attributes
    )


def slot_curve(
    values: Sequence[float | None], height: int, *, margin: float = 4, **attributes: object
) -> Markup:
    """A line through values in [0, 1], each in the middle of its slot of equal width."""
    points = [
        None if value is None else (slot + 0.5, level_y(value, height, margin))
        for slot, value in enumerate(values)
    ]
    return stretched(height, curve(points, **attributes), box=(max(1, len(values)), height))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


T = TypeVar("T")

HOTTEST = 5  # the heat of a reading that fires; below it are HOTTEST levels, 0 to 4


def fraction(value: float, low: float, high: float) -> float:
    """Position of a value between `low` and `high`, in [0, 1]; values outside go to the nearer end.
    0 when the scale has no length."""
    if high <= low:
        return 0.0
    return min(max((value - low) / (high - low), 0.0), 1.0)


def stretches(values: Iterable[T | None]) -> Iterator[tuple[int, int, T]]:
    """(first index, length, value) of each stretch of equal neighbours; None is left out."""
    at = 0
    for value, group in itertools.groupby(values):
        length = len(list(group))
        if value is not None:
            yield at, length, value
        at += length


def heat(value: float | None, fire: float) -> int | None:
    """The level of a monitor's reading, 0 to HOTTEST; HOTTEST from `fire` on. None: no reading."""
    if value is None:
        return None
    if value >= fire:
        return HOTTEST
    return min(HOTTEST - 1, int(HOTTEST * value / fire))


STATE_THRESHOLDS = ("fast", "slow", "skip")

# Shares of the width that a state's name takes: in a wide window, and on a telephone.
_NAMED_FROM = 0.085
_NARROW_BELOW = 0.25


def state_bands(states: Sequence[str], height: int) -> Iterator[Markup]:
    """A band for each stretch of steps in one state, with its name where there is room."""
    slots = max(1, len(states))
    for first, length, state in stretches(states):
        yield element(
            "rect",
            element("title", f"{state}: {counted(length, 'step')}"),
            x=share(first, slots),
            y=0,
            width=share(length, slots),
            height=height,
            class_=f"band band-{state}",
        )
        if length / slots >= _NAMED_FROM:
            narrow = " narrow" if length / slots < _NARROW_BELOW else ""
            yield element(
                "text",
                state,
                x=share(first + 0.08, slots),
                y=height - 6,
                dx=4,
                class_=f"band-name name-{state}{narrow}",
            )


def threshold_lines(
    thresholds: Mapping[str, float], height: int, names: Sequence[str] = STATE_THRESHOLDS
) -> Iterator[Markup]:
    """A dashed line at the height of each named threshold."""
    for name in names:
        y = level_y(thresholds[name], height)
        yield element("line", x1="0", x2="100%", y1=y, y2=y, class_=f"threshold threshold-{name}")


def step_dots(
    difficulties: Sequence[float | None], fired: Sequence[bool], height: int
) -> Iterator[Markup]:
    """A dot at each score, a larger one where a monitor fired."""
    slots = max(1, len(difficulties))
    for slot, (difficulty, hit) in enumerate(zip(difficulties, fired, strict=True)):
        if difficulty is not None:
            yield element(
                "circle",
                cx=share(slot + 0.5, slots),
                cy=level_y(difficulty, height),
                r=3.5 if hit else 2.5,
                class_="dot dot-fired" if hit else "dot",
            )
