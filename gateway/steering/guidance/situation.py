"""Trouble of a run's newest step: the cause, the true count, the decisive line, a near miss.

Read only when guidance is due, from the newest steps and what the run has observed of the newest
one. Texts of tools and agents are read within limits, and quoted sanitised and cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from importlib import resources

from msgspec import Struct

from gateway.steering.evidence.commands import shell_command
from gateway.steering.evidence.features import ActionFacts, alike, describe_action
from gateway.steering.evidence.observation import ObservedCalls, RunObserver
from gateway.steering.evidence.outcomes import decisive_line, failure_line
from gateway.steering.evidence.repeats import Repeat
from gateway.steering.guidance.render import sanitise
from gateway.steering.transcript.content import asks_user
from gateway.steering.transcript.steps import Action, Step
from gateway.steering.word_lists import word_list, word_lists

TEXT_CHARS = 4_000  # characters of one text in which names are looked for
MAX_NAMES = 600  # names seen that a wrong one is compared with
LEAST_CHARS = 5  # shorter names are near too many others
LEAST_LETTERS = 4  # names with fewer letters are versions and numbers, all near each other
QUOTED_COMMAND_CHARS = 8_000

_NAME = re.compile(r"(?<![\w./@#~-])[\w./@#~-]{4,160}+")
_MARKS = "'\"`"
_LANGUAGES = word_lists("languages")


def names_in(text: str) -> list[str]:
    """Paths, file names and ids in a text: words with a sign or a digit in them, in order."""
    found = dict.fromkeys(
        name.strip(".-") for name in _NAME.findall(text[:TEXT_CHARS]) if not name.isalpha()
    )
    return [name for name in found if len(name) >= LEAST_CHARS]


def near_name(wanted: Iterable[str], seen: Iterable[str]) -> tuple[str, str] | None:
    """A wanted name that was never seen, and the seen one that it may stand for.

    That is one that differs in one letter, or one that ends in the same directory and file name.
    """
    known = dict.fromkeys(list(seen)[:MAX_NAMES])
    lowered = {name.rstrip("/") for name in known}
    missing = [name for name in wanted if name.rstrip("/") not in lowered]
    for name in missing:
        for other in known:
            if _one_letter_apart(name, other):
                return name, other
    for name in missing:
        end = name.strip("./").split("/")[-2:]
        if "." in end[-1] and len(end[-1]) >= LEAST_CHARS:
            for other in known:
                if "/" in other and other.split("/")[-len(end) :] == end:
                    return name, other
    return None


def other_language(text: str, names: Iterable[str]) -> tuple[str, str] | None:
    """A file among the names, and the ending of the language that a text for it seems to be in.

    None unless the text has the marks of one language, and of none that the file's ending stands
    for.
    """
    begun = text[:TEXT_CHARS]
    spoken = [ending for ending, marks in _LANGUAGES.items() if any(m in begun for m in marks)]
    if len(spoken) != 1:
        return None
    for name in names:
        ending = name.rpartition(".")[2]
        if ending in _LANGUAGES:
            return None if ending == spoken[0] else (name, spoken[0])
    return None


def open_quote(command: str) -> str:
    """The quotation mark that a command leaves open, "" when each is closed."""
    inside, escaped = "", False
    for char in command[:QUOTED_COMMAND_CHARS]:
        if escaped:
            escaped = False
        elif char == "\\" and inside != "'":
            escaped = True
        elif inside:
            inside = "" if char == inside else inside
        elif char in _MARKS:
            inside = char
    return inside


def _one_letter_apart(a: str, b: str) -> bool:
    """Whether one letter is changed, added, left out, or swapped with the next one."""
    if abs(len(a) - len(b)) > 1 or a == b or sum(map(str.isalpha, a)) < LEAST_LETTERS:
        return False
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if at is None:  # one is the other with a letter more
        return not max(a, b, key=len)[-1].isdigit()
    rest_a, rest_b = a[at:], b[at:]
    if (rest_a[0] + rest_b[0]).isdigit():
        return False  # page2 and page3 are two names
    if rest_a[1:] == rest_b[1:] or rest_a[1:] == rest_b or rest_a == rest_b[1:]:
        return True
    return rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]


COUNTED = 2  # from how many times on a text says how often; "1 x" says nothing


class Cause(Struct, frozen=True, kw_only=True):
    """One kind of trouble.

    `when`: what the newest step does: `failed`, `repeated`, `waiting`, `reworded`, `undone`,
    `talk`, `doubt`. `needs`: a property that the call must have, "" for none. `words`: one of them
    is in the message, in lower case; without words every message fits. `texts`: the move to
    suggest at severity 1, 2, ...
    """

    name: str
    when: str
    needs: str
    words: tuple[str, ...]
    texts: tuple[str, ...]


class _Causes(Struct, frozen=True):
    by_name: Mapping[str, Cause]
    openings: Mapping[str, tuple[str, str]]


def cause_of(when: str, properties: Set[str], message: str = "") -> Cause | None:
    """The first cause that fits a call with these properties, and its message in any case."""
    lowered = f" {message.lower()}"
    for cause in _causes().by_name.values():
        if cause.when != when or (cause.needs and cause.needs not in properties):
            continue
        if not cause.words or any(word in lowered for word in cause.words):
            return cause
    return None


def cause_names() -> tuple[str, ...]:
    """The names of all causes."""
    return tuple(_causes().by_name)


def opening(cause: Cause, count: int, quote: str) -> str:
    """The sentence that says what happened, with the quote and the count; "" when it is unknown.

    `quote` is shown between quotation marks; without one the part that needs it is left out.
    """
    openings = _causes().openings
    pair = openings.get(cause.name) or openings[cause.when]
    text = pair[count >= COUNTED].replace("{count}", str(count))
    if not quote:
        return text.replace(": {quote}", "").replace("{quote}", "")
    shown = '"' + quote.replace('"', "'") + '"'
    before = "" if ": {quote}" in text else ": "
    return text.replace("{quote}", before + shown)


@cache
def _causes() -> _Causes:
    source = resources.files("gateway.steering.guidance").joinpath("causes.json")
    data = json.loads(source.read_text(encoding="utf-8"))
    found = [
        Cause(
            name=each["cause"],
            when=each["when"],
            needs=each.get("needs", ""),
            words=tuple(w for words in each.get("words", {}).values() for w in words),
            texts=tuple(each["texts"]),
        )
        for each in data["causes"]
    ]
    openings = {when: (first, counted) for when, (first, counted) in data["openings"].items()}
    return _Causes(by_name={cause.name: cause for cause in found}, openings=openings)


QUOTE_CHARS = 160  # longest quote of a result or a thought
COMPARED_STEPS = 8  # newest steps that are read, as many as the gateway keeps of a run
FAILED_AGAIN = 2  # equal failures that are trouble; a first failure is ordinary work
SHOWN_AGAIN = 3  # equal results that are trouble; looking a second time is ordinary work
REPEATS = 0.5  # strength from which a call counts as a repeat; see `evidence.repeats`
SAME_CALL = 0.5  # share of words, in [0, 1], from which two calls of one tool ask for the same
SAME_MESSAGE = 0.7  # share of words, in [0, 1], from which two messages say the same
_ANSWER_CHARS = 120  # A result of at most so many characters is quoted as a whole
_MESSAGE_CHARS = 600
_SAID_CHARS = 2**16  # of a message that is compared with others; a longer one is content
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
_COMMAND_WORDS = 5  # a capitalised first line of so many words is prose, not a command
_NAMED = frozenset({"path_missing", "module_missing", "record_missing", "value_refused", "failed"})
"""Causes in which a name may be misspelled."""
_NO = ("", "")
_DOUBTS = frozenset(word_list("situation", "doubt_words"))
_DOUBT_PHRASES = word_list("situation", "doubt_phrases")


class Situation(Struct, frozen=True, kw_only=True):
    """Trouble of the newest step.

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
        """Text for a severity from 1 on: the event, the near miss, and one move."""
        texts = self.cause.texts
        move = texts[min(severity, len(texts)) - 1]
        if severity == 1 and self.instead:
            move = self.instead
        shown = opening(self.cause, self.count, self.quote)
        return " ".join(part for part in (shown, self.near, move) if part)


