"""What the newest step of a run is stuck on: the cause, the true count, the decisive line.

Read only when guidance is due, from the newest steps and what the run has observed of the newest
one. Texts of tools and agents are read within limits, and quoted sanitised and cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from gateway.steering.evidence.commands import shell_command
from gateway.steering.evidence.features import ActionFacts, alike, describe_action
from gateway.steering.evidence.observation import ObservedCalls, RunObserver
from gateway.steering.evidence.outcomes import decisive_line, failure_line
from gateway.steering.evidence.repeats import Repeat
from gateway.steering.guidance.causes import Cause, cause_of, opening
from gateway.steering.guidance.near_miss import names_in, near_name, open_quote, other_language
from gateway.steering.guidance.render import sanitise
from gateway.steering.transcript.questions import asks_user
from gateway.steering.transcript.step import Action, Step
from gateway.steering.word_lists import word_list

QUOTE_CHARS = 160
"""Longest quote of a result or a thought."""
COMPARED_STEPS = 8
"""Newest steps that are read, as many as the gateway keeps of a run."""
FAILED_AGAIN = 2
"""Equal failures that are trouble; a first failure is ordinary work."""
SHOWN_AGAIN = 3
"""Equal results that are trouble; looking a second time is ordinary work."""
REPEATS = 0.5
"""Strength from which a call counts as a repeat; see `evidence.repeats`."""
SAME_CALL = 0.5
"""Share of words, in [0, 1], from which two calls of one tool ask for the same."""
SAME_MESSAGE = 0.7
"""Share of words, in [0, 1], from which two messages say the same."""
_ANSWER_CHARS = 120
"""A result of at most so many characters is quoted as a whole."""
_MESSAGE_CHARS = 600
_SAID_CHARS = 2**16
"""Of a message that is compared with others; a longer one is content."""
_PROSE_CHARS = 80
_END = 300

_SEARCH_NAME = re.compile(r"search|find|grep|glob|query|^\$(?:rg|ag|ack)$", re.IGNORECASE)
_LOOKUP_NAME = re.compile(
    r"(?:^|[_.])(?:get|list|look|lookup|read|check|query|show|describe|calculate|count|view)"
    r"(?=$|[_.A-Z])",
    re.IGNORECASE,
)
_PROGRAM_NAME = re.compile(r"python|exec|run|code|notebook|repl|test|build", re.IGNORECASE)
_CHECK_NAME = re.compile(r"^(?:can|is|has|check|verify|test)[_.A-Z]")
"""A tool that asks whether something holds, such as `can_send_mail`."""
_FILTERED = re.compile(r"\|\s{0,8}(?:grep|rg|ag|ack)\b")
"""A listing whose lines are searched: `dpkg -l | grep jdk`."""
_EDIT_NAME = re.compile(r"edit|write|replace|patch|insert", re.IGNORECASE)
_SLIP = re.compile(r"\b\w{1,30}[.,;]{1,3}: (?:command )?not found")
"""`cd..` or `find. -name x`: the name of the program runs into what follows."""
_RAISED = re.compile(r"[\w.]{1,120}(?:Error|Exception|Interrupt)\b|panic")
_WARNING = re.compile(r"^(?:error|errors|stderr):\s{0,8}warning", re.IGNORECASE)
"""A warning below a heading is no failure."""
_SENTENCE_END = re.compile("[.!?]\\s|\n|[\u3002\uff01\uff1f]")
_COMMAND_WORDS = 5
"""A first line of so many words that begins with a capital letter is prose, not a command."""
_NAMED = frozenset({"path_missing", "module_missing", "record_missing", "value_refused", "failed"})
"""Causes in which a name may be misspelled."""
_NO = ("", "")
_DOUBTS = frozenset(word_list("situation", "doubt_words"))
_DOUBT_PHRASES = word_list("situation", "doubt_phrases")


class Situation(Struct, frozen=True, kw_only=True):
    """What the newest step is stuck on.

    `count`: how often that has come in the run; `quote`: the decisive line of the newest result, or
    the agent's own words; `near`: a sentence that names a near miss, and `instead` the move that
    follows from it. Empty texts are left out.
    """

    cause: Cause
    count: int = 1
    quote: str = ""
    near: str = ""
    instead: str = ""

    @property
    def persists(self) -> bool:
        """Whether it is trouble by itself, without a monitor that says so."""
        return self.count >= (FAILED_AGAIN if self.cause.when == "failed" else SHOWN_AGAIN)

    def without_quotes(self) -> Situation:
        """The same without any text of the run."""
        return Situation(cause=self.cause, count=self.count)

    def text(self, severity: int) -> str:
        """What happened, the near miss, and one move for a severity from 1 on."""
        texts = self.cause.texts
        move = texts[min(severity, len(texts)) - 1]
        if severity == 1 and self.instead:
            move = self.instead
        shown = opening(self.cause, self.count, self.quote)
        return " ".join(part for part in (shown, self.near, move) if part)


def read_situation(recent: Sequence[Step], calls: ObservedCalls = ()) -> Situation | None:
    """What the newest of the steps is stuck on; None when it brings something new.

    `calls`: what the run observed of the newest step's calls; without them only the steps given
    are known.
    """
    steps = recent[-COMPARED_STEPS:]
    if not steps:
        return None
    return _stuck_call(steps, calls) if steps[-1].actions else _talk(steps)


def _stuck_call(steps: Sequence[Step], calls: ObservedCalls = ()) -> Situation | None:
    """What the newest step's worst call is stuck on."""
    newest = steps[-1]
    if len(calls) != len(newest.actions):
        observer = RunObserver()
        calls = [observer.observe(step).actions for step in steps][-1]
    at = max(range(len(calls)), key=lambda i: _rank(*calls[i]))
    action, (facts, repeat) = newest.actions[at], calls[at]
    if facts.failure is not None:
        return _failed(steps, action, facts, repeat)
    return _repeated(steps, action, facts, repeat)


