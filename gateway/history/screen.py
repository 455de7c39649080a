"""The first screen of `gateway history`, and one session for reading."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.history.describe import what_the_person_did
from gateway.history.sayings import Group
from gateway.history.summary import Summary, Sums, WorstStretch, largest
from gateway.history.trouble import Stretch
from gateway.text.formatting import UNKNOWN, count, counted, money, percent
from gateway.text.sanitize import one_line

ROWS = 5  # of projects, models and weeks
_ID_CHARACTERS = 8
_NAME = 44
_SAID = 200
_LEAST = 30  # characters of a text that is cut to fit into its line


def print_screen(summary: Summary, console: Console, *, options: Sequence[str] = ()) -> None:
    """Print the summary. `options`: those of this call that a command to read more needs."""
    total, command = summary.total, shlex.join(["gateway", "history", *options])
    sessions = ", ".join(f"{counted(n, 'session')} of {a}" for a, n in summary.read.agents.items())
    console.print(Text(f"{sessions}, {days(summary)}", style="bold"))
    cost = f", {money(total.usd)}" if total.usd else ""
    read = total.tokens.cache_read / total.tokens.total if total.tokens.total else 0.0
    console.print(
        f"{counted(total.steps, 'step')}, {count(total.tokens.total)} tokens "
        f"({percent(read)} from cache){cost}\n"
    )
    console.print(_sums(summary))
    for line in notes(summary):
        console.print(line, style="dim", markup=False)
    console.print()
    for line in trouble(summary):
        console.print(Text(line, style="bold"))
    for number, worst in enumerate(summary.trouble.worst, 1):
        _print_worst(console, number, worst, command)
    if summary.repeated:
        console.print(Text("\nYou had to say it again:", style="bold"))
    for group in summary.repeated:
        head = f" {repeats(group)}: "
        said = one_line(said_again(group), max(_LEAST, console.width - len(head)))
        console.print(Text.assemble((head, "yellow"), said))
    console.print()
    console.print(alarmed(summary), markup=False)


def repeats(group: Group) -> str:
    """Number of times that something was said, in how many sessions, and the project."""
    project = one_line(PurePath(group.project).name, _NAME)
    times = f"{group.times} times in {counted(group.sessions, 'session')}"
    return f"{times}, {project}" if project else times


def said_again(group: Group) -> str:
    """The rule that a group of sayings asks for, if it is known, and one of them."""
    return f'{group.rule} "{group.text}"'.strip()


def days(summary: Summary) -> str:
    """The days that the sessions are of."""
    first, last = (
        day_of(moment, year=True) for moment in (summary.read.started, summary.read.ended)
    )
    return first if first == last else f"{first} to {last}"


def _sums(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    for name in ("sessions", "steps", "tokens", "cost"):
        table.add_column(name, justify="right")
    parts = (("project", summary.parts["project"]), ("model", summary.parts["model"]))
    for title, rows in parts:
        _add_rows(table, title, largest(rows, ROWS))
    weeks = sorted(summary.parts["week"].items())[-ROWS:]
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
            sums_cost(sums),
        )


def sums_cost(sums: Sums) -> str:
    """US dollars, with a plus if the price of a part is unknown."""
    cost = money(sums.usd) if sums.usd else UNKNOWN if sums.unpriced else "$0"
    return cost + ("+" if sums.usd and sums.unpriced else "")


def notes(summary: Summary) -> Iterator[str]:
    """Lines about what the sums leave out, or hold besides sessions."""
    read = summary.read
    if summary.unpriced:
        names = ", ".join(sorted(summary.unpriced)[:ROWS])
        yield f"no price is known for: {one_line(names, _SAID)}"
    if read.sub_agents:
        yield f"with {counted(read.sub_agents, 'sub-agent')}, in the steps and cost above"
    if read.copies:
        yield f"copies of other sessions, not counted again: {read.copies}"
    if unread := sum(read.unread.values()):
        reasons = ", ".join(f"{n} x {reason}" for reason, n in list(read.unread.items())[:3])
        yield f"{unread} of {counted(read.lines, 'line')} not read: {one_line(reasons, _SAID)}"


def trouble(summary: Summary) -> Iterator[str]:
    """Lines about the person's acts and the amount of trouble; the last one heads the list of the
    worst stretches, if there are any."""
    acts = summary.acts
    yield (
        f"You interrupted {counted(acts.interrupts, 'time')}, rejected "
        f"{counted(acts.rejects, 'call')} and corrected {counted(acts.corrected, 'time')} "
        f"in {counted(acts.said, 'message')}."
    )
    if not summary.trouble.stretches:
        yield "No stretch of trouble was found."
        return
    low, high = summary.trouble.cost
    share = f", {percent(high / summary.total.usd)} of all" if summary.total.usd else ""
    cost = f": {money(low)} to {money(high)}{share} at most" if high else ""
    yield (f"{counted(summary.trouble.steps, 'step')} in trouble or corrected{cost}. The worst:")


def _print_worst(console: Console, number: int, worst: WorstStretch, command: str) -> None:
    session, stretch = worst.session, worst.stretch
    parts = stretch_cost(stretch), counted(stretch.steps, "step"), one_line(session.place, _NAME)
    head = f"{number:2}. {', '.join(filter(None, parts))}, {day_of(session.started)}: "
    room = max(_LEAST, console.width - len(head))
    did, happened = what_the_person_did(stretch, room), stretch.happened
    console.print(Text.assemble((head, "yellow"), one_line(did or happened, room)))
    read = f"    {read_command(worst, command)}"
    after = one_line(happened, max(_LEAST, console.width - len(read) - 4)) if did else ""
    line = Text.assemble((read, "dim"), (f"  # {after}" if after else "", "dim"))
    console.print(line, soft_wrap=True)


def stretch_cost(stretch: Stretch) -> str:
    """US dollars, else the tokens; "" if neither is known."""
    tokens = f"{count(stretch.tokens)} tokens" if stretch.tokens else ""
    return money(stretch.usd) if stretch.usd else tokens


def read_command(worst: WorstStretch, command: str) -> str:
    """The command that shows the steps of a stretch; `command` reads the same sessions."""
    steps = f"{worst.stretch.first}-{worst.stretch.last}"
    return f"{command} show {short_id(worst.session.id)} --steps {steps}"


def alarmed(summary: Summary) -> str:
    """The alarms that the gateway would have raised."""
    if not summary.trouble.alarms:
        return "The gateway would have raised no alarm."
    monitors = ", ".join(f"{n} {name}" for name, n in summary.trouble.alarms.most_common())
    return (
        f"The gateway would have raised {counted(summary.trouble.alarms.total(), 'alarm')} in "
        f"{counted(summary.trouble.alarmed, 'session')}: {monitors}."
    )


def short_id(session_id: str) -> str:
    """The beginning of an id, long enough to be typed; a sub-agent's is kept whole."""
    return session_id if "/" in session_id else session_id[:_ID_CHARACTERS]


def day_of(moment: float | None, *, year: bool = False) -> str:
    """A day for people, UTC."""
    if moment is None:
        return "no date"
    day = datetime.fromtimestamp(moment, UTC)
    return f"{day:%b} {day.day}" + (f", {day.year}" if year else "")
