"""Collecting what is refused, so that all faults of a config are reported together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gateway.errors import ConfigError


class Faults:
    """What was refused so far, in order; each text starts with its key path and a colon."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Go on after a ConfigError, and keep what it says."""
        try:
            yield
        except ConfigError as exc:
            self.found.extend(exc.faults)

    def add(self, fault: str) -> None:
        """Keep a fault, unless those that are known explain it.

        A value that was refused is replaced by its default, of which another check may complain.
        """
        if not self.explain(fault):
            self.found.append(fault)

    def explain(self, fault: str) -> bool:
        """Whether the key of `fault`, one above or one below it is known to be wrong."""
        path = key_path(fault)
        return any(_is_within(path, key_path(one)) for one in self.found)

    def raise_any(self) -> None:
        """Raises: ConfigError with everything that was found."""
        if self.found:
            raise ConfigError(*self.found)


def key_path(fault: str) -> str:
    """The key path that a fault begins with."""
    return fault.partition(": ")[0]


def _is_within(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and long[len(short) : len(short) + 1] in ("", ".", "[")
