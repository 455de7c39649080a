"""The end of a session: facts of its last messages, and no verdict."""

import re
from collections.abc import Sequence

import orjson

from gateway.features.history.session import HumanTurn, Session
from gateway.steering.evidence.commands import PLAN_NAME
from gateway.steering.transcript.content import asks_user, read_calls, read_content
from gateway.values import Fields, Value
from gateway.wire.coerce import as_mapping, list_at, text_at

_ITEMS = ("todos", "plan", "items", "todoList", "todo_list")
_CLOSED = ("completed", "done", "cancelled", "canceled", "deleted")
_NEXT = re.compile(
    r"(?im)^[\W_]{0,8}(?:(?:suggested |recommended |possible )?next steps?|what(?:'s| is) next"
    r"|remaining(?: work| steps| tasks| items)?|still (?:open|to do|missing)|to-?do|follow-?ups?"
    r"|not (?:yet )?done)\b[^\n]{0,40}$"
)
"""A heading, or a line of its own, over what is left to do."""
_READ = 4000  # characters of the last answer's end


class Ending(Value):
    """The end of a session."""

    # "answered", "interrupted", "rejected", "in a call" whose result no answer follows, or
    # "unanswered"
    how: str
    open_items: int = 0  # of the newest list of things to do
    asked: bool = False  # the last answer asks the person something, who had given an order
    next_steps: bool = False  # the last answer names what is left to do


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
        asked=answered and asks_user(text) and not _asked_by_person(session.human),
        next_steps=answered and _NEXT.search(text[-_READ:]) is not None,
    )


def _how(session: Session, answer: int, message: Fields) -> str:
    last = None
    if session.human:
        last = session.human[-1]
    if last is not None and last.position >= answer and last.kind in ("interrupt", "reject"):
        return {"interrupt": "interrupted", "reject": "rejected"}[last.kind]
    if answer < 0 or (last is not None and last.position > answer and last.kind == "message"):
        return "unanswered"
    if read_calls(message, read_content(message.get("content"))):
        return "in a call"
    return "answered"


def _open_items(session: Session) -> int:
    """Number of items that the newest list of things to do has open; 0 without a list."""
    for call in reversed(session.calls):
        message = session.messages[call.position]
        for asked in reversed(read_calls(message, read_content(message.get("content")))):
            if PLAN_NAME.search(asked.name):
                return _open_in(asked.arguments)
    return 0


def _open_in(arguments: str) -> int:
    try:
        values = as_mapping(orjson.loads(arguments))
    except orjson.JSONDecodeError:
        return 0
    items = next((found for name in _ITEMS if (found := list_at(values, name))), [])
    stated = [text_at(as_mapping(item), "status") for item in items]
    return sum(bool(status) and status.lower() not in _CLOSED for status in stated)


def _asked_by_person(human: Sequence[HumanTurn]) -> bool:
    """True if the person's last message is a question."""
    said = [turn.text for turn in human if turn.kind == "message" and turn.text]
    return bool(said) and said[-1].rstrip().endswith(("?", "\N{FULLWIDTH QUESTION MARK}"))
