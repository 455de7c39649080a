"""Sums over many sessions, by project, model and week, with interruptions and alarms."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from gateway.features.history.reading import Place, SessionReading, Tokens
from gateway.values import Value

MOST_PLACES = 10


class SessionSums(Struct, kw_only=True):
    """Sums over sessions."""

    sessions: int = 0  # without those of sub-agents
    steps: int = 0  # answers of models
    tokens: Tokens = Tokens()  # by kind, each counted once
    usd: float = 0.0  # US dollars of the calls with a known price
    unpriced: int = 0  # tokens of calls whose price is unknown


class PlaceToLook(Value):
    """A place and the session that it is in."""

    session: SessionReading  # that the place is in
    place: Place  # the step, and what happened there


class ReadSessions(Struct, kw_only=True):
    """The sessions that were read."""

    agents: dict[str, int] = {}  # number of them by agent, without sub-agents
    sub_agents: int = 0  # number of sub-agents' sessions
    # sessions whose calls are all in another session, too (a resumed session's copy)
    copies: int = 0
    started: float | None = None  # epoch seconds of the first; None if unknown
    ended: float | None = None  # epoch seconds of the last; None if unknown
    lines: int = 0  # of all files
    unread: dict[str, int] = {}  # lines that were not read, by reason


class Acts(Struct, kw_only=True):
    """Number of each act of the person."""

    interrupts: int = 0  # an answer was broken off
    rejects: int = 0  # a call was refused
    said: int = 0  # messages that the person typed


class Summary(Struct, kw_only=True):
    """The contents of the first screen."""

    total: SessionSums = msgspec.field(default_factory=SessionSums)  # over all sessions
    parts: dict[
        str, dict[str, SessionSums]
    ] = {}  # sums by `project`, `model` and `week`, then by value
    unpriced: set[str] = set()  # models without a known price
    # what was read, and what was not
    read: ReadSessions = msgspec.field(default_factory=ReadSessions)
    acts: Acts = msgspec.field(default_factory=Acts)  # of people
    alarmed: int = 0  # sessions with an alarm
    alarms: Counter[str] = msgspec.field(default_factory=Counter)  # number of alarms by monitor
    places: list[PlaceToLook] = []  # alarms, then acts, the newest first


def summarise(readings: Iterable[SessionReading]) -> Summary:
    """The summary of sessions. A call that several files hold a copy of counts once, in the session
    that began first."""
    summary = Summary(parts={"project": {}, "model": {}, "week": {}})
    seen: set[str] = set()
    for reading in sorted(readings, key=lambda r: (r.started or 0.0, r.id)):
        fresh = _add_calls(summary, reading, seen)
        if reading.calls and not fresh:
            summary.read.copies += 1
            continue
        _add_session(summary, reading)
        summary.alarmed += bool(reading.alarms)
        summary.alarms.update(name for alarm in reading.alarms for name in alarm.monitors)
        first = min(fresh, default=0)  # the steps before it are another session's
        own = sorted((p for p in reading.places if p.step >= first), key=lambda p: p.step)
        summary.places += [PlaceToLook(session=reading, place=place) for place in own]
    summary.places.reverse()
    summary.places.sort(key=lambda each: not each.place.alarmed)
    del summary.places[MOST_PLACES:]
    return summary


def _add_calls(summary: Summary, reading: SessionReading, seen: set[str]) -> set[int]:
    """Add the calls that no earlier session had; their steps."""
    fresh = set()
    met: set[tuple[str, str]] = set()
    for call in reading.calls:
        if call.key:
            if call.key in seen:
                continue
            seen.add(call.key)
        fresh.add(call.step)
        at = call.at if call.at is not None else reading.started
        names = {"project": reading.place, "model": call.model or "unknown", "week": week_of(at)}
        rows = [(n, summary.parts[n].setdefault(name, SessionSums())) for n, name in names.items()]
        rows.append(("total", summary.total))
        for kind, sums in rows:
            sums.steps += 1
            sums.tokens = sums.tokens.plus(call.tokens)
            sums.usd += call.usd or 0.0
            if call.usd is None:
                sums.unpriced += call.tokens.total
            name = names.get(kind, "")
            if (kind, name) not in met and not reading.parent:
                met.add((kind, name))
                sums.sessions += 1
        if call.usd is None and call.tokens.total:
            summary.unpriced.add(call.model or "unknown")
    return fresh


def _add_session(summary: Summary, reading: SessionReading) -> None:
    read = summary.read
    acts = summary.acts
    if reading.parent:
        read.sub_agents += 1
    else:
        read.agents[reading.agent] = read.agents.get(reading.agent, 0) + 1
    for moment in (reading.started, reading.ended):
        if moment is not None:
            read.started = min(read.started or moment, moment)
            read.ended = max(read.ended or moment, moment)
    read.lines += reading.lines
    for reason, count in reading.reasons.items():
        read.unread[reason] = read.unread.get(reason, 0) + count
    acts.interrupts += reading.acts("interrupt")
    acts.rejects += reading.acts("reject")
    acts.said += reading.acts("message")


def week_of(moment: float | None) -> str:
    """The Monday of the week of a time, as an ISO date; "unknown" without a time."""
    if moment is None:
        return "unknown"
    day = datetime.fromtimestamp(moment, UTC).date()
    return (day - timedelta(days=day.weekday())).isoformat()


def largest(rows: dict[str, SessionSums], most: int) -> Sequence[tuple[str, SessionSums]]:
    """The rows that cost most, then those with most tokens; the rest as one row."""
    ordered = sorted(rows.items(), key=lambda r: (r[1].usd, r[1].tokens.total), reverse=True)
    shown = ordered[:most]
    rest = ordered[most:]
    if rest:
        sums = SessionSums()
        for _, each in rest:
            sums.sessions += each.sessions
            sums.steps += each.steps
            sums.tokens = sums.tokens.plus(each.tokens)
            sums.usd += each.usd
            sums.unpriced += each.unpriced
        shown.append((f"{len(rest)} more", sums))
    return shown
