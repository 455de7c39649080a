"""Exact failures of one run, and what ended each of them. Pure.

A failure ends when a later call on the same object works. The one thing that was done in between
ended it, or the one difference between the two calls; where there are two, the run does not show
which. What was done before the same failure came again did not help. Names of tools, options and
arguments are said; values never are, because they belong to one task."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from gateway.features.learning.gate import vocabulary
from gateway.features.learning.reading import WINDOW_CALLS, ReadCallOfRun
from gateway.features.learning.verdicts import is_test
from gateway.steering.evidence.commands import PLUMBING, ReadCall, parsed
from gateway.steering.evidence.failure_keys import Failure
from gateway.steering.evidence.results import EMPTY
from gateway.steering.transcript.content import is_turned_down
from gateway.values import frozen
from gateway.wire.coerce import as_mapping

BY_ITSELF = "The same call worked later, with nothing but looks and pauses in between."
# Stands for a value of one task without which the words do not say what to do.
HOLE = "<...>"
AGAIN = "before you make the same call again"
WAIT = f"Wait {AGAIN}."
EDIT = f"Edit {HOLE} {AGAIN}."
_OPTION = re.compile(r"(--?[A-Za-z][\w-]{0,40})(?:=.*)?|([A-Z_][A-Z0-9_]{0,40})=.*")
_NAME = re.compile(r"[A-Za-z_][\w.+-]{0,60}")
_SUB_COMMAND = re.compile(r"[a-z][a-z-]{1,23}")
_WORD = re.compile(r"[^\W\d_]{2,}")
_SIGN = re.compile(r"[|;&<>`$(){}*'\"\n]")  # in a command that is more than its words
MOST_OPEN = 16  # failures of a run that are open, the newest ones
MOST_TRIES = 8  # tries of one failure that are compared, the newest ones
MOST_FOUND = 64  # things that one run can teach
_MOST_NAMES = 32  # arguments of a call that are compared
_CHARS = 4000  # of a command, and of arguments, that are read
_ASKS = frozenset(("--help", "-h", "--version"))


@frozen
class Ended:
    """A thing that ended a failure, or was no help against it."""

    failure: Failure  # that of the first try
    move: str  # what was done, without values; with HOLE it does not say what to do
    step: int  # of the call that showed it
    helped: bool = True  # False: the same failure came again
    other: str = ""  # the tool in whose place another one was called; "" for none


@frozen
class _Call:
    """A call in the parts by which it is compared."""

    of_run: ReadCallOfRun  # as learning reads it
    read: ReadCall  # its operation, objects and effect
    head: str  # the tool's name, or the program as the command spells it
    named: Mapping[str, str]  # values of arguments, options and variables, by name
    rest: frozenset[str]  # words of a command that have no name, without the program
    sub: str  # the first of them, if it can be a sub-command
    hole: bool  # no earlier call of the run has the words of its values
    looks: bool  # it only shows something

    def varies(self, other: "_Call") -> bool:
        """True if it is a call of the same tool on the same object."""
        if self.head != other.head or self.looks != other.looks:
            return False
        if self.read.command:
            more = self.rest >= other.rest or self.rest <= other.rest
            return self.rest == other.rest or (more and self.named.keys() != other.named.keys())
        values = frozenset(other.named.values())
        return self.named == other.named or not values.isdisjoint(self.named.values())

    def replaces(self, other: "_Call") -> bool:
        """True if it is a call of another tool on the same object."""
        if self.head == other.head or self.looks != other.looks or self.read.edits:
            return False
        if bool(self.read.command) != bool(other.read.command):
            return False
        own = self.read.question.objects
        failed = other.read.question.objects
        tests = is_test(self.of_run) and is_test(other.of_run) and not own
        return tests or (bool(failed) and failed <= own and self.rest == other.rest)


def _read(call: ReadCallOfRun, seen: set[str]) -> _Call:
    """The parts of a call. `seen`: the words of the run's earlier calls; its own are added."""
    read = call.reading.call
    found = [
        (word, _OPTION.fullmatch(word)) for word in PLUMBING.sub("", read.command[:_CHARS]).split()
    ]
    named = {each[1] or each[2]: word for word, each in found if each}
    head, *rest = [word for word, each in found if each is None] or [read.operation]
    values = rest[1:]
    if not read.command:
        arguments = as_mapping(parsed(call.action.arguments))
        kept = islice(arguments.items(), _MOST_NAMES)
        named = {name: str(value) for name, value in kept if _NAME.fullmatch(name)}
        values = [*named.values()]
    new = set(_WORD.findall(" ".join(values)[:_CHARS].lower())) - seen
    seen.update(_WORD.findall(call.action.arguments[:_CHARS].lower()))
    asks = read.effect.reads or read.effect.looks_up or read.effect.plans
    return _Call(
        of_run=call,
        read=read,
        head=head,
        named=named,
        rest=frozenset(rest),
        sub=next(filter(_SUB_COMMAND.fullmatch, rest[:1]), ""),
        hole=bool(new or _SIGN.search(read.command)),
        looks=asks or not _ASKS.isdisjoint(named),
    )


