"""Difficulty of a step: the first row of one table that fits, with its value and its reason.

The values suit the windows of the states: six steps that bring news are below 0.2, a failure that
comes again is above 0.6, and above 0.85 only while the same thing fails on and on."""

from collections.abc import Callable, Sequence

from gateway.core.ledger.entries import Ending, Entry, ordinal
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.scoring.scorer import DifficultySettings, ReadsLedger
from gateway.values import Value


class Difficulty(Value):
    """The difficulty of a step."""

    value: float  # in [0, 1]; 1 is hardest
    reason: str  # the situation, in words


NEWS = 0.15
MESSAGE = 0.3
EMPTY = 0.35
WAITING = 0.3
FIRST_FAILURE = 0.45
# Difficulty of the first, second, ... failure of one object.
FAILURES = (FIRST_FAILURE, 0.65, 0.75, 0.82, 0.88, 0.9, 0.92, 0.94)
# Added from the third failure on, if nothing has changed since the one before.
UNCHANGED = 0.05
# Difficulty of the first, second, ... time that a call brings what the run has.
REPETITIONS = (NEWS, 0.55, 0.65, 0.8, 0.88, 0.9, 0.92, 0.94)
WORKS_ON = 0.5
# Difficulty of other work while a failure is open, after two and after more of it.
WORKS_ON_LONG = 0.62
RECOVERED = 0.55
# Difficulty of the first and the second success after a repeated failure.
RECOVERED_TWICE = 0.4
LONG = 3


def _at(values: tuple[float, ...], count: int) -> float:
    return values[min(count, len(values)) - 1]


def _fails(step: LedgerStep) -> Difficulty | None:
    entry = _worst([e for e in step.entries if e.is_failure or e.ending is Ending.REVERTED])
    if entry is None:
        return None
    if entry.ending is Ending.REVERTED:
        times = f" for the {ordinal(entry.count)} time since step {entry.first}"
        again = times if entry.count > 1 else ""
        return Difficulty(
            value=_at(FAILURES, entry.count + 1), reason=f"{entry.name} is changed back{again}"
        )
    return Difficulty(value=_failure_value(entry), reason=failure_reason(entry))


def _failure_value(entry: Entry) -> float:
    unchanged = entry.count >= LONG and entry.unchanged >= 2
    return min(_at(FAILURES, entry.count) + UNCHANGED * unchanged, FAILURES[-1])


def failure_reason(entry: Entry) -> str:
    """Describes the newest failure of an entry in words: its count, its object, and what changed
    since the first."""
    if entry.count < 2:
        return f"{entry.name} reports {entry.said}" if entry.said else _refusal(entry)
    times = ordinal(entry.count)
    if entry.ending is not Ending.FAILED:
        what = _refusal(entry, f" for the {times} time since step {entry.first}")
    elif entry.varied:
        what = f'{times} failure with "{entry.said}" since step {entry.first}, now of {entry.name}'
    else:
        what = f"{times} failure of {entry.name} in the same way since step {entry.first}"
    if entry.unchanged >= 2:
        return f"{what}, no file change seen since step {entry.before}"
    return f"{what}, the one before at step {entry.before}"


def _refusal(entry: Entry, when: str = "") -> str:
    if entry.ending is Ending.REFUSED:
        return f"an edit is refused{when}: {entry.name}"
    if entry.ending is Ending.LATER:
        return f"a call of {entry.tool} is put off{when}: {entry.name}"
    if not entry.said:
        return f"a call of {entry.tool} is answered with no or nothing{when}: {entry.name}"
    return f"a call of {entry.tool} fails or is denied{when}: {entry.name}"


def _repeats(step: LedgerStep) -> Difficulty | None:
    entry = _worst(step.entries)
    if entry is None:
        return None
    times = f"for the {ordinal(entry.count)} time since step {entry.first}"
    reason = f"{entry.name} {entry.ending.value} {times}"
    if entry.varied:
        reason = f"{times} a call {entry.phrase}, now {entry.name}"
    return Difficulty(value=_at(REPETITIONS, entry.count), reason=reason)


def _recovers(step: LedgerStep) -> Difficulty | None:
    if step.closed is None:
        return None
    return Difficulty(value=RECOVERED, reason=f"a success after {_failures(step.closed)}")


def _works_on(step: LedgerStep) -> Difficulty | None:
    entry = step.open_failure
    if entry is None or not step.actions:
        return None
    value = WORKS_ON_LONG if entry.count >= LONG else WORKS_ON
    return Difficulty(
        value=value, reason=f"after {_failures(entry)}, the last one at step {entry.newest}"
    )


def _failures(entry: Entry) -> str:
    which = "one kind, the newest of " if entry.varied else ""
    return f"{entry.count} failures of {which}{entry.name}"


def _waits(step: LedgerStep) -> Difficulty | None:
    if step.waits:
        return Difficulty(value=WAITING, reason="waits for something that is not there yet")
    return None


def _speaks(step: LedgerStep) -> Difficulty | None:
    if step.actions:
        return None
    return Difficulty(value=MESSAGE, reason="a message without a call")


def _finds_nothing(step: LedgerStep) -> Difficulty | None:
    if all(action.answer.empty and not action.effect.changes for action, _ in step.actions):
        return Difficulty(value=EMPTY, reason="the result is empty")
    return None


def _brings_news(_step: LedgerStep) -> Difficulty:
    return Difficulty(value=NEWS, reason="neither a failure nor a repetition")


# The rows, in the order in which they are asked; the first that fits counts.
TABLE: tuple[Callable[[LedgerStep], Difficulty | None], ...] = (
    _fails,
    _waits,
    _repeats,
    _recovers,
    _works_on,
    _speaks,
    _finds_nothing,
    _brings_news,
)


def _worst(entries: Sequence[Entry]) -> Entry | None:
    return max(entries, key=lambda entry: entry.count, default=None)


class LedgerScorer(ReadsLedger):
    """Scores the steps of one run by the table; `reason` is that of the newest step."""

    def __init__(self, _settings: DifficultySettings):
        self.reason = ""
        self._recovered: Entry | None = None

    def push_read(self, read: LedgerStep) -> float:
        """Difficulty of a step that the run's ledger has read."""
        found = next(each for row in TABLE if (each := row(read)) is not None)
        if self._recovered is not None and found.value < RECOVERED_TWICE and read.actions:
            reason = f"the step after a success that followed {self._recovered.count} failures"
            found = Difficulty(value=RECOVERED_TWICE, reason=reason)
        self._recovered = read.closed
        self.reason = found.reason
        return found.value
