"""Wrong keys are counted by the address they come from, and slowed down."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.errors import Overloaded

_WINDOW_S = 60.0
_ADDRESSES_KEPT = 4096
"""Clients choose how many addresses they have (IPv6), hence a limit; the oldest are forgotten."""


class WrongKeyLimit:
    """How many wrong keys one address may send in a minute; 0 = any number."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._now = now
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def refuse(self, address: str) -> None:
        """Refuse an address that has used up its minute.

        Raises:
            Overloaded: with the seconds that are left in `retry-after`.
        """
        began, count = self._seen.get(address, (0.0, 0))
        left_s = began + _WINDOW_S - self._now()
        if self.per_minute and count >= self.per_minute and left_s > 0:
            raise Overloaded(
                "too many wrong keys from this address: wait before sending another",
                code="too_many_wrong_keys",
                headers=(("retry-after", str(math.ceil(left_s))),),
            )

    def count(self, address: str) -> None:
        """Count one wrong key."""
        now = self._now()
        began, count = self._seen.pop(address, (now, 0))
        self._seen[address] = (now, 1) if now - began >= _WINDOW_S else (began, count + 1)
        if len(self._seen) > _ADDRESSES_KEPT:
            self._seen.popitem(last=False)
