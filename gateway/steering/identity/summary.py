"""Recognising a summary: a reply whose lines come back in the first message of a new history.

An agent that runs out of context asks the model for a summary and continues from it. The reply
calls no tool, so it looks like a final answer until its lines appear in a message of the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gateway.wire.messages import content_text, digest_fields

_HASH_BYTES = 8
_MAX_HASHES = 64
_LINE_CHARACTERS = 16  # shorter lines (headings, "Done.") occur in many replies
_LEAST_SHARE = 0.25  # clients drop parts of a summary, such as the model's notes before it
_TAG = re.compile(r"</?\w+>")


def line_hashes_of(text: str) -> tuple[bytes, ...]:
    """Digests of a reply's first lines, 8 bytes each; short lines and tags are left out."""
    return tuple(dict.fromkeys(_hash_lines(text)))[:_MAX_HASHES]


def split_line_hashes(joined: bytes) -> tuple[bytes, ...]:
    """Line hashes that were concatenated, as a tuple."""
    starts = range(0, len(joined), _HASH_BYTES)
    return tuple(joined[start : start + _HASH_BYTES] for start in starts)


def is_summary_of(line_hashes: Sequence[bytes], messages: Sequence[object]) -> bool:
    """Whether messages of the client repeat at least a quarter of the lines of a reply.

    `line_hashes`: those of the reply. The messages are in any dialect; malformed ones are skipped.
    """
    if not line_hashes:
        return False
    missing = set(line_hashes)
    for message in messages:
        if isinstance(message, dict) and message.get("role") not in (None, "assistant"):
            missing.difference_update(_hash_lines(content_text(message.get("content"))))
    return len(line_hashes) - len(missing) >= len(line_hashes) * _LEAST_SHARE


def _hash_lines(text: str) -> Iterator[bytes]:
    for line in text.splitlines():
        words = _TAG.sub("", line).strip()
        if len(words) >= _LINE_CHARACTERS:
            yield digest_fields("line", words)[:_HASH_BYTES]
