"""Facts about one step: digests, counts and word sets, small enough to keep for a whole run.

The ledger of a run has each of its steps described once; nothing later reads the step's text again.
"""

import re

from gateway.core.step import Action, ActionFacts, Answer, Step, StepFacts
from gateway.steering.evidence.arguments import unspaced_words
from gateway.steering.evidence.commands import (
    LABELLED_CHARS,
    LabelText,
    ReadCall,
    read_call,
    sought,
)
from gateway.steering.evidence.outcomes import (
    ended_well,
    failure_line,
    is_bare,
    is_empty,
    is_of_object,
    readable,
    signature,
    still_runs,
)
from gateway.steering.evidence.results import (
    STATUS_CHARS,
    is_pending,
    is_transient,
    sameness,
    says_no,
)
from gateway.steering.transcript.asks_user import asks_user
from gateway.steering.transcript.content import is_turned_down
from gateway.steering.transcript.text_protocols import is_loop_note
from gateway.steering.word_lists import word_list
from gateway.text.search import Expressions

RESULT_WORDS = 60  # words of a result's opening by which two results are compared
THOUGHT_CHARS = 1200  # read at both ends: the cost of a step must not grow with its text
ASKED_CHARS = 400  # characters of a call whose words an answer may echo
_ERROR_CHARS = 400  # failure text of a call that only its client calls failed
_OPENING_CHARS = 600  # the opening of a result, whose words are compared
_NOTE_CHARS = 300  # of a note at the end of a result
_NOTE_MARKS = ("identical", "in a row", "repeat", "loop ", "same ")
_ERROR_TAG = "<tool_use_error>"
_CANCELLED = re.compile(r"(?:<tool_use_error>)?Sibling tool call errored")
_CODE_ONE = "exit code 1"  # all that is left of a search that found nothing
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


def describe(step: Step) -> StepFacts:
    """The facts of a step; pure."""
    text = step.thought or step.reasoning
    half = THOUGHT_CHARS // 2
    if len(text) > THOUGHT_CHARS:
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
        retracts=not vocabulary.isdisjoint(_RETRACTION_WORDS)
        and (
            _RETRACTION.search(lowered) is not None
            or any(phrase in lowered for phrase in _RETRACTION_PHRASES)
        ),
        asks=not step.actions and asks_user(step.thought),
        prompted=step.prompted,
        cue=step.cue,
        reminded=step.cue == "reminded" or any(_reminds(a.observation) for a in step.actions),
    )


def _reminds(result: str) -> bool:
    """True for a note of the harness at the beginning or the end of a result."""
    if len(result) <= 2 * _NOTE_CHARS:
        notes = result
    else:
        notes = result[-_NOTE_CHARS:]
    return [mark for mark in _NOTE_MARKS if mark in notes] != [] and is_loop_note(notes)


def _hedges(lowered: str, letters: list[str], vocabulary: frozenset[str]) -> int:
    hedges = vocabulary & _HEDGE_WORDS
    count = 0
    if hedges:
        count = sum([letters.count(word) for word in hedges])
    if "wait" in vocabulary:
        count -= len(_WAITING.findall(lowered))
    if _HEDGING.may_be_in(lowered):
        count += sum([lowered.count(phrase) for phrase in _HEDGE_PHRASES])
    return count


def describe_action(action: Action) -> ActionFacts:
    """The facts of one call; its cost is bounded by the length of arguments and result once."""
    call = read_call(action.name, action.arguments)
    result = readable(action.observation.strip())
    reads = call.effect.reads
    line = failure_line(result, reads_content=reads)
    if line is None and (action.is_error or result.startswith(_ERROR_TAG)):
        line = result[:_ERROR_CHARS]
    elif (
        line is not None
        and not action.is_error
        and call.operation.startswith("$")
        and ended_well(action.observation, call.canonical)
    ):
        line = None
    by_user = is_turned_down(result)
    asks = reads or call.effect.looks_up
    if by_user or (line is not None and asks and line.lower() == _CODE_ONE):
        line = None  # the user's word; a search without a hit
    opening = result[:_OPENING_CHARS].lower()
    short = len(result) <= STATUS_CHARS
    if short:
        tokens = _TOKEN.findall(opening)
    else:
        tokens = opening.split()
    words = frozenset(tokens[:RESULT_WORDS])
    exact = reads and result[:1] not in ("{", "[") and "://" not in action.arguments[:ASKED_CHARS]
    if action.image:
        # The picture is the result; its caption may be the same each time.
        words = frozenset((f"image {action.image}",))
    asked = _NO_WORDS
    if short:
        asked = frozenset(_TOKEN.findall(action.arguments[:ASKED_CHARS].lower()))
    # What a command itself has asked to be printed says nothing.
    printed = _NO_WORDS
    if call.operation.startswith("$"):
        printed = asked
    denials = _NO_WORDS
    if short:
        denials = _NEGATIVE & words - asked
    # `No 2117` is a number.
    refuses = bool(denials) and (denials != {"no"} or _NO.search(opening) is not None)
    answer = Answer(
        result=sameness(result, exact=exact, image=action.image),
        transient=short and is_transient(result, words),
        words=words,
        empty=is_empty(result),
        pending=call.effect.waits
        or still_runs(action.observation)
        or (
            line is None
            and not (by_user or reads or call.effect.plans or call.program is not None)
            and is_pending(result, words - printed, call.operation)
        ),
        negative=(line is not None or refuses) and not by_user,
        by_user=by_user,
        cancelled=_CANCELLED.match(result) is not None,
    )
    if line is None:
        failure = None
    else:
        failure = signature(line)
    return ActionFacts(
        operation=call.operation,
        call=hash((call.operation, call.canonical)),
        question=call.question,
        program=None if call.program is None else hash(call.program),
        effect=call.effect,
        edits=call.edits,
        answer=answer,
        failure=failure,
        span=call.span,
        tool=action.name,
        text=LabelText(tool=action.name, arguments=action.arguments[:LABELLED_CHARS]),
        command=call.command,
        sought=sought(action.arguments) if answer.empty else "",
        denied=line is None and answer.negative and _denies(action, call, words),
        bare=failure is not None and is_bare(failure),
        of_object=failure is not None and is_of_object(failure),
    )


# Arguments of tools that let a model answer. Source: those that start sub-agents in Claude Code,
# opencode, Qwen Code, Codex, Copilot CLI and Gemini CLI, and fetch pages with a question.
_ORDERS = re.compile(r'"(?:prompt|objective|(?:sub)?agent_(?:type|name))"\s*:')


def _denies(action: Action, call: ReadCall, words: frozenset[str]) -> bool:
    """True for an answer that says no without an error. Of a look-up, no is an answer; a false
    value in a record is no denial, and the report of a model that was asked something needs to be
    understood: "no issues found" is good news of a review."""
    effect = call.effect
    if effect.changes or effect.looks_up or effect.reads or call.program is not None:
        return False
    if call.operation.startswith("$") or _ORDERS.search(action.arguments, 0, LABELLED_CHARS):
        return False
    result = action.observation.strip()
    if result[:1] in ("{", "[") and ('"no"' in result or "false" in words):
        return says_no(call.operation, result) is not None
    return True
