"""Pictures for a terminal: a curve, a strip of colours, an interval on a scale."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.text import Text

STATE_COLOURS = {
    "INIT": "bright_black",
    "FAST": "green",
    "NORMAL": "blue",
    "SLOW": "yellow",
    "SKIP": "red",
    "END": "bright_black",
}
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEAT = ("bright_black", "yellow", "dark_orange", "red")


def thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values, each the highest of its share; None where nothing is known."""
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    return [max((v for v in part if v is not None), default=None) for part in parts]


def curve(
    values: Sequence[float | None], colours: Sequence[str], *, width: int, height: int = 8
) -> list[Text]:
    """Values in [0, 1] as columns of eighths, coloured one by one; `height` lines from the top."""
    shown = thinned(values, width)
    picks = [colours[i * len(values) // len(shown)] for i in range(len(shown))]
    lines = []
    for row in range(height):
        floor = height - 1 - row
        line = Text(f"{(floor + 1) / height:4.2f} " if row % 2 == 0 else "     ")
        for value, colour in zip(shown, picks, strict=True):
            level = 0.0 if value is None else value * height - floor
            line.append(_EIGHTHS[max(0, min(8, round(level * 8)))], style=colour)
        lines.append(line)
    return lines


def strip(values: Sequence[float | None], fire: float, *, width: int) -> Text:
    """Readings as blocks, from nothing to red at `fire`."""
    line = Text()
    for value in thinned(values, width):
        share = 0.0 if value is None or not fire else value / fire
        block = " " if value is None else "·" if share < 0.25 else "▒" if share < 0.6 else "█"
        line.append(block, style=_HEAT[min(3, int(share * 3))])
    return line


def interval(
    low: float, estimate: float, high: float, *, bounds: tuple[float, float], none: float
) -> Text:
    """`├──●──┤` on a scale of 41 cells with a mark where there is no effect."""
    cells, span = 41, bounds[1] - bounds[0]

    def cell(value: float) -> int:
        return max(0, min(cells - 1, round((value - bounds[0]) / span * (cells - 1))))

    drawn = [" "] * cells
    drawn[cell(none)] = "┊"
    left, right = cell(low), cell(high)
    for at in range(left, right + 1):
        drawn[at] = "─" if at != cell(none) else "┼"
    drawn[left], drawn[right] = "├", "┤"
    drawn[cell(estimate)] = "●"
    return Text("".join(drawn), style="dim" if low <= none <= high else "bold")
