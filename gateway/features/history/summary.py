"""Sums over many sessions: what they cost, by project, session, kind of sub-agent, model, hour and
week, what was paid again, where time went, how they ended, with interruptions and alarms."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.features.history.endings import Ending
from gateway.features.history.prompt_cache import Tokens, always_changes
from gateway.features.history.reading import Place, SessionReading
from gateway.features.history.sub_agent_orders import names_of, root_of
from gateway.stores.usage import bucket_start
from gateway.text.formatting import iso
from gateway.text.sentences import is_english
from gateway.text.typed_not_pasted import typed_sentences
from gateway.values import Value

_NO_MODEL = "no model in the log"
ID_CHARACTERS = 8  # of an id that is shown


class SessionSums(Struct, kw_only=True):
    """Sums over sessions."""

    sessions: int = 0  # without those of sub-agents
    steps: int = 0  # answers of models
    tokens: Tokens = Tokens()  # by kind, each counted once
    usd: float = 0.0  # US dollars of the calls with a known price
    unpriced: int = 0  # tokens of calls whose price is unknown
    # US dollars of the session, with its sub-agents, or of the sub-agent that cost most
    dearest: float = 0.0
    # steps of which the log has only a part, by `CallCost.at_least`
    floors: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, other: "SessionSums") -> None:
        """Add the sums of other sessions, or of one call."""
        self.sessions += other.sessions
        self.steps += other.steps
        self.tokens = self.tokens.plus(other.tokens)
        self.usd += other.usd
        self.unpriced += other.unpriced
        self.dearest = max(self.dearest, other.dearest)
        self.floors.update(other.floors)


class PlaceToLook(Value):
    """A place and the session that it is in."""

    session: SessionReading  # that the place is in
    place: Place  # the step, and what happened there


class ReadSessions(Struct, kw_only=True):
    """The sessions that were read."""

    # number of them by agent, without sub-agents
    agents: Counter[str] = msgspec.field(default_factory=Counter)
    sub_agents: int = 0  # number of sub-agents' sessions
    # sessions whose calls are all in another session, too (a resumed session's copy)
    copies: int = 0
    started: float | None = None  # epoch seconds of the first; None if unknown
    ended: float | None = None  # epoch seconds of the last; None if unknown
    lines: int = 0  # of all files
    # lines that were not read, by reason
    unread: Counter[str] = msgspec.field(default_factory=Counter)
    unpriced: set[str] = set()  # models without a known price


class Acts(Struct, kw_only=True):
    """Number of each act of the person, and of the gateway's alarms."""

    # by `HumanTurn.kind`: messages, answers broken off and calls refused
    did: Counter[str] = msgspec.field(default_factory=Counter)
    in_english: bool = True  # most of what was typed
    alarmed: int = 0  # sessions with an alarm
    alarms: Counter[str] = msgspec.field(default_factory=Counter)  # number of alarms by label


class Again(Struct, kw_only=True):
    """Input that was paid again, for one cause."""

    times: int = 0  # calls
    tokens: int = 0  # of these calls, that were not read from the cache
    usd: float = 0.0  # US dollars beyond the price of reading them from the cache


class Lost(Struct, kw_only=True):
    """Input that was paid again."""

    causes: dict[str, Again] = {}  # by cause
    changing: list[SessionReading] = []  # whose prompt begins otherwise at every call


class Ends(Struct, kw_only=True):
    """Number of sessions by their end, their time and rows; sub-agents are not among them."""

    how: Counter[str] = msgspec.field(default_factory=Counter)  # as `Ending.how`
    facts: list[Ending] = []  # of each end
    spent: Counter[str] = msgspec.field(default_factory=Counter)  # seconds by who took them
    # by kind of rows, sessions with calls in several of them
    divided: Counter[str] = msgspec.field(default_factory=Counter)


