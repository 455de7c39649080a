"""Contrast of runs: what worked after a failure, and what successful runs do, as a difference of
frequencies between the runs that did it and those that did not. Pure.

A *move* is one thing that may be done before a call or in it, in words that belong to no task: a
look-up before it, a parameter or option more or less, a value of a closed set, another program. A
neighbour in one run is no cause: a move counts by how often the call then worked, over all runs,
against the attempts without it; and what successful runs do by the outcomes of both groups."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import NormalDist
from typing import Any, NamedTuple

from gateway.learning.gate import NAMES_AGREE, language, refusal, vocabulary
from gateway.learning.reading import (
    WINDOW_CALLS,
    ReadCallOfRun,
    command_of,
    parse,
    program_of,
    programs_of,
)
from gateway.steering.evidence.results import EMPTY, is_look_up

MATTERS = 0.1  # difference of rates from which a move is worth a lesson
SURE = 0.99  # probability that the difference is there: several moves are compared at each run
LIKELY = 0.9  # from which a move is a candidate, which nothing supports yet
NEEDED_RUNS = 2  # with the move, for its difference to count
LEAST_RUNS = 5  # with one failure: then no other of its tool and kind is compared
STALE_AFTER = 10
"""Runs in a row in which a lesson's move has failed, after which it no longer holds: a move that
works in half of its runs gets there once in 2,046 of them."""
MOST_RUNS = 500  # newest runs of a workload that are compared
_MOST_MOVES = 8  # of one attempt
_CLOSED_SET = 6  # values of a parameter, with which it may be an enumeration


class Move(NamedTuple):
    """One thing that was done: its kind in `language.toml`, and the names in its text."""

    kind: str
    name: str
    value: str = ""


def said(move: Move, head: str, *, agreed: bool = True) -> str:
    """The instruction to make a move, for the tool or program that failed; "" if the gate refuses
    it: tools declare their names, a shell does not. `agreed`: enough tasks used its names."""
    parts = {"head": head.lstrip("$"), "name": move.name.lstrip("$"), "value": move.value}
    text: str = language()["texts"][move.kind].format(**parts)
    known = parts.values() if agreed or "$" not in head + move.name else (move.value,)
    return "" if refusal(text, known=known) else text


class Attempt(NamedTuple):
    """A call that failed, or one after a failure of the same tool or program (`again`): the key,
    the moves since, and whether it worked."""

    key: str
    moves: frozenset[Move]
    worked: bool
    again: bool = True

    def in_arm(self, move: Move | None) -> bool | None:
        """Whether it was made with the move; None for one with another tool altogether."""
        other = move not in self.moves and any(each.kind == "rather" for each in self.moves)
        return None if other else move in self.moves


def attempts_of(calls: Sequence[ReadCallOfRun], success: bool | None = None) -> Iterator[Attempt]:
    """The attempts of a run: at each call the open failures of its tool or program are tried.
    `success`: of the run, if it is known."""
    failed: dict[str, dict[str, int]] = defaultdict(dict)
    for at, call in enumerate(calls):
        head, key = call.reading.head, call.key
        if call.reading.transient or _ASKS.search(command_of(call.action.arguments) or ""):
            continue
        open_keys = {
            known: n
            for known, n in failed[head].items()
            if at - n <= WINDOW_CALLS and _again(calls[n], call)
        }
        for known in open_keys:
            last = max(open_keys.values())
            moves = [*_changes(calls[last], call), *_before(calls[last + 1 : at], call, known)]
            yield Attempt(known, frozenset(moves[:_MOST_MOVES]), key is None)
        if key is None:
            failed[head] = {k: n for k, n in failed[head].items() if k not in open_keys}
            continue
        if key not in failed[head]:
            yield Attempt(key, frozenset(), False, again=False)
        if key not in failed[head] or key.startswith("missing_command|"):
            yield from _others(calls[at:], key, success)  # what stands in for it may come late
        failed[head][key] = at


def _others(calls: Sequence[ReadCallOfRun], key: str, success: bool | None) -> Iterator[Attempt]:
    """Attempts with another tool or program: where one is missing, where a look-up found nothing,
    and in place of a call that was not made again in a run that succeeded, or did not."""
    failed, kind = calls[0].reading, key.partition("|")[0]
    tries = [n for n, call in enumerate(calls) if _again(calls[0], call)]
    for at, other in enumerate(calls[1 : 1 + WINDOW_CALLS], start=1):
        reading, name = other.reading, label_of(other)
        if kind == "missing_command":
            name = name or _swapped(failed.head, reading.head)
        if not name or reading.transient or reading.head == failed.head:
            continue
        if kind == "missing_command" and reading.head.startswith("$"):
            looks = reading.call.effect.reads and not failed.call.effect.reads
            if _shared(calls[0], other) and not looks:
                yield Attempt(key, frozenset((Move("instead", name),)), other.works)
                return
        elif kind == EMPTY and is_look_up(reading.call.operation):
            if reading.call.canonical == failed.call.canonical:
                yield Attempt(key, frozenset((Move("elsewhere", reading.head),)), other.works)
                return
        elif other.works and success is not None and _alike(calls[0], other):
            worked = success and tries[-1] < at
            yield Attempt(key, frozenset((Move("rather", name),)), worked)


def _swapped(gone: str, head: str) -> str:
    """The program that stands in for a missing one although it has no name as a move otherwise: it
    searches, or is another version, as `python3` of `python`."""
    same = head.startswith("$") and (head.startswith(gone) or gone.startswith(head))
    return head.lstrip("$") if same or head == "$grep" else ""


def _alike(one: ReadCallOfRun, other: ReadCallOfRun) -> bool:
    """Whether two calls of different tools or programs may have the same purpose."""
    first, second = one.reading, other.reading
    if first.head.startswith("$") or second.head.startswith("$"):
        settles = first.call.effect.settles and second.call.effect.settles
        both = first.head[:1] == second.head[:1]
        return both and (settles or (not second.call.effect.reads and _shared(one, other)))
    values = [parse(each.action.arguments) or {} for each in (one, other)]
    shared = {str(value) for value in values[0].values()} & {str(v) for v in values[1].values()}
    return bool(shared) and is_look_up(first.head) == is_look_up(second.head)


def _again(one: ReadCallOfRun, other: ReadCallOfRun) -> bool:
    """Whether a call does what an earlier one did: the same tool, or the same sub-command."""
    if one.reading.head != other.reading.head:
        return False
    names, others = (programs_of(command_of(c.action.arguments) or "") for c in (one, other))
    if not one.reading.head.startswith("$") or not names:
        return True
    program, _, sub = names[-1].partition(" ")
    same = (n in (program, names[-1]) if sub else n.split()[0] == program for n in others)
    return any(same) and _shared(one, other)


def _shared(one: ReadCallOfRun, other: ReadCallOfRun) -> bool:
    """Whether two commands have the same purpose: a word besides the program is in both."""
    words = [_PLAIN.findall(command_of(each.action.arguments) or "") for each in (one, other)]
    return not words[0][1:] or bool(set(words[0][1:]) & set(words[1][1:]))


def label_of(call: ReadCallOfRun) -> str:
    """The name of a tool, or of a program with its sub-command; "" for a script."""
    if not call.reading.head.startswith("$"):
        return call.reading.head
    command = command_of(call.action.arguments) or ""
    name = program_of(command)
    return "" if name in _SHELLS or _ENTRY.search(command) else name


def _step(call: ReadCallOfRun) -> str:
    """The name of a call that may have to be made; "" for what changes files or only shows some,
    which is the work itself, for a thought, and for a script, which may do anything."""
    effect, shell = call.reading.call.effect, call.reading.head.startswith("$")
    work = effect.changes or call.reading.call.edits or effect.plans or (shell and effect.reads)
    thought = not shell and _THOUGHTS.match(call.reading.head)
    return "" if work or thought or not call.works else label_of(call)


def _before(between: Sequence[ReadCallOfRun], call: ReadCallOfRun, key: str) -> Iterator[Move]:
    """Calls that were made before an attempt: no script's, nor where all look on for something."""
    script = call.reading.head.lstrip("$") in _SHELLS
    for other in between if not (script or key.startswith(f"{EMPTY}|")) else ():
        if (name := _step(other)) and not _again(call, other):
            yield Move("before_program" if other.reading.head.startswith("$") else "before", name)


