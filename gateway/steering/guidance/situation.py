"""Trouble of a run's newest step: its cause, its count, the decisive line and its place.

It is read only when guidance is due. Texts of tools and agents are read up to a limit, and
quotations are sanitised and cut."""

import re
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.core.guidance_text import sanitise
from gateway.core.ledger.ledger import Ledger, LedgerStep
from gateway.core.ledger.tries import REPEATS, Tries, Try
from gateway.core.situation import COUNTED, SHOWN_AGAIN, Cause, Reader, Situation
from gateway.core.step import Action, ActionFacts, Step, alike
from gateway.data_files import read_text
from gateway.steering.evidence.action_facts import describe, describe_action
from gateway.steering.evidence.commands import shell_command
from gateway.steering.evidence.outcomes import decisive_line, is_bare
from gateway.steering.transcript.asks_user import asks_user
from gateway.steering.word_lists import word_list

TEXT_CHARS = 4_000
QUOTED_COMMAND_CHARS = 8_000  # read for names, and for open quotation marks
_LANGUAGES = {
    ending: word_list("languages", ending) for ending in ("py", "java", "js", "c", "go", "rs", "sh")
}
_SOURCE = re.compile(r"[\w./-]{1,160}\.[a-z]{1,4}\b")
_MARKS = "'\"`"


def open_quote(command: str) -> str:
    """Returns the quotation mark that a command leaves open; "" if every one is closed."""
    inside = ""
    escaped = False
    for char in command[:QUOTED_COMMAND_CHARS]:
        if escaped:
            escaped = False
        elif char == "\\" and inside != "'":
            escaped = True
        elif inside:
            if char == inside:
                inside = ""
        elif char in _MARKS:
            inside = char
    return inside


class _Causes(Struct, frozen=True):
    causes: tuple[Cause, ...]  # tried in this order; the first that fits is taken
    # by cause or event: the sentence for few occurrences, and that for COUNTED or more
    openings: Mapping[str, tuple[str, str]]


@cache
def _causes() -> list[Cause]:
    table = msgspec.json.decode(read_text(__package__, "causes.json"), type=_Causes)
    return [
        replace(each, openings=table.openings.get(each.name) or table.openings[each.when])
        for each in table.causes
    ]


def _mentions(text: str, word: str) -> bool:
    """True if the text has the word, and not only in a name such as `test_timeout_retry`."""
    named = text.count(f"_{word}") + text.count(f"{word}_") - text.count(f"_{word}_")
    return text.count(word) > named


def cause_of(when: str, properties: Set[str], message: str) -> Cause | None:
    """Returns the first cause that fits the call's properties and its message (lower or upper
    case)."""
    lowered = f" {message.lower()}"
    for cause in _causes():
        needed = cause.needs.removeprefix("!")
        if cause.when != when or (needed and (needed in properties) is cause.needs.startswith("!")):
            continue
        words = [word for each in cause.words.values() for word in each]
        if not words or any(_mentions(lowered, word) for word in words):
            return cause
    return None


QUOTE_CHARS = 160  # longest quote of a result or a thought
COMPARED_STEPS = 8  # newest steps that are read, as many as the gateway keeps of a run
SAME_CALL = 0.5  # share of words, in [0, 1], from which two calls of one tool ask for the same
SAME_MESSAGE = 0.7  # share of words, in [0, 1], from which two messages say the same
_ANSWER_CHARS = 120  # A result of at most so many characters is quoted as a whole
_SAID_CHARS = 2**16  # of a message that is compared with others; a longer one is content
_MESSAGE_CHARS = 600
_PROSE_CHARS = 80
_END = 300