class Summary(Struct, kw_only=True):
    """The contents of the first screen."""

    total: SessionSums = msgspec.field(default_factory=SessionSums)  # over all sessions
    # sums by `project`, `session` (the root of a tree), `sub-agents` (their kind), `model`, `hours`
    # and `week of`, then by value
    parts: dict[str, dict[str, SessionSums]] = {}
    titles: dict[str, str] = {}  # of sessions, by id; the beginning of an id without one
    # what was read, and what was not
    read: ReadSessions = msgspec.field(default_factory=ReadSessions)
    lost: Lost = msgspec.field(default_factory=Lost)  # input that was paid again
    ends: Ends = msgspec.field(default_factory=Ends)  # of sessions, and their time
    acts: Acts = msgspec.field(default_factory=Acts)  # of people, and alarms
    places: list[PlaceToLook] = []  # alarms, then acts, each the newest session first


_KINDS = ("project", "session", "sub-agents", "model", "hours", "week of")


def summarise(readings: Sequence[SessionReading]) -> Summary:
    """The summary of sessions as `with_orders` gives them, each without what is a copy."""
    summary = Summary(parts={kind: {} for kind in _KINDS})
    ordered = without_copies(readings)
    summary.read.copies = len(readings) - len(ordered)
    parents = {reading.id: reading.parent for reading in ordered}
    names = names_of(ordered)
    spent = defaultdict[tuple[str, str, str], float](float)  # by session, kind of rows and row
    for reading in ordered:
        root = root_of(reading, parents)
        summary.titles.setdefault(root, root[:ID_CHARACTERS])
        _add_calls(summary, reading, spent, root=root, agent=names.get(reading.id, ""))
        summary.titles[reading.id] = reading.title or reading.id[:ID_CHARACTERS]
        _add_session(summary, reading)
        _add_facts(summary, reading)
        summary.acts.alarmed += bool(reading.alarms)
        summary.acts.alarms.update(alarm.label for alarm in reading.alarms)
        places = sorted(reading.places, key=lambda place: place.step)
        summary.places += [PlaceToLook(session=reading, place=place) for place in places]
    texts = (turn.text for reading in ordered for turn in reading.human)
    summary.acts.in_english = is_english(words for text in texts for words in typed_sentences(text))
    summary.places.reverse()
    summary.places.sort(key=lambda each: not each.place.alarmed)
    return summary


def without_copies(readings: Iterable[SessionReading]) -> list[SessionReading]:
    """Returns the sessions, the oldest first, without the calls that an earlier one has, and
    without what happened before the first call of its own; one that has none is left out."""
    seen: set[str] = set()
    found = []
    for reading in sorted(readings, key=lambda r: (r.started or 0.0, r.id, -len(r.calls))):
        calls = [call for call in reading.calls if not call.key or call.key not in seen]
        seen.update(call.key for call in calls)
        if calls or not reading.calls:
            first = min([call.step for call in calls], default=0)
            found.append(
                replace(
                    reading,
                    calls=tuple(calls),
                    human=_from(first - 1, reading.human),
                    alarms=_from(first, reading.alarms),
                    places=_from(first, reading.places),
                    course=replace(reading.course, losses=_from(first, reading.course.losses)),
                )
            )
    return found


