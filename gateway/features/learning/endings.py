"""Exact failures of one run, and what ended each of them. Pure.

A failure ends when a later call on the same object works. The one thing that was done in between
ended it, or the one difference between the two calls; where there are two, the run does not show
which. What was done before the same failure came again did not help. Names of tools, options and
arguments are said; values never are, because they belong to one task."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.features.learning.reading import PASSED, WINDOW_CALLS, ReadCallOfRun, parse
from gateway.features.learning.verdicts import is_test
from gateway.steering.evidence.commands import PLUMBING
from gateway.steering.evidence.failure_keys import Failure
from gateway.steering.evidence.results import EMPTY
from gateway.steering.transcript.content import is_turned_down
from gateway.values import frozen

BY_ITSELF = "The same call worked later, with nothing done in between."
HOLE = "<...>"
"""Stands for a value of one task without which the words do not say what to do."""
AGAIN = "before you make the same call again"
WAIT = f"Wait {AGAIN}."
EDIT = f"Edit {HOLE} {AGAIN}."
_OPTION = re.compile(r"(--?[A-Za-z][\w-]{0,40})(?:=.*)?|([A-Z_][A-Z0-9_]{0,40})=.*")
_NAME = re.compile(r"[A-Za-z_][\w.+-]{0,60}")
_SUB_COMMAND = re.compile(r"[a-z][a-z-]{1,23}")
_WORD = re.compile(r"[^\W\d_]{2,}")
_SIGN = re.compile(r"[|;&<>`$(){}*'\"\n]")  # in a command that is more than its words
_ASKS = frozenset(("--help", "-h", "--version"))


@frozen
class Ended:
    """A thing that ended a failure, or was no help against it."""

    failure: Failure  # that of the first try
    move: str  # what was done, without values; with HOLE it does not say what to do
    step: int  # of the call that showed it
    helped: bool = True  # False: the same failure came again


@frozen
class _Call:
    """A call in the parts by which it is compared."""

    of_run: ReadCallOfRun  # as learning reads it
    head: str  # the tool's name, or the program as the command spells it
    named: Mapping[str, str]  # values of arguments, options and variables, by name
    rest: Sequence[str]  # words of a command that have no name, behind the program
    hole: str  # " <...>" where no earlier call of the run has the words of its values
    looks: bool  # it only shows something

    @property
    def shell(self) -> bool:
        """True for a command line."""
        return bool(self.of_run.reading.call.command)

    def varies(self, other: "_Call") -> bool:
        """True if it is a call of the same tool on the same object."""
        if self.head != other.head or self.looks != other.looks:
            return False
        own = frozenset(self.rest)
        if self.named == other.named or (self.named.keys() == other.named.keys() and self.shell):
            return own == frozenset(other.rest)
        if self.shell:
            return own >= frozenset(other.rest) or own <= frozenset(other.rest)
        return not frozenset(self.named.values()).isdisjoint(other.named.values())

    def replaces(self, other: "_Call") -> bool:
        """True if it is a call of another tool on the same object."""
        own = self.of_run.reading.call.question.objects
        if self.head == other.head or self.looks != other.looks or self.shell != other.shell:
            return False
        if is_test(self.of_run) and is_test(other.of_run) and not own:
            return True
        objects = other.of_run.reading.call.question.objects
        same = bool(objects) and objects <= own and self.rest == other.rest
        return same and not self.of_run.reading.call.edits


def _read(call: ReadCallOfRun, seen: set[str]) -> _Call:
    """The parts of a call. `seen`: the words of the run's earlier calls; its own are added."""
    read = call.reading.call
    words = PLUMBING.sub("", read.command).split()
    found = [(word, _OPTION.fullmatch(word)) for word in words]
    named = {each[1] or each[2]: word for word, each in found if each}
    rest = [word for word, each in found if each is None]
    values = rest[2:]
    if not read.command:
        arguments = parse(call.action.arguments) or {}
        named = {name: str(value) for name, value in arguments.items() if _NAME.fullmatch(name)}
        values = [*named.values()]
    hole = ""
    if _SIGN.search(read.command) or set(_WORD.findall(" ".join(values).lower())) - seen:
        hole = f" {HOLE}"
    seen.update(_WORD.findall(call.action.arguments.lower()))
    asks = read.effect.reads or read.effect.looks_up or read.effect.plans
    return _Call(
        of_run=call,
        head=next(iter(rest), read.operation),
        named=named,
        rest=rest[1:],
        hole=hole,
        looks=asks or not _ASKS.isdisjoint(named),
    )