_SEARCH_NAME = re.compile(r"search|find|grep|glob|query|^\$(?:rg|ag|ack)$", re.IGNORECASE)
_LOOKUP_NAME = re.compile(
    r"(?:^|[_.])(?:get|list|look|lookup|read|check|query|show|describe|calculate|count|view)"
    r"(?=$|[_.A-Z])",
    re.IGNORECASE,
)
_PROGRAM_NAME = re.compile(r"python|exec|run|code|notebook|repl(?!ace)|test|build", re.IGNORECASE)
_CHECK_NAME = re.compile(r"^(?:can|is|has|check|verify|test)[_.A-Z]")  # such as `can_send_mail`
_REMOVES = re.compile(  # the complaint of a shell's program, or the name of a tool
    r"(?m)^(?:/\S{0,40}/)?(?:rm|rmdir|unlink): |cannot (?:remove|delete|unlink)\b|Remove-Item"
    r"|\A(?:[\w.-]{0,60}[_.-])?(?:delete|remove|unlink)(?:[_.A-Z-][\w.-]{0,60})?$"
)
_FILTERED = re.compile(r"\|\s{0,8}(?:grep|rg|ag|ack)\b")  # `dpkg -l | grep jdk`
_EDIT_NAME = re.compile(r"edit|write|replace|patch|insert", re.IGNORECASE)
_SLIP = re.compile(r"\b\w{1,30}[.,;]{1,3}: (?:command )?not found")  # `cd..`, `find. -name x`
# A program that cannot be started, in words that speak of a file; not a script that was named.
_NO_PROGRAM = re.compile(
    r"(?i)\b(?:env|nohup|sudo|xargs|time): \W?[\w+/-]{1,80}\W?: (?:no such file|command not found)"
    r"|\b(?:ba|da|z|k)?sh: (?:(?:line )?\d{1,5}: )?(?!cd\b|source\b)[\w+/-]{1,80}: (?:no such file"
    r"|not found)|executable file not found|\bspawn \S{1,80} enoent|cannot run program"
)
_NO_FILE = re.compile(r"(?i)no such file or directory: ['\"][\w+-]{1,40}['\"]")
_CHILD = "subprocess"
_PROGRAM_MISSING = "command not found"
# A `$` that the shell replaces before the program sees it: in double quotes, or in a here-document.
_EATEN = re.compile(
    r"(?:\s-\w{0,3}[ceE]|\b(?:awk|jq|sed|perl|grep|rg|psql))\s[^\"'|;&\n]{0,80}\"[^\"\\]{0,400}\$[\w{@]"
)
_OPEN_DOCUMENT = re.compile(r"<<-?\s{0,4}\w")
_RAISED = re.compile(
    r"[\w.]{1,120}(?:Error|Exception|Interrupt)\b|(?:[a-z_]\w{0,40}\.){1,8}[A-Z]\w{0,60}:|panic"
)
# A warning below a heading is no failure.
_WARNING = re.compile(r"^(?:error|errors|stderr):\s{0,8}warning", re.IGNORECASE)
_COMMAND_WORDS = 5  # a capitalised first line of so many words is prose, not a command
_FRAME = re.compile(r'File "([^"\n]{1,200})", line (\d{1,6})')
_LIBRARY = re.compile(r"(?:site|dist)-packages|lib/python\d|^<")
_KEYS = re.compile(r'[{,]\s{0,8}"\w{1,80}":|["{}]')  # what a call's arguments in JSON add to values
_NO = ("", "")
_ERROR_TAG = re.compile(r"</?tool_use_error>")


def read_situation(recent: Sequence[Step], newest: LedgerStep | None = None) -> Situation | None:
    """Returns the trouble of the newest step; None if it brings something new. `newest`: that step
    in the run's ledger; without it the situation is read off the steps alone. An edit that puts
    back what an earlier one replaced is described as that, whatever else the steps show."""
    if newest is not None and newest.reverts:
        return _because("undone")
    steps = recent[-COMPARED_STEPS:]
    if steps and steps[-1].actions:
        return _stuck_call(steps, newest.actions if newest is not None else ())
    if steps:
        return _talk(steps)
    return None


def _stuck_call(steps: Sequence[Step], calls: Tries = ()) -> Situation | None:
    """Trouble of the newest step's worst call."""

    def rank(at: int) -> tuple[bool, int, bool, int]:
        facts, found = calls[at]
        return facts.failure is not None, found.failures, found.kind in REPEATS, found.count

    newest = steps[-1]
    if len(calls) != len(newest.actions):
        ledger = Ledger(describe)
        calls = [ledger.observe(step).actions for step in steps][-1]
    at = max(range(len(calls)), key=rank)
    action = newest.actions[at]
    facts, found = calls[at]
    read = _failed
    if facts.failure is None:
        read = _repeated
    return read(steps, action, facts, found)


def _because(
    when: str, properties: Set[str] = frozenset(), message: str = "", **found: Any
) -> Situation | None:
    """Returns the situation with the first cause that fits; None if none does."""
    cause = cause_of(when, properties, message)
    if cause:
        return Situation(cause=cause, **found)
    return None


def _failed(
    steps: Sequence[Step], action: Action, facts: ActionFacts, found: Try
) -> Situation | None:
    line = message = decisive_line(action.observation, reads_content=facts.effect.reads)
    if _WARNING.search(line):
        return None
    command = _command(action, facts)
    properties = _properties(action, facts)
    # Failures of one bare word need not be the same.
    if is_bare(facts.failure or ""):
        count = 1
    else:
        count = found.failures
    if "own" not in properties and _RAISED.match(line) is not None:
        properties |= {"raised"}
    if command and _is_prose(command):
        properties |= {"prose"}
        sent = (shell_command(each.name, each.arguments) for s in steps for each in s.actions)
        line = message = command[:_PROSE_CHARS]
        count = sum(map(_is_prose, sent))
    elif command and _SLIP.search(line[:_ANSWER_CHARS]):
        properties |= {"slip"}
    elif _NO_PROGRAM.search(line) or (_NO_FILE.search(line) and _CHILD in action.observation):
        message = _PROGRAM_MISSING
    elif "$" in command and _is_expanded(command[:QUOTED_COMMAND_CHARS]):
        properties |= {"expanded"}
    cause = cause_of("failed", properties, message)
    if cause is None:
        return None
    near, instead = _near(cause.name, action, command, line=line)
    if (path := _edited(facts)) and not near and path.rpartition("/")[2] not in line:
        near = f'The edit was for "{_quote(path)}".'
    return Situation(cause=cause, count=count, quote=_quote(line), near=near, instead=instead)


