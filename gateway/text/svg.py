"""The arithmetic of drawings: from values to positions. `page_files/charts.html` draws."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup, escape

from gateway.text.sanitize import visible
from gateway.values import T

HOTTEST = 5  # the heat of a reading that fires; below it are HOTTEST levels, 0 to 4


def share(value: float, whole: float) -> str:
    """`value` of `whole` as a percentage; 0 of nothing."""
    return f"{100 * value / whole if whole else 0.0:.3f}%"


def stacked(parts: Mapping[str, int], order: Sequence[str], kind: str, height: int = 8) -> Markup:
    """One bar divided into parts in a fixed order; a part's class is `kind` and its name. No macro:
    lists have one in each row, and it took a third of their time."""
    whole = sum(parts.values())
    drawn = f'<svg width="100%" height="{height}" class="stacked" aria-hidden="true">'
    at = 0
    for name in (*order, *sorted(parts.keys() - set(order))):
        if part := parts.get(name):
            colour = (name, "other")[name not in order]
            drawn += f"""<rect x="{share(at, whole)}" y="0" width="{share(part, whole)}" height="{
                height
            }" class="{kind}-{colour}"><title>{escape(visible(name))}: {part} ({
                100 * part / whole:.0f}%)</title></rect>"""
            at += part
    return Markup(f"{drawn}</svg>")  # noqa: S704 - names are escaped above, the rest are numbers


def level_y(value: float, height: float, margin: float = 4) -> float:
    """The y of a value in [0, 1] in a drawing that leaves `margin` pixels above 1 and below 0."""
    return round(margin + (height - 2 * margin) * (1 - value), 2)


def slot_path(values: Sequence[float | None], height: float, margin: float) -> str:
    """The path through values in [0, 1], each in the middle of its slot, broken where one is
    None."""
    parts = []
    down = False
    for slot, value in enumerate(values):
        if value is not None:
            place = f"{slot + 0.5:g} {level_y(value, height, margin):g}"
            parts.append(f"{'L' if down else 'M'}{place}")
        down = value is not None
    return " ".join(parts) or "M0 0"


def fraction(value: float, low: float, high: float) -> float:
    """Position of a value between `low` and `high`, in [0, 1]; values outside go to the nearer end.
    0 when the scale has no length."""
    if high <= low:
        return 0.0
    return min(max((value - low) / (high - low), 0.0), 1.0)


def stretches(values: Iterable[T | None]) -> Iterator[tuple[int, int, T]]:
    """(first index, length, value) of each stretch of equal neighbours; None is left out."""
    at = 0
    for value, group in groupby(values):
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
