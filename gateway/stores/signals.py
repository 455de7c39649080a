"""What gateways on one store tell each other: that something has changed, and ids; never texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

OnSignal = Callable[[str, Mapping[str, str]], None]
"""Called with the kind of a signal and its ids; with RESYNC after signals may have been missed."""

RESYNC = "resync"
KEYS, PATTERNS, CONTROLS = "keys", "patterns", "controls"
"""Gateway keys, patterns or holds on runs have changed; the store itself sends these."""

WATCHING, STEP = "watching", "step"
"""Somebody reads live events at another gateway; a call was recorded."""


class Signals(Protocol):
    """Signals of the other gateways on the store. None of them is certain to arrive."""

    async def send(self, kind: str, **ids: str) -> None:
        """Tell the others. Raises: StoreError."""

    async def follow(self, on_signal: OnSignal) -> None:
        """Listen without end; a lost connection is made again."""
