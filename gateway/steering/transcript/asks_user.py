"""Tells a message in which the agent asks the person for something from a mere offer of help."""

import re

# End of a message, where it asks. Source: nine in ten dialogue turns of the recorded runs.
TAIL_CHARS = 400
QUESTION_MARKS = ("?", "\N{FULLWIDTH QUESTION MARK}", "\N{ARABIC QUESTION MARK}")
_REQUEST = re.compile(
    r"(?i)\bplease\b|\b(?:could|can|would|will) you\b"
    r"|\b(?:let me know|tell me|confirm|provide|share)\b"
)
_CLOSING_WORDS = re.compile(
    r"(?i)\b(?:please )?(?:feel free|do not hesitate|don't hesitate|let me know if|reach out)\b"
    r"[^.!?\n]*"
)


def asks_user(text: str) -> bool:
    """True when the end of `text` asks the user for something, and does not just offer help."""
    tail = text[-TAIL_CHARS:]
    asks = any(mark in tail for mark in QUESTION_MARKS)
    return asks or _REQUEST.search(_CLOSING_WORDS.sub("", tail)) is not None