def _repeated(
    steps: Sequence[Step], action: Action, facts: ActionFacts, found: Try
) -> Situation | None:
    if facts.edits and (times := _times_made(steps, facts)) > 1:
        return _because("repeated", {"edit"}, count=times, quote=_quote(_edited(facts)))
    if found.kind == "pending":
        if found.count <= COMPARED_STEPS:
            return None
        quote = _quote(action.observation.strip()[:_ANSWER_CHARS])
        return _because("waiting", count=found.count, quote=quote)
    if found.entry is None:
        return None
    properties = _properties(action, facts)
    calls = _calls(steps)
    if found.kind == "reworded" and facts.span is not None:
        path, first, last = facts.span
        parts = [each for each in calls if each.span and each.span[0] == path]
        # Who could not apply an edit has to look again.
        if any(each.edits and each.failure for each in calls) or len(parts) < COUNTED:
            return None
        quote = _quote(f"lines {first} to {last} of {path}")
        return _because("reworded", {"span"}, count=len(parts), quote=quote)
    empty = "empty_search" in properties
    if found.kind == "reworded" and not empty:
        return _reworded(steps, facts, properties)
    if found.entry.count < COUNTED:
        return None
    count = found.count  # the entry may count other calls too
    if empty:
        count = sum(c.answer.empty for c in calls if c.operation == facts.operation)
    result = action.observation.strip()
    short = 0 < len(result) <= _ANSWER_CHARS and not facts.answer.empty
    denied = facts.answer.negative and "own" in properties
    when = "repeated"
    if denied and not properties & {"search", "read"}:
        when = "failed"
    asked = _command(action, facts) or f"{action.name} {_values(action)}"
    quote = _quote(result if short else asked)
    return _because(when, properties, result[:_MESSAGE_CHARS], count=count, quote=quote)


def _calls(steps: Sequence[Step]) -> list[ActionFacts]:
    return [describe_action(each) for step in steps for each in step.actions]


def _times_made(steps: Sequence[Step], facts: ActionFacts) -> int:
    """Number of times that the newest steps made this very edit, without another change in
    between."""
    times = 0
    for each in reversed(_calls(steps)):
        if each.answer.negative or each.answer.by_user:
            continue  # an edit that was refused has changed nothing
        if each.call == facts.call:
            times += 1
        elif each.effect.changes and each.program is None:
            break
    return times


def _edited(facts: ActionFacts) -> str:
    """Returns the file of a call's first edit; "" if it edits none, or if it names only lines."""
    path = ""
    if facts.edits:
        path = facts.edits[0].path
    if path.startswith(":"):
        return ""
    return path


def _values(action: Action) -> str:
    """The values of a call's arguments, without their names."""
    return " ".join(_KEYS.sub(" ", action.arguments[:TEXT_CHARS]).split())


def _reworded(
    steps: Sequence[Step], facts: ActionFacts, properties: frozenset[str]
) -> Situation | None:
    """Recognises three steps in a row that ask for the same in other words; test runs and
    programs do not count."""
    if facts.program is not None or facts.effect.settles:
        return None

    def asks_again(call: ActionFacts) -> bool:
        same_tool = call.operation == facts.operation
        return same_tool and alike(call.question.words, facts.question.words, SAME_CALL)

    again = [any(asks_again(describe_action(a)) for a in step.actions) for step in steps[::-1]]
    row = [*again, False].index(False)
    if row >= SHOWN_AGAIN:
        return _because("reworded", properties, count=row)
    return None


def _said(step: Step) -> frozenset[str]:
    return frozenset(step.thought[:_SAID_CHARS].lower().split())


def _talk(steps: Sequence[Step]) -> Situation | None:
    """Recognises messages that say the same again, or a failure that the agent keeps announcing
    to try again."""
    words = _said(steps[-1])
    said = 1
    acted = 0
    tried = 0
    for at in range(len(steps) - 1, 0, -1):
        step = steps[at - 1]
        if step.actions:
            acted = acted or at
        elif alike(words, _said(step), SAME_MESSAGE):
            said = said + 1
            tried = acted
    failed = None
    if tried:
        failed = _stuck_call(steps[:tried])
    if failed is not None and failed.cause.when == "failed" and failed.persists:
        return failed
    if asks_user(steps[-1].thought):
        asks = {"asks"}
    else:
        asks = set()
    if said > 1:
        return _because("talk", asks, count=said)
    return None


