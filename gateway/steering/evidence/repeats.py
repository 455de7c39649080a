"""Repetition: calls that bring nothing new to the run, compared within a bounded memory.

Reading another file, turning a page, asking a job that still runs, and running a test again after a
change are no repeats."""

import math
from collections import deque
from typing import Literal

from msgspec import Struct

from gateway.steering.evidence.features import ActionFacts, alike
from gateway.steering.evidence.results import Result

Kind = Literal["new", "same", "returned", "reworded", "rerun", "pending"]

WINDOW = 12  # actions within which a call counts as repeated
COMPARED = 8  # actions within which the arguments of two calls are compared
SIMILAR_ARGUMENTS, REWORDED_ARGUMENTS, SAME_TEXT_ARGUMENTS = 0.75, 0.6, 0.45
SAME_ANSWER_WORDS = 6  # words from which an identical answer means that the question was the same
SHOWN_WORDS = 12  # different words from which identical content under one name has been seen before
SAME_RESULT = 0.85
FRAMED_CALLS = 4  # calls whose common words are taken for the frame around an answer
MAX_WORDS = 4096  # words of results remembered at least; up to twice as many are
MAX_CALLS = 256  # different calls remembered at least; up to twice as many are
OPEN_RESULTS = 32  # newest results that are kept as text, 1 kB of each, until they are compared

# Strengths in [0, 1]: how much one action counts as going nowhere. Set on the development runs so
# that a planted loop reaches three within four repetitions and re-reading two files does not.
FIRST_REPEAT, FURTHER_REPEAT, RERUN_FAILING = 0.7, 1.0, 0.4
REWORDED_NEXT, REWORDED_LATER, SHOWN_BEFORE, RETURNED = 1.0, 0.6, 0.6, 0.7
AFTER_CHANGE, AFTER_NEWS, TRANSIENT = 0.6, 0.5, 0.4  # factors
SEEN_LINES, SHOWN_LINES = 0.7, 0.6  # strength, and the share of known lines from which it counts
SPAN_WINDOW, MAX_SPANS = 24, 16  # actions, and parts of one file, within which lines are known
PATIENT_REFUSALS = 3  # refusals for now, of other questions, before it is right to wait
EARLIER_RESULTS = 3  # results of one call before its last that it may return to
PATIENCE, TRANSIENT_PATIENCE = 20, 6  # equal answers after which waiting brings no news


class Repeat(Struct, frozen=True, kw_only=True):
    """One action compared with the run before it. `strength`: how far it repeats, in [0, 1];
    `count`: times this call gave this result; `similar`: a recent call of the operation had nearly
    the same words; `changed`: the same call gave another result; `unchanged_files`: nothing was
    changed since its last run; `waits`: for a job or the end of a temporary refusal; `failures`:
    times that its failure has come in the run, 0 without one."""

    kind: Kind
    strength: float
    count: int
    similar: bool
    changed: bool
    unchanged_files: bool
    waits: bool
    failures: int = 0


class _Past(Struct):
    """The last time that a call was made. A call that is new has the time NaN: no comparison with
    it is true."""

    result: Result | None = None
    failure: str | None = None
    count: int = 0
    time: float = math.nan
    earlier: tuple[Result | None, ...] = ()
    looked_up: bool = False  # made once more because a compaction had taken its result away


_NEVER = _Past()


class _Times(Struct):
    """Number of the next call, and of the newest ones that changed files, had news, or waited; of
    the first one after the transcript was compacted. `changer`: the call that changed files."""

    now: int = 0
    changed: int = -1
    news: int = -1
    waited: int = -1
    compacted: int = -1
    changer: int = 0


