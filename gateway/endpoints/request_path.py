"""Paths that a server further on could take for another path are refused, not forwarded."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_to_bytes

from gateway.errors import BadRequest

_SUSPICIOUS = re.compile(rb"[%\\]|(?:^|/)\.")
_NOT_ENCODED = re.compile(rb"%(?![0-9A-Fa-f]{2})")  # `%u002e` is a dot for some servers
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_END = re.compile("[;?#]")  # where a path segment ends for a server that decodes before it splits
_MOST_DECODINGS = 3
"""A path that is still encoded after this many was encoded to hide something: servers in a row
that each decode once are two or three."""


def refuse_ambiguous_path(raw: bytes) -> None:
    """Refuse dot segments, backslashes and control characters, however they are encoded, and what
    is no percent-encoding.

    `raw` is the path as it was sent. `..;` counts as a dot segment: some servers cut parameters off
    before they resolve it. An encoded slash (`%2F`) is part of a name and is let through.

    Raises:
        BadRequest: names what is wrong.
    """
    if _SUSPICIOUS.search(raw) is None:
        return
    if _NOT_ENCODED.search(raw):
        raise BadRequest("the path has a '%' that encodes nothing")
    for _ in range(_MOST_DECODINGS):
        _refuse_text(raw)
        decoded = unquote_to_bytes(raw)
        if decoded == raw:
            return
        raw = decoded
    _refuse_text(raw)
    if unquote_to_bytes(raw) != raw:
        raise BadRequest(f"the path is percent-encoded more than {_MOST_DECODINGS} times")


def _refuse_text(path: bytes) -> None:
    try:
        # Some servers take look-alikes (a full-width dot) for the character itself.
        text = unicodedata.normalize("NFKC", path.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadRequest("the path is not percent-encoded UTF-8") from None
    if "\\" in text:
        raise BadRequest("the path may not have a backslash, also not as %5C")
    if _CONTROL.search(text):
        raise BadRequest("the path may not have control characters, also not percent-encoded")
    if any(_END.split(segment)[0].strip() in (".", "..") for segment in text.split("/")):
        raise BadRequest("the path may not have '.' or '..' segments, also not percent-encoded")
