"""State of a run's guidance, which the transcript does not give, and the moment of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from gateway.core.acting import ActionSignal
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.situation import Reader, Situation
from gateway.core.step import Step
from gateway.values import FieldDict, Fields, Value

SCHEMA_VERSION = 1
FIRST_CALL = -1  # the step of a run's first call, which comes before any step is scored
KEPT_THERE = -1  # the offset of a block that the server keeps with its history
_EARLIER_RUN = FIRST_CALL - 1  # the step of what an earlier run of the conversation began with

# The leading system message; a separate message; the end of the newest result or user message.
Place = Literal["system", "message", "result"]


class Injection(Value, array_like=True):
    """One block that was put into a request, kept to be sent again."""

    step: int  # newest scored step when it was decided; FIRST_CALL before there is one
    place: Place  # kind of place in the request
    # client messages before the block, leading system messages not counted, because clients add and
    # drop those; 0 for place `system`, KEPT_THERE for what is not sent again
    offset: int
    text: str  # the bytes that were sent; repeated unchanged for the provider's prompt cache


class GuidanceState(Value, omit_defaults=True):
    """Bookkeeping of one run."""

    fired_step: int | None = None  # newest step on which a monitor fired; None = never
    monitor_count: int = 0  # monitor texts given so far
    monitor_step: int | None = None  # step of the last monitor text; the cooldown begins there
    # last severity sent, by cause or failure type; the next text is stronger
    severities: Mapping[str, int] = {}
    e1_count: int = 0  # injections of tier e1
    # injections of tier e2 by failure type; "" = steps without one
    e2_counts: Mapping[str, int] = {}
    e3_done: bool = False  # the universal rules were given
    pattern_ids: tuple[str, ...] = ()  # e1 and e2 patterns that the run has; not given again
    # newest step with a decision; a retry of it decides nothing new
    decided_step: int | None = None
    injections: tuple[Injection, ...] = ()  # blocks in the order they were made
    # step of the newest decision about a lesson, by the lesson's id
    lesson_steps: Mapping[str, int] = {}
    lessons: int = 0  # number of lessons given
    summary_asked: bool = False  # the client has asked for a summary of its history
    rules_due: bool = False  # the history is a summary, and the rules are given once more

    def next_run(self) -> GuidanceState:
        """Returns the state with which the conversation's next run starts: caps are fresh, and
        the head of the prompt keeps the rules that this run or an earlier one began with."""
        head = [item for item in self.injections if item.place == "system" and item.step < 0]
        return GuidanceState(
            injections=tuple([replace(i, step=_EARLIER_RUN) for i in head]),
            summary_asked=self.summary_asked,
            rules_due=self.rules_due,
        )

    def up_to(self, position: int) -> GuidanceState:
        """The state that a fork copies: blocks that were sent before it leaves its parent."""
        kept = tuple(
            item for item in self.injections if item.place == "system" or item.offset <= position
        )
        return replace(self, injections=kept, decided_step=None)

    def compacted(self, *, summed_up: bool) -> GuidanceState:
        """The state after the client rewrote its history: injections between messages are gone.
        Caps, allowances and injections in the system message are kept. `summed_up`: a summary
        stands in place of the history, which one that was asked for does, too."""
        kept = tuple(item for item in self.injections if item.place == "system")
        due = self.rules_due or self.summary_asked or summed_up
        return replace(self, injections=kept, rules_due=due, summary_asked=False)

    def merged(self, stored: GuidanceState) -> GuidanceState:
        """The state after another gateway has stored `stored` of the same run in the meantime. What
        either has injected is repeated from now on, in the order of its steps, and every counter is
        the higher one: nothing is given twice, and no cap is exceeded by the next call."""
        known = {(item.step, item.place, item.text) for item in stored.injections}
        own = [i for i in self.injections if (i.step, i.place, i.text) not in known]
        patterns = dict.fromkeys((*stored.pattern_ids, *self.pattern_ids))
        return GuidanceState(
            fired_step=latest(self.fired_step, stored.fired_step),
            monitor_count=max(self.monitor_count, stored.monitor_count),
            monitor_step=latest(self.monitor_step, stored.monitor_step),
            severities=_highest(self.severities, stored.severities),
            e1_count=max(self.e1_count, stored.e1_count),
            e2_counts=_highest(self.e2_counts, stored.e2_counts),
            e3_done=self.e3_done or stored.e3_done,
            pattern_ids=tuple(patterns),
            decided_step=latest(self.decided_step, stored.decided_step),
            injections=tuple(sorted((*stored.injections, *own), key=lambda item: item.step)),
            lesson_steps=_highest(self.lesson_steps, stored.lesson_steps),
            lessons=max(self.lessons, stored.lessons),
            summary_asked=self.summary_asked or stored.summary_asked,
            rules_due=self.rules_due or stored.rules_due,
        )


def latest(one: int | None, other: int | None) -> int | None:
    """The later of two steps; None for neither."""
    return max((step for step in (one, other) if step is not None), default=None)


def _highest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {**other, **{key: max(value, other.get(key, value)) for key, value in one.items()}}


def to_json(state: GuidanceState) -> FieldDict:
    """The state as JSON values; fields at their default are left out."""
    record = {"v": SCHEMA_VERSION, **to_builtins(state)}
    if "fired_step" in record:  # stored as the list that it once was
        record["fired_steps"] = [record.pop("fired_step")]
    return record


def from_json(record: Fields) -> GuidanceState:
    """The state that `to_json` wrote. Raises: ValueError when it was written by another schema
    version or is damaged."""
    if record.get("v") != SCHEMA_VERSION:
        raise ValueError(f"guidance state: schema version {record.get('v')!r} is not known")
    try:
        fired = max(map(int, record.get("fired_steps", ())), default=None)
        return convert({**record, "fired_step": fired}, GuidanceState, strict=False)
    except (TypeError, ValueError, ValidationError) as error:
        raise ValueError(f"guidance state: {error}") from None


class Moment(Value):
    """The situation of a run when a call is decided."""

    step: int | None  # index of the newest scored step; None on the first call
    signal: ActionSignal  # of the run after that step, or the drawn one of the control arm
    recent: Sequence[Step] = ()  # the newest steps, oldest first
    reader: Reader | None = None  # reads them; None: nothing is known of their texts
    model: str = ""  # the routed model's name
    # the newest step as the ledger describes it; None on the first call
    observed: LedgerStep | None = None
    tools: Sequence[str] = ()  # names of the tools that the request offers

    @property
    def repairing(self) -> bool:
        """Whether files were edited since the last test that passed and the last commit."""
        return self.observed is not None and self.observed.repairing

    @property
    def failure_type(self) -> str:
        """The failure that the monitors report, "" for none."""
        readings = self.signal.readings
        return (readings.failure_type if readings else None) or ""

    def situation(self) -> Situation | None:
        """Trouble of the newest step, None when it brings something new."""
        return (
            self.reader.situation(self.recent, self.observed) if self.reader is not None else None
        )
