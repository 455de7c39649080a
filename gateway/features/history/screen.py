"""The first screen of `gateway history`, and one session for reading."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.features.history.findings import finding_lines, limit_lines
from gateway.features.history.summary import (
    ID_CHARACTERS,
    PlaceToLook,
    SessionSums,
    Summary,
    largest,
)
from gateway.features.history.typed import WORDINGS, TypedAgain
from gateway.text.formatting import UNKNOWN, count, counted, money, percent, print_line
from gateway.text.sanitize import one_line

ROWS = 5  # of projects, models and weeks
_PROJECTS = 2  # whose typed sentences the first screen has
_NAME = 44
_SAID = 200
_TITLES = {"sub-agent": "sub-agents", "week": "week of"}
_LEAST = 30  # characters of a text that is cut to fit into its line
_BEFORE = 5  # steps before a place that its command shows


def print_screen(
    summary: Summary,
    console: Console,
    typed: Mapping[str, Sequence[TypedAgain]],
    *,
    options: Sequence[str] = (),
) -> None:
    """Print the summary. `typed`: in several sessions, by project. `options`: those of this call
    that a command to read more needs."""
    total = summary.total
    command = shlex.join(["gateway", "history", *options])
    print_line(console, whose(summary))
    cost = ""
    if total.usd:
        cost = f", {money(total.usd)}"
    read = 0.0
    if total.tokens.total:
        read = total.tokens.cache_read / total.tokens.total
    console.print(
        f"{counted(total.steps, 'step')}, {count(total.tokens.total)} tokens "
        f"({percent(read)} from cache){cost}\n"
    )
    console.print(_sums(summary))
    for line in notes(summary):
        console.print(line, style="dim", markup=False)
    console.print()
    for line in finding_lines(summary):
        print_line(console, line, "")
    for line in limit_lines(summary):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    for line in (acts(summary), alarmed(summary)):
        print_line(console, line)
    if summary.places:
        console.print("Where that was, alarms first, each the newest first:")
    for number, place in enumerate(summary.places, 1):
        _print_place(console, number, place, command=command)
    print_typed(dict([*typed.items()][:_PROJECTS]), console, 1)
    if typed:
        print_line(console, f"All of it, with other wordings: {command} typed", "dim")


def print_typed(
    typed: Mapping[str, Sequence[TypedAgain]], console: Console, wordings: int = WORDINGS
) -> None:
    """Print what was typed in several sessions, by project; of each entry the newest wordings."""
    for project, entries in typed.items():
        print_line(console, f"\nWhat was typed in several sessions of {one_line(project, _NAME)}:")
        for line in typed_lines(entries, wordings):
            print_line(console, line, "")


def typed_lines(entries: Sequence[TypedAgain], wordings: int) -> Iterator[str]:
    """The entries for people: how often, and the newest sentences, each with its session."""
    for number, entry in enumerate(entries, 1):
        days = [day_of(entry.sentences[at].session.started, year=True) for at in (-1, 0)]
        often = f"{counted(len(entry.sentences), 'time')} in {counted(entry.sessions, 'session')}"
        yield f"{number:2}. {', '.join(entry.shared)}: {often}, {' to '.join(days)}"
        for each in entry.wordings[:wordings]:
            session = each.session
            who = ", ".join(filter(None, (day_of(session.started), session.author)))
            place = f"show {short_id(session.id)} --steps {max(0, each.step)}"
            yield f'    "{one_line(each.words, _SAID)}" ({who}: {place})'


def whose(summary: Summary) -> str:
    """The number of sessions of each agent, and the days that they are of."""
    sessions = ", ".join(f"{counted(n, 'session')} of {a}" for a, n in summary.read.agents.items())
    if not sessions:
        sessions = counted(summary.read.sub_agents, "sub-agent")
    return f"{sessions}, {_days(summary)}"


def _days(summary: Summary) -> str:
    first, last = (
        day_of(moment, year=True) for moment in (summary.read.started, summary.read.ended)
    )
    if first == last:
        return first
    return f"{first} to {last}"


def _sums(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    for name in ("sessions", "steps", "tokens", "cost", "dearest"):
        table.add_column(name, justify="right")
    for title, rows in rows_of_sums(summary, ROWS):
        _add_rows(table, title, rows)
    return table


def rows_of_sums(
    summary: Summary, most: int
) -> Iterator[tuple[str, Sequence[tuple[str, SessionSums]]]]:
    """The tables of sums: the title of each, and its rows: the `most` dearest and the sum of the
    rest, of weeks the last ones."""
    for kind, sums in summary.parts.items():
        rows = largest(sums, most)
        if kind == "session":
            rows = [(summary.titles.get(name, name), each) for name, each in rows]
        elif kind == "week":
            rows = sorted(sums.items())[-most:]
        yield _TITLES.get(kind, kind), rows


def _add_rows(table: Table, title: str, rows: Sequence[tuple[str, SessionSums]]) -> None:
    for number, (name, sums) in enumerate(rows):
        table.add_row(
            Text("" if number else title, style="dim"),
            one_line(name, _NAME),
            f"{sums.sessions:,}",
            f"{sums.steps:,}",
            count(sums.tokens.total),
            sums_cost(sums),
            money(sums.dearest) if sums.sessions > 1 and sums.dearest else "",
        )


def sums_cost(sums: SessionSums) -> str:
    """US dollars, with a plus if the price of a part is unknown."""
    if not sums.usd:
        if sums.unpriced:
            return UNKNOWN
        return "$0"
    return money(sums.usd) + ("+" if sums.unpriced else "")


def notes(summary: Summary) -> Iterator[str]:
    """Lines about what the sums leave out, or hold besides sessions."""
    read = summary.read
    if summary.read.unpriced:
        names = ", ".join(sorted(summary.read.unpriced)[:ROWS])
        yield f"no price is known for: {one_line(names, _SAID)}"
    if read.sub_agents:
        yield f"with {counted(read.sub_agents, 'sub-agent')}, in the steps and cost above"
    if read.copies:
        yield f"copies of other sessions, not counted again: {read.copies}"
    if not summary.acts.in_english:
        yield (
            "Most of what was typed is not English. Not known in other languages: headings such as "
            '"Next steps", questions without their mark, and a message after an interruption that '
            "turns to another task."
        )
    if unread := sum(read.unread.values()):
        reasons = ", ".join(f"{n} x {reason}" for reason, n in list(read.unread.items())[:3])
        yield f"{unread} of {counted(read.lines, 'line')} not read: {one_line(reasons, _SAID)}"


def acts(summary: Summary) -> str:
    """A line about what the person did."""
    found = summary.acts
    return (
        f"You interrupted {counted(found.interrupts, 'time')} and rejected "
        f"{counted(found.rejects, 'call')} in {counted(found.said, 'message')}."
    )


def _print_place(console: Console, number: int, each: PlaceToLook, command: str) -> None:
    session = each.session
    step = each.place.step
    head = f"{number:2}. {one_line(session.place, _NAME)}, {day_of(session.started)}: "
    what = one_line(each.place.what, max(_LEAST, console.width - len(head)))
    console.print(Text.assemble((head, "yellow"), what))
    steps = f"{max(0, step - _BEFORE)}-{step}"
    read = f"    {command} show {short_id(session.id)} --steps {steps}"
    console.print(Text(read, style="dim"), soft_wrap=True)


def alarmed(summary: Summary) -> str:
    """The alarms that the gateway would have raised."""
    if not summary.acts.alarms:
        return "The gateway would have raised no alarm."
    monitors = ", ".join(f"{n} {name}" for name, n in summary.acts.alarms.most_common())
    return (
        f"The gateway would have raised {counted(summary.acts.alarms.total(), 'alarm')} in "
        f"{counted(summary.acts.alarmed, 'session')}: {monitors}."
    )


def short_id(session_id: str) -> str:
    """The beginning of an id, long enough to be typed; a sub-agent's is kept whole."""
    if "/" in session_id:
        return session_id
    return session_id[:ID_CHARACTERS]


def day_of(moment: float | None, *, year: bool = False) -> str:
    """A day for people, UTC."""
    if moment is None:
        return "no date"
    day = datetime.fromtimestamp(moment, UTC)
    return f"{day:%b} {day.day}" + (f", {day.year}" if year else "")
