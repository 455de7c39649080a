"""The marks around guidance, and how a text is read without the guidance in it.

Guidance comes back with later requests, and models quote it: it must never count as what the agent
said or saw. `guidance.render` makes the frames.
"""

from __future__ import annotations

import re

FRAME_OPEN = "[STEERING GUIDANCE]"
FRAME_CLOSE = "[/STEERING GUIDANCE]"

_OPENING = re.compile(rf"^{re.escape(FRAME_OPEN)}$", re.MULTILINE)
_CLOSING = re.compile(rf"^{re.escape(FRAME_CLOSE)}$", re.MULTILINE)
_BLANKS = re.compile(r"\s*")


def without_guidance(text: str) -> str:
    """`text` without framed guidance and the white space around it."""
    if FRAME_OPEN not in text:
        return text
    kept, at = [], 0
    while (opening := _OPENING.search(text, at)) and (
        closing := _CLOSING.search(text, opening.end())
    ):
        kept.append(text[at : opening.start()].rstrip())
        blanks = _BLANKS.match(text, closing.end())
        at = blanks.end() if blanks else closing.end()
    return "\n\n".join([*kept, text[at:]]).strip("\n")
