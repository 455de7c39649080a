"""Stretches of trouble in a session: from the first sign to the last, with what happened and cost.

Two kinds of signs make a stretch. The gateway's: an alarm, with the troubled steps around it. And
the person's: an interruption, a rejected call or a correction ends the steps that led to it."""

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.history.session import HumanTurn
from gateway.steering.evidence.observation import ObservedStep

GAP = 2
"""Steps without a sign within a stretch: two calls, such as looks at a file, between failures."""
LOOK_BACK = 12  # steps before an interruption that count as what led to it, at most


class ReadStep(Struct, frozen=True, kw_only=True):
    """The readings of one step."""

    index: int
    position: int
    is_alarm: bool
    trouble: str | None
    fired: tuple[str, ...]
    evidence: Mapping[str, str]
    observed: ObservedStep


class Stretch(Struct, frozen=True, kw_only=True):
    """A part of a session, steps `first` to `last` (0-based, both included). `happened`: one
    sentence. `human`: the act of the person that corrected it, "" if none did: an interruption, a
    rejected call, or a message that says that something is wrong; `words`: what they said.
    `alarmed`: the gateway would have raised an alarm in it. `tokens`: of all its steps. `cost`: US
    dollars of the steps with a sign of trouble, and of all its steps."""

    first: int
    last: int
    happened: str = ""
    human: str = ""
    words: str = ""
    alarmed: bool = False
    tokens: int = 0
    cost: tuple[float, float] = (0.0, 0.0)

    @property
    def usd(self) -> float:
        """US dollars of all its steps."""
        return self.cost[1]

    @property
    def steps(self) -> int:
        """Number of its steps."""
        return self.last - self.first + 1

    @property
    def indices(self) -> range:
        """Its steps."""
        return range(self.first, self.last + 1)

    def of(self, steps: Sequence[ReadStep]) -> list[ReadStep]:
        """Those of the session's scored steps that are in it."""
        return [step for step in steps if step.index in self.indices]


Costs = Mapping[int, tuple[int, float]]  # step -> tokens, US dollars


def stretches_of(
    steps: Sequence[ReadStep], human: Sequence[HumanTurn], starts: Sequence[int], costs: Costs
) -> list[Stretch]:
    """The stretches of trouble in a session, in order, none overlapping another, without what
    `happened`. `starts`: the message of each step, scored or not."""
    turns = [turn.position for turn in human]
    found = [*_alarmed(steps, turns), *_corrected(human, starts)]
    signs = {step.index for step in steps if step.is_alarm or step.trouble}
    return [_with_cost(each, signs, costs) for each in _joined(found)]


def _alarmed(steps: Sequence[ReadStep], turns: Sequence[int]) -> Iterable[Stretch]:
    """Groups of steps with signs in which an alarm is; a message of the person ends a group."""
    group: list[ReadStep] = []
    for step in steps:
        if not (step.is_alarm or step.trouble):
            continue
        if group:
            between = any(group[-1].position < at <= step.position for at in turns)
            if between or step.index - group[-1].index > GAP + 1:
                yield from _group(group)
                group = []
        group.append(step)
    yield from _group(group)


def _group(group: Sequence[ReadStep]) -> Iterable[Stretch]:
    if any(step.is_alarm for step in group):
        yield Stretch(first=group[0].index, last=group[-1].index, alarmed=True)


def _corrected(human: Sequence[HumanTurn], starts: Sequence[int]) -> Iterable[Stretch]:
    """The steps before an act of the person that corrects them: all since their last message, at
    most `LOOK_BACK` before an interruption, and the one call that was rejected. Words that were
    typed right after such an act are its reason."""
    since = 0
    before = [bisect_left(starts, turn.position) for turn in human]  # steps before each turn
    for at, turn in zip(before, human, strict=True):
        if turn.corrects and at > since:
            first = since
            if turn.kind != "message":
                first = at - 1 if turn.kind == "reject" else max(since, at - LOOK_BACK)
            words = (t.text for same, t in zip(before, human, strict=True) if same == at and t.text)
            yield Stretch(first=first, last=at - 1, words=next(words, ""), human=turn.kind)
        since = at


def _joined(found: Iterable[Stretch]) -> list[Stretch]:
    """The stretches with those that overlap made into one."""
    joined: list[Stretch] = []
    for each in sorted(found, key=lambda s: (s.first, s.last)):
        last = joined[-1] if joined else None
        if last is None or each.first > last.last:
            joined.append(each)
            continue
        joined[-1] = replace(
            last,
            last=max(last.last, each.last),
            words=last.words or each.words,
            human=last.human or each.human,
            alarmed=last.alarmed or each.alarmed,
        )
    return joined


def _with_cost(stretch: Stretch, signs: Container[int], costs: Costs) -> Stretch:
    inside = stretch.indices
    return replace(
        stretch,
        tokens=sum(costs.get(index, (0, 0.0))[0] for index in inside),
        cost=(
            sum(costs.get(index, (0, 0.0))[1] for index in inside if index in signs),
            sum(costs.get(index, (0, 0.0))[1] for index in inside),
        ),
    )
