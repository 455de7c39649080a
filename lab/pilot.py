"""Pilots in a world with known effects, judged by the functions that judge live ones:
`python -m lab pilot`.

A unit fails with probability p when it is only watched. Steering recovers a failing one with
probability r and disturbs a succeeding one with probability d, so that it helps when p is above
d / (r + d). Its outcome may be reported more or less often by its arm and by how it ended.
"""

from __future__ import annotations

import random
import statistics
import sys
from typing import NamedTuple

from gateway.features.reports.pilot import MORE, STEER, WATCH, Verdict, judge

_LOOK_UPS = (400, 1200, 5000)  # units played before it is first asked whether that was enough


class World(NamedTuple):
    """`reported`: the chance that an outcome is known, of a steered unit that failed, a steered one
    that succeeded, and the same of those only watched."""

    p: float
    r: float
    d: float
    reported: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    @property
    def net(self) -> float:
        """The true change of success."""
        return self.p * self.r - (1.0 - self.p) * self.d

    @property
    def margin(self) -> float:
        """p less its break-even; 0 where steering has no effect at all."""
        moved = self.r + self.d
        return self.net / moved if moved else 0.0


def _around(r: float, d: float, by: float) -> World:
    return World(p=round(d / (r + d) + by, 4), r=r, d=d)


_PAIRS = ((0.5, 0.3), (0.6, 0.2), (0.8, 0.2), (0.4, 0.4), (0.3, 0.1))
WORLDS = (
    *(_around(r, d, by) for by in (0.1, -0.1) for r, d in _PAIRS),
    *(_around(r, d, 0.0) for r, d in _PAIRS[:3]),
    World(p=0.6, r=0.0, d=0.0),
    World(p=0.6, r=0.0, d=0.0, reported=(0.7, 1.0, 1.0, 1.0)),
    World(p=0.3, r=0.0, d=0.0, reported=(1.0, 1.0, 1.0, 0.7)),
    World(p=0.4, r=0.0, d=0.0, reported=(0.6, 0.6, 0.95, 0.95)),
    _around(0.8, 0.2, 0.1)._replace(reported=(0.8, 0.8, 0.95, 0.95)),
    _around(0.8, 0.2, -0.1)._replace(reported=(0.8, 0.8, 0.95, 0.95)),
)


class Played(NamedTuple):
    """Shares of the pilots by verdict, and the median of the units with an act until one."""

    steer: float
    watch: float
    median: float | None


def drawn(world: World, units: int, chance: random.Random) -> list[tuple[bool, bool | None]]:
    """Units of a pilot, in order."""
    found: list[tuple[bool, bool | None]] = []
    for _ in range(units):
        on, fails, moved = chance.random() < 0.5, chance.random() < world.p, chance.random()
        if on:
            fails = moved >= world.r if fails else moved < world.d
        known = world.reported[(0 if on else 2) + (not fails)]
        found.append((on, not fails if chance.random() < known else None))
    return found


def one(world: World, chance: random.Random, most_runs: int) -> Verdict:
    """The verdict of one pilot that is looked at after each unit."""
    units = drawn(world, most_runs, chance)
    for enough in (*_LOOK_UPS, most_runs):
        verdict = judge(units[:enough])
        if verdict.name != MORE or enough >= most_runs:
            break
    return verdict


def play(world: World, *, pilots: int, look_every: int, most_runs: int, seed: int) -> Played:
    """The verdicts of many pilots."""
    names, lengths = list[str](), list[int]()
    for number in range(pilots):
        found = one(world, random.Random(f"{seed}.{number}.{world}"), most_runs)  # noqa: S311 - no secret
        names.append(found.name)
        if found.name != MORE:
            lengths.append(-(-found.units // look_every) * look_every)
    return Played(
        steer=names.count(STEER) / pilots,
        watch=names.count(WATCH) / pilots,
        median=statistics.median(lengths) if 2 * len(lengths) >= pilots else None,
    )


_HEADER = (
    "| p | r | d | p - d/(r+d) | net | reported | steer | only watch | neither | median runs |"
)


def print_header() -> None:
    """The head of the table."""
    sys.stdout.write(_HEADER + "\n" + "| --- " * _HEADER.count(" | ") + "| --- |\n")


def print_row(world: World, found: Played) -> None:
    """One world and its verdicts, as a row of Markdown."""
    said = "all" if min(world.reported) == 1.0 else " ".join(f"{x:.0%}" for x in world.reported)
    neither, median = 1.0 - found.steer - found.watch, found.median
    cells = (
        *(f"{x:g}" for x in world[:3]),
        *(f"{round(x, 4) + 0.0:+.3g}" for x in (world.margin, world.net)),
        said,
        *(f"{x:.1%}" for x in (found.steer, found.watch, neither)),
        f"{median:,.0f}" if median else "-",
    )
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()
