"""What several sections are made of."""

from __future__ import annotations

from urllib.parse import urlsplit


class Secret(str):
    """Text that never shows itself in a repr, a log line or an error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'*****'"


def at_least(value: float, low: float, name: str) -> None:
    """Refuse a value of the key `name` under `low`. Raises: ValueError."""
    if value < low:
        raise ValueError(f"{name}: must be at least {low:g}, got {value:g}")


def http_url(value: str, name: str) -> None:
    """Refuse what is no http(s) URL under the key `name`. Raises: ValueError."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as exc:
        raise ValueError(f"{name}: {value!r}: {exc}") from None
    known = parts.scheme in ("http", "https") and parts.hostname
    if not known or not value.isprintable() or " " in value:
        raise ValueError(f"{name}: {value!r} is not an http(s) URL")