def _properties(action: Action, facts: ActionFacts) -> frozenset[str]:
    """Returns the properties of a call by which `causes.json` tells causes apart."""
    operation = facts.operation
    searches = _SEARCH_NAME.search(operation) is not None
    runs = facts.program is not None or _PROGRAM_NAME.search(action.name) is not None
    if not searches and operation.startswith("$") and facts.program is None:
        searches = _FILTERED.search(_command(action, facts)) is not None
    named = _EDIT_NAME.search(action.name) is not None and not facts.effect.reads
    edits = bool(facts.edits) or named
    found = {
        "shell": operation.startswith("$"),
        "edit": edits,
        "program": runs,
        "own": not (runs or operation.startswith("$")),  # the tool itself answers
        "runs": facts.program is not None
        or (operation.startswith("$") and not (searches or facts.effect.reads)),
        "removes": _REMOVES.search(f"{action.name}\n{action.observation[-_END:]}") is not None,
        "search": searches,
        "check": not edits and facts.program is None and _CHECK_NAME.match(action.name) is not None,
        "empty_search": facts.answer.empty and (searches or facts.effect.reads),
        "read": facts.effect.reads,
        "lookup": _LOOKUP_NAME.search(operation) is not None or searches,
    }
    return frozenset(name for name, fits in found.items() if fits)


def _command(action: Action, facts: ActionFacts) -> str:
    """Returns the command line of a shell call; "" for any other call."""
    if facts.operation[:1] == "$":
        return shell_command(action.name, action.arguments)
    return ""


def _is_expanded(command: str) -> bool:
    """True if a shell replaces a `$` in text that is meant for another program."""
    document = _OPEN_DOCUMENT.search(command)
    return _EATEN.search(command) is not None or (
        document is not None and "$" in command[document.end() :]
    )


def _is_prose(command: str) -> bool:
    """True if a command begins like a sentence."""
    words = command.split(maxsplit=12)
    first = words[0] if words else ""
    if len(words) < _COMMAND_WORDS or not first[:1].isupper() or "=" in first:
        return False
    return all(word[:1].isalpha() or not word.isascii() for word in words[:3])


def _near(cause: str, action: Action, command: str, line: str) -> tuple[str, str]:
    """Returns a sentence about a near miss at the place of the trouble, and the move that
    follows from it."""
    if cause == "command_slip":
        return "There is a punctuation mark where a space belongs.", ""
    if cause == "shell_syntax":
        mark = open_quote(command)
        if mark:
            return (f"The command leaves a {mark} open.", "Close it, or leave it out.")
        return _NO
    if cause == "edit_syntax":
        return _other_language(action)
    if cause == "test_failed" and line.startswith("--- FAIL") and line.endswith("s)"):
        return "", "Run this test alone, and read the line that says what was expected."
    if cause in ("exception", "name_undefined"):
        return _place(action.observation)
    return _NO


def _place(result: str) -> tuple[str, str]:
    """The innermost line of the project in a traceback."""
    for path, number in reversed(_FRAME.findall(result[-TEXT_CHARS:])):
        if not _LIBRARY.search(path):
            return f'It comes from line {number} of "{_quote(path)}".', ""
    return _NO


def _other_language(action: Action) -> tuple[str, str]:
    """Observation and advice for a text with the marks of one language in a file of another."""
    text = action.arguments[:TEXT_CHARS]
    spoken = [
        ending for ending, marks in _LANGUAGES.items() if [mark for mark in marks if mark in text]
    ]
    names = _SOURCE.findall(f"{text[:_ANSWER_CHARS]} {action.observation[-_END:]}")
    file = next((name for name in names if name.rpartition(".")[2] in _LANGUAGES), "")
    if len(spoken) != 1 or not file or file.endswith(f".{spoken[0]}"):
        return _NO
    return (
        f'The text looks like a .{spoken[0]} file, and it goes into "{_quote(file)}".',
        f"Put it into a file that ends in .{spoken[0]}, or write it in the language of this one.",
    )


def _quote(text: str) -> str:
    """A text on one line, safe and short enough to quote."""
    longest = 4 * QUOTE_CHARS
    plain = " ".join(sanitise(_ERROR_TAG.sub("", text[:longest]), longest).split())
    if len(plain) <= QUOTE_CHARS:
        return plain
    return plain[: QUOTE_CHARS - 3].rstrip() + "..."


# The reader that the core is given.
READER = Reader(describe=describe, situation=read_situation)
