"""Tags of a run: what a client files it under, in headers `x-gateway-tag-NAME`, never forwarded."""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIX = "x-gateway-tag-"
MOST_TAGS = 16
MAX_NAME = 40
MAX_VALUE = 120

_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME - 1}}}")


def tags_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The tags of a request, names in lower case; values are cut, and other names left out.

    A tag never makes a request fail: it is about the books, not about the call.
    """
    found: dict[str, str] = {}
    for header, value in headers.items():
        if not header.startswith(PREFIX):
            continue
        name, text = header.removeprefix(PREFIX), value.strip()[:MAX_VALUE]
        if _NAME.fullmatch(name) and text.isprintable() and text and len(found) < MOST_TAGS:
            found[name] = text
    return found


def read_tag_filter(text: str) -> tuple[tuple[str, str | None], ...]:
    """`team=web,env` as (name, value) pairs; a name alone stands for any value."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return tuple((name.strip().lower(), value.strip() if eq else None) for name, eq, value in pairs)