def read_situation(recent: Sequence[Step], calls: ObservedCalls = ()) -> Situation | None:
    """Trouble of the newest of the steps; None when it brings something new.

    `calls`: what the run observed of the newest step's calls; without them only the steps given
    are known.
    """
    steps = recent[-COMPARED_STEPS:]
    if not steps:
        return None
    return _stuck_call(steps, calls) if steps[-1].actions else _talk(steps)


def _stuck_call(steps: Sequence[Step], calls: ObservedCalls = ()) -> Situation | None:
    """Trouble of the newest step's worst call."""
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
    return any(facts.effect.changes or facts.edits for facts in calls)


def _rank(facts: ActionFacts, repeat: Repeat) -> tuple[bool, int, float]:
    return facts.failure is not None, repeat.failures, repeat.strength


def _failed(
    steps: Sequence[Step], action: Action, facts: ActionFacts, repeat: Repeat
) -> Situation | None:
    line = decisive_line(action.observation, reads_content=facts.effect.reads)
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
    quote = _quote(result) if 0 < len(result) <= _ANSWER_CHARS and not facts.answer.empty else ""
    denied = facts.answer.negative and not properties & {"search", "read"}
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
    return call.operation == newest.operation and alike(
        call.question.words, newest.question.words, SAME_CALL
    )


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
    """Kind of a call in the words of the causes."""
    operation = facts.operation
    searches = _SEARCH_NAME.search(operation) is not None
    if not searches and operation.startswith("$"):
        searches = _FILTERED.search(_command(action, facts)) is not None
    named = _EDIT_NAME.search(action.name) is not None and not facts.effect.reads
    edits = bool(facts.edits) or named
    found = {
        "shell": operation.startswith("$"),
        "edit": edits,
        "program": facts.program is not None or _PROGRAM_NAME.search(action.name) is not None,
        "runs": facts.program is not None
        or (operation.startswith("$") and not (searches or facts.effect.reads)),
        "search": searches,
        "check": not edits and facts.program is None and _CHECK_NAME.match(action.name) is not None,
        "empty_search": facts.answer.empty and (searches or facts.effect.reads),
        "read": facts.effect.reads,
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
    """Number of steps that sent prose to a shell."""
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
