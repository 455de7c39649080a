"""Many sessions as sums: by project, model and week, the worst stretches, what alarmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from gateway.history.prices import Tokens
from gateway.history.reading import SessionReading
from gateway.history.sayings import Group, Saying, repeated
from gateway.history.trouble import Stretch

WORST = 10
MOST_REPEATED = 5


class Sums(Struct, kw_only=True):
    """Sums over sessions. `unpriced`: tokens of calls whose price is unknown."""

    sessions: int = 0
    steps: int = 0
    tokens: Tokens = Tokens()
    usd: float = 0.0
    unpriced: int = 0


class WorstStretch(Struct, frozen=True, kw_only=True):
    """A stretch of trouble and the session that it is in."""

    session: SessionReading
    stretch: Stretch


class Summary(Struct, kw_only=True):
    """Everything that the first screen shows.

    `trouble_usd`: least and most that trouble cost: of the steps with a sign of it, and of whole
    stretches. No step counts twice. `unpriced`: models without a known price. `copies`: sessions
    whose calls are all in another session, too (a resumed session's copy). `alarmed`: sessions with
    an alarm; `alarms`: their number by monitor.
    """

    total: Sums
    agents: dict[str, int] = {}
    sub_agents: int = 0
    copies: int = 0
    started: float | None = None
    ended: float | None = None
    projects: dict[str, Sums] = {}
    models: dict[str, Sums] = {}
    weeks: dict[str, Sums] = {}
    stretches: int = 0
    trouble_usd: tuple[float, float] = (0.0, 0.0)
    trouble_steps: int = 0
    worst: list[WorstStretch] = []
    repeated: list[Group] = []
    interrupts: int = 0
    rejects: int = 0
    said: int = 0
    corrected: int = 0
    alarmed: int = 0
    alarms: Counter[str] = msgspec.field(default_factory=Counter)
    unpriced: set[str] = set()
    lines: int = 0
    unread: dict[str, int] = {}


def summarise(readings: Iterable[SessionReading]) -> Summary:
    """The summary of sessions. A call that several files hold a copy of counts once, in the session
    that began first."""
    summary = Summary(total=Sums())
    seen: set[str] = set()
    worst: list[WorstStretch] = []
    sayings: list[Saying] = []
    for reading in sorted(readings, key=lambda r: (r.started or 0.0, r.id)):
        fresh = _add_calls(summary, reading, seen)
        if reading.calls and not fresh:
            summary.copies += 1
            continue
        _add_session(summary, reading)
        sayings += reading.sayings
        first = min(fresh, default=0)
        own = [s for s in reading.stretches if s.last >= first]
        worst += [WorstStretch(session=reading, stretch=s) for s in own]
        summary.stretches += len(own)
        summary.trouble_steps += sum(s.steps for s in own)
        low, high = summary.trouble_usd
        summary.trouble_usd = (low + sum(s.least_usd for s in own), high + sum(s.usd for s in own))
    worst.sort(key=lambda w: (w.stretch.usd, w.stretch.tokens, w.stretch.steps), reverse=True)
    summary.worst = worst[:WORST]
    summary.repeated = repeated(sayings)[:MOST_REPEATED]
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
        rows = [
            ("project", summary.projects.setdefault(reading.place, Sums())),
            ("model", summary.models.setdefault(call.model or "unknown", Sums())),
            ("week", summary.weeks.setdefault(week_of(at), Sums())),
        ]
        rows.append(("total", summary.total))
        for kind, sums in rows:
            sums.steps += 1
            sums.tokens = sums.tokens.plus(call.tokens)
            sums.usd += call.usd or 0.0
            if call.usd is None:
                sums.unpriced += call.tokens.total
            name = {"model": call.model, "week": week_of(at)}.get(kind, "")
            if (kind, name) not in met and not reading.parent:
                met.add((kind, name))
                sums.sessions += 1
        if call.usd is None and call.tokens.total:
            summary.unpriced.add(call.model or "unknown")
    return fresh


def _add_session(summary: Summary, reading: SessionReading) -> None:
    if reading.parent:
        summary.sub_agents += 1
    else:
        summary.agents[reading.agent] = summary.agents.get(reading.agent, 0) + 1
    for moment in (reading.started, reading.ended):
        if moment is not None:
            summary.started = min(summary.started or moment, moment)
            summary.ended = max(summary.ended or moment, moment)
    summary.interrupts += reading.acts("interrupt")
    summary.rejects += reading.acts("reject")
    summary.said += reading.acts("message")
    summary.corrected += sum(t.kind == "message" and t.corrects for t in reading.human)
    summary.alarmed += bool(reading.alarms)
    summary.alarms.update(name for alarm in reading.alarms for name in alarm.monitors)
    summary.lines += reading.lines
    for reason, count in reading.reasons.items():
        summary.unread[reason] = summary.unread.get(reason, 0) + count


def week_of(moment: float | None) -> str:
    """The Monday of the week of a time, as an ISO date; "unknown" without a time."""
    if moment is None:
        return "unknown"
    day = datetime.fromtimestamp(moment, UTC).date()
    return (day - timedelta(days=day.weekday())).isoformat()


def largest(rows: dict[str, Sums], most: int) -> Sequence[tuple[str, Sums]]:
    """The rows that cost most, then those with most tokens; the rest as one row."""
    ordered = sorted(rows.items(), key=lambda r: (r[1].usd, r[1].tokens.total), reverse=True)
    shown, rest = ordered[:most], ordered[most:]
    if rest:
        sums = Sums()
        for _, each in rest:
            sums.sessions += each.sessions
            sums.steps += each.steps
            sums.tokens = sums.tokens.plus(each.tokens)
            sums.usd += each.usd
            sums.unpriced += each.unpriced
        shown.append((f"{len(rest)} more", sums))
    return shown
