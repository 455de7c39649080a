"""Streak: the same tool again and again."""

from __future__ import annotations

from gateway.steering.monitors.reference.suite import CallText
from gateway.steering.monitors.settings import MonitorSettings


class Streak:
    """Length of the newest run of equal tool names over the cap; a single call scores 0.

    Arguments are not compared, steps without a call are passed over. Source: reference section 4.1.
    """

    __slots__ = ("_cap", "_length", "_name")

    def __init__(self, settings: MonitorSettings) -> None:
        self._cap = settings.streak_cap
        self._name = ""
        self._length = 0

    def push(self, call: CallText) -> None:
        """Lengthen the streak, or begin another."""
        if call.name:
            self._length = self._length + 1 if call.name == self._name else 1
            self._name = call.name

    def reading(self) -> tuple[float, str]:
        """min(length / cap, 1) from the second equal call on."""
        if self._length <= 1:
            return 0.0, ""
        return min(self._length / self._cap, 1.0), f"{self._length} x {self._name[:60]} in a row"
