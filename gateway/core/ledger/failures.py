"""Failures of calls: recognises a failure, the calls that try again, and what settles it."""

import re

from gateway.core.ledger.entries import Ending, Entry
from gateway.core.step import Action, ActionFacts

LEAST_WORDS = 2  # words of a failure that says by itself what failed
SHOWN_CHARS = 600  # end of a result in which the place of a failure is looked for
_DIGITS = re.compile(r"\d+(?:\.\d+)*")
_FAILING = re.compile(
    r"(\d+) (?:\w+ )?(?:failed|failing|errors?|failures?)\b|(?:failures|errors)(?:=|: )(\d+)"
    r"|\A(\d+) x /"
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


def failure_key(action: Action, facts: ActionFacts) -> str:
    """The key of a call's failure: its words, its file, and the call itself where these say
    little."""
    failure = facts.failure or ""
    words = _DIGITS.sub("#", _SEVERAL.sub("", _TAG.sub("", failure), 1))
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
