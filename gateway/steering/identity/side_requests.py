"""Recognising a request for a title, which clients send alongside a conversation to label it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.wire.messages import content_text

_SYSTEM_CHARACTERS = 700
"""How far into a system text its instruction is looked for: some clients begin with their name."""
_HEAD_CHARACTERS = 500
_TAIL_CHARACTERS = 300
"""Where in a user message the instruction is looked for: clients quote the conversation after it or
before it."""

_VERB = (
    r"\b(?:generate|create|write|suggest|provide|give|produce|propose|craft|make|choose|output"
    r"|come up with|summari[sz]e|extract|(?:respond|reply|return|answer)(?: \w+){0,2} with|need"
    r"|naming)\b"
)
_LABEL = (
    r"(?:\b(?:titles?|headline)\b"
    r"|\b(?:short|concise|brief|descriptive|chat|conversation|session|thread)[ -]names?\b"
    r"|\bdescription of (?:this|the) (?:session|conversation|chat)\b)"
)
_WHAT = (
    r"\b(?:conversation|chat|(?:coding |agent )?session|thread|dialogue|discussion"
    r"|first message)s?\b"
)
_ASKS = re.compile(
    rf"{_VERB}[^.]{{0,100}}?{_LABEL}"
    rf"|\bnam(?:e|ing) (?:this|the|a|an|our) (?:\w+ ){{0,2}}?{_WHAT}"
    r"|\b(?:title|name|naming) (?:generator|assistant)\b"
    r"|(?:\u751f\u6210|\u8d77|\u62df|\u603b\u7ed3).{0,40}?(?:\u6807\u9898|\u540d\u79f0)"
)
_ABOUT = re.compile(
    rf"{_WHAT}|\b(?:user'?s? )(?:first )?message\b|\u5bf9\u8bdd|\u4f1a\u8bdd|\u804a\u5929"
)
_SIGNS = ("title", "headline", "nam", "description of", "\u6807\u9898", "\u540d\u79f0")
"""What asks for a title contains one of these; searching for plain text costs a tenth."""
_NEAR_CHARACTERS = 200
_STARTS_WITHIN = 120
"""A user message that asks for a title does so at once; a task may mention titles later."""


def asks_for_title(system: str, messages: Sequence[object]) -> bool:
    """Whether a request without tools asks for a title of a conversation.

    `system`: its system text. The instruction is in the beginning of that, at the start of the
    first user message, or at either end of the last one. Source: the title requests of opencode,
    gptme, Claude Code, Zed, goose, Crush and Open WebUI.
    """
    if _instructs(system[:_SYSTEM_CHARACTERS]):
        return True
    said = [text for text in map(_user_text, _outer(messages)) if text]
    if not said:
        return False
    first, last = said[0][:_HEAD_CHARACTERS], said[-1][:_HEAD_CHARACTERS]
    if _instructs(first, within=_STARTS_WITHIN):
        return True
    if last != first and _instructs(last, within=_STARTS_WITHIN):
        return True
    return _instructs(said[-1][-_TAIL_CHARACTERS:])


def _outer(messages: Sequence[object]) -> list[object]:
    """The messages that may have the instruction: the first three and the last."""
    return [*messages[:3], *messages[-1:]] if len(messages) > 3 else list(messages)


def _user_text(message: object) -> str:
    if isinstance(message, dict) and message.get("role") == "user":
        return content_text(message.get("content"))
    return ""


def _instructs(text: str, within: int = _SYSTEM_CHARACTERS) -> bool:
    text = text.lower()
    for sign in _SIGNS:  # a generator for `any` would cost as much as the search
        if sign in text:
            break
    else:
        return False
    asked = _ASKS.search(text)
    if asked is None or asked.start() > within:
        return False
    near = text[max(asked.start() - _NEAR_CHARACTERS, 0) : asked.end() + _NEAR_CHARACTERS]
    return _ABOUT.search(near) is not None