def restored_edit() -> Situation | None:
    """The newest edit restores what an earlier one replaced."""
    cause = cause_of("undone", frozenset())
    return Situation(cause=cause) if cause else None


def read_doubt(recent: Sequence[Step]) -> Situation | None:
    """The newest sentence of doubt on which the agent builds; None when there is none.

    Who looks something up in the same step is settling the doubt already.
    """
    if not recent or not (recent[-1].actions and _builds(recent[-1])):
        return None
    text = (recent[-1].thought or recent[-1].reasoning)[-_MESSAGE_CHARS:]
    for sentence in reversed(_SENTENCE_END.split(text)):
        lowered = sentence.lower()
        words = {word.strip(",;:()'\"*`") for word in lowered.split()}
        if words & _DOUBTS or any(phrase in lowered for phrase in _DOUBT_PHRASES):
            cause = cause_of("doubt", frozenset())
            return Situation(cause=cause, quote=_quote(sentence)) if cause else None
    return None


def _builds(step: Step) -> bool:
    """Whether the step changes something, rather than looking."""
    calls = [describe_action(action) for action in step.actions]
    return any(facts.changes or facts.edits for facts in calls)


def _rank(facts: ActionFacts, repeat: Repeat) -> tuple[bool, int, float]:
    return facts.failure is not None, repeat.failures, repeat.strength


def _failed(
    steps: Sequence[Step], action: Action, facts: ActionFacts, repeat: Repeat
) -> Situation | None:
    line = decisive_line(action.observation, reads_content=facts.reads)
    if _WARNING.search(line) is not None:
        return None
    command = _command(action, facts)
    properties = _properties(action, facts)
    count = repeat.failures
    if _RAISED.match(line) is not None:
        properties |= {"raised"}
    if command and _is_prose(command):
        properties |= {"prose"}
        line, count = command[:_PROSE_CHARS], max(count, _prose_commands(steps))
    elif command and _SLIP.search(line[:_ANSWER_CHARS]) is not None:
        properties |= {"slip"}
    cause = cause_of("failed", properties, line)
    if cause is None:
        return None
    near, instead = _near(cause.name, steps, action, command)
    return Situation(cause=cause, count=count, quote=_quote(line), near=near, instead=instead)


def _repeated(
    steps: Sequence[Step], action: Action, facts: ActionFacts, repeat: Repeat
) -> Situation | None:
    goes_back = repeat.kind == "new" and bool(facts.edits)
    if repeat.kind == "rerun" or (repeat.strength < REPEATS and not goes_back):
        waits = repeat.kind == "pending" and repeat.count > COMPARED_STEPS
        return _waiting(action, repeat) if waits else None
    if goes_back:
        return None
    properties = _properties(action, facts)
    if repeat.kind == "reworded" and "empty_search" not in properties:
        return _reworded(steps, facts, properties)
    result = action.observation.strip()
    quote = _quote(result) if 0 < len(result) <= _ANSWER_CHARS and not facts.empty else ""
    denied = facts.negative and not properties & {"search", "read"}
    cause = cause_of("failed" if denied else "repeated", properties, result[:_MESSAGE_CHARS])
    count = repeat.count if repeat.kind == "same" else 1
    return Situation(cause=cause, count=count, quote=quote) if cause else None


def _waiting(action: Action, repeat: Repeat) -> Situation | None:
    cause = cause_of("waiting", frozenset())
    quote = _quote(action.observation.strip()[:_ANSWER_CHARS])
    return Situation(cause=cause, count=repeat.count, quote=quote) if cause else None


def _reworded(
    steps: Sequence[Step], facts: ActionFacts, properties: frozenset[str]
) -> Situation | None:
    """Calls of one tool in other words; how many of them came in a row.

    One alone is none: what it resembles lies further back, and the steps since were something else.
    """
    row = 0
    for step in reversed(steps):
        if not any(_alike(describe_action(action), facts) for action in step.actions):
            break
        row += 1
    cause = cause_of("reworded", properties)
    return Situation(cause=cause, count=row) if cause and row > 1 else None


