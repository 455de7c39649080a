"""Tables and a figure of the loop: differences to `off`, and the `q` from which on an arm pays."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lab.loop import LIMIT, Trip

RESAMPLES = 2000
BLOCKS = {False: "before the change", True: "after the change"}
SIGNS = {"success": 1, "tokens": -1}  # more success is better, more tokens are worse
CAVEAT = (
    "A scripted agent follows what its context names with probability q: this shows the loop, "
    "never an effect on a model."
)
_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e08e0b", "#6b7280", "#0f766e")

Values = Mapping[tuple[str, float], Mapping[str, Mapping[str, float]]]
"""For an arm and a q: means of each environment, by the name of the measure."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval over environments; None: there is no such q."""

    value: float | None
    low: float | None
    high: float | None

    def text(self, form: str) -> str:
        """For a table."""
        shown = (
            "none" if x is None else format(x, form) for x in (self.value, self.low, self.high)
        )
        return "{} ({} to {})".format(*shown)


class Findings:
    """All differences of one block of runs to `off`, and the break-even of each arm."""

    def __init__(self, trips: Sequence[Trip], *, changed: bool) -> None:
        self.block = BLOCKS[changed]
        self.own = [trip for trip in trips if trip.changed is changed]
        self.arms = list(dict.fromkeys(trip.arm for trip in self.own))
        self.qs = sorted({trip.q for trip in self.own})
        self.worlds = sorted({trip.world for trip in self.own})
        self.values = means(self.own)
        chance = random.Random(0)  # noqa: S311 - no secret
        self.samples = [chance.choices(self.worlds, k=len(self.worlds)) for _ in range(RESAMPLES)]

    def gaps(self, arm: str, q: float, what: str) -> dict[str, float]:
        """The difference to `off` in each environment."""
        own, base = (self.values[each, q][what] for each in (arm, "off"))
        return {world: own[world] - base[world] for world in self.worlds}

    def difference(self, arm: str, q: float, what: str) -> Estimate:
        """The mean difference to `off`."""
        gaps = self.gaps(arm, q, what)
        drawn = [statistics.fmean(gaps[w] for w in sample) for sample in self.samples]
        return _interval(statistics.fmean(gaps.values()), drawn)

    def break_even(self, arm: str, what: str) -> Estimate:
        """The smallest q from which on the arm is not worse than `off`."""
        gaps = [self.gaps(arm, q, what) for q in self.qs]

        def found(sample: Sequence[str]) -> float | None:
            curve = [SIGNS[what] * statistics.fmean(gap[w] for w in sample) for gap in gaps]
            return not_worse_from(self.qs, curve)

        return _interval(found(self.worlds), [found(sample) for sample in self.samples])

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each arm and q."""
        for q in self.qs:
            for arm in self.arms:
                row: dict[str, Any] = {"block": self.block, "q": q, "arm": arm}
                row |= {
                    what: statistics.fmean(some.values())
                    for what, some in self.values[arm, q].items()
                }
                row |= {f"{what}_gap": self.difference(arm, q, what) for what in SIGNS}
                yield row


def means(trips: Sequence[Trip]) -> Values:
    """The mean of each measure in each environment."""
    found: dict[tuple[str, float], dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for trip in trips:
        for what in ("success", "steps", "tokens", "told", "astray", "stopped"):
            found[trip.arm, trip.q][what][trip.world].append(float(getattr(trip, what)))
    return {
        key: {
            what: {world: statistics.fmean(some) for world, some in by_world.items()}
            for what, by_world in measures.items()
        }
        for key, measures in found.items()
    }


def not_worse_from(qs: Sequence[float], curve: Sequence[float]) -> float | None:
    """The smallest q from which on a curve is not below 0, between two points by a straight line;
    None where it ends below."""
    least = 1e-9
    if curve[-1] < -least:
        return None
    at = max((n for n, value in enumerate(curve) if value < -least), default=-1)
    if at < 0:
        return qs[0]
    low, high = curve[at], curve[at + 1]
    return qs[at] + (qs[at + 1] - qs[at]) * -low / (high - low)


def _interval(value: float | None, drawn: Sequence[float | None]) -> Estimate:
    ordered = sorted(drawn, key=lambda x: float("inf") if x is None else x)
    last = len(ordered) - 1
    return Estimate(value, ordered[round(0.025 * last)], ordered[round(0.975 * last)])


def tables(trips: Sequence[Trip]) -> Iterator[str]:
    """The lines of the tables."""
    blocks = [Findings(trips, changed=changed) for changed in BLOCKS]
    seeds, numbers = len({t.seed for t in trips}), [max(t.number for t in b.own) for b in blocks]
    yield (
        f"{len(blocks[0].worlds)} environments, {seeds} seeds, runs 1 to {numbers[0]} before each "
        f"changes and to {numbers[1]} after; at most {LIMIT} calls in a run"
    )
    yield CAVEAT
    for block in blocks:
        yield f"\n{block.block}"
        yield (
            "   q  arm             success %  against off            steps  tokens  against off"
            "              named  astray  stopped"
        )
        for row in block.rows():
            percent = Estimate(*(100 * x for x in _three(row["success_gap"])))
            gaps = percent.text("+.1f"), row["tokens_gap"].text("+.0f")
            gained, spent = ("", "") if row["arm"] == "off" else gaps
            yield (
                f"{row['q']:4.2f}  {row['arm']:14} {100 * row['success']:9.1f}  "
                f"{gained:22} {row['steps']:5.2f}  {row['tokens']:6.0f}  "
                f"{spent:22} {row['told']:6.2f} "
                f"{row['astray']:7.2f} {row['stopped']:8.2f}"
            )
        yield f"\n{block.block}: not worse than off from which q on (95 % over environments)"
        for arm in block.arms[1:]:
            shown = (f"{what} {block.break_even(arm, what).text('.2f')}" for what in SIGNS)
            yield f"{arm:14} " + "; ".join(shown)


def _three(found: Estimate) -> tuple[float, float, float]:
    return found.value or 0.0, found.low or 0.0, found.high or 0.0


def as_json(trips: Sequence[Trip]) -> dict[str, Any]:
    """The same as one object."""
    blocks = [Findings(trips, changed=changed) for changed in BLOCKS]
    points = [
        {"block": b.block, "arm": arm, "what": what, "q": _parts(b.break_even(arm, what))}
        for b in blocks
        for arm in b.arms[1:]
        for what in SIGNS
    ]
    rows = [
        {key: _parts(x) if isinstance(x, Estimate) else x for key, x in row.items()}
        for b in blocks
        for row in b.rows()
    ]
    return {"about": CAVEAT, "rows": rows, "break_even": points}


def _parts(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}


def picture(trips: Sequence[Trip]) -> str:
    """Differences to `off` against q as an SVG: success in both blocks, and tokens."""
    blocks = [Findings(trips, changed=changed) for changed in BLOCKS]
    arms = blocks[0].arms[1:]
    panels = [
        _panel(0, f"success, {blocks[0].block} (points)", blocks[0], "success", 100),
        _panel(1, f"success, {blocks[1].block} (points)", blocks[1], "success", 100),
        _panel(2, f"tokens sent, {blocks[0].block}", blocks[0], "tokens", 1),
    ]
    legend = [
        element("text", arm, x=20 + 125 * n, y=272, fill=_COLOURS[n % len(_COLOURS)])
        for n, arm in enumerate(arms)
    ]
    return str(
        element(
            "svg",
            element("rect", width=900, height=290, fill="#ffffff"),
            *panels,
            *legend,
            xmlns="http://www.w3.org/2000/svg",
            viewBox="0 0 900 290",
            font_family="sans-serif",
            font_size=12,
            role="img",
            aria_label="Differences to off against q",
        )
    )


def _panel(place: int, title: str, found: Findings, what: str, scale: float) -> Markup:
    """One chart: a line for each arm."""
    left, top, width, height = 45 + 300 * place, 35, 240, 190
    curves = {
        arm: [scale * statistics.fmean(found.gaps(arm, q, what).values()) for q in found.qs]
        for arm in found.arms[1:]
    }
    every = [0.0, *(value for curve in curves.values() for value in curve)]
    low, high = min(every), max(every)
    span = (high - low) or 1.0

    def at(q: float, value: float) -> str:
        return f"{left + width * q:.1f},{top + height * (high - value) / span:.1f}"

    lines = [
        element("polyline", points=f"{at(0, 0)} {at(1, 0)}", stroke="#9ca3af", fill="none"),
        *(
            element(
                "polyline",
                points=" ".join(at(q, value) for q, value in zip(found.qs, curve, strict=True)),
                stroke=_COLOURS[n % len(_COLOURS)],
                stroke_width=2,
                fill="none",
            )
            for n, curve in enumerate(curves.values())
        ),
    ]
    marks = [
        element("text", f"{value:+.0f}", x=left - 5, y=y, text_anchor="end", fill="#374151")
        for value, y in ((high, top + 8), (low, top + height))
    ]
    ticks = [
        element("text", f"{q:g}", x=left + width * q, y=top + height + 18, text_anchor="middle")
        for q in found.qs
    ]
    return Markup("").join([element("text", title, x=left, y=20), *lines, *marks, *ticks])


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element; underscores in the names of its attributes are hyphens."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.replace("_", "-"), value)
        for name, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, Markup("").join(children))
