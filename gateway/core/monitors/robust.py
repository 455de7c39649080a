"""Suite `robust`: six monitors over the ledger of tries, three of which raise alarms."""

from collections import deque
from collections.abc import Mapping

from msgspec.structs import replace

from gateway.core.ledger.entries import Ending, Entry
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.ledger.tries import REPEATS
from gateway.core.monitors.alarms import Alarm, Readings, Suite, alarm_of
from gateway.core.monitors.settings import (
    CALLS_OF_TALK,
    CALLS_OF_WORK,
    MonitorSettings,
    RobustSettings,
)

HEEDED_COMPLAINTS = 2  # complaints of a harness about a call that it could not find
QUIET_STEPS = 3  # steps, from a harness's own reminder on, in which no monitor fires


class RobustSuite(Suite[LedgerStep]):
    """The active monitors over the ledger of one run."""

    def __init__(self, settings: MonitorSettings):
        super().__init__(settings, settings.robust)
        self._quiet = self._uncalled = self._step = 0

    def push(self, read: LedgerStep) -> None:
        """Take the next step of the run."""
        self._step = read.number
        self._quiet = max(self._quiet - 1, 0)
        self._uncalled += read.facts.cue == "uncalled"
        if read.facts.reminded:
            self._quiet = QUIET_STEPS
        elif read.facts.cue == "uncalled" and self._uncalled <= HEEDED_COMPLAINTS:
            self._quiet = max(self._quiet, 1)
        for monitor in self.monitors.values():
            monitor.push(read)

    def readings(self) -> Readings:
        """The readings; no monitor fires while a reminder of its harness is new to the agent."""
        found = super().readings()
        if not found.fired:
            return found
        if self._quiet:
            return replace(found, fired=(), failure_type=None)
        alarms = [self._alarm(name, found.evidence.get(name, "")) for name in found.fired]
        return replace(found, alarms=tuple(alarms))

    def _alarm(self, monitor: str, reason: str) -> Alarm:
        entry = getattr(self.monitors[monitor], "entry", None)
        if entry is not None:
            return alarm_of(monitor, f"{entry.ending.name.lower()} {entry.first}", entry)
        return Alarm(
            monitor=monitor,
            entry=monitor,
            sentence=f"{reason or monitor}, step {self._step}",
            count=1,
            first_step=self._step,
            newest_step=self._step,
        )


# Tries of an entry from which it is an alarm.
DUE: Mapping[Ending, int] = {
    Ending.FAILED: 4,
    Ending.DENIED: 4,
    Ending.REFUSED: 3,
    Ending.REVERTED: 2,
    Ending.SAME: 5,
    Ending.NOTHING_NEW: 6,
    Ending.IN_TURN: 3,
    Ending.LATER: 7,
    Ending.SET_AGAIN: 3,
    Ending.REWRITTEN: 5,
    Ending.UNMOVED: 5,
    Ending.SAID_AGAIN: 4,
}
# Tries of one failing call from which it is an alarm, if they came nearly in a row.
DUE_AT_ONCE = 3
# Steps for each try below which tries came nearly in a row.
IN_A_ROW = 1.5
# Times that a call gave the same result from which it is an alarm, with other work in between.
DUE_BETWEEN = 7
# Tries of a failure from which it is an alarm, if there was a change before the newest.
DUE_CHANGED = 5
DUE_SCORE = 0.6  # score of an entry that is due: the default fire threshold
PER_TRY = 0.1  # score of each further try


def due(entry: Entry) -> int:
    """Tries of this entry from which it is an alarm."""
    in_a_row = entry.newest - entry.first < IN_A_ROW * entry.count
    if entry.ending is Ending.SAME and not in_a_row:
        return DUE_BETWEEN
    if entry.ending is not Ending.FAILED:
        return DUE[entry.ending]
    if entry.unchanged >= DUE_AT_ONCE and in_a_row and not entry.varied:
        return DUE_AT_ONCE
    return DUE_CHANGED if entry.unchanged < 2 else DUE[entry.ending]


def is_due(entry: Entry) -> bool:
    """True if the entry is an alarm."""
    return entry.count >= due(entry)


def score_of(entry: Entry) -> float:
    """Score of an entry in [0, 1]: 0.6 when it is due, 0.1 more for each further try."""
    least = due(entry)
    if entry.count < least:
        return DUE_SCORE * (entry.count - 1) / least
    return min(DUE_SCORE + PER_TRY * (entry.count - least), 1.0)


class _OfEntries:
    """A monitor that scores the worst entry of a step; the score fades while there is none."""

    endings: frozenset[Ending] = frozenset()  # the ends of tries that it scores

    def __init__(self, settings: RobustSettings):
        self._recovery = settings.recovery
        self._score = 0.0
        self._what = ""
        self.entry: Entry | None = None

    def push(self, step: LedgerStep) -> None:
        """Look at the entries that the step added a try to."""
        self.entry = None
        if step.entries:
            found = [entry for entry in step.entries if entry.ending in self.endings]
            self.entry = max(found, key=score_of) if found else None
        if self.entry is None:
            self._score = min(self._score, DUE_SCORE) * self._recovery
            return
        self._score = score_of(self.entry)
        self._what = self.entry.sentence

    def reading(self) -> tuple[float, str]:
        """The score of the newest entry."""
        return (self._score, self._what) if self._score >= 0.01 else (0.0, "")


