"""Charts for a terminal: a curve, a strip of colours, a bar, an interval on a scale."""

from collections.abc import Sequence

from rich.text import Text

from gateway.text.svg import fraction, heat, thinned

STATE_COLOURS = {
    "INIT": "bright_black",
    "FAST": "green",
    "NORMAL": "cyan",
    "SLOW": "yellow",
    "SKIP": "red",
    "END": "bright_black",
}
_EIGHTHS = " ▁▂▃▄▅▆▇█"
# For each level of heat: a block and its colour.
_HEAT = (
    ("·", "bright_black"),
    ("░", "yellow"),
    ("▒", "yellow"),
    ("▓", "dark_orange"),
    ("█", "dark_orange"),
    ("█", "red"),
)
_INTERVAL_CELLS = 41


def column(value: float) -> str:
    """A character filled from below by a value in [0, 1], in eighths."""
    return _EIGHTHS[round(fraction(value, 0, 1) * 8)]


def curve(
    values: Sequence[float | None], colours: Sequence[str], *, width: int, height: int = 8
) -> list[Text]:
    """Values in [0, 1] as columns, each with its own colour; `height` lines from the top."""
    shown = thinned(values, width)
    picks = [colours[i * len(values) // len(shown)] for i in range(len(shown))]
    lines = []
    for row in range(height):
        floor = height - 1 - row
        line = Text(f"{(floor + 1) / height:4.2f} " if row % 2 == 0 else "     ")
        for value, colour in zip(shown, picks, strict=True):
            line.append(column(0.0 if value is None else value * height - floor), style=colour)
        lines.append(line)
    return lines


def strip(values: Sequence[float | None], fire: float, *, width: int) -> Text:
    """Readings as blocks, the higher the darker, red from `fire` on; blank without a reading."""
    line = Text()
    for value in thinned(values, width):
        level = heat(value, fire)
        block, colour = (" ", "") if level is None else _HEAT[level]
        line.append(block, style=colour)
    return line


def bar(value: float, most: float, *, width: int, colour: str) -> Text:
    """A bar of `value` on a scale from 0 to `most`, padded to `width`; at least one block."""
    blocks = max(1, round(width * fraction(value, 0, most)))
    return Text(f"{'█' * blocks:{width}}", style=colour)


def interval(
    low: float, estimate: float, high: float, *, bounds: tuple[float, float], none: float
) -> Text:
    """`├──●──┤` on the scale `bounds`, with a mark at `none`, where there is no effect."""

    def cell(value: float) -> int:
        return round(fraction(value, *bounds) * (_INTERVAL_CELLS - 1))

    drawn = [" "] * _INTERVAL_CELLS
    drawn[cell(none)] = "┊"
    left, right = cell(low), cell(high)
    for at in range(left, right + 1):
        drawn[at] = "─" if at != cell(none) else "┼"
    drawn[left], drawn[right] = "├", "┤"
    drawn[cell(estimate)] = "●"
    return Text("".join(drawn), style="dim" if low <= none <= high else "bold")