def _from(step: int, parts: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(part for part in parts if part.step >= step)


def _add_calls(
    summary: Summary,
    reading: SessionReading,
    spent: defaultdict[tuple[str, str, str], float],
    *,
    root: str,
    agent: str,
) -> None:
    """Add the calls of a session to the sums, and to what each has `spent`."""
    met: set[tuple[str, str]] = set()
    for call in reading.calls:
        names = {
            "project": reading.place,
            "session": root,
            "model": call.model or _NO_MODEL,
            "hours": hours_of(call.at),
            "week of": week_of(call.at or reading.started),
        }
        if agent:
            names["sub-agents"] = agent
        own = SessionSums(steps=1, tokens=call.tokens, usd=call.usd or 0.0)
        own.floors.update(filter(None, [call.at_least]))
        if call.usd is None and call.tokens.total:
            own.unpriced = call.tokens.total
            summary.read.unpriced.add(names["model"])
        summary.total.add(own)
        for place in names.items():
            kind, name = place
            own.sessions = place not in met and (kind == "sub-agents" or not reading.parent)
            met.add(place)
            whose = (reading.id if kind == "sub-agents" else root, kind, name)
            spent[whose] += own.usd
            own.dearest = spent[whose]
            summary.parts[kind].setdefault(name, SessionSums()).add(own)
    if not reading.parent:
        rows = Counter(kind for kind, _ in met)
        summary.ends.divided.update(kind for kind, number in rows.items() if number > 1)


def _add_facts(summary: Summary, reading: SessionReading) -> None:
    """Add what was paid again, the time, and the end of a session."""
    for loss in reading.course.losses:
        again = summary.lost.causes.setdefault(loss.cause, Again())
        again.times += 1
        again.tokens += loss.tokens
        again.usd += loss.usd
    if always_changes(reading.calls, reading.course.losses):
        summary.lost.changing.append(reading)
    if reading.parent:
        return  # its time is that of a call of its parent
    summary.ends.spent.update(reading.spent)
    ending = reading.course.ending
    summary.ends.how[ending.how] += 1
    summary.ends.facts.append(ending)


def _add_session(summary: Summary, reading: SessionReading) -> None:
    read = summary.read
    if reading.parent:
        read.sub_agents += 1
    else:
        read.agents[reading.agent] += 1
    for moment in filter(None, (reading.started, reading.ended)):
        read.started = min(read.started or moment, moment)
        read.ended = max(read.ended or moment, moment)
    read.lines += reading.lines
    read.unread.update(reading.reasons)
    summary.acts.did.update(turn.kind for turn in reading.human)


def hours_of(moment: float | None) -> str:
    """Day or night, by the clock of this machine."""
    if moment is None:
        return "no time of calls in the log"
    hour = datetime.fromtimestamp(moment).astimezone().hour
    if 6 <= hour < 22:
        return "day, 6:00 to 22:00"
    return "night, 22:00 to 6:00"


def week_of(moment: float | None) -> str:
    """The Monday of the week of a time, as an ISO date; without a time words, which sort before."""
    if moment is None:
        return "(no time in the log)"
    return iso(bucket_start(moment, "week"))[:10]


Row = tuple[str, SessionSums]


def largest(rows: dict[str, SessionSums], most: int) -> Sequence[Row]:
    """The rows that cost most, then those with most tokens or steps; the rest as one row."""
    ordered = sorted(
        rows.items(), key=lambda r: (r[1].usd, r[1].tokens.total, r[1].steps), reverse=True
    )
    return with_rest(ordered, most, "more")


def with_rest(ordered: Sequence[Row], most: int, rest_is: str) -> Sequence[Row]:
    """The first rows, and the sums of the others as a row that has their number."""
    shown = list(ordered[:most])
    rest = ordered[most:]
    if rest:
        sums = SessionSums()
        for _, each in rest:
            sums.add(each)
        shown.append((f"{len(rest)} {rest_is}", sums))
    return shown


class Limit(Value):
    """A limit in dollars for each session."""

    usd: float  # of one session
    ended: int  # sessions that would have met it
    sessions: int  # with a known cost
    saved: float  # US dollars, at most


_SAVES = 0.05  # share of all dollars that a limit has to save
_LETS = 0.95  # share of sessions that a limit lets through
_STEPS = (1.0, 2.0, 3.0, 5.0, 7.5)  # figures that a limit is rounded up to, times a power of ten


def limit_of(summary: Summary) -> Limit | None:
    """The limit that would have ended few sessions and saved most; None if no limit would have
    saved much."""
    costs = sorted(sums.usd for sums in summary.parts["session"].values() if sums.usd)
    if not costs:
        return None
    most = costs[min(len(costs) - 1, math.floor(_LETS * len(costs)))]
    power = 10.0 ** math.floor(math.log10(most))
    usd = next((step * power for step in _STEPS if step * power >= most), 10 * power)
    over = [cost for cost in costs if cost > usd]
    saved = sum(over) - usd * len(over)
    if saved < _SAVES * summary.total.usd:
        return None
    return Limit(usd=usd, ended=len(over), sessions=len(costs), saved=saved)
