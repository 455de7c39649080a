"""The first screen of `gateway history`, and one session for reading."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.history.summary import Summary, Sums, WorstStretch, largest
from gateway.history.trouble import Stretch
from gateway.text.formatting import UNKNOWN, count, counted, money, percent
from gateway.text.sanitize import one_line

ROWS = 5  # of projects, models and weeks
_ID_CHARACTERS = 8
_NAME = 44
_SAID = 200


def print_screen(summary: Summary, console: Console, *, options: Sequence[str] = ()) -> None:
    """Print the summary. `options`: those of this call that a command to read more needs."""
    console.print(Text(_headline(summary), style="bold"))
    console.print(_sums(summary))
    for line in notes(summary):
        console.print(line, style="dim", markup=False)
    console.print()
    console.print(Text(trouble(summary), style="bold"))
    for number, worst in enumerate(summary.worst, 1):
        _print_worst(console, number, worst, options)


def sessions_in(summary: Summary) -> str:
    """The sessions of each agent, and the days they are of."""
    agents = summary.agents
    sessions = " and ".join(f"{counted(n, 'session')} of {name}" for name, n in agents.items())
    days = " to ".join(dict.fromkeys(map(day_of, (summary.started, summary.ended))))
    return f"{sessions}, {days}"


def _headline(summary: Summary) -> str:
    total = summary.total
    cached = total.tokens.cache_read / total.tokens.total if total.tokens.total else 0.0
    cost = money(total.usd) if total.usd else "cost unknown"
    return (
        f"{sessions_in(summary)}: {counted(total.steps, 'step')}, {count(total.tokens.total)} tokens "
        f"({percent(cached)} from cache), {cost}"
    )


def _sums(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    for name in ("sessions", "steps", "tokens", "cost"):
        table.add_column(name, justify="right")
    parts = (("project", summary.projects), ("model", summary.models))
    for title, rows in parts:
        _add_rows(table, title, largest(rows, ROWS))
    weeks = sorted(summary.weeks.items())[-ROWS:]
    _add_rows(table, "week of", weeks)
    return table


def _add_rows(table: Table, title: str, rows: Sequence[tuple[str, Sums]]) -> None:
    for number, (name, sums) in enumerate(rows):
        table.add_row(
            Text("" if number else title, style="dim"),
            one_line(name, _NAME),
            f"{sums.sessions:,}",
            f"{sums.steps:,}",
            count(sums.tokens.total),
            cost_words(sums),
        )


def cost_words(sums: Sums) -> str:
    """The cost of some sessions; with a plus if the price of a part is unknown."""
    cost = money(sums.usd) if sums.usd else UNKNOWN if sums.unpriced else "$0"
    return cost + ("+" if sums.usd and sums.unpriced else "")


def notes(summary: Summary) -> Iterator[str]:
    """What the sums leave out or hold besides sessions, a line each."""
    if summary.unpriced:
        yield f"no price is known for: {', '.join(sorted(summary.unpriced)[:ROWS])}"
    if summary.sub_agents:
        yield f"with {counted(summary.sub_agents, 'sub-agent')}, in the steps and cost above"
    if summary.copies:
        yield f"copies of other sessions, not counted again: {summary.copies}"
    if unread := sum(summary.unread.values()):
        reasons = ", ".join(f"{n} x {reason}" for reason, n in list(summary.unread.items())[:3])
        yield f"{unread} of {counted(summary.lines, 'line')} not read: {reasons}"


def trouble(summary: Summary) -> str:
    """What the person did about trouble, how much of it was found, and its cost."""
    stepped_in = (
        f"You interrupted {counted(summary.interrupts, 'time')} and rejected "
        f"{counted(summary.rejects, 'call')}."
    )
    if not summary.stretches:
        return f"{stepped_in} No stretch of trouble was found."
    low, high = summary.trouble_usd
    share = f" ({percent(high / summary.total.usd)} at most)" if summary.total.usd else ""
    cost = f", {money(low)} to {money(high)}{share}" if high else ""
    return (
        f"{stepped_in} {counted(summary.stretches, 'stretch').replace('stretchs', 'stretches')} of "
        f"trouble, {counted(summary.trouble_steps, 'step')}{cost}. The worst:"
    )


def _print_worst(
    console: Console, number: int, worst: WorstStretch, options: Sequence[str]
) -> None:
    session, stretch = worst.session, worst.stretch
    cost = stretch_cost(stretch)
    where = f"{session.place}, {day_of(session.started)}"
    console.print(
        Text.assemble(
            f"{number:2}. ",
            (cost, "bold"),
            f" {counted(stretch.steps, 'step')}, {where}: {one_line(stretch.said, _SAID)}",
        )
    )
    console.print(f"    {read_command(worst, options)}", style="dim", markup=False)


def stretch_cost(stretch: Stretch) -> str:
    """US dollars, or the tokens if no price is known."""
    return money(stretch.usd) if stretch.usd else f"{count(stretch.tokens)} tokens"


def read_command(worst: WorstStretch, options: Sequence[str]) -> str:
    """The command that shows the steps of a stretch."""
    stretch, name = worst.stretch, short_id(worst.session.id)
    command = shlex.join(["gateway", "history", *options, "show", name])
    return f"{command} --steps {stretch.first}-{stretch.last}"


def short_id(session_id: str) -> str:
    """The beginning of an id, long enough to be typed; a sub-agent's is kept whole."""
    return session_id if "/" in session_id else session_id[:_ID_CHARACTERS]


def day_of(moment: float | None) -> str:
    """A date for people, UTC."""
    if moment is None:
        return "no date"
    day = datetime.fromtimestamp(moment, UTC)
    return f"{day:%b} {day.day}, {day.year}"
