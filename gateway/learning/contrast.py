"""Contrast of runs: what worked after a failure, and what successful runs do, as a difference of
frequencies between the runs that did it and those that did not. Pure.

A *move* is one thing that may be done before a call or in it, in words that belong to no task: a
look-up before it, a parameter or option more or less, a value of a closed set, another program. A
neighbour in one run is no cause: a move counts by how often the call then worked, over all runs,
against the attempts without it; and what successful runs do by the outcomes of both groups.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

from gateway.learning.gate import NAMES_AGREE, language, refusal
from gateway.learning.reading import WINDOW_CALLS, ReadCallOfRun, command_of, parse, program_of
from gateway.steering.evidence.results import EMPTY, is_look_up

MATTERS = 0.1  # difference of rates from which a move is worth a lesson
SURE = 0.9  # probability that the difference is there, for what answers a failure
FALSE_LESSONS = 0.1  # share of what successful runs do that may be chance (Benjamini-Hochberg)
LEAST_RUNS = 5  # runs with known outcomes in each group
MOST_RUNS = 500  # newest runs of a workload that are compared
_MOST_MOVES = 8  # of one attempt
_CLOSED_SET = 6  # values of a parameter, with which it may be an enumeration


class Move(NamedTuple):
    """One thing that was done: its kind in `language.toml`, and the names in its text."""

    kind: str
    name: str
    value: str = ""


def said(move: Move, head: str = "") -> str:
    """The instruction to make a move, for the tool or program that failed."""
    program = move.kind in ("step", "check") and move.name.startswith("$")
    text: str = language()["texts"][f"{move.kind}_of_program" if program else move.kind]
    return text.format(**_shown(move, head))


def sayable(move: Move, head: str = "") -> bool:
    """Whether the instruction passes the gate: tools declare their names, a shell does not."""
    known = [move.value] if "$" in head + move.name else _shown(move, head).values()
    return refusal(said(move, head), known=known) is None


def _shown(move: Move, head: str) -> dict[str, str]:
    parts = {"head": head, "name": move.name, "value": move.value}
    return {key: text.lstrip("$") for key, text in parts.items()}


class Attempt(NamedTuple):
    """A call that failed, or one after a failure of the same tool or program (`again`): the key,
    the moves since, and whether it worked."""

    key: str
    moves: frozenset[Move]
    worked: bool
    again: bool = True


def attempts_of(calls: Sequence[ReadCallOfRun]) -> Iterator[Attempt]:
    """The attempts of a run: at each call the open failures of its tool or program are tried."""
    failed: dict[str, dict[str, int]] = defaultdict(dict)
    for at, call in enumerate(calls):
        head, key = call.reading.head, call.key
        if call.reading.transient:
            continue
        open_keys = {
            known: n
            for known, n in failed[head].items()
            if at - n <= WINDOW_CALLS and (not head.startswith("$") or _shared(calls[n], call))
        }
        for known in open_keys:
            last = max(open_keys.values())
            moves = [*_changes(calls[last], call), *_looks(calls[last + 1 : at], known)]
            yield Attempt(known, frozenset(moves[:_MOST_MOVES]), key is None)
        if key is None:
            failed[head] = {k: n for k, n in failed[head].items() if k not in open_keys}
            continue
        if key not in failed[head]:
            yield Attempt(key, frozenset(), False, again=False)
            yield from _others(calls[at : at + 1 + WINDOW_CALLS], key)
        failed[head][key] = at


def _others(calls: Sequence[ReadCallOfRun], key: str) -> Iterator[Attempt]:
    """Attempts with another program where one is missing, or another look-up with the same
    arguments where one found nothing."""
    failed = calls[0].reading
    kind = key.partition("|")[0]
    for other in calls[1:]:
        reading, move = other.reading, None
        if reading.transient or reading.head == failed.head:
            continue
        if kind == "missing_command" and reading.head.startswith("$"):
            name = program_of(command_of(other.action.arguments) or "")
            if name and name not in _SHELLS and _shared(calls[0], other):
                move = Move("instead", name)
        elif kind == EMPTY and is_look_up(reading.call.operation):
            same = reading.call.canonical == failed.call.canonical
            move = Move("elsewhere", reading.head) if same else None
        if move is not None:
            yield Attempt(key, frozenset((move,)), other.works)
            return


def _shared(one: ReadCallOfRun, other: ReadCallOfRun) -> bool:
    """Whether two commands have the same purpose: a word besides the program is in both."""
    words = [_PLAIN.findall(command_of(each.action.arguments) or "") for each in (one, other)]
    return not words[0][1:] or bool(set(words[0][1:]) & set(words[1][1:]))


def _looks(between: Sequence[ReadCallOfRun], key: str) -> Iterator[Move]:
    """Look-ups that were made before an attempt, by tools: a script may do anything."""
    kind, head, _ = key.split("|", 2)
    for call in between:
        effect, other = call.reading.call.effect, call.reading.head
        looks = call.works and (effect.reads or effect.looks_up)
        if looks and other != head and not head.startswith("$") and kind != EMPTY:
            yield Move("before", other)


_OPTION = re.compile(r"(?<=\s)--?[A-Za-z][\w-]{0,23}(?=[\s=]|$)")
_ENTRY = re.compile(r"\b(?:python[\d.]*|node|ruby|php|bash|sh) (?:-m [\w.]+|[\w./-]+\.\w+)")
_VARIABLE = re.compile(r"(?:^|[\s;&])([A-Z][A-Z0-9_]{1,30})=\S")
_PLAIN = re.compile(r"(?<![\w-])[\w./]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,29}")  # digits may be a token
_VALUE = re.compile(r"[a-z_][a-z_-]{0,23}|\d{1,3}")
_SHELLS = frozenset(("bash", "sh", "zsh"))
_NO_OPTIONS = frozenset(("-c", "-m", "-e"))  # of interpreters: they begin another program


def _changes(before: ReadCallOfRun, after: ReadCallOfRun) -> Iterator[Move]:
    """What a call has that the one before it had not, and the reverse."""
    if before.reading.head.startswith("$"):
        old, new = (command_of(each.action.arguments) or "" for each in (before, after))
        entries = [_ENTRY.findall(text)[-1:] for text in (old, new)]
        if all(entries) and entries[0] != entries[1]:
            yield Move("entry", entries[0][0], entries[1][0])  # then options are another program's
            return
        for kind, sign in (("option", _OPTION), ("variable", _VARIABLE)):
            had, has = (set(sign.findall(text)) - _NO_OPTIONS for text in (old, new))
            yield from (Move(kind, name) for name in sorted(has - had))
            if kind == "option":
                yield from (Move("no_option", name) for name in sorted(had - has))
        return
    first, second = parse(before.action.arguments), parse(after.action.arguments)
    if first is None or second is None:
        return
    for name in (name for name in {**first, **second} if _NAME.fullmatch(name)):
        if name not in first or name not in second:
            yield Move("with" if name in second else "without", name)
        elif first[name] != second[name]:
            given = second[name]
            value = str(given).lower() if isinstance(given, bool) else str(given)
            yield from [Move("value", name, value)] if _VALUE.fullmatch(value) else ()


class Practice(NamedTuple):
    """A move that successful runs make, the difference of the success rates, and its chance."""

    move: Move
    effect: float
    chance: float


@dataclass(slots=True)
class _Run:
    task: str
    success: bool | None
    attempts: tuple[Attempt, ...]
    moves: frozenset[Move]
    heads: frozenset[str]


@dataclass(slots=True)
class Contrast:
    """The runs of one workload that were read, the newest `MOST_RUNS`."""

    runs: dict[str, _Run] = field(default_factory=dict)

    def add(
        self, run_id: str, calls: Sequence[ReadCallOfRun], *, task: str, success: bool | None
    ) -> None:
        """Add a run, in place of what was known of it."""
        self.runs.pop(run_id, None)
        heads = frozenset(call.reading.head for call in calls)
        self.runs[run_id] = _Run(task, success, tuple(attempts_of(calls)), _practised(calls), heads)
        if len(self.runs) > MOST_RUNS:
            del self.runs[next(iter(self.runs))]

    def lift(self, key: str, move: Move) -> tuple[float, float]:
        """Difference of the rates at which attempts after a failure worked, with the move and
        without it, and the probability that it is above 0. Every run counts once in each arm.
        While few runs had this very failure, those of the same tool and kind count as well."""
        prefix = key if self._with(key) >= LEAST_RUNS else f"{key.rpartition('|')[0]}|"
        arms: dict[bool, list[float]] = {True: [], False: []}
        for run in self.runs.values():
            made = [each for each in run.attempts if each.key.startswith(prefix)]
            for arm, rates in arms.items():
                tried = [e.worked for e in made if e.again and (move in e.moves) is arm]
                if made and not (tried or arm):
                    tried = [False]  # the call that failed was made without the move
                rates += [sum(tried) / len(tried)] if tried else []
        given, held = ((sum(arms[arm]) + 1) / (len(arms[arm]) + 2) for arm in (True, False))
        variance = given * (1 - given) / (len(arms[True]) + 3)
        variance += held * (1 - held) / (len(arms[False]) + 3)
        return given - held, 1.0 - NormalDist(given - held, math.sqrt(variance)).cdf(0.0)

    def holds(self, key: str, move: Move) -> bool:
        """Whether the runs bear out that the move helps after this failure."""
        effect, sure = self.lift(key, move)
        return effect >= MATTERS and sure >= SURE

    def alone(self, key: str) -> bool:
        """Whether no other run had the failure, so that there is nothing to compare."""
        return self._with(key) < 2

    def _with(self, key: str) -> int:
        return sum(any(each.key == key for each in run.attempts) for run in self.runs.values())

    def agreed(self, move: Move) -> bool:
        """Whether the move's value belongs to a closed set: few values, used on enough tasks."""
        tasks: dict[str, set[str]] = defaultdict(set)
        for run in self.runs.values():
            for each in (each for attempt in run.attempts for each in attempt.moves):
                if each[:2] == move[:2]:
                    tasks[each.value].add(run.task)
        return len(tasks) <= _CLOSED_SET and len(tasks[move.value]) >= NAMES_AGREE

    def practices(self) -> list[Practice]:
        """What successful runs do more often than others, with false discoveries under control.
        A move before a call is compared among the runs that made this call."""
        known = [run for run in self.runs.values() if run.success is not None]
        found = [
            practice
            for move in sorted({move for run in known for move in run.moves})
            if (practice := _practice(move, known)) is not None
        ]
        found.sort(key=lambda each: each.chance)
        passing = [
            rank
            for rank, each in enumerate(found, start=1)
            if each.chance <= FALSE_LESSONS * rank / len(found)
        ]
        return [each for each in found[: max(passing, default=0)] if each.effect >= MATTERS]


