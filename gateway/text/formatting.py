"""Numbers, times and progress for people; an unknown value is a dash."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from rich.progress import Progress

UNKNOWN = "–"  # noqa: RUF001 - the dash is what is shown
# Colours of a run's states in a terminal; its first and last have none.
STATE_COLOURS = {"FAST": "green", "NORMAL": "cyan", "SLOW": "yellow", "SKIP": "red"}


def about(text: str, estimated: object) -> str:
    """`text`, marked when `estimated` says that a part of it is not as a provider reported it."""
    if estimated:
        return f"about {text}"
    return text


def money(value: float | None) -> str:
    """US dollars with as many digits as matter."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "$0"
    size = abs(value)
    sign = "-" if value < 0 else ""
    if size >= 100:
        return f"{sign}${size:,.0f}"
    if size >= 1:
        return f"{sign}${size:,.2f}"
    digits = f"{float(f'{size:.3g}'):.10f}".rstrip("0")
    return f"{sign}${digits:0<4}"


def amount(metric: str, value: float) -> str:
    """An amount of a budget's metric: `$0.0125`, `30 min`, `12,000 tokens`, `1 call`."""
    if metric == "usd":
        return money(value)
    if metric == "minutes":
        return seconds(60 * value)
    thing = metric.replace("_", " ").replace("context", "context tokens")
    return counted(round(value), thing.removesuffix("s"))


def count(value: float | None) -> str:
    """A number in at most five characters."""
    if value is None:
        return UNKNOWN
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            if abs(scaled) >= 100:
                return f"{scaled:.0f}{unit}"
            return f"{scaled:.3g}{unit}"
    if value % 1:
        return f"{value:.3g}"
    return f"{value:.0f}"


def counted(number: int, thing: str) -> str:
    """A number with its noun: `1 call`, `1,200 calls`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def percent(value: float | None, digits: int = 0) -> str:
    """A share in [0, 1]."""
    if value is None:
        return UNKNOWN
    return f"{100 * value:.{digits}f}%"


def budget_share(value: float) -> str:
    """Tokens over the budget: a percentage below twice the budget, a multiple from there on."""
    if value < 2:
        return f"{percent(value)} of budget"
    return f"{value:,.1f} times the budget"


def points(value: float | None) -> str:
    """A difference of shares, in percentage points."""
    if value is None:
        return UNKNOWN
    return f"{100 * value:+.1f}"


def score(value: float | None) -> str:
    """A value in [0, 1] to two digits."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}"


def change(ratio: float | None) -> str:
    """A ratio as the change it means: 0.9 is -10%."""
    if ratio is None:
        return UNKNOWN
    return f"{100 * (ratio - 1):+.1f}%"


def seconds(value: float | None) -> str:
    """A duration."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, left = divmod(round(value), 60)
    if minutes < 60:
        if minutes < 10:
            return f"{minutes} min {left} s"
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def milliseconds(value: float | None) -> str:
    """A short duration given in milliseconds."""
    if value is None:
        return UNKNOWN
    if value < 10:
        return f"{value:.2f} ms"
    return f"{value:.0f} ms"


def ago(at: float, now: float | None = None) -> str:
    """Age of a time in words."""
    passed = (time.time() if now is None else now) - at
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{passed / size:.0f} {unit} ago"
    if passed < 5:
        return "now"
    return f"{passed:.0f} s ago"


def iso(at: float) -> str:
    """A time in ISO 8601, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_or_none(at: float | None) -> str | None:
    """The same, None without a time."""
    if at is None:
        return None
    return iso(at)


def clock(at: float) -> str:
    """A time for people, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(characters: int) -> str:
    """The length of a text."""
    if characters < 100_000:
        return f"{characters:,} characters"
    return f"{characters / 1e6:.1f} M"


def aligned(text: str, left: int = 1) -> str:
    """Lines of cells, divided by tabs, as columns: the first `left` begin at the same place, the
    others end there."""
    rows = [line.split("\t") for line in text.splitlines()]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            " " * (width - cell_len(cell)) + cell for cell, width in zip(row, widths, strict=True)
        ]
        cells[:left] = map(set_cell_size, row[:left], widths)
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def progress_bar(err: TextIO) -> "Progress":
    """A bar with the work done and the time left; removed at the end, absent in a pipe."""
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=Console(file=err),
        disable=not err.isatty(),
        transient=True,
    )