_OPTION = re.compile(r"(?<=\s)--?[A-Za-z][\w-]{0,23}(?=[\s=]|$)")
_ENTRY = re.compile(r"\b(?:python[\d.]*|node|ruby|php|bash|sh) (?:-m [\w.]+|[\w./-]+\.\w+)")
_VARIABLE = re.compile(r"(?:^|[\s;&])([A-Z][A-Z0-9_]{1,30})=\S")
_PLAIN = re.compile(r"(?<![\w-])[\w./]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,29}")  # digits may be a token
_VALUE = re.compile(r"(?:[a-z_][a-z_-]{0,23}|[A-Z][A-Z_-]{1,23})\d{0,2}|\d{1,3}")
_ADVISED = re.compile(r"--?[A-Za-z][\w-]*|\w++(?:[.-]++\w++)*+")
_SHELLS = frozenset(("bash", "sh", "zsh", "python", "python3", "node", "ruby", "perl"))
_THOUGHTS = re.compile(r"(?:think|thought|reflect|plan|note)(?:$|_)", re.IGNORECASE)
_ASKS = re.compile(r"\s(?:--help|--version|-h)(?=\s|$)")
_SCRIPT = re.compile(r"/|\.(?:[a-z]?sh|py|[cm]?[jt]s|rb|pl|php)(?=\s|$)")
_NO_OPTIONS = frozenset(("-c", "-m", "-e"))  # of interpreters: they begin another program


