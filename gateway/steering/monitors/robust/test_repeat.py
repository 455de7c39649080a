"""Test repeat: the same failure again, from the same test or from any call."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct

from gateway.steering.evidence.features import ActionFacts
from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.evidence.outcomes import is_of_object
from gateway.steering.evidence.repeats import Repeat
from gateway.steering.monitors.settings import RobustSettings

T = TypeVar("T")
PER_RERUN = 0.3  # score per run that fails as before with nothing changed: the third fires
AFTER_CHANGE = 0.5  # a change that did not help counts half: work went on between the runs
FAILURE_WINDOW = 8  # newest actions whose failures are compared
PER_FAILURE = 0.2  # score per failure of one signature beyond the first: the fourth fires
PER_DENIAL = 0.12  # score per answer of the window that denies and has no new word: the fifth fires
REMEMBERED_PROGRAMS = 64  # programs whose last run is remembered: a bound on memory
SLOWER = 0.5  # failures are remembered longer than repeats: `recovery` is this much nearer to 1


class _Failure(Struct):
    """One call and the signature of its failure, None without one or when it is forgotten; and how
    many changes came before it."""

    signature: str | None
    action: ActionFacts
    changes: int


class TestRepeat:
    """Programs by what they execute, failures by signature; a pass clears its program."""

    __test__ = False
    __slots__ = (
        *("_changes", "_denials", "_denied", "_failures", "_keep", "_passed", "_programs"),
        *("_score", "_what"),
    )

    def __init__(self, settings: RobustSettings) -> None:
        self._programs: dict[int, tuple[str, float, int]] = {}
        self._failures: deque[_Failure] = deque(maxlen=FAILURE_WINDOW)
        self._denials: deque[tuple[bool, str]] = deque(maxlen=FAILURE_WINDOW)
        self._denied: frozenset[str] = frozenset()
        self._keep = settings.recovery + (1.0 - settings.recovery) * SLOWER
        self._score = 0.0
        self._what = ""
        self._changes = self._passed = 0

    def push(self, step: ObservedStep) -> None:
        """Compare each failure with the earlier ones."""
        if not step.actions:
            self._score *= self._keep
        for at in step.deliberate:
            (action, repeat), tells = step.actions[at], step.news.tells[at]
            found, what = max(
                self._program(action, repeat),
                self._failure(action, repeat, tells=tells),
                self._denial(action, repeat, tells=tells),
                key=itemgetter(0),
            )
            self._score *= self._keep
            if found >= self._score:
                self._score, self._what = found, what

    def _program(self, action: ActionFacts, repeat: Repeat) -> tuple[float, str]:
        if action.program is None:
            return 0.0, ""
        before = self._programs.pop(action.program, None)
        if action.failure is None:
            self._passed += repeat.kind == "new"
            return 0.0, ""
        # Between its runs no other program has passed for the first time: that is work.
        again = before is not None and before[::2] == (action.failure, self._passed)
        weight = 1.0 if repeat.unchanged_files else AFTER_CHANGE
        count = before[1] + weight if before is not None and again else 0.0
        self._programs[action.program] = (action.failure, count, self._passed)
        if len(self._programs) > REMEMBERED_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        what = f"{action.operation[:40]} fails as before: {action.failure[:80]}"
        return min(PER_RERUN * count, 1.0), what

    def _denial(self, action: ActionFacts, repeat: Repeat, *, tells: bool) -> tuple[float, str]:
        """Answers that deny and have no new word, whatever was asked or tried."""
        is_new, program = repeat.kind == "new", action.program is not None
        plain = action.failure is None and not (action.effect.reads or action.effect.changes)
        if plain and action.answer.negative and action.effect.looks_up and is_new:
            return 0.0, ""  # no is an answer to a new question: the run knows more
        denies = action.answer.negative and not (action.answer.empty or repeat.waits or program)
        if not denies and is_new and action.answer.tells:
            tells = True  # another question, and yes: the ones before were fair questions, too
        if not (denies or tells or program):
            return 0.0, ""  # an acknowledgement
        if tells and not denies:
            _forgive(self._denials, action.operation, fine=False)
        self._denials.append((denies and not tells, action.operation))
        if not denies or tells:
            return 0.0, ""
        objects = action.question.objects
        if is_new and action.failure and is_of_object(action.failure) and objects:
            known, self._denied = self._denied, objects
            if not objects <= known:
                return 0.0, ""  # of another host or table than the one before
        times = sum([1 for each, _ in self._denials if each])
        return min(PER_DENIAL * times, 1.0), f"{times} answers that deny, nothing new in them"

    def _failure(self, action: ActionFacts, repeat: Repeat, *, tells: bool) -> tuple[float, str]:
        failure = None if repeat.waits else action.failure
        if failure is None and not (tells or action.answer.tells or action.program is not None):
            return 0.0, ""  # an acknowledgement between two failures
        if failure is None:
            self._succeed(action, tells=tells)
        self._changes += failure is None and action.effect.changes
        self._failures.append(_Failure(failure, action, self._changes))
        if failure is None:
            return 0.0, ""
        same = [each for each in self._failures if each.signature == failure]
        times = len(same)
        score = PER_FAILURE * (times - 1)
        if action.program is not None:
            unchanged = sum([1 for each in same if each.changes == self._changes])
            score = max(score, PER_RERUN * (unchanged - 1))
        return min(score, 1.0), f"{times} x the same failure: {failure[:80]}"

    def _succeed(self, action: ActionFacts, *, tells: bool) -> None:
        """Forget the failures of an operation that brings news, and of the same edit or program."""
        applied, program = bool(action.edits), action.program is not None
        for each in self._failures:
            failed = each.action
            if each.signature is None:
                continue
            if tells and failed.operation == action.operation:
                each.signature = None
            elif (applied and failed.edits) or (program and failed.program is not None):
                same = failed.program == action.program if program else False
                if same or failed.question.objects & action.question.objects:
                    each.signature = None

    def reading(self) -> tuple[float, str]:
        """Highest of both counts, decaying while other things happen."""
        return (self._score, self._what) if self._score >= 0.01 else (0.0, "")


def _forgive(calls: deque[tuple[T, str]], operation: str, *, fine: T) -> None:
    """Count the calls of an operation as fine: it fails now and then, with news in between."""
    for at, (found, name) in enumerate(calls):
        if name == operation and found != fine:
            calls[at] = (fine, name)
