"""Entries: objects with the tries that ended in the same way, from the first to the newest.

Also the failure that a call reports, the calls that are about the object of an entry, and what
settles it; and words for people: a text on one line, ordinal numbers."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from msgspec import Struct

from gateway.core.step import Action, ActionFacts, CallArguments, CallText

# Entries that a run remembers, the newest ones: a bound on memory.
MAX_ENTRIES = 128
# Calls that bring news, after which an entry counts as left: the agent does something else.
PATIENCE = 6


class Ending(Enum):
    """The end of the tries of an entry; the value is the phrase for it."""

    FAILED = "failed in the same way"
    DENIED = "failed, whatever was asked"
    REFUSED = "was refused"
    LATER = "was put off"
    REVERTED = "was changed back"
    SAME = "gave the same result"
    NOTHING_NEW = "brought nothing that the run did not have"
    IN_TURN = "came in turn with the same other calls"
    SET_AGAIN = "was set to the same again"
    REWRITTEN = "was done again in nearly the same words"
    UNMOVED = "gave the same result after each edit"
    SAID_AGAIN = "was said again"


# The endings of tries that reached nothing.
FAILURES = frozenset((Ending.FAILED, Ending.DENIED, Ending.REFUSED, Ending.LATER))


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
    question: CallArguments | None = None  # what the newest call asks for
    operation: str = ""  # the tool of the newest call, or the program that a shell ran
    varied: bool = False  # true if the tries were different calls
    changes: int = 0  # changes of the run at the newest try
    news: int = 0  # calls with news of the run at the newest try

    def recovers(self, number: int) -> bool:
        """True if fewer fail now than in each of the newest tries, or if the number falls for the
        second time in a row."""
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
    def phrase(self) -> str:
        """The end of the tries in words; parts of a result are not the same result."""
        if self.varied and self.ending is Ending.SAME:
            return Ending.NOTHING_NEW.value
        return self.ending.value

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
            of_tool = ""
            if self.ending in (Ending.DENIED, Ending.LATER):
                of_tool = f" of {quoted(self.tool)}"
            tries = f"{self.count} tries{of_tool}, not all the same: {self.phrase}, {steps}"
            return f"{tries}; the newest was {self.name}{said}"
        return f"{self.name} {self.phrase}, {self.count} tries, {steps}{said}"


class Entries:
    """The open entries of a run, within a bounded memory."""

    def __init__(self, clock: Clock):
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


LEAST_WORDS = 2  # words of a failure that says by itself what failed
SHOWN_CHARS = 600  # end of a result in which the place of a failure is looked for
_DIGITS = re.compile(r"\d+(?:\.\d+)*")
_FAILING = re.compile(
    r"(?<!\d)(\d{1,9}) (?:\w+ )?(?:failed|failing|errors?|failures?)\b"
    r"|(?:failures|errors)(?:=|: )(\d{1,9})"
    r"|\A(\d{1,9}) x /"
)
_SEVERAL = re.compile(r"\A\d+ x / ")
_WORD = re.compile(r"[^\W\d_]{4,}")  # long enough to be no word of grammar
_PROGRAM = re.compile(r"\A(?![\w.]*(?:Error|Exception|\.[A-Z]))[\w./+-]{1,40} ?: (?=\S)")
_TAG = re.compile(r"</?\w{1,40}>")
_PLACE = re.compile(r"(?<![\w./-])([\w./-]{1,120}\.\w{1,5}):\d")
_NAMED = re.compile(  # a path, a quoted name, a file, a name with an underscore
    r"[\w-]/[\w-]|['\"`\u2018][\w./-]{3,}['\"`\u2019]|\w\.\w{1,4}\b|\b[a-z]+_[a-z]"
)


def failing(failure: str) -> int:
    """The number that failed, by the words of a failure; 1 where it does not say."""
    found = _FAILING.search(failure)
    return 1 if found is None else max([int(each) for each in found.groups() if each])


def without_number(failure: str) -> str:
    """The words of a failure without the number of different ones in front, for people."""
    return _SEVERAL.sub("", failure)


def failure_key(action: Action, facts: ActionFacts) -> str:
    """The key of a call's failure: its words, its file, and the call itself where these say
    little."""
    failure = facts.failure or ""
    words = _DIGITS.sub("#", without_number(_TAG.sub("", failure)))
    words = _PROGRAM.sub("", words, 1)
    if place := _PLACE.search(action.observation[-SHOWN_CHARS:]):
        words = f"{words} in {place[1]}"
    if facts.bare or len(words.split()) < LEAST_WORDS:
        own = facts.program if facts.program is not None else facts.call
        return f"failed {own} {words}"
    return f"failed {words}"


def refusal_key(action: Action, facts: ActionFacts) -> str:
    """The key of a refused edit: its file, and the end of the reason, without what the complaint
    repeats of the call. Refused for another reason, something has moved."""
    asked = frozenset(_WORD.findall(action.arguments))
    reason = [word for word in _WORD.findall(facts.failure or "") if word not in asked]
    return f"refused {facts.edits[0].path} {' '.join(reason[-2:])}"


def is_about(entry: Entry, facts: ActionFacts) -> bool:
    """True if a failed call is about the object of an entry: it is the same call, it names the
    same, or the failure names it."""
    if entry.call == facts.call or entry.objects & facts.question.objects:
        return True
    return _NAMED.search(_TAG.sub("", facts.failure or "")) is not None


def settles(entry: Entry, action: Action, facts: ActionFacts) -> bool:
    """True if a call that did not fail ends the failures of an entry."""
    if entry.ending is Ending.REFUSED:
        return bool(facts.edits) and entry.key.startswith(f"refused {facts.edits[0].path} ")
    if entry.ending in (Ending.DENIED, Ending.LATER):
        of_tool = entry.key.partition(" ")[2] == facts.tool
        return of_tool and not facts.denied and not facts.answer.transient
    if entry.call == facts.call:
        return True
    program = entry.operation.removeprefix("$")
    if facts.operation != entry.operation and program not in action.arguments:
        return False
    return bool(entry.objects) and entry.objects <= facts.question.objects


# Longest name of an object.
LABEL_CHARS = 70


def quoted(text: str) -> str:
    """A text on one line, cut, between backticks."""
    plain = " ".join(text[: 4 * LABEL_CHARS].split()).replace("`", "'")
    if len(plain) > LABEL_CHARS:
        plain = plain[: LABEL_CHARS - 3].rstrip() + "..."
    return f"`{plain}`"


def ordinal(number: int) -> str:
    """A number as first, second, ..., 11th."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = "th" if number % 100 in (11, 12, 13) else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def keep_newest(kept: dict[Any, Any], most: int) -> None:
    """Forget the oldest entry, once there are more than `most`."""
    if len(kept) > most:
        del kept[next(iter(kept))]
