"""Calls that ask for the same in other words, and parts of files that were shown before."""

import re

from gateway.core.ledger.entries import keep_newest
from gateway.core.step import Action, ActionFacts, alike
from gateway.values import Value

NAMES_CHARS = 400  # of a call's arguments that are compared word by word
LEAST_NAMES = 2  # words of two calls that must be common
RICH_RESULT = 20  # words from which an equal result shows the same, whatever was asked
PLACE_RESULT = 8
PLACE_CHARS = 600  # the same of a result that names a page or a file
TELLING_RESULT = 5  # words from which an equal result shows the same of the same object
REWORDED = 0.6  # share of words, in [0, 1], from which two calls ask for the same
MAX_FILES = 64
MAX_SPANS = 16  # files, and parts of one file, that are remembered
KNOWN_LINES = 0.6  # share of known lines from which a part of a file was shown before
NOTHING_NAMED = hash(())  # the identity of arguments without a name
_NAME = re.compile(r"\w+")
_ID = re.compile(r"(?<![A-Za-z_])[A-Za-z_]++\d\w*|\d{3,}")
_PLACE = re.compile(r"https?://\S|[\w-]/[\w-]")
_DRAWN = re.compile(r"(?<!\S)[^\s\d]*+\d\S*")
LISTS = frozenset(("$ls", "$find", "$tree", "$wc", "$du", "$stat"))
_FILE = re.compile(r"(?<![\w-])[\w-]++\.\w{1,5}\b")
# Files that two listings must have, and have in common.
LEAST_FILES = 3


class SeenCall(Value):
    """A call that was made."""

    action: Action  # as it stands in the transcript
    facts: ActionFacts  # its digests and word sets
    step: int  # at which it was made, from 1
    changes: int  # changes of the run by then


def brings_the_same(call: SeenCall, other: SeenCall) -> bool:
    """True if a call, in other words, brings what an earlier one has brought."""
    facts = call.facts
    asked = other.facts
    if facts.effect.changes or facts.effect.plans or asked.call == facts.call:
        return False
    if call.changes != other.changes:
        return False
    seeks_the_same = facts.tool == asked.tool and facts.sought == asked.sought
    if facts.answer.empty and asked.answer.empty and facts.sought and seeks_the_same:
        return True
    if asked.answer.result != facts.answer.result or _names_its_own(call.action, other.action):
        return False
    same_tool = asked.operation == facts.operation
    return (same_tool and _same_names(call.action, other.action)) or _shows_the_same(call, other)


def is_act(facts: ActionFacts) -> bool:
    """True if a call writes a whole file or acts on something that is no file."""
    if facts.edits:
        return not any(edit.old for edit in facts.edits)
    return facts.effect.acts


def does_the_same(call: SeenCall, other: SeenCall) -> bool:
    """True if an act (`is_act`) was done before by the same operation, in nearly the same words,
    and ended in the same way but for ids."""
    facts = call.facts
    asked = other.facts
    if asked.call == facts.call or asked.failure is not None:
        return False
    if _ending(call.action) != _ending(other.action):
        return False
    if _same_names(call.action, other.action):
        return True
    named = facts.edits or _ID.search(call.action.arguments[:NAMES_CHARS]) is not None
    if not named or asked.question.identity != facts.question.identity:
        return False
    return alike(facts.question.words, asked.question.words, REWORDED)


def _ending(action: Action) -> str:
    return _DRAWN.sub("#", action.observation[:PLACE_CHARS])


def lists_the_same(call: SeenCall, other: SeenCall) -> bool:
    """True if two calls list the same files, in whatever order and with whatever beside them; the
    first is one of LISTS."""
    if call.changes != other.changes or other.facts.operation not in LISTS:
        return False
    files = frozenset(_FILE.findall(call.action.observation))
    return len(files) >= LEAST_FILES and files == frozenset(_FILE.findall(other.action.observation))


def shows_all(action: Action, facts: ActionFacts, path: str) -> bool:
    """True if a call shows the whole of this file."""
    whole = facts.effect.reads and facts.span is None and "|" not in action.arguments
    if not whole or (facts.operation.startswith("$") and facts.operation != "$cat"):
        return False
    return path in facts.question.objects


def _names_its_own(action: Action, earlier: Action) -> bool:
    """True if a result differs from an earlier one and contains a name that its call asked for.
    Then the difference is not just an id that varies by chance."""
    shown = action.observation[:PLACE_CHARS]
    if shown == earlier.observation[:PLACE_CHARS]:
        return False
    return bool([1 for name in _ID.findall(action.arguments[:NAMES_CHARS]) if name in shown])


def _same_names(action: Action, earlier: Action) -> bool:
    """True if the words of one call's arguments include those of the other."""
    own = _names(action)
    others = _names(earlier)
    return len(own & others) >= LEAST_NAMES and (own <= others or others <= own)


def _names(action: Action) -> frozenset[str]:
    return frozenset(_NAME.findall(action.arguments[:NAMES_CHARS].lower()))


def _shows_the_same(call: SeenCall, other: SeenCall) -> bool:
    """True if the result is so rich, or the calls are so alike, that equal results say the same."""
    facts = call.facts
    asked = other.facts
    size = len(facts.answer.words)
    files = facts.effect.reads and asked.effect.reads and "://" not in call.action.arguments
    if not files and size >= PLACE_RESULT:
        shown = call.action.observation[:PLACE_CHARS]
        if size >= RICH_RESULT or _PLACE.search(shown) is not None:
            return True
    own = facts.question.objects
    others = asked.question.objects
    if own and others and not own & others:
        return False
    if asked.operation == facts.operation and _asks_alike(facts, asked, named=bool(own)):
        return True
    asks = facts.effect.reads or facts.effect.looks_up or facts.operation.startswith("$")
    if not asks or size < TELLING_RESULT or facts.answer.empty:
        return False
    if own:
        return True
    same_tool = asked.operation == facts.operation
    return same_tool and alike(facts.question.words, asked.question.words, REWORDED)


def _asks_alike(facts: ActionFacts, asked: ActionFacts, *, named: bool) -> bool:
    """True if two calls ask for the same: one command with other options, one test run in
    another way, or one query in other words."""
    if facts.program is not None and facts.effect.settles and asked.effect.settles:
        return True
    question = facts.question
    has_name = not named and question.identity != NOTHING_NAMED
    if facts.operation.startswith("$") or has_name:
        return question.is_like(asked.question)
    return False


class ShownLines:
    """The parts of files that were shown since the last change."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, list[tuple[int, int, int]]]] = {}

    def show(self, span: tuple[str, int, int], step: int, changes: int) -> int:
        """Remember a part of a file; the newest step that showed a line of it, if most of its lines
        were shown before, else 0."""
        path, first, last = span
        known_at, spans = self._files.pop(path, (changes, []))
        if known_at != changes:
            spans = []
        known = 0
        newest = 0
        line = first
        for start, end, shown in sorted(spans):
            lines = min(end, last) - max(start, line) + 1
            if lines > 0:
                known += lines
                newest = max(newest, shown)
            line = max(line, end + 1)
        self._files[path] = (changes, [*spans[1 - MAX_SPANS :], (first, last, step)])
        keep_newest(self._files, MAX_FILES)
        return newest if known >= KNOWN_LINES * (last - first + 1) else 0
