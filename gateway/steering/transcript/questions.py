"""Whether a message ends with a question or request to the user."""

from __future__ import annotations

import re

TAIL_CHARS = 400
"""Where a message asks: at its end. Source: nine in ten dialogue turns of the recorded runs."""
_QUESTION_MARKS = ("?", "\N{FULLWIDTH QUESTION MARK}", "\N{ARABIC QUESTION MARK}")
_REQUEST = re.compile(
    r"\bplease\b|\b(?:could|can|would|will) you\b"
    r"|\b(?:let me know|tell me|confirm|provide|share)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"\b(?:please )?(?:feel free|do not hesitate|don't hesitate|let me know if|reach out)\b"
    r"[^.!?\n]*",
    re.IGNORECASE,
)


def asks_user(text: str) -> bool:
    """True when the end of `text` asks the user for something.

    Such a message waits for an answer and does not end a run; closing phrases that only offer
    more help do not count.
    """
    tail = text[-TAIL_CHARS:]
    if any(mark in tail for mark in _QUESTION_MARKS):
        return True
    return _REQUEST.search(_CLOSING.sub("", tail)) is not None