class Streak(_OfEntries):
    """Calls, settings and messages that bring what the run has."""

    endings = frozenset(
        (
            Ending.SAME,
            Ending.NOTHING_NEW,
            Ending.IN_TURN,
            Ending.LATER,
            Ending.SET_AGAIN,
            Ending.REWRITTEN,
            Ending.UNMOVED,
            Ending.SAID_AGAIN,
        )
    )


class TestRepeat(_OfEntries):
    """Failures that come again."""

    __test__ = False
    endings = frozenset((Ending.FAILED, Ending.DENIED))


class EditRevert(_OfEntries):
    """Edits that are refused again, or that take each other back."""

    endings = frozenset((Ending.REFUSED, Ending.REVERTED))


class CallCount:
    """Calls against a budget; without a configured one, that of solved runs of the kind."""

    def __init__(self, settings: RobustSettings):
        self._budget = settings.call_budget
        self._calls = 0
        self._works = False

    def push(self, step: LedgerStep) -> None:
        """Count the step's calls; waiting for a job costs nothing."""
        for action, each in step.actions:
            self._calls += each.kind != "pending"
            self._works = self._works or action.works

    def reading(self) -> tuple[float, str]:
        """Returns the score of the number of calls: 0.6 at the budget, 1 at five thirds of it."""
        if not self._calls:
            return 0.0, ""
        budget = self._budget or (CALLS_OF_WORK if self._works else CALLS_OF_TALK)
        score = min(DUE_SCORE * self._calls / budget, 1.0)
        return score, f"{self._calls} calls of {budget} expected"


HEALTHY_SHARE = 0.5
SLOPE = 1.6  # half of the window may be stale; seven calls of eight score 0.6


class Diversity:
    """Share of the newest calls that failed again or brought what the run has."""

    def __init__(self, settings: RobustSettings):
        self._stale: deque[bool] = deque(maxlen=settings.novelty_window)

    def push(self, step: LedgerStep) -> None:
        """Judge each call stale or not."""
        self._stale.extend([each.kind in REPEATS or each.failures > 1 for _, each in step.actions])

    def reading(self) -> tuple[float, str]:
        """1.6 x (stale share - 1/2), 0 until the window is full."""
        size = self._stale.maxlen or 1
        if len(self._stale) < size:
            return 0.0, ""
        stale = sum(self._stale)
        score = min(max(SLOPE * (stale / size - HEALTHY_SHARE), 0.0), 1.0)
        return score, f"{stale} of the last {size} calls brought nothing new" if score else ""


SHORT_THOUGHT_WORDS = 3  # shorter thoughts are not read: they have no density to speak of
EARLY_HEDGES = 0.5
EARLY_WORDS = 50  # prior of the early density: a first hedge is no trend
LEAST_DENSITY = 0.02  # hedges a word under which the newest thoughts are sure
RATIO_SPAN = 4.0  # late density of five times the early one scores 1; 3.4 times fires
RETRACTION_WINDOW = 8  # newest thoughts among which retractions are counted
ONE_RETRACTION = 0.3
MORE_RETRACTIONS = 0.7  # one self-correction is healthy, a second fires


class Hedge:
    """Density of hedging in the newest thoughts against the run before them. Only thoughts with an
    action count: a message to a user hedges out of politeness."""

    def __init__(self, settings: RobustSettings):
        self._size = settings.trend_window
        self._late: deque[tuple[int, int]] = deque()
        self._early_hedges = self._early_words = self._thoughts = 0
        self._retractions: deque[bool] = deque(maxlen=RETRACTION_WINDOW)

    def push(self, step: LedgerStep) -> None:
        """Observe the step's thought, if the step has an action."""
        facts = step.facts
        if not step.actions or facts.words < SHORT_THOUGHT_WORDS:
            return
        inquires = not step.entries
        self._retractions.append(facts.retracts and not inquires)
        self._late.append((0 if inquires else facts.hedges, facts.words))
        self._thoughts += 1
        if len(self._late) > self._size:
            hedges, words = self._late.popleft()
            self._early_hedges += hedges
            self._early_words += words

    def reading(self) -> tuple[float, str]:
        """The larger of the trend and of repeated retractions."""
        trend, reason = self._trend()
        retractions = sum(self._retractions)
        again = MORE_RETRACTIONS if retractions > 1 else ONE_RETRACTION * retractions
        if again > trend:
            return again, f"{retractions} retractions in the last {len(self._retractions)} thoughts"
        return trend, reason

    def _trend(self) -> tuple[float, str]:
        hedging = sum([1 for hedges, _ in self._late if hedges])
        if self._thoughts < 2 * self._size or hedging < self._size - 1:
            return 0.0, ""
        late = sum([h for h, _ in self._late]) / sum([w for _, w in self._late])
        if late < LEAST_DENSITY:
            return 0.0, ""
        early = (self._early_hedges + EARLY_HEDGES) / (self._early_words + EARLY_WORDS)
        score = min(max((late / early - 1.0) / RATIO_SPAN, 0.0), 1.0)
        return score, f"hedging {late / early:.1f} times as dense as before" if score else ""