def _alike(call: ActionFacts, newest: ActionFacts) -> bool:
    return call.operation == newest.operation and alike(call.words, newest.words, SAME_CALL)


def _said(step: Step) -> frozenset[str]:
    return frozenset(step.thought[:_SAID_CHARS].lower().split())


def _talk(steps: Sequence[Step]) -> Situation | None:
    """Messages that say the same; or the failure that they keep announcing another try of."""
    words = _said(steps[-1])
    said, acted, tried = 1, 0, 0
    for at in range(len(steps) - 1, 0, -1):
        step = steps[at - 1]
        if step.actions:
            acted = acted or at
        elif alike(words, _said(step), SAME_MESSAGE):
            said, tried = said + 1, acted
    failed = _stuck_call(steps[:tried]) if tried else None
    if failed is not None and failed.cause.when == "failed" and failed.persists:
        return failed
    asks = frozenset({"asks"}) if asks_user(steps[-1].thought) else frozenset()
    cause = cause_of("talk", asks)
    return Situation(cause=cause, count=said) if cause and said > 1 else None


def _properties(action: Action, facts: ActionFacts) -> frozenset[str]:
    """What a call is, as the causes ask for it."""
    operation = facts.operation
    searches = _SEARCH_NAME.search(operation) is not None
    if not searches and operation.startswith("$"):
        searches = _FILTERED.search(_command(action, facts)) is not None
    named = _EDIT_NAME.search(action.name) is not None and not facts.reads
    edits = bool(facts.edits) or named
    found = {
        "shell": operation.startswith("$"),
        "edit": edits,
        "program": facts.program is not None or _PROGRAM_NAME.search(action.name) is not None,
        "runs": facts.program is not None
        or (operation.startswith("$") and not (searches or facts.reads)),
        "search": searches,
        "check": not edits and facts.program is None and _CHECK_NAME.match(action.name) is not None,
        "empty_search": facts.empty and (searches or facts.reads),
        "read": facts.reads,
        "lookup": _LOOKUP_NAME.search(operation) is not None or searches,
    }
    return frozenset(name for name, fits in found.items() if fits)


def _command(action: Action, facts: ActionFacts) -> str:
    """The command line of a shell's call, "" of any other."""
    return shell_command(action.name, action.arguments) if facts.operation[:1] == "$" else ""


def _is_prose(command: str) -> bool:
    """Whether a command begins like a sentence."""
    words = command.split(maxsplit=12)
    first = words[0] if words else ""
    if len(words) < _COMMAND_WORDS or not first[:1].isupper() or "=" in first:
        return False
    return all(word[:1].isalpha() or not word.isascii() for word in words[:3])


def _prose_commands(steps: Sequence[Step]) -> int:
    """How many of the steps sent prose to a shell."""
    found = (shell_command(a.name, a.arguments) for step in steps for a in step.actions)
    return sum(_is_prose(command) for command in found)


def _near(cause: str, steps: Sequence[Step], action: Action, command: str) -> tuple[str, str]:
    """The sentence about a near miss, and the move that follows from it."""
    if cause == "command_slip":
        return "There is a punctuation mark where a space belongs.", ""
    if cause == "shell_syntax":
        mark = open_quote(command)
        return (f"The command leaves a {mark} open.", "Close it, or leave it out.") if mark else _NO
    if cause == "edit_syntax":
        return _other_language(action)
    if cause not in _NAMED:
        return _NO
    seen = [name for step in steps for a in step.actions for name in _shown(a, action)]
    found = near_name(names_in(action.arguments), seen)
    if found is None:
        return _NO
    wanted, known = (_quote(name) for name in found)
    return f'It names "{wanted}"; "{known}" was seen in this run.', "Use that one if you mean it."


def _other_language(action: Action) -> tuple[str, str]:
    names = [*names_in(action.arguments[-_ANSWER_CHARS:]), *names_in(action.observation[-_END:])]
    found = other_language(action.arguments, [*names_in(action.arguments[:_ANSWER_CHARS]), *names])
    if found is None:
        return _NO
    name, ending = found
    return (
        f'The text looks like a .{ending} file, and it goes into "{_quote(name)}".',
        f"Put it into a file that ends in .{ending}, or write it in the language of this one.",
    )


def _shown(action: Action, failed: Action) -> list[str]:
    """The names in a call that worked and in its result; a failure repeats what was asked for."""
    if action is failed or action.is_error or failure_line(action.observation) is not None:
        return []
    return [*names_in(action.observation), *names_in(action.arguments)]


def _quote(text: str) -> str:
    """A text on one line, safe and short enough to quote."""
    plain = " ".join(sanitise(text[: 4 * QUOTE_CHARS], 4 * QUOTE_CHARS).split())
    return plain if len(plain) <= QUOTE_CHARS else plain[: QUOTE_CHARS - 3].rstrip() + "..."