def _practised(calls: Sequence[ReadCallOfRun]) -> frozenset[Move]:
    """The look-ups that a run made: at all, before each other tool that changes something, and
    after its last change."""
    looks: dict[str, int] = {}
    changes: dict[str, int] = {}
    for at, call in enumerate(calls):
        effect = call.reading.call.effect
        if not call.works:
            continue
        if effect.changes or call.reading.call.edits:
            changes.setdefault(call.reading.head, at)
        elif effect.reads or effect.looks_up or call.reading.call.program is not None:
            looks.setdefault(call.reading.head, at)
    last = max((at for at, call in enumerate(calls) if call.reading.head in changes), default=-1)
    checks = {call.reading.head for call in calls[last + 1 :] if call.works} & set(looks)
    return frozenset(
        {Move("step", look) for look in looks}
        | {Move("check", look) for look in checks if changes}
        | {Move("order", x, y) for x in looks for y in changes if looks[x] < changes[y]}
    )


def _practice(move: Move, runs: Sequence[_Run]) -> Practice | None:
    """The Mantel-Haenszel difference of success with and without a move, over tasks that were run
    both ways, or over all runs where few were; None with too few runs."""
    among = [run for run in runs if move.kind != "order" or move.value in run.heads]
    tasks = [run.task for run in among if move in run.moves]
    if min(len(tasks), len(among) - len(tasks)) < LEAST_RUNS or len(set(tasks)) < 2:
        return None
    by_task: dict[str, list[_Run]] = defaultdict(list)
    for run in among:
        by_task[run.task].append(run)
    both = [g for g in by_task.values() if 0 < sum(move in run.moves for run in g) < len(g)]
    total = weighted = variance = 0.0
    for stratum in both if len(both) >= LEAST_RUNS else [among]:
        given = [bool(run.success) for run in stratum if move in run.moves]
        held = [bool(run.success) for run in stratum if move not in run.moves]
        weight = len(given) * len(held) / len(stratum)
        rate = (sum(given) + sum(held) + 0.5) / (len(stratum) + 1)
        weighted += weight * (sum(given) / len(given) - sum(held) / len(held))
        variance += weight * rate * (1 - rate)
        total += weight
    effect = NormalDist(weighted / total, math.sqrt(variance) / total)
    return Practice(move, effect.mean, effect.cdf(0.0))


def best_move(attempt: Attempt, head: str, contrast: Contrast) -> Move | None:
    """Of the moves of an attempt that may be said the one that the runs bear out best, else the
    plainest; a value or script only if it belongs to a closed set."""
    plain = list(language()["texts"])

    def order(move: Move) -> tuple[float, int, Move]:
        return contrast.lift(attempt.key, move)[0], -plain.index(move.kind), move

    closed = (
        move
        for move in attempt.moves
        if not move.value or move.value in ("true", "false") or contrast.agreed(move)
    )
    return max((move for move in closed if sayable(move, head)), key=order, default=None)
