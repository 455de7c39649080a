"""Call count: how much of a budget of calls is used."""

from __future__ import annotations

from gateway.steering.monitors.reference.suite import CallText
from gateway.steering.monitors.settings import MonitorSettings


class CallCount:
    """Calls so far over the budget. Source: reference section 4.2."""

    __slots__ = ("_budget", "_calls")

    def __init__(self, settings: MonitorSettings) -> None:
        self._budget = settings.call_budget
        self._calls = 0

    def push(self, call: CallText) -> None:
        """Count a call."""
        self._calls += bool(call.name)

    def reading(self) -> tuple[float, str]:
        """min(calls / budget, 1)."""
        if not self._calls:
            return 0.0, ""
        return min(self._calls / self._budget, 1.0), f"{self._calls} of {self._budget} calls"
