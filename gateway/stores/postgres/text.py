"""Text that PostgreSQL can keep: it has no NUL character.

A NUL becomes two characters, and so does the character that marks this; both come back as they
were. JSON columns need none of it, because JSON writes a NUL as an escape."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.stores.redact import encodable

_MARK = "\U0010ffff"  # a code point that Unicode promises never to assign
_NUL, _MARK_ITSELF = _MARK + "0", _MARK + "1"


def stored_text(text: str) -> str:
    """`text` as a text column keeps it; unpaired surrogates become U+FFFD."""
    if _MARK in text or "\x00" in text:
        text = text.replace(_MARK, _MARK_ITSELF).replace("\x00", _NUL)
    return text if text.isascii() else encodable(text)


def read_text(value: Any) -> Any:
    """A value of a text column as it was stored; any other value is unchanged."""
    if isinstance(value, str) and _MARK in value:
        return value.replace(_NUL, "\x00").replace(_MARK_ITSELF, _MARK)
    return value


def stored_json(text: str) -> str:
    """A JSON object as a column keeps it that is searched, and which may not contain a NUL even as
    an escape."""

    def stored(value: Any) -> Any:
        if isinstance(value, dict):
            return {stored_text(name): stored(item) for name, item in value.items()}
        return stored_text(value) if isinstance(value, str) else value

    return orjson.dumps(stored(orjson.loads(text))).decode()


def read_json(text: str | None) -> str | None:
    """A JSON text whose names were stored with `stored_text`, as it was."""
    if text is not None and _MARK in text:
        return text.replace(_NUL, "\\u0000").replace(_MARK_ITSELF, _MARK)
    return text
