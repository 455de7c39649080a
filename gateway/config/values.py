"""Value types and checks that several sections share."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from gateway.config.base_url import base_url
from gateway.errors import ConfigError

_HOST_PATTERN = re.compile(r"\*|(\*\.)?[\w.-]+|\[?[0-9a-f:.]+\]?", re.ASCII | re.IGNORECASE)
_ORIGIN_PATTERN = re.compile(
    r"https?://[^/*\s]+(:\*)?|(?!https?:)[a-z][a-z0-9+.-]*://[^/*\s]*\*?", re.IGNORECASE
)
ENV_PREFIX = "GATEWAY_"
ENV_SEPARATOR = "__"  # between the keys in the name of a variable
SET_BY = " (set by "  # ends the fault of a value that a variable set; name and bracket follow


class Secret(str):
    """Text that a repr, and so a log line or an error, never shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'*****'"


def at_least(settings: object, low: float, *names: str) -> None:
    """Refuse values of these keys below `low`. Raises: ValueError."""
    for name in names:
        if (value := getattr(settings, name)) < low:
            raise ValueError(f"{name}: must be at least {low:g}, got {value:g}")


def above_zero(settings: object, *names: str) -> None:
    """Refuse values of these keys that are 0 or less. Raises: ValueError."""
    for name in names:
        if getattr(settings, name) <= 0:
            raise ValueError(f"{name}: must be above 0")


_UNITS = {"m": 60, "h": 3600, "d": 86_400}


def duration(name: str, text: str) -> int:
    """The seconds of `30m`, `24h` or `30d`. Raises: ValueError, with the name of the value."""
    if not re.fullmatch(r"[0-9]{1,5}[mhd]", text):
        raise ValueError(f"{name}: expected a number and m, h or d, such as 30d, got {text[:40]!r}")
    return int(text[:-1]) * _UNITS[text[-1]]


def http_url(value: str, name: str) -> None:
    """Refuse a value of the key `name` that is not an http(s) URL. Raises: ValueError."""
    try:
        parts = urlsplit(value)
        _ = parts.port
        known = parts.scheme in ("http", "https") and parts.hostname
        if known and value.isprintable() and " " not in value:
            base_url(value)
            return
    except ValueError as exc:
        raise ValueError(f"{name}: {value!r}: {exc}") from None
    raise ValueError(f"{name}: {value!r} is not an http(s) URL")


def host_pattern(value: str) -> None:
    """Refuse a trusted host that is no host name, `*.domain` or `*`. Raises: ValueError."""
    if not _HOST_PATTERN.fullmatch(value):
        raise ValueError(
            f"trusted_hosts: {value!r} is not a host name; leave out scheme, port and path"
        )


def origin_pattern(value: str) -> None:
    """Refuse a trusted origin that no Origin header can match. Raises: ValueError."""
    if value != "null" and not _ORIGIN_PATTERN.fullmatch(value):
        raise ValueError(
            f"trusted_origins: {value!r} is not an origin such as https://app.example.com, "
            "http://localhost:*, vscode-webview://* or null"
        )


def is_cut(before: str, after: str) -> bool:
    """True if a file or value was truncated."""
    return before.rstrip() != after.rstrip() and before.startswith(after.rstrip())


class Faults:
    """Refused settings so far, in order; each text starts with its key path and a colon."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Continue after a ConfigError, and keep its faults."""
        try:
            yield
        except ConfigError as exc:
            self.found.extend(exc.faults)

    def add(self, fault: str) -> None:
        """Keep a fault, unless those that are known explain it. A value that was refused is
        replaced by its default, of which another check may complain."""
        if not self.explain(fault):
            self.found.append(fault)

    def explain(self, fault: str) -> bool:
        """Returns True if an error was already reported for the key of `fault`, or for a key
        above or below it."""
        for one in self.found:
            short, long = sorted((key_path(fault), key_path(one)), key=len)
            if re.match(re.escape(short) + r"(?![^.[])", long):
                return True
        return False

    def raise_any(self) -> None:
        """Raises: ConfigError with everything that was found."""
        if self.found:
            raise ConfigError(*self.found)


def key_path(fault: str) -> str:
    """The key path that a fault begins with."""
    return fault.partition(": ")[0]
