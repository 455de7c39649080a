"""The lanes of a session: its main agent and its sub-agents on one axis of time, and in what each
spent its time: with the model, with tools, with sub-agents, or waiting for whoever writes next.

Only what the calls themselves prove: a call lasts from its arrival to the end of its answer; what
lies between two calls of one run is time with tools (or a client that waits for an approval, which
no request shows), as far as no sub-agent was at work; what lies between two runs, or after an act
of a person, is a wait. A log tells when an answer ended and not when it began: there the model and
the tools are one. `session_lanes.html` draws."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from math import inf

from gateway.stores.records import StepRow
from gateway.stores.sessions import Member
from gateway.stores.totals import plus
from gateway.values import Value

KINDS = ("model", "tools", "sub-agents", "work", "waiting")
# Seconds that a time when nobody worked may take on the axis; the rest of it is cut out.
LONGEST_IDLE_S = 30.0
Span = tuple[float, float]  # beginning and end, epoch seconds


class Stretch(Value):
    """A time that a conversation spent in one way."""

    kind: str  # one of KINDS
    begin: float  # epoch seconds
    end: float  # epoch seconds
    step: StepRow  # with the call that it belongs to, or that ends it

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def stretches_of(steps: Sequence[StepRow], below: Sequence[Span] = ()) -> Iterator[Stretch]:
    """The stretches of one conversation in order, from its steps by the time of their calls' end.
    `below`: when its sub-agents were at work."""
    acts = {
        (step.run_id, step.step_index + act.of_reply)
        for step in steps
        if step.content
        for act in step.content.human
    }
    reached = 0.0
    run_id = ""
    for step in steps:
        if not run_id:
            reached = step.began_at
        kind = "tools"
        others = below
        if step.began_at == step.at:
            kind = "work"
        if step.run_id != run_id or (run_id, step.step_index) in acts:
            kind = "waiting"
            others = ()
        yield from _between(reached, step.began_at, step, kind=kind, below=others)
        reached = max(reached, step.began_at)
        yield from _between(reached, step.at, step, kind="model")
        reached = max(reached, step.at)
        run_id = step.run_id


def _between(
    begin: float, end: float, step: StepRow, *, kind: str, below: Sequence[Span] = ()
) -> Iterator[Stretch]:
    """The time between two moments, divided by whether a sub-agent was at work."""
    turns = {at for span in below for at in span if begin < at < end}
    if begin < end:
        turns |= {begin, end}
    for left, right in pairwise(sorted(turns)):
        at_work = any(first <= left < last for first, last in below)
        yield Stretch(kind="sub-agents" if at_work else kind, begin=left, end=right, step=step)


def axis_of(worked: Iterable[Span]) -> list[Span]:
    """Moments in order with their places, in [0, 1], on an axis on which a time when nobody worked
    takes LONGEST_IDLE_S at most. `worked`: times at work, which may overlap."""
    found: list[Span] = []
    for begin, end in sorted(worked):
        if not found:
            found.append((begin, 0.0))
        at, place = found[-1]
        if begin > at:
            found.append((begin, place + min(begin - at, LONGEST_IDLE_S)))
        at, place = found[-1]
        if end > at:
            found.append((end, place + end - at))
    return [(at, place / (found[-1][1] or 1.0)) for at, place in found]


def place_of(at: float, axis: Sequence[Span]) -> float:
    """The place of a moment on an axis (`axis_of`), in [0, 1]."""
    slot = bisect_right(axis, (at, inf))
    if not 0 < slot < len(axis):
        return float(slot > 0)
    earlier = axis[slot - 1]
    later = axis[slot]
    share = (at - earlier[0]) / (later[0] - earlier[0])
    return earlier[1] + share * (later[1] - earlier[1])


# Parts of a lane. With more stretches than that, each part shows the longest that begins in it, so
# that a lane of any length has 30 kB at most.
MOST_CELLS = 120
_FINE = 500  # parts of other lanes: about two pixels


class Lane(Value):
    """One conversation of a session."""

    member: Member  # its place in the session, and its runs
    stretches: Sequence[Stretch]  # in order of time
    axis: Sequence[Span]  # the session's

    @property
    def cost_usd(self) -> float | None:
        """US dollars of its runs; None for an unknown price."""
        return reduce(plus, [run.totals.cost_usd for run in self.member.runs], None)

    @property
    def spent(self) -> tuple[float, int]:
        """Its cost, 0 for an unknown one, and its tokens, which rank lanes of equal cost."""
        return self.cost_usd or 0.0, sum([run.totals.tokens for run in self.member.runs])

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by what its time was spent with."""
        sums = dict.fromkeys(KINDS, 0.0)
        for each in self.stretches:
            sums[each.kind] += each.seconds
        return sums

    @property
    def cells(self) -> list[tuple[float, float, Stretch]]:
        """(place on the axis, share of the axis, stretch) of what is drawn."""
        found: dict[int, tuple[float, float, Stretch]] = {}
        parts = _FINE
        if len(self.stretches) > MOST_CELLS:
            parts = MOST_CELLS
        for each in self.stretches:
            place = place_of(each.begin, self.axis)
            width = max(1 / parts, place_of(each.end, self.axis) - place)
            part = int(place * parts)
            if part not in found or each.seconds > found[part][2].seconds:
                found[part] = (place, width, each)
        return list(found.values())


def lanes_of(members: Sequence[Member], steps: Sequence[StepRow]) -> list[Lane]:
    """The lanes of a session, in the order of its conversations."""
    of_run = {run.id: member for member in members for run in member.runs}
    own: dict[str, list[StepRow]] = {member.id: [] for member in members}
    spans: dict[str, Span] = {}  # of each run, from its first call to its last
    for step in steps:
        if step.run_id not in of_run:
            continue  # it began after the conversations were read
        own[of_run[step.run_id].id].append(step)
        begin = spans.get(step.run_id, (step.began_at,))[0]
        spans[step.run_id] = (begin, step.at)
    below: dict[str | None, list[Span]] = {}
    for run_id, span in spans.items():
        member = of_run[run_id]
        if member.role == "sub_agent":
            below.setdefault(member.parent_id, []).append(span)
    found = {name: list(stretches_of(own[name], below.get(name, ()))) for name in own}
    stretches = chain(*found.values())
    axis = axis_of((each.begin, each.end) for each in stretches if each.kind != "waiting")
    return [Lane(member=each, stretches=found[each.id], axis=axis) for each in members]
