"""Repetition: which calls bring nothing that the run has not seen.

A repeat is the same call with the same result, or a reworded one that leads nowhere new. Reading
another file, turning a page, asking a job that still runs, and running a test again after a change
are not repeats. Memory is bounded, so a step late in a long run costs what an early one does.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from msgspec import Struct

from gateway.steering.evidence.features import ActionFacts, alike
from gateway.steering.evidence.results import Result

Kind = Literal["new", "same", "returned", "reworded", "rerun", "pending"]

WINDOW = 12  # actions within which a call counts as repeated
COMPARED = 8  # actions within which the arguments of two calls are compared
SIMILAR_ARGUMENTS = 0.75
REWORDED_ARGUMENTS = 0.6
SAME_TEXT_ARGUMENTS = 0.45
SAME_ANSWER_WORDS = 6  # words from which an identical answer means that the question was the same
SHOWN_WORDS = 12  # different words from which identical content under one name has been seen before
SAME_RESULT = 0.85
FRAMED_CALLS = 4  # calls whose common words are taken for the frame around an answer
MAX_WORDS = 4096  # words of results remembered at least; up to twice as many are
MAX_CALLS = 256  # different calls remembered at least; up to twice as many are
OPEN_RESULTS = 32  # newest results that are kept as text, 1 kB of each, until they are compared

# Strengths in [0, 1]: how much one action counts as going nowhere. Set on the development runs so
# that a planted loop reaches three within four repetitions and re-reading two files does not.
FIRST_REPEAT = 0.7
FURTHER_REPEAT = 1.0
REWORDED_NEXT = 1.0
REWORDED_LATER = 0.6
RERUN_FAILING = 0.4
AFTER_CHANGE = 0.6
AFTER_NEWS = 0.5
RETURNED = 0.7
SHOWN_BEFORE = 0.6
EARLIER_RESULTS = 3  # results of one call before its last that it may return to
TRANSIENT = 0.4
PATIENCE = 20
TRANSIENT_PATIENCE = 6  # equal answers after which waiting brings no news


class Repeat(Struct, frozen=True, kw_only=True):
    """One action against the run before it.

    `strength`: how far it repeats, in [0, 1]; `count`: times this call gave this result; `similar`:
    a recent call of the operation had nearly the same words; `changed`: the same call gave another
    result; `unchanged_files`: nothing was changed since its last run; `waits`: the call waits for
    something that may still come, a job or the end of a temporary refusal; `failures`: times that
    the failure of this call has come in the run, this time included, 0 for a call without one.
    """

    kind: Kind
    strength: float
    count: int
    similar: bool
    changed: bool
    unchanged_files: bool
    waits: bool
    failures: int = 0


class _Past(Struct):
    result: Result
    failure: str | None
    count: int
    time: int
    earlier: tuple[Result, ...] = ()


class CallMemory:
    """The calls of one run, as far as repetition needs them."""

    __slots__ = (
        "_changed_at",
        "_failures",
        "_news_at",
        "_older",
        "_open",
        "_past",
        "_recent",
        "_shown",
        "_time",
        "_waited_at",
    )

    def __init__(self) -> None:
        self._past: dict[int, _Past] = {}
        self._older: dict[int, _Past] = {}
        self._recent: deque[ActionFacts] = deque(maxlen=COMPARED)
        self._failures: dict[str, int] = {}
        self._shown: dict[Result, int] = {}
        self._open: deque[Result] = deque()
        self._changed_at = self._news_at = self._waited_at = -1
        self._time = 0

    def observe(self, action: ActionFacts) -> Repeat:
        """Compare the action with the run so far, then remember it."""
        past = self._past.get(action.call) or self._older.get(action.call)
        same = past is not None and _same_outcome(action, past.result, past.failure)
        unchanged = past is not None and self._changed_at <= past.time
        returned = past is not None and not same and action.result in past.earlier
        returned = returned and action.program is None
        stuck = past is not None and self._news_at <= past.time
        reworded, similar = self._look_alike(action)
        if past is not None and not (unchanged and stuck):
            # Looking again is right once something else has happened.
            similar = False
        if past is not None and same and self._time - past.time <= WINDOW:
            kind, strength = _repeated(action, past.count, unchanged)
            strength *= 1.0 if stuck else AFTER_NEWS
        elif returned:
            kind, strength = "returned", RETURNED
        elif reworded > 0:
            kind, strength = "reworded", reworded
        elif self._shown_before(action):
            kind, strength = "reworded", SHOWN_BEFORE
        else:
            kind, strength = "new", 0.0
        count = past.count + 1 if past is not None and same else 1
        waits = action.pending or self._looks_again(action, past)
        if waits and (count <= PATIENCE or action.waits):
            kind, strength = "pending", 0.0
        for_now = action.transient and count <= TRANSIENT_PATIENCE
        repeat = Repeat(
            kind=kind,
            strength=strength * (TRANSIENT if for_now else 1.0),
            count=count,
            similar=similar,
            changed=past is not None and not same,
            unchanged_files=unchanged,
            waits=kind == "pending" or for_now,
            failures=0 if action.failure is None else self._count_failure(action.failure),
        )
        self._remember(action, repeat)
        return repeat

    def _looks_again(self, action: ActionFacts, past: _Past | None) -> bool:
        """Whether the agent has waited since it last made this call: it looks at the progress."""
        waited = past is not None and past.time < self._waited_at
        return waited and action.program is None and not action.changes

    def _look_alike(self, action: ActionFacts) -> tuple[float, bool]:
        """Strength of the best rewording among recent calls, and whether any is similar."""
        reworded, similar, shown = 0.0, False, False
        settled = action.changes and action.failure is None
        operation, shows = action.operation, _shows_content(action)
        for age, other in enumerate(reversed(self._recent)):
            shown = shown or (shows and other.reads and _same_content(action, other))
            if other.operation != operation:
                continue
            if other.call == action.call:
                similar = True
                continue
            if settled:
                continue
            asked, question = other.question, action.question
            same_question = question.is_like(asked)
            if not (same_question or action.reads):
                continue
            least = SAME_TEXT_ARGUMENTS if _same_text(action, other) else REWORDED_ARGUMENTS
            if not alike(asked.words, question.words, least):
                continue
            answered = self._same_answer(action, other)
            if same_question or answered:
                similar = similar or alike(asked.words, question.words, SIMILAR_ARGUMENTS)
            if same_question and answered:
                reworded = max(reworded, REWORDED_LATER if age else REWORDED_NEXT)
        return (max(reworded, REWORDED_NEXT) if shown else reworded), similar

    def _same_answer(self, action: ActionFacts, other: ActionFacts) -> bool:
        """Whether both got the same answer, apart from the text around each answer."""
        if _same_outcome(action, other.result, other.failure):
            return True
        if not alike(action.result_words, other.result_words, SAME_RESULT):
            return False
        frame = self._frame(action)
        if not frame:
            return True
        return alike(action.result_words - frame, other.result_words - frame, SAME_RESULT)

    def _frame(self, action: ActionFacts) -> frozenset[str]:
        """The words that this result and those of all recent calls have, such as a prompt; empty
        for few calls."""
        if len(self._recent) < FRAMED_CALLS:
            return frozenset()
        return action.result_words.intersection(*[each.result_words for each in self._recent])

    def _shown_before(self, action: ActionFacts) -> bool:
        """Whether another call has lately given the very same text, of some length."""
        at = self._shown.get(action.result)
        lately = at is not None and self._time - at <= WINDOW
        return lately and not (action.changes or action.reads)

    def _count_failure(self, failure: str) -> int:
        count = self._failures.pop(failure, 0) + 1
        self._failures[failure] = count
        if len(self._failures) > MAX_CALLS:
            del self._failures[next(iter(self._failures))]
        return count

    def _remember(self, action: ActionFacts, repeat: Repeat) -> None:
        self._open.append(action.result)
        if len(self._open) > OPEN_RESULTS:
            self._open.popleft().settle()
        past = self._past.get(action.call) or self._older.get(action.call)
        earlier = () if past is None else (past.result, *past.earlier)[:EARLIER_RESULTS]
        self._past[action.call] = _Past(
            action.result, action.failure, repeat.count, self._time, earlier
        )
        if len(action.result_words) >= SHOWN_WORDS and not action.changes:
            self._shown[action.result] = self._time
            if len(self._shown) > MAX_CALLS:
                del self._shown[next(iter(self._shown))]
        if len(self._past) > MAX_CALLS:
            self._older, self._past = self._past, {}
        self._recent.append(action)
        if action.waits:
            self._waited_at = self._time
        # Repeating an edit leaves the files as they are.
        if action.changes and action.failure is None and repeat.count == 1:
            self._changed_at = self._time
        silent = action.changes and not action.answers
        if repeat.kind == "new" and not (repeat.similar or silent) and action.failure is None:
            self._news_at = self._time
        self._time += 1


def spends(action: ActionFacts, repeat: Repeat) -> bool:
    """Whether a call uses up budget: waiting, temporary refusals and watching progress do not."""
    watches = repeat.changed and action.program is None and not action.changes
    return not (watches or repeat.waits)


class KnownWords:
    """The words that results have shown so far, the newest several thousand of them."""

    __slots__ = ("_older", "_words")

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._older: set[str] = set()

    def fresh(self, words: frozenset[str]) -> frozenset[str]:
        """Those of `words` that are new."""
        new = words - self._words
        return new - self._older if self._older else new

    def novelty(self, words: frozenset[str], fresh: frozenset[str] | None = None) -> float:
        """Share of `words` that no earlier result had, in [0, 1]; then they are known.

        `fresh`: those of them that are new, where that is known.
        """
        if fresh is None:
            fresh = self.fresh(words)
        self._words |= fresh
        if len(self._words) > MAX_WORDS:
            self._older, self._words = self._words, set()
        return len(fresh) / len(words) if words else 0.0


def _repeated(action: ActionFacts, count: int, unchanged: bool) -> tuple[Kind, float]:
    if action.program is not None and not unchanged:
        return "rerun", 0.0 if action.failure is None else RERUN_FAILING
    strength = FIRST_REPEAT if count < 2 else FURTHER_REPEAT
    return "same", strength if unchanged else strength * AFTER_CHANGE


def _same_outcome(action: ActionFacts, result: Result, failure: str | None) -> bool:
    return action.result == result or (action.failure is not None and action.failure == failure)


def _same_text(action: ActionFacts, other: ActionFacts) -> bool:
    """Whether both got the same answer of some length; a short acknowledgement does not count."""
    if len(action.result_words) < SAME_ANSWER_WORDS or action.operation.startswith("$"):
        return False
    return action.result == other.result


def _shows_content(action: ActionFacts) -> bool:
    """Whether a call shows content of some length."""
    shows = action.reads and len(action.result_words) >= SHOWN_WORDS
    return shows and not action.empty and action.failure is None


def _same_content(action: ActionFacts, other: ActionFacts) -> bool:
    """Whether two calls that show content showed that of one file or page, by whatever call."""
    if action.result != other.result:
        return False
    return any("." in name or "/" in name for name in action.words & other.words)