def _changes(before: ReadCallOfRun, after: ReadCallOfRun) -> Iterator[Move]:
    """Parts of a call that the one before it had not, and the reverse."""
    if before.reading.head.startswith("$"):
        old, new = (command_of(each.action.arguments) or "" for each in (before, after))
        entries = [_ENTRY.findall(text)[-1:] for text in (old, new)]
        if all(entries) and entries[0] != entries[1]:
            yield Move("entry", entries[0][0], entries[1][0])  # then options are another program's
            return
        for kind, sign in (("option", _OPTION), ("variable", _VARIABLE)):
            if kind == "option" and before.reading.head.lstrip("$") in _SHELLS:
                continue  # they are a module's or script's
            had, has = (set(sign.findall(text)) - _NO_OPTIONS for text in (old, new))
            yield from (Move(kind, name) for name in sorted(has - had))
            if kind == "option":
                yield from (Move("no_option", name) for name in sorted(had - has))
        return
    first, second = parse(before.action.arguments), parse(after.action.arguments)
    if first is None or second is None:
        return
    names = [name for name in {**first, **second} if _NAME.fullmatch(name)]
    for gone, name in product(first.keys() - second.keys(), second.keys() - first.keys()):
        if first[gone] == second[name] and {gone, name} <= set(names):
            yield Move("renamed", gone, name)
    for name in names:
        if name not in first or name not in second:
            yield Move("with" if name in second else "without", name)
        elif first[name] != second[name] and _plain(first[name]) == _plain(second[name]):
            yield Move("space", name)
        elif first[name] != second[name]:
            given = second[name]
            value = str(given).lower() if isinstance(given, bool) else str(given)
            yield from [Move("value", name, value)] if _VALUE.fullmatch(value) else ()


def _plain(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value)


class _Run(NamedTuple):
    task: str
    attempts: tuple[Attempt, ...]
    at: float


