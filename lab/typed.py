"""Repeated wishes: would the project's list of ten have held the earlier saying?

`python -m lab typed SESSIONS.jsonl.gz SAID.jsonl`. Sessions are played in the order of their start.
At each session in which a person says what was said in an earlier one, the list is made of all
earlier sessions of the project; it holds the wish if a sentence that it shows is part of an earlier
saying."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.core.decision_settings import Policy
from gateway.features.history.find import named
from gateway.features.history.reading import read_all
from gateway.features.history.typed import TypedAgain, typed_again

Saying = Mapping[str, Any]


def measure(sessions: Path, said: Path) -> dict[str, int]:
    """Number of repetitions, of those whose earlier saying the list shows first in an entry, and of
    those whose earlier saying it shows."""
    found = [
        r for each in read_all(named([sessions]), Policy(), err=sys.stderr) for r in each.sessions
    ]
    found.sort(key=lambda each: each.started or 0.0, reverse=True)
    started = {each.id: each.started or 0.0 for each in found}
    figures = {"repeated": 0, "first in an entry": 0, "shown": 0}
    for session, earlier in _repetitions(said, started):
        entries = typed_again([e for e in found if started[e.id] < started[session]])
        figures["repeated"] += 1
        for name, most in (("first in an entry", 1), ("shown", None)):
            figures[name] += any(_holds(entry, most, earlier) for entry in entries)
    return figures


def _repetitions(
    said: Path, started: Mapping[str, float]
) -> Iterator[tuple[str, Sequence[Saying]]]:
    """Each session with a wish that an earlier session had, and the earlier sayings of it."""
    wishes = defaultdict(list)
    for line in said.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        wishes[row["like"] or row["n"]].append(row)
    for rows in wishes.values():
        order = sorted({row["session"] for row in rows}, key=started.__getitem__)
        for session in order[1:]:
            yield session, [row for row in rows if started[row["session"]] < started[session]]


def _holds(entry: TypedAgain, most: int | None, earlier: Sequence[Saying]) -> bool:
    return any(
        each.session.id == row["session"] and _flat(each.words) in _flat(row["said"])
        for each in entry.wordings[:most]
        for row in earlier
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def summary_lines(figures: Mapping[str, int]) -> Iterator[str]:
    """The figures for a terminal."""
    for name, number in figures.items():
        yield f"{name}: {number}"