class CallMemory:
    """The calls of one run, as far as repetition needs them."""

    __slots__ = (
        *("_failures", "_older", "_open", "_past", "_recent", "_refused", "_shown", "_spans"),
        "_times",
    )

    def __init__(self) -> None:
        self._past: dict[int, _Past] = {}
        self._older: dict[int, _Past] = {}
        self._recent: deque[ActionFacts] = deque(maxlen=COMPARED)
        self._failures: dict[str, int] = {}
        self._shown: dict[Result, float] = {}
        self._open: deque[Result] = deque()
        self._refused = 0
        self._spans: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        self._times = _Times()

    def compact(self) -> None:
        """The agent no longer has what it saw: to look once more is right."""
        self._times.compacted = self._times.now
        self._recent.clear()
        self._shown.clear()
        self._spans.clear()

    def observe(self, action: ActionFacts, *, parallel: bool = False) -> Repeat:
        """Compare the action with the run so far, then remember it. `parallel`: it was made along
        with the one before."""
        answer, effect, times = action.answer, action.effect, self._times
        past = self._past.get(action.call) or self._older.get(action.call) or _NEVER
        same = _same_outcome(action, past.result, past.failure)
        unchanged, stuck = times.changed <= past.time, times.news <= past.time
        reworded, similar = self._look_alike(action)
        if past is not _NEVER and not (unchanged and stuck):
            # Looking again is right once something else has happened.
            similar = False
        if same and times.now - past.time <= WINDOW:
            kind, strength = _repeated(action, past.count, unchanged)
            strength *= 1.0 if stuck else AFTER_NEWS
        elif not same and action.program is None and answer.result in past.earlier:
            kind, strength = "returned", RETURNED
        elif self._shows_known_lines(action):
            kind, strength = "reworded", SEEN_LINES
        elif reworded > 0:
            kind, strength = "reworded", reworded
        elif not (effect.changes or effect.reads or effect.plans) and (
            times.now - self._shown.get(answer.result, -math.inf) <= WINDOW
        ):
            kind, strength = "reworded", SHOWN_BEFORE
        else:
            kind, strength = "new", 0.0
        count = past.count + 1 if same else 1
        # Looking at the progress is right after waiting for it.
        looks = past.time < times.waited and action.program is None and not effect.changes
        if (answer.pending or looks) and (count <= PATIENCE or effect.waits):
            kind, strength = "pending", 0.0
        looked_up = past.time < times.compacted and not past.looked_up
        if action.answer.by_user or looked_up:
            kind, strength, similar = "new", 0.0, False
        for_now = answer.transient and count <= TRANSIENT_PATIENCE
        if self._keeps_asking(action, parallel=parallel) and past is _NEVER:
            kind, strength, for_now = "reworded", FURTHER_REPEAT, False
        repeat = Repeat(
            kind=kind,
            strength=strength * (TRANSIENT if for_now else 1.0),
            count=count,
            similar=similar,
            changed=past is not _NEVER and not same,
            unchanged_files=unchanged,
            waits=kind == "pending" or for_now,
            failures=0 if action.failure is None else self._count_failure(action.failure),
        )
        self._remember(action, repeat, past, looked_up=looked_up)
        return repeat

    def _keeps_asking(self, action: ActionFacts, *, parallel: bool) -> bool:
        """True for one more question after several refusals for now, without a wait."""
        if action.answer.transient:
            self._refused += not parallel
        elif action.effect.waits or not action.answer.negative:
            self._refused = 0
        return action.answer.transient and self._refused > PATIENT_REFUSALS

    def _shows_known_lines(self, action: ActionFacts) -> bool:
        """True if most lines of the part of a file were shown lately, in other parts."""
        if action.span is None or action.failure is not None:
            return False
        path, first, last = action.span
        now = self._times.now
        at, spans = self._spans.pop(path, (now, []))
        spans = spans if now - at <= SPAN_WINDOW else []
        known, line = 0, first
        for start, end in sorted(spans):
            known += max(min(end, last) - max(start, line) + 1, 0)
            line = max(line, end + 1)
        self._spans[path] = now, [*spans[1 - MAX_SPANS :], (first, last)]
        if len(self._spans) > MAX_CALLS:
            del self._spans[next(iter(self._spans))]
        return known >= SHOWN_LINES * (last - first + 1)

    def _look_alike(self, action: ActionFacts) -> tuple[float, bool]:
        """Strength of the best rewording among recent calls, and whether any is similar."""
        reworded, similar, shown = 0.0, False, False
        # An edit that was applied, and a plan that was noted, have done what they are for.
        settled = (action.effect.changes or action.effect.plans) and action.failure is None
        operation, question = action.operation, action.question
        shows = action.effect.reads and not action.answer.empty and action.failure is None
        shows = shows and len(action.answer.words) >= SHOWN_WORDS
        # A short acknowledgement may be the same for any question.
        says_much = len(action.answer.words) >= SAME_ANSWER_WORDS and operation[:1] != "$"
        for age, other in enumerate(reversed(self._recent)):
            shown = shown or (shows and other.effect.reads and _same_content(action, other))
            if other.operation != operation:
                continue
            if other.call == action.call:
                similar = True
                continue
            if settled:
                continue
            asked = other.question
            same_question = question.is_like(asked)
            if not (same_question or action.effect.reads):
                continue
            least = REWORDED_ARGUMENTS
            if says_much and action.answer.result == other.answer.result:
                least = SAME_TEXT_ARGUMENTS
            if not alike(asked.words, question.words, least):
                continue
            answered = self._same_answer(action, other)
            if same_question or answered:
                similar = similar or alike(asked.words, question.words, SIMILAR_ARGUMENTS)
            if same_question and answered:
                reworded = max(reworded, REWORDED_LATER if age else REWORDED_NEXT)
        return (max(reworded, REWORDED_NEXT) if shown else reworded), similar

    def _same_answer(self, action: ActionFacts, other: ActionFacts) -> bool:
        """True if both got the same answer, apart from words that all recent results have."""
        if _same_outcome(action, other.answer.result, other.failure):
            return True
        words, others = action.answer.words, other.answer.words
        if not alike(words, others, SAME_RESULT):
            return False
        if len(self._recent) < FRAMED_CALLS:
            return True
        frame = words.intersection(*[each.answer.words for each in self._recent])
        return not frame or alike(words - frame, others - frame, SAME_RESULT)

    def _count_failure(self, failure: str) -> int:
        count = self._failures.pop(failure, 0) + 1
        self._failures[failure] = count
        if len(self._failures) > MAX_CALLS:
            del self._failures[next(iter(self._failures))]
        return count

    def _remember(
        self, action: ActionFacts, repeat: Repeat, past: _Past, *, looked_up: bool
    ) -> None:
        times, result, changes = self._times, action.answer.result, action.effect.changes
        self._open.append(result)
        if len(self._open) > OPEN_RESULTS:
            self._open.popleft().settle()
        earlier = (past.result, *past.earlier)[:EARLIER_RESULTS]
        self._past[action.call] = _Past(
            result, action.failure, repeat.count, times.now, earlier, looked_up
        )
        if len(action.answer.words) >= SHOWN_WORDS and not changes:
            self._shown[result] = times.now
            if len(self._shown) > MAX_CALLS:
                del self._shown[next(iter(self._shown))]
        if len(self._past) > MAX_CALLS:
            self._older, self._past = self._past, {}
        self._recent.append(action)
        if action.effect.waits:
            times.waited = times.now
        # Repeating an edit leaves the files as they are, unless another one came in between.
        over_another = bool(action.edits) and times.changer != action.call
        if changes and action.failure is None and (repeat.count == 1 or over_another):
            times.changed, times.changer = times.now, action.call
            self._spans.clear()
        silent = changes and not action.answer.tells
        if repeat.kind == "new" and not (repeat.similar or silent) and action.failure is None:
            times.news = times.now
        times.now += 1


def spends(action: ActionFacts, repeat: Repeat) -> bool:
    """True if a call uses up budget: not for waiting, a refusal for now, or watching progress."""
    watches = repeat.changed and action.program is None and not action.effect.changes
    return not (watches or repeat.waits)


class KnownWords:
    """The words that results have shown so far, the newest several thousand of them."""

    __slots__ = ("_older", "_words")

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._older: set[str] = set()

    def fresh(self, words: frozenset[str]) -> frozenset[str]:
        """The words that no result had before."""
        new = words - self._words
        return new - self._older if self._older else new

    def novelty(self, words: frozenset[str], fresh: frozenset[str] | None = None) -> float:
        """Share of `words` that no earlier result had, in [0, 1]; then they are known. `fresh`:
        those of them that are new, if the caller knows them."""
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


def _same_outcome(action: ActionFacts, result: Result | None, failure: str | None) -> bool:
    same_failure = action.failure is not None and action.failure == failure
    return same_failure or action.answer.result == result


def _same_content(action: ActionFacts, other: ActionFacts) -> bool:
    """True if two calls that show content showed that of one file or page, by any call."""
    return action.answer.result == other.answer.result and any(
        "." in name or "/" in name for name in action.question.words & other.question.words
    )
