"""Knowing a summary again: a reply that comes back as the words of the history's new beginning.

An agent that runs out of context asks the model for a summary and goes on from that. The reply has
no call, so it looks like a final answer until its lines turn up in what the client says next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gateway.wire.messages import content_text, digest_fields

_MARK_BYTES = 8
_MAX_MARKS = 64
_LINE_CHARACTERS = 16  # shorter lines (headings, "Done.") say nothing about where they are from
_LEAST_SHARE = 0.25  # clients drop parts of a summary, such as the model's notes before it
_TAG = re.compile(r"</?\w+>")


def marks_of(text: str) -> tuple[bytes, ...]:
    """Digests of a reply's first lines, 8 bytes each; short lines and tags are left out."""
    return tuple(dict.fromkeys(_marks(text)))[:_MAX_MARKS]


def marks_from(joined: bytes) -> tuple[bytes, ...]:
    """Marks that were put one behind the other."""
    starts = range(0, len(joined), _MARK_BYTES)
    return tuple(joined[start : start + _MARK_BYTES] for start in starts)


def retold(marks: Sequence[bytes], messages: Sequence[object]) -> bool:
    """Whether messages that are not the model's repeat a good part of the reply with these marks.

    The messages are in any dialect; malformed ones say nothing.
    """
    if not marks:
        return False
    left = set(marks)
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") not in (None, "assistant"):
            left.difference_update(_marks(content_text(message.get("content"))))
    return len(marks) - len(left) >= len(marks) * _LEAST_SHARE


def _marks(text: str) -> Iterator[bytes]:
    for line in text.splitlines():
        words = _TAG.sub("", line).strip()
        if len(words) >= _LINE_CHARACTERS:
            yield digest_fields("line", words)[:_MARK_BYTES]
