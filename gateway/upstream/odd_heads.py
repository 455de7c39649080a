"""Heads of answers that a strict parser refuses although their meaning is certain."""

from __future__ import annotations

import re
from typing import Final

_HEAD_END: Final = re.compile(rb"\n\r?\n")
_NEWER: Final = re.compile(rb"HTTP/1\.[2-9](?= )")
_INTERIM: Final = re.compile(rb"HTTP/1\.[0-9] 1(?!01)")
_CODING_TAB: Final = re.compile(
    rb"(\ntransfer-encoding:)[ \t]*([^\r\n]*?)[ \t]*(?=\r?\n)", re.IGNORECASE
)
_LENGTH: Final = re.compile(rb"content-length:", re.IGNORECASE)


def has_tab_in_coding(received: bytes) -> bool:
    """Whether a tab stands around a transfer coding: llhttp reads that as another coding, and an
    answer in chunks as one without an end."""
    found = _CODING_TAB.search(received)
    return found is not None and b"\t" in found[0]


def mended(received: bytes) -> bytes | None:
    """`received` with the head of its answer as a strict parser reads it; None without its end.

    White space around a transfer coding, which may be a tab, says nothing (RFC 9112 section 5.1).
    A version 1.2 to 1.9 is 1.1 (RFC 9110 section 2.5: a minor version changes nothing in how a
    message is read). A length that is given several times, in one field or in several, is given
    once (RFC 9112 section 6.3).

    Raises:
        ValueError: it is no answer of HTTP/1; the lengths differ, or are no numbers.
    """
    if not received.startswith(b"HTTP/1."):
        raise ValueError("no status line")
    out, at = [], 0
    while True:
        end = _HEAD_END.search(received, at)
        if end is None:
            return None
        head = received[at : end.end()]
        out.append(_CODING_TAB.sub(rb"\1 \2", _once(_NEWER.sub(b"HTTP/1.1", head, count=1))))
        at = end.end()
        if not _INTERIM.match(head):
            return b"".join(out) + received[at:]


def _once(head: bytes) -> bytes:
    """The head with one length at most."""
    lines, values = [], []
    for line in head.splitlines(keepends=True):
        if _LENGTH.match(line):
            values += [value.strip() for value in line.partition(b":")[2].split(b",")]
        else:
            lines.append(line)
    if not values:
        return head
    if len(set(values)) > 1 or not values[0].isdigit():
        raise ValueError("the lengths of the answer differ, or are no numbers")
    return lines[0] + b"content-length: " + values[0] + b"\r\n" + b"".join(lines[1:])
