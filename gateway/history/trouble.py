"""Stretches of trouble in a session: from the first sign to the last, with what happened and cost.

Two kinds of signs make a stretch. The gateway's: an alarm, with the troubled steps around it. And
the person's: an interruption or a rejected call ends the stretch that led to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.history.session import HumanTurn
from gateway.steering.evidence.observation import ObservedStep
from gateway.text.secrets import mask_repeated

GAP = 2
"""Steps without a sign within a stretch: two calls, such as looks at a file, between failures."""
_LOOK_BACK = 12  # steps before an interruption that count as what led to it, at most
_WORDS = 90


class ReadStep(Struct, frozen=True, kw_only=True):
    """What the core read of one step."""

    index: int
    position: int
    is_alarm: bool
    trouble: str | None
    fired: tuple[str, ...]
    evidence: Mapping[str, str]
    observed: ObservedStep


class Stretch(Struct, frozen=True, kw_only=True):
    """A part of a session, steps `first` to `last` (0-based, both included).

    `said`: one sentence. `human`: `interrupt` or `reject` if a person ended it, else "". `alarmed`:
    the gateway would have raised an alarm in it. `tokens`, `usd`: of all its steps. `least_usd`: of
    the steps with a sign of trouble only.
    """

    first: int
    last: int
    said: str
    human: str = ""
    alarmed: bool = False
    tokens: int = 0
    usd: float = 0.0
    least_usd: float = 0.0

    @property
    def steps(self) -> int:
        """Number of its steps."""
        return self.last - self.first + 1


Costs = Mapping[int, tuple[int, float]]  # step -> tokens, US dollars


def stretches_of(
    steps: Sequence[ReadStep], human: Sequence[HumanTurn], starts: Sequence[int], costs: Costs
) -> list[Stretch]:
    """The stretches of trouble in a session, in order, none overlapping another.

    `starts`: the message of each step, scored or not.
    """
    turns = [turn.position for turn in human]
    found = [*_alarmed(steps, turns), *_stopped(human, starts)]
    by_index = {step.index: step for step in steps}
    return [_finished(each, by_index, costs) for each in _joined(found)]


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
        yield Stretch(first=group[0].index, last=group[-1].index, said="", alarmed=True)


def _stopped(human: Sequence[HumanTurn], starts: Sequence[int]) -> Iterable[Stretch]:
    """The steps between the person's last message and an interruption or a rejection. Words that
    were typed right after it are its reason."""
    since = 0
    for turn, after in zip(human, [*human[1:], None], strict=True):
        at = bisect_left(starts, turn.position)  # steps before the turn
        if turn.kind != "message" and at > since:
            first = max(since, at - _LOOK_BACK) if turn.kind == "interrupt" else at - 1
            follows = after is not None and bisect_left(starts, after.position) == at
            said = turn.text or (after.text if follows and after else "")
            yield Stretch(first=first, last=at - 1, said=said, human=turn.kind)
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
            said=last.said or each.said,
            human=last.human or each.human,
            alarmed=last.alarmed or each.alarmed,
        )
    return joined


def _finished(stretch: Stretch, steps: Mapping[int, ReadStep], costs: Costs) -> Stretch:
    inside = range(stretch.first, stretch.last + 1)
    read = [steps[index] for index in inside if index in steps]
    signs = [step.index for step in read if step.is_alarm or step.trouble]
    return replace(
        stretch,
        said=_sentence(stretch, read),
        tokens=sum(costs.get(index, (0, 0.0))[0] for index in inside),
        usd=sum(costs.get(index, (0, 0.0))[1] for index in inside),
        least_usd=sum(costs.get(index, (0, 0.0))[1] for index in signs),
    )


def _sentence(stretch: Stretch, steps: Sequence[ReadStep]) -> str:
    """One sentence: what the run did, and what the person did about it."""
    reasons: dict[str, str] = {}
    for step in steps:
        for name in step.fired:
            if reason := step.evidence.get(name):
                reasons[name] = reason
    happened = "; ".join(reasons.values())
    if not happened and stretch.alarmed:
        troubles = [step.trouble for step in steps if step.trouble]
        happened = (
            f"{len(troubles)} of {len(steps)} steps in trouble, last: {troubles[-1]}"
            if (troubles)
            else "the risk of failing stayed high"
        )
    said = " ".join(stretch.said.split())
    if stretch.human:
        act = "you interrupted" if stretch.human == "interrupt" else "you rejected the call"
        quoted = f': "{said[:_WORDS]}{"..." if len(said) > _WORDS else ""}"' if said else ""
        did = f"{act}{quoted}"
        happened = f"{happened}, until {did}" if happened else did
    return mask_repeated(happened)
