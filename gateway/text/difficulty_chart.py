"""Difficulty by step on bands of the run's states: what the run page and the replay page share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from gateway.text.formatting import counted
from gateway.text.svg import element, level_y, share, stretches

STATE_THRESHOLDS = ("fast", "slow", "skip")

# Shares of the width that a state's name takes: in a wide window, and on a telephone.
_NAMED_FROM = 0.085
_NARROW_BELOW = 0.25


def state_bands(states: Sequence[str], height: int, *, named: bool = True) -> Iterator[Markup]:
    """A band for each stretch of steps in one state; `named`: with its name where there is room."""
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
        if named and length / slots >= _NAMED_FROM:
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
    difficulties: Sequence[float | None],
    fired: Sequence[bool],
    height: int,
    *,
    only_fired: bool = False,
) -> Iterator[Markup]:
    """A dot at each score, a larger one where a monitor fired."""
    slots = max(1, len(difficulties))
    for slot, (difficulty, hit) in enumerate(zip(difficulties, fired, strict=True)):
        if difficulty is not None and (hit or not only_fired):
            yield element(
                "circle",
                cx=share(slot + 0.5, slots),
                cy=level_y(difficulty, height),
                r=3.5 if hit else 2.5,
                class_="dot dot-fired" if hit else "dot",
            )
