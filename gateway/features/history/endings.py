"""The end of a session: facts of its last messages, and no verdict."""

import re

from gateway.features.history.session import Session
from gateway.steering.evidence.commands import parsed
from gateway.steering.transcript.asks_user import QUESTION_MARKS
from gateway.steering.transcript.content import read_calls, read_content, read_reasoning
from gateway.values import Fields, Value
from gateway.wire.coerce import as_list, as_mapping, as_text, text_at
from gateway.wire.usage import tokens_of

_LIST = re.compile(r'"(todos|todo_?[lL]ist|task_list|task_progress|taskId|plan(?="\s*:\s*\[))"\s*:')
"""The arguments that hold a list of things to do, whatever the name of the tool."""
_OPEN = frozenset(
    {"pending", "in_progress", "in progress", "todo", "open", "not_started", "blocked"}
)
_STATES = _OPEN | {"completed", "complete", "done", "cancelled", "canceled", "deleted", "skipped"}
_UNCHECKED = re.compile(r"(?m)^\s*(?:[-*] )?\[[ -]\]")
# A list in a program that calls tools, as Codex's newest models write them.
_PROGRAM = re.compile(
    r"""tools\.update_plan\((?:(?!tools\.update_plan).)*?\bplan["']?\s*:\s*\[((?:[^]"'`]"""
    r"""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)*)""",
    re.DOTALL,
)
_STATE = re.compile(r"""[{,]\s*["']?status["']?\s*:\s*["'`](\w+)""")
_CREATED = re.compile(r"Task #(\w+) created")  # the result of Claude Code's TaskCreate
_NEXT = re.compile(
    r"(?im)^[\W_]{0,8}(?:(?:suggested |recommended |possible )?next steps?|what(?:'s| is) next"
    r"|remaining(?: work| steps| tasks| items)?|still (?:open|to do|missing)|to-?do|follow-?ups?"
    r"|not (?:yet )?done)\b[^\n]{0,40}$"
)
"""A heading, or a line of its own, over what is left to do."""
_CLOSING = " \n*_`)]\"'"  # may follow the last mark of a sentence
_MARKS = 4  # output tokens that an answer without a word may have: its beginning and its end
_READ = 4000  # characters of the last answer's end


class Ending(Value):
    """The end of a session."""

    # "answered", "empty" for an answer without text and call, "not logged" for one whose tokens say
    # that it had a text, "in a call" that has no result,
    # "after a result" that no answer follows, "interrupted", "rejected", or "unanswered"
    how: str
    open_items: int = 0  # of the newest list of things to do
    asked: bool = False  # the last answer ends with a question
    next_steps: bool = False  # the last answer has a heading over what is left to do


def ending_of(session: Session) -> Ending:
    """The facts of a session's end. Headings such as "Next steps" are known in English alone."""
    answer = -1
    message: Fields = {}
    if session.calls:
        answer = session.calls[-1].position
        message = session.messages[answer]
    text = read_content(message.get("content")).text.rstrip()
    how = _how(session, answer, message)
    answered = how == "answered"
    return Ending(
        how=how,
        open_items=_open_items(session),
        asked=answered and text.rstrip(_CLOSING).endswith(QUESTION_MARKS),
        next_steps=answered and _NEXT.search(text[-_READ:]) is not None,
    )


def _how(session: Session, answer: int, message: Fields) -> str:
    last = None
    if session.human:
        last = session.human[-1]
    if last is not None and last.position >= answer and last.kind in ("interrupt", "reject"):
        return f"{last.kind}ed"
    if answer < 0 or (last is not None and last.position > answer and last.kind == "message"):
        return "unanswered"
    content = read_content(message.get("content"))
    calls = read_calls(message, content)
    if calls:
        answered = sum(map(_results, session.messages[answer + 1 :]))
        waiting = sum(call.observation is None for call in calls) - answered
        return "in a call" if waiting > 0 else "after a result"
    if content.text.strip() or content.image:
        return "answered"
    tokens = tokens_of(session.calls[-1].usage)
    # Where reasoning is in the log and not counted apart, these may be its tokens.
    apart = tokens["reasoning"] or not read_reasoning(message, content)
    if apart and not content.text and tokens["output"] > _MARKS:
        return "not logged"
    return "empty"


def _results(message: Fields) -> int:
    """Number of results of calls in a message."""
    if message.get("role") == "tool":
        return 1
    return len(read_content(message.get("content")).results)


def _open_items(session: Session) -> int:
    """Number of items that are open in the newest list of things to do: one that a call states as a
    whole, or one whose tasks have calls of their own. 0 without a list."""
    listed = 0
    tasks: dict[str, bool] = {}  # by id, true if it is open
    for message in session.messages:
        content = read_content(message.get("content"))
        for call in read_calls(message, content):
            if call.name == "exec":
                for plan in _PROGRAM.findall(call.arguments):
                    listed = sum(state in _OPEN for state in _STATE.findall(plan))
            found = _LIST.search(call.arguments)
            if found is None:
                continue
            values = as_mapping(parsed(call.arguments))
            state = text_at(values, "status")
            if found[1] != "taskId":
                listed = _open_in(values.get(found[1]), before=listed)
            elif state in _STATES:
                tasks[str(values.get("taskId"))] = state in _OPEN
        texts = [as_text(message.get("content"), ""), *[result.text for result in content.results]]
        for made in filter(None, map(_CREATED.match, texts)):
            tasks[made[1]] = True
    return listed + sum(tasks.values())


def _open_in(items: object, before: int) -> int:
    """Number of open items in the list of a call; `before` if it states none."""
    if isinstance(items, str):  # lines with a box each
        return len(_UNCHECKED.findall(items))
    states = [text_at(as_mapping(item), "status").lower() for item in as_list(items)]
    if not isinstance(items, list) or not _STATES.issuperset(states):
        return before
    return sum(state in _OPEN for state in states)
