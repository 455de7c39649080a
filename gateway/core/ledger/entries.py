"""Entries: objects with the tries that ended in the same way, from the first to the newest."""

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

from gateway.core.ledger.bounds import keep_newest
from gateway.core.step import ActionFacts, CallText, Question

MAX_ENTRIES = 128
"""Entries that a run remembers, the newest ones: a bound on memory."""
PATIENCE = 6
"""Calls that bring news, after which an entry counts as left: the agent does something else."""


class Ending(Enum):
    """The end of the tries of an entry; the value is the phrase for it."""

    FAILED = "failed in the same way"
    DENIED = "failed or was denied, whatever was asked"
    REFUSED = "was refused"
    LATER = "was put off"
    REVERTED = "was changed back"
    SAME = "gave the same result"
    NOTHING_NEW = "brought what the run has"
    IN_TURN = "came in turn with the same other calls"
    SET_AGAIN = "was set to the same again"
    REWRITTEN = "was done again in nearly the same words"
    UNMOVED = "gave the same result after each edit"
    SAID_AGAIN = "was said again"


FAILURES = frozenset((Ending.FAILED, Ending.DENIED, Ending.REFUSED, Ending.LATER))
"""The endings of tries that reached nothing."""


class Clock(Struct):
    """The progress of a run."""

    step: int = 0  # number of the newest step, from 1
    calls: int = 0  # calls so far
    changes: int = 0  # calls that changed something, as far as the ledger sees
    news: int = 0  # calls that brought something new
    waited: int = 0  # number of the newest call that let time pass


class Entry(Struct, kw_only=True):
    """One object and its tries that ended alike."""

    key: str  # stable through the run
    ending: Ending  # how every try of it ended
    is_failure: bool = False  # true if the tries reached nothing
    named: str = ""  # the object, where the calls do not name it
    tool: str = ""  # the tool of the newest try
    text: CallText | None = None  # the newest try, for people
    said: str = ""  # the line in which the newest try failed; empty without one
    count: int = 0  # tries, at most one a step
    unchanged: int = 0  # the newest tries with no change between them that the ledger saw
    numbers: tuple[int, ...] = ()  # how many failed in each of the newest tries of a failure
    first: int = 0  # step of the first try
    newest: int = 0  # step of the newest try
    before: int = 0  # step of the try before the newest; 0 without one
    call: int = 0  # digest of the newest try's call
    question: Question | None = None  # what the newest call asks for
    operation: str = ""  # the tool of the newest call, or the program that a shell ran
    varied: bool = False  # true if the tries were different calls
    changes: int = 0  # changes of the run at the newest try
    news: int = 0  # calls with news of the run at the newest try

    def recovers(self, number: int) -> bool:
        """True if fewer fail now than in the newest tries, or fewer than in the two before."""
        if number < min(self.numbers, default=0):
            return True
        newest = self.numbers[-2:]
        return len(newest) == 2 and number < newest[1] < newest[0]

    @property
    def name(self) -> str:
        """The object of the newest try, for people."""
        if self.named or self.text is None:
            return self.named
        return self.text.label

    @property
    def objects(self) -> frozenset[str]:
        """Files, hosts and tables that the newest call names."""
        return frozenset() if self.question is None else self.question.objects

    @property
    def sentence(self) -> str:
        """The object, how it ended and how often, the first and the newest step."""
        said = f": {self.said}" if self.said else ""
        steps = f"steps {self.first} to {self.newest}"
        if self.varied:
            return (
                f"{self.count} tries, the newest of {self.name}: {self.ending.value}, {steps}{said}"
            )
        return f"{self.name} {self.ending.value}, {self.count} tries, {steps}{said}"


class Entries:
    """The open entries of a run, within a bounded memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter([*self._open.values()])

    def get(self, key: str) -> Entry | None:
        """The open entry with this key."""
        return self._open.get(key)

    def close(self, key: str) -> None:
        """Close an entry, if it is open."""
        self._open.pop(key, None)

    def open(self, key: str, ending: Ending, *, since: int = 0, patience: int = PATIENCE) -> Entry:
        """Returns the entry with this key, with this step added as a try of it; a new entry if
        the agent has left the old one. Several tries in one step count once. `since`: the step
        of the try that this one repeats; that try counts as the first."""
        clock = self._clock
        entry = self._open.pop(key, None)
        if entry is None or clock.news - entry.news > patience:
            entry = Entry(key=key, ending=ending, is_failure=ending in FAILURES)
            if since:
                entry.count = 1
                entry.unchanged = 1
                entry.first = since
                entry.newest = since
                entry.changes = clock.changes
        self._open[key] = entry
        keep_newest(self._open, MAX_ENTRIES)
        if entry.newest != clock.step:
            entry.unchanged = entry.unchanged + 1 if entry.changes == clock.changes else 1
            entry.count += 1
            entry.before = entry.newest
            entry.first = entry.first or clock.step
            entry.newest = clock.step
        entry.changes = clock.changes
        entry.news = clock.news
        return entry

    def add(
        self,
        key: str,
        ending: Ending,
        facts: ActionFacts,
        *,
        since: int = 0,
        patience: int = PATIENCE,
    ) -> Entry:
        """The same, with the call that was made as the newest try."""
        entry = self.open(key, ending, since=since, patience=patience)
        entry.varied = entry.varied or entry.call not in (0, facts.call)
        entry.call = facts.call
        entry.question = facts.question
        entry.operation = facts.operation
        entry.tool = facts.tool
        entry.text = facts.text
        return entry