def _shown(head: str) -> str:
    """A tool or a program; HOLE for a path."""
    if _NAME.fullmatch(head):
        return head
    return HOLE


def _ticked(before: str, names: Collection[str], hole: str = "") -> list[str]:
    # Each name has its own word in front: so the gate reads it.
    return [f"{before} `{name}`{hole}" for name in names]


def _difference(tried: _Call, call: _Call) -> tuple[str, list[str]]:
    """The words for the difference of two calls of one tool on one object, "" for none; the values
    that are other ones."""
    if tried.named == call.named:
        return "", []
    added = [name for name in call.named if name not in tried.named]
    removed = [name for name in tried.named if name not in call.named]
    other = [n for n, value in call.named.items() if tried.named.get(n, value) != value]
    parts = _ticked("with", added) + _ticked("without", removed)
    if parts or any(call.named[n].split() != tried.named[n].split() for n in other):
        parts += _ticked("with", other, f" {HOLE}")
    elif all("\t" in call.named[n] and "\t" not in tried.named[n] for n in other):
        parts = _ticked("with tabs in", other)
    else:
        parts = _ticked("with other white space in", other)
    return f"Make the same call {', '.join(parts)}.", [call.named[name] for name in other]


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
        read = call.of_run.reading.call
        hole = call.hole
        if read.effect.waits:
            return WAIT
        if read.edits:
            return EDIT
        if not call.shell:
            if call.head == self.tries[0].head:
                hole = f" {HOLE}"
            names = _ticked("with", call.named, hole)
            return f"{', '.join((f'Call `{call.head}` {AGAIN}', *names))}."
        tried = {word for each in self.tries for word in each.rest}
        words = [w for w in call.rest[:1] if _SUB_COMMAND.fullmatch(w) and w not in tried]
        if call.head in PASSED or (call.rest and not words):
            hole = f" {HOLE}"
        if call.rest[len(words) :]:
            words.append("...")
        return f"Run `{' '.join((_shown(call.head), *call.named, *words))}` {AGAIN}{hole}."

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
        instead = f"Use `{_shown(call.head)}` instead of `{_shown(self.tries[-1].head)}`."
        move = instead
        values: list[str] = []
        if change := self.change(call):
            move, values = change
        sources = [each for each in self.between if values and _gives(each, values)]
        if sources:
            source = self._move(sources[-1])
            moves = {*moves - {source}, f"{source} Use what it gives."}
        elif move:
            moves.add(move)
        if moves <= {WAIT}:
            moves = {BY_ITSELF}
        if len(moves) == 1 and EDIT not in moves:
            yield Ended(failure=self.failure, move=moves.pop(), step=call.of_run.step)


def _gives(source: _Call, values: Collection[str]) -> bool:
    return all(value in source.of_run.action.observation for value in values)


def endings(calls: Sequence[ReadCallOfRun]) -> list[Ended]:
    """The things that ended failures of a run or were no help, each with the step that showed it.
    A tool that took the place of another one counts if the run does not call the other one later.
    """
    opened: list[_Open] = []
    found: list[tuple[Ended, str]] = []  # with the tool that may not be called any more
    seen: set[str] = set()
    for each in calls:
        call = _read(each, seen)
        found = [(ended, head) for ended, head in found if head != call.head]
        failure = each.reading.failure
        if is_turned_down(each.action.observation.strip()):
            continue
        if failure is None:
            found += _closed(opened, call)
        elif failure.kind != EMPTY:
            same = [entry for entry in opened if entry.failure.key == failure.key]
            again = [entry for entry in same if entry.change(call)]
            for entry in again:
                found += [(ended, "") for ended in entry.failed_again(call)]
                entry.tries.append(call)
                entry.between.clear()
            if not again:
                opened.append(_Open(failure, [call]))
    return [ended for ended, _ in found]


def _closed(opened: list[_Open], call: _Call) -> Iterator[tuple[Ended, str]]:
    """Show a call that did not fail to the open failures, and close those that it ends."""
    for entry in [*opened]:
        head = ""
        newest = entry.tries[-1]
        if entry.change(call) is None and any(call.replaces(tried) for tried in entry.tries):
            head = newest.head
        ends = entry.change(call) is not None or head
        if ends and not call.of_run.reading.transient:
            opened.remove(entry)
            if call.of_run.step > newest.of_run.step:
                yield from ((ended, head) for ended in entry.ended(call))
        elif len(entry.between) < WINDOW_CALLS:
            entry.between.append(call)
        else:
            opened.remove(entry)
