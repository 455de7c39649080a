"""The first screen of `gateway history`, and its other texts for people, from templates."""

import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from gateway.features.history.session import AWAY_S
from gateway.features.history.summary import (
    Row,
    Summary,
    largest,
    limit_of,
    with_rest,
)
from gateway.features.history.typed import WORDINGS, TypedAgain, typed_alike
from gateway.text.page import rendered

_ROWS = 5  # of projects, models and weeks
_PROJECTS = 2  # whose typed sentences the first screen has
MOST_PLACES = 10
_ALL = 10**9  # rows
_COPIED = ("gateway history ", "budgets: ")  # beginnings of lines that a terminal may not divide


def print_screen(
    summary: Summary,
    console: Console,
    typed: Mapping[str, Sequence[TypedAgain]],
    *,
    command: str = "gateway history",
    every: bool = False,
    silent: Sequence[str] = (),
) -> None:
    """Print the summary. `typed`: in several sessions, by project. `command`: that of this call,
    for commands to read more. `every`: with all rows of all lists. `silent`: paths of logs in which
    nothing happened."""
    print_text(
        console,
        "screen.txt",
        summary=summary,
        limit=limit_of(summary),
        parts=rows_of_sums(summary, _ALL if every else _ROWS),
        most=MOST_PLACES,
        every=every,
        silent=silent,
        typed=typed_alike(typed),
        shared=bool(typed),
        projects=_PROJECTS,
        wordings=1,
        width=console.width,
        command=command,
    )


def print_typed(typed: Mapping[str, Sequence[TypedAgain]], console: Console, command: str) -> None:
    """Print what was typed in several sessions, by project. `command`: as for `print_screen`."""
    print_text(console, "typed.txt", typed=typed, wordings=WORDINGS, command=command)


def print_text(console: Console, template: str, **values: Any) -> None:
    """Print a text of this package as it is, whatever marks of styles it holds."""
    for line in text_of(template, **values).splitlines():
        copied = line.lstrip().startswith(_COPIED)
        console.print(Text(line, style="dim" if copied else ""), soft_wrap=copied)


def text_of(template: str, **values: Any) -> str:
    """A text or a page of this package."""
    shared = {"day_of": day_of, "quoted": shlex.quote, "away_s": AWAY_S}
    return rendered(__package__, template, shared | values)


def rows_of_sums(summary: Summary, most: int) -> Sequence[tuple[str, Sequence[Row]]]:
    """The tables of sums: the title of each, and its rows: the `most` that cost most and the sum of
    the rest, of weeks the newest ones."""
    found = []
    for kind, sums in summary.parts.items():
        rows = largest(sums, most)
        title = kind
        if kind == "session":
            rows = [(summary.titles.get(name, name), each) for name, each in rows]
        elif kind == "week of":
            rows = with_rest(sorted(sums.items(), reverse=True), most, "earlier")
        elif kind == "hours":
            title = f"hours, {'/'.join(dict.fromkeys(time.tzname))}"
        found.append((title, rows))
    return found


def day_of(moment: float | None, *, year: bool = False) -> str:
    """A day for people, UTC."""
    if moment is None:
        return "no date"
    day = datetime.fromtimestamp(moment, UTC)
    return f"{day:%b} {day.day}" + (f", {day.year}" if year else "")