def _difference(tried: _Call, call: _Call) -> tuple[str, list[str]]:
    """The words for the difference of two calls of one tool on one object, "" for none; the values
    that are other ones."""
    parts = [f"with `{name}`" for name in call.named if name not in tried.named]
    parts += [f"without `{name}`" for name in tried.named if name not in call.named]
    values = []
    for name, value in call.named.items():
        before = tried.named.get(name, value)
        if "\t" in value and "\t" not in before and value.split() == before.split():
            parts.append(f"with tabs in `{name}`")
        elif value != before:
            parts.append(f"with `{name}` {HOLE}")
            values.append(value)
    if not parts:
        return "", []
    return f"Make the same call {', '.join(parts)}.", values


@dataclass(slots=True)
class _Open:
    """A failure that is open."""

    failure: Failure  # that of the first try
    tries: list[_Call]  # the calls that failed so
    # calls since the newest try that did not fail
    between: list[_Call] = field(default_factory=list)

    def change(self, call: _Call) -> tuple[str, list[str]] | None:
        """The difference from the most similar try; None for a call on another object."""
        found = [_difference(tried, call) for tried in self.tries if call.varies(tried)]
        return min(found, key=lambda each: (HOLE in each[0], len(each[0])), default=None)

    def moves(self) -> set[str]:
        """The things done since the newest try, without those that only show something."""
        return {self._move(call) for call in self.between if not call.looks}

    def _move(self, call: _Call) -> str:
        """A call in words, with HOLE where a value says what to do."""
        if call.read.effect.waits:
            return WAIT
        if call.read.edits:
            return EDIT
        words = [_shown(call.head)]
        sub: set[str] = set()
        if call.read.command:
            sub = {call.sub} - {"", *chain.from_iterable(each.rest for each in self.tries)}
            words += [*sub, *call.named]
            hidden = (call.rest and not sub) or call.head in vocabulary("passed")
        else:
            hidden = call.head == self.tries[0].head
        if call.rest - sub:
            words.append("...")
        said = f"Call `{' '.join(words)}` {AGAIN}"
        if hidden or call.hole:
            said += f" with {HOLE}"
        return f"{said}."

    def failed_again(self, call: _Call) -> Iterator[Ended]:
        """The things done in vain before this failing call."""
        vain = self.moves()
        if change := self.change(call):
            vain.add(change[0])
        for move in vain - {""}:
            yield Ended(failure=self.failure, move=move, step=call.of_run.step, helped=False)

    def ended(self, call: _Call) -> Iterator[Ended]:
        """The one thing that ended it, as a call on its object works; nothing for several."""
        moves = self.moves()
        other = ""
        if change := self.change(call):
            move, values = change
            sources = [
                each
                for each in self.between
                if values and all(v in each.of_run.action.observation for v in values)
            ]
            if sources:
                source = self._move(sources[-1])
                moves.discard(source)
                move = f"{source} Use what it gives."
            moves |= {move} - {""}
        else:
            other = self.tries[-1].head
            moves.add(f"Use `{_shown(call.head)}` instead of `{_shown(other)}`.")
        if moves <= {WAIT}:
            moves = {BY_ITSELF}
        if len(moves) == 1 and EDIT not in moves:
            move = moves.pop()
            yield Ended(failure=self.failure, move=move, step=call.of_run.step, other=other)


def _shown(head: str) -> str:
    """A tool or a program; HOLE for a path."""
    if _NAME.fullmatch(head):
        return head
    return HOLE


def endings(calls: Sequence[ReadCallOfRun]) -> list[Ended]:
    """The things that ended failures of a run or were no help, each with the step that showed it.
    A tool that took the place of another one counts if the run does not call the other one later.
    """
    opened: list[_Open] = []
    found: list[Ended] = []
    seen: set[str] = set()
    for each in calls:
        call = _read(each, seen)
        found = [ended for ended in found if ended.other != call.head]
        failure = each.reading.failure
        if is_turned_down(each.action.observation.strip()):
            continue
        if failure is None:
            found += _closed(opened, call)
        elif failure.kind != EMPTY:
            same = [entry for entry in opened if entry.failure.key == failure.key]
            again = [entry for entry in same if entry.change(call)]
            for entry in again:
                found += entry.failed_again(call)
                entry.tries = [*entry.tries[1 - MOST_TRIES :], call]
                entry.between.clear()
            if not again:
                opened.append(_Open(failure, [call]))
                del opened[:-MOST_OPEN]
        del found[MOST_FOUND:]
    return found


def _closed(opened: list[_Open], call: _Call) -> Iterator[Ended]:
    """Show a call that did not fail to the open failures, and close those that it ends."""
    for entry in [*opened]:
        found = entry.change(call) or any(call.replaces(tried) for tried in entry.tries)
        ends = found and not call.of_run.reading.transient
        if ends and call.of_run.step > entry.tries[-1].of_run.step:
            yield from entry.ended(call)
        entry.between.append(call)
        if ends or len(entry.between) > WINDOW_CALLS:
            opened.remove(entry)
