"""Facts about one step, small enough to keep for a whole run.

`describe` turns a step into digests, counts and word sets; nothing that comes later reads the
step's text again. A run describes each of its steps once (`observation`).
"""

from __future__ import annotations

import re

from msgspec import Struct

from gateway.steering.evidence.arguments import Question, unspaced_words
from gateway.steering.evidence.commands import ReadCall, read_call
from gateway.steering.evidence.edits import Edit
from gateway.steering.evidence.outcomes import failure_line, is_empty, readable, signature
from gateway.steering.evidence.results import (
    STATUS_CHARS,
    Result,
    is_pending,
    is_transient,
    is_unfinished_job,
)
from gateway.steering.transcript.content import asks_user
from gateway.steering.transcript.steps import Action, Step
from gateway.steering.word_lists import word_list
from gateway.wire.search import Expressions

RESULT_WORDS = 60  # words of a result's opening by which two results are compared
THOUGHT_CHARS = 1200  # read at both ends: the cost of a step must not grow with its text
ASKED_CHARS = 400  # characters of a call whose words an answer may echo
_ERROR_CHARS = 400  # failure text of a call that only its client calls failed
_OPENING_CHARS = 600  # the opening of a result, whose words are compared

_TOKEN = re.compile(r"\w+")
_FOREIGN_MARKS = (  # punctuation that is not ASCII: quotation marks, full-width commas and stops
    "\u00a1\u00ab\u00bb\u00bf\u201c\u201d\u201e\u2026\u3001\u3002\u300c\u300d"
    "\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
_NO_LETTERS = {code: " " for code in range(128) if not chr(code).isalpha() and chr(code) != "'"}
_NO_LETTERS |= dict.fromkeys(map(ord, _FOREIGN_MARKS), " ")
_NO_WORDS: frozenset[str] = frozenset()
_NEGATIVE = frozenset([w for w in word_list("features", "negative_words") if w.isalpha()])
_NO = re.compile(r"\bno\b(?!\.?:?\s?[#\u2116]?\d)")
_HEDGE_WORDS = frozenset(word_list("features", "hedge_words"))
_HEDGE_PHRASES = word_list("features", "hedge_phrases")
_HEDGING = Expressions(texts=_HEDGE_PHRASES)
_WAITING = re.compile(  # waiting for something is not hesitation
    r"\bwait\s+(?:a|an|another|and|before|briefly|for|longer|more|some|the|till|to|until|while|\d)"
)
_RETRACTION_WORDS = frozenset(word_list("features", "retraction_words"))
_RETRACTION_PHRASES = word_list("features", "retraction_phrases")
_RETRACTION = re.compile(
    r"\bi was wrong\b|\bnever\s?mind\b|\bdisregard (?:that|my)\b|\bscratch that\b"
    r"|\bmy (?:earlier |previous )?(?:assumption|analysis|approach|guess) (?:was|is) "
    r"(?:wrong|incorrect)\b"
    r"|\b(?:this|that) (?:approach )?(?:did not|didn't|doesn't|does not|won't) work\b"
)


class ActionFacts(Struct, frozen=True, kw_only=True):
    """One tool call and its result.

    `call` is a digest, `question` what the arguments ask for. `result_words` is a bounded
    vocabulary. `failure` is the failure's
    signature, None for a result that reports none. `program` is what the call executes, `reads`
    says that it shows content, `waits` that it lets time pass, and `pending` that it does or that
    the answer is to come later. `settles`: its success makes the state of the files a good one.
    `looks_up`: it only asks, by its name.
    `asked` is the words of the call that a short answer may echo, and `negative` says that a short
    answer denies, refuses or has nothing.
    """

    operation: str
    call: int
    question: Question
    result: Result
    result_words: frozenset[str]
    failure: str | None
    empty: bool
    pending: bool
    waits: bool
    transient: bool
    program: int | None
    reads: bool
    changes: bool
    settles: bool
    looks_up: bool
    asked: frozenset[str]
    negative: bool
    edits: tuple[Edit, ...]

    @property
    def words(self) -> frozenset[str]:
        """The vocabulary of the arguments."""
        return self.question.words

    @property
    def answers(self) -> bool:
        """Whether the result has a word that is neither a number nor a word of the call."""
        return has_answer(self.result_words, self.asked)

    @property
    def identity(self) -> int:
        """Digest of the names and numbers in the arguments."""
        return self.question.identity


class StepFacts(Struct, frozen=True, kw_only=True):
    """One step: its actions, and the counts of its thought (words, hedges, vocabulary).

    `asks`: the step calls nothing and hands the turn to the user; `prompted` as in `Step`.
    """

    actions: tuple[ActionFacts, ...]
    thought: int
    vocabulary: frozenset[str]
    words: int
    hedges: int
    retracts: bool
    asks: bool
    prompted: bool


def describe(step: Step) -> StepFacts:
    """The facts of a step; pure."""
    text = step.thought or step.reasoning
    if len(text) > THOUGHT_CHARS:
        half = THOUGHT_CHARS // 2
        text = f"{text[:half]} {text[-half:]}"
    lowered = text.lower()
    letters = lowered.translate(_NO_LETTERS).split()
    vocabulary = frozenset(letters)
    words = len(letters)
    if not lowered.isascii():
        pairs = unspaced_words(lowered)
        vocabulary |= frozenset(pairs)
        words += len(pairs) // 2
    return StepFacts(
        actions=tuple([describe_action(action) for action in step.actions]),
        thought=hash(lowered),
        vocabulary=vocabulary,
        words=words,
        hedges=_hedges(lowered, letters, vocabulary),
        retracts=not vocabulary.isdisjoint(_RETRACTION_WORDS) and _retracts(lowered),
        asks=not step.actions and asks_user(step.thought),
        prompted=step.prompted,
    )


def _retracts(lowered: str) -> bool:
    if _RETRACTION.search(lowered) is not None:
        return True
    return any(phrase in lowered for phrase in _RETRACTION_PHRASES)


def _hedges(lowered: str, letters: list[str], vocabulary: frozenset[str]) -> int:
    hedges = vocabulary & _HEDGE_WORDS
    count = sum([letters.count(word) for word in hedges]) if hedges else 0
    if "wait" in vocabulary:
        count -= len(_WAITING.findall(lowered))
    if not _HEDGING.may_be_in(lowered):
        return count
    for phrase in _HEDGE_PHRASES:
        count += lowered.count(phrase)
    return count


def describe_action(action: Action) -> ActionFacts:
    """The facts of one call; its cost is bounded by the length of arguments and result once."""
    call = read_call(action.name, action.arguments)
    result = readable(action.observation.strip())
    line = failure_line(result, reads_content=call.reads_content)
    if line is None and action.is_error:
        line = result[:_ERROR_CHARS]
    opening = result[:_OPENING_CHARS].lower()
    short = len(result) <= STATUS_CHARS
    tokens = _TOKEN.findall(opening) if short else opening.split()
    words = frozenset(tokens[:RESULT_WORDS])
    exact = call.reads_content and result[:1] not in ("{", "[")
    if action.image:
        # The picture is the result; its caption may be the same each time.
        words = frozenset((f"image {action.image}",))
    asked = _NO_WORDS
    if short:
        asked = frozenset(_TOKEN.findall(action.arguments[:ASKED_CHARS].lower()))
    return ActionFacts(
        operation=call.operation,
        call=hash((call.operation, call.canonical)),
        question=call.question,
        result=Result(result, exact=exact, image=action.image),
        result_words=words,
        failure=None if line is None else signature(line),
        empty=is_empty(result),
        pending=call.waits or (short and line is None and _is_pending(call, result, words)),
        waits=call.waits,
        transient=short and is_transient(result, words),
        program=None if call.program is None else hash(call.program),
        reads=call.reads_content,
        changes=call.changes,
        settles=call.settles,
        looks_up=call.looks_up,
        asked=asked,
        negative=line is not None or (short and _denies(words - asked, opening)),
        edits=call.edits,
    )


def _denies(words: frozenset[str], opening: str) -> bool:
    """Whether words of a short answer say no; `No 2117` is a number."""
    found = _NEGATIVE & words
    return bool(found) and (found != {"no"} or _NO.search(opening) is not None)


def _is_pending(call: ReadCall, result: str, words: frozenset[str]) -> bool:
    if call.reads_content:
        return False
    return is_pending(result, words) or is_unfinished_job(call.operation, result)


def has_answer(words: frozenset[str], asked: frozenset[str]) -> bool:
    """Whether one of `words` is neither a number nor among the words of the call, `asked`."""
    for word in words:  # noqa: SIM110 - the first mostly is one: `any` costs more than the search
        if word.isalpha() and word not in asked:
            return True
    return False


def alike(a: frozenset[str], b: frozenset[str], threshold: float) -> bool:
    """True when the Jaccard similarity of two vocabularies is at least `threshold`, in (0, 1]."""
    size_a, size_b = len(a), len(b)
    if not size_a or not size_b or size_a < threshold * size_b or size_b < threshold * size_a:
        return False
    shared = len(a & b)
    return shared >= threshold * (size_a + size_b - shared)
