"""Heads of answers that a strict parser refuses although their meaning is certain."""

from __future__ import annotations

import re
from typing import Final

from gateway.upstream.base import RawHeaders

HEAD_END: Final = re.compile(rb"\n\r?\n")
"""The empty line behind a head, with the end of the line before it."""
_NEWER: Final = re.compile(rb"HTTP/1\.[2-9](?= )")
_LENGTH: Final = re.compile(rb"content-length:", re.IGNORECASE)
_NO_CODING: Final = frozenset({b"", b"identity"})


def codings(fields: RawHeaders) -> frozenset[bytes]:
    """The transfer codings of an answer, in lower case, without those that change nothing."""
    named = [value for name, value in fields if name.lower() == b"transfer-encoding"]
    if not named:
        return _NO_CODING - _NO_CODING
    words = {word.strip(b" \t\r\n") for word in b",".join(named).lower().split(b",")}
    return frozenset(words - _NO_CODING)


def mended(head: bytes) -> bytes:
    """A head as a strict parser reads it.

    A version 1.2 to 1.9 is 1.1 (RFC 9110 section 2.5: a minor version changes nothing in how a
    message is read). A length that is given several times, in one field or in several, is given
    once (RFC 9112 section 6.3).

    Raises:
        ValueError: the lengths differ, or are no numbers.
    """
    lines, values = [], []
    for line in _NEWER.sub(b"HTTP/1.1", head, count=1).splitlines(keepends=True):
        if _LENGTH.match(line):
            values += [value.strip() for value in line.partition(b":")[2].split(b",")]
        else:
            lines.append(line)
    if not values:
        return b"".join(lines)
    if len(set(values)) > 1 or not values[0].isdigit():
        raise ValueError("the lengths of the answer differ, or are no numbers")
    return lines[0] + b"content-length: " + values[0] + b"\r\n" + b"".join(lines[1:])