@dataclass(slots=True)
class Contrast:
    """The runs of one workload that were read, the newest `MOST_RUNS`."""

    runs: dict[str, _Run] = field(default_factory=dict)

    def add(
        self,
        run_id: str,
        calls: Sequence[ReadCallOfRun],
        *,
        task: str,
        success: bool | None,
        at: float = 0.0,
    ) -> None:
        """Add a run, in place of what was known of it. `at`: time of its last call, in seconds."""
        self.runs.pop(run_id, None)
        self.runs[run_id] = _Run(task, tuple(attempts_of(calls, success)), at)
        if len(self.runs) > MOST_RUNS:
            del self.runs[next(iter(self.runs))]

    def until(self, at: float) -> "Contrast":
        """The runs up to a time: one that is read again, also after a restart, is judged as it was
        the first time."""
        return Contrast({name: run for name, run in self.runs.items() if run.at <= at})

    def lifts(self, key: str) -> dict[Move, tuple[float, float]]:
        """By move of an attempt that worked: the difference of the rates at which attempts after
        the failure worked, with the move and without it, and the probability that it is above 0.
        Every run counts once in each arm; the call that failed was made without the move. While
        few runs had this very failure, those of the same tool and kind count as well."""
        prefix = key if self.met(key) >= LEAST_RUNS else f"{key.rpartition('|')[0]}|"
        runs = [[e for e in run.attempts if e.key.startswith(prefix)] for run in self.runs.values()]
        runs = [run for run in runs if run]
        all_held, rates = sum(map(_rate, runs)), dict[Move, list[tuple[float, float]]]()
        for run in runs:
            for move in {move for each in run for move in each.moves}:
                change = _rate(run, move, made=False) - _rate(run)
                rates.setdefault(move, []).append((_rate(run, move), change))
        return {
            move: _difference([w for w, _ in both], all_held + sum(c for _, c in both), len(runs))
            for move, both in rates.items()
        }

    def holds(self, key: str, move: Move, least: float = SURE) -> bool | None:
        """Whether the runs bear out that the move helps after this failure, and no other more; None
        while there are too few."""
        lifts = self.lifts(key)
        effect, sure = lifts.get(move, (0.0, 0.0))
        best = max((lift for lift, _ in lifts.values()), default=0.0)
        if effect < max(MATTERS, best - MATTERS / 2):
            return False
        return True if sure >= least else None

    def stale(self, run_id: str) -> set[tuple[str, Move]]:
        """Failures and moves of that run that failed in the newest `STALE_AFTER` runs with them."""
        runs = sorted(self.runs.values(), key=lambda run: run.at)
        tried = {(each.key, move) for each in self.runs[run_id].attempts for move in each.moves}
        found = set[tuple[str, Move]]()
        for key, move in tried:
            made = [
                [e.worked for e in r.attempts if e.key == key and move in e.moves] for r in runs
            ]
            newest = [worked for worked in made if worked][-STALE_AFTER:]
            if len(newest) == STALE_AFTER and not any(map(any, newest)):
                found.add((key, move))
        return found

    def met(self, key: str) -> int:
        """The number of runs that had the failure."""
        return sum(any(each.key == key for each in run.attempts) for run in self.runs.values())

    def agreed(self, move: Move) -> bool:
        """Whether enough tasks made the move, and its value belongs to a closed set of few."""
        tasks: dict[str, set[str]] = defaultdict(set)
        for run in self.runs.values():
            for each in (each for attempt in run.attempts for each in attempt.moves):
                if each[:2] == move[:2]:
                    tasks[each.value].add(run.task)
        few = not move.value or len(tasks) <= _CLOSED_SET
        return few and len(tasks[move.value]) >= NAMES_AGREE


def _rate(run: Sequence[Attempt], move: Move | None = None, *, made: bool = True) -> float:
    """The share of the attempts with or without a move that worked; without one, of all that were
    not made with another tool."""
    arm = [e.worked for e in run if e.again and (e.in_arm(move) is (made and move is not None))]
    return sum(arm) / len(arm) if arm else 0.0


def _difference(given: Sequence[float], held: float, runs: int) -> tuple[float, float]:
    rates = (sum(given) + 1) / (len(given) + 2), (held + 1) / (runs + 2)
    numbers, effect = (len(given), runs), rates[0] - rates[1]
    variance = sum(r * (1 - r) / (number + 3) for r, number in zip(rates, numbers, strict=True))
    sure = 1.0 - NormalDist(effect, math.sqrt(variance)).cdf(0.0)
    # Many failures make one run no two.
    return effect, sure if len(given) >= NEEDED_RUNS else min(sure, LIKELY)


def best_move(
    attempts: Sequence[Attempt], failure: ReadCallOfRun, contrast: Contrast
) -> Move | None:
    """Of the moves of attempts after a failure that may be said the one that the failure's own
    words advise, else the one that the runs bear out best, else the plainest; a value, script or
    sub-command only if it belongs to a closed set."""
    plain = list(language()["texts"])
    head, advice = failure.reading.head, set(_ADVISED.findall(failure.action.observation[-2000:]))

    def order(move: Move) -> tuple[bool, float, int, Move]:
        lift, _ = lifts.get(move, (0.0, 0.0))
        return (move.value or move.name) in advice, lift, -plain.index(move.kind), move

    lifts = contrast.lifts(failure.key or "") if attempts else {}
    may = (
        move
        for move in {move for attempt in attempts for move in attempt.moves}
        if (_closed(move) and said(move, head, agreed=False))
        or (said(move, head) and contrast.agreed(move))
    )
    return max(may, key=order, default=None)


def _closed(move: Move) -> bool:
    """Whether a move has no script, path, sub-command or value that may be one task's."""
    if _SCRIPT.search(move.name) and move.name.split()[0] not in vocabulary("wrappers"):
        return False
    same = move.kind in ("renamed", "instead") or move.value in ("true", "false")
    return same or not (move.value or " " in move.name)
