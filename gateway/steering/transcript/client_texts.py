"""Texts with the role of the user, of which clients write many: only the rest was typed."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.data_files import read_toml
from gateway.steering.transcript.user_words import task_of, user_words

_TABLE = read_toml(__package__, "client_texts.toml")


def _opening(names: Sequence[str]) -> re.Pattern[str]:
    """Finds one of these tags at the beginning of a text."""
    return re.compile(rf"<(?:{'|'.join(names)})(?:\s[^<>]{{0,300}})?>")


_NOTES = tuple(_TABLE["notes"])
_LEAD = re.compile(rf"(?:(?:{'|'.join(map(re.escape, _TABLE['leads']))})\s*)+")
_BEGINS = (*_NOTES, *_TABLE["orders"])
_PROGRAMS = tuple(_TABLE["programs"])
_QUOTA = _TABLE["asks"][0]
_ASKS = tuple(_TABLE["asks"][1:])
_ROLES = tuple(_TABLE["roles"])
_NOTE_TAG = _opening(_TABLE["note_tags"])
_TAG = _opening((*_TABLE["note_tags"], *_TABLE["order_tags"]))
# One block around a whole text. A name of several words is a client's; HTML has none.
_BLOCK = re.compile(r"<([a-z]\w*[-_][\w-]+)(?:\s[^<>]{0,300})?>.*</\1>", re.DOTALL)


def typed_words(text: str) -> str:
    """The words that a person typed in a text; "" where a client wrote it all, or where it is
    nothing but a value in JSON, as clients send each other."""
    text = text.strip()
    if _TAG.match(text) or text.startswith(_PROGRAMS):
        return ""
    return _not_of_client(user_words(text))


def _not_of_client(words: str) -> str:
    first = words[:1]
    tagged = first == "<" and (_TAG.match(words) or _BLOCK.fullmatch(words))
    if tagged or words.startswith(_BEGINS) or (first in ("{", "[") and _is_json(words)):
        return ""
    return words


def is_note(text: str) -> bool:
    """True for a text by which a client goes on by itself: a note about a loop, a continuation, a
    notification, a reminder, the output of a hook. It is no task, and begins no run."""
    text = text.strip()
    if text.startswith(_NOTES) or _NOTE_TAG.match(text):
        return True
    return text.startswith("<") and not user_words(text)


def is_request_of_client(system: str, words: str) -> bool:
    """True for a request that a client makes for itself, by its system text and what it asks;
    titles and summaries are known elsewhere."""
    return words == _QUOTA or words.startswith(_ASKS) or system.startswith(_ROLES)


def asked(transcript: Sequence[Any], start: int) -> str:
    """The task in the messages from `start` on, as `task_of`; "" where a client wrote it."""
    return task_of(transcript, start, title_words, or_else=False)


def title_words(text: str) -> str:
    """The words that may be a title: what was typed, what a program asked, or a plan without the
    client's line above it."""
    words = user_words(text.strip())
    if lead := _LEAD.match(words):
        return typed_words(words[lead.end() :])
    return _not_of_client(words)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
