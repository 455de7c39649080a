"""Breaker of a store. One line is logged when an incident begins and one when it ends."""

import time
from collections.abc import Callable

from gateway.observability.logging import get_logger
from gateway.stores.watched import Incident

SLOW = "slow"  # the kind of an incident that began with a commit above `storage.commit_limit_ms`
_REPEATS_WITHIN_S = 60.0  # an incident this soon after the last one belongs to the same trouble
_LONGEST_HOLD_S = 60.0


class Breaker:
    """Open during an incident: after `failures` in a row, or at once by `open`. Each incident that
    follows closely on another lasts longer, from 1 to 60 s, so that little is logged."""

    def __init__(self, *, failures: int, clock: Callable[[], float] = time.monotonic):
        self._limit = failures
        self._clock = clock
        self.failures = 0  # in a row so far; 0 after a success
        self._ended_at = float("-inf")
        self._hold_s = 0.0
        self._hold_until = 0.0
        self.incident: Incident | None = None
        self._log = get_logger("gateway.store")

    @property
    def is_open(self) -> bool:
        """True during an incident."""
        return self.incident is not None

    def failed(self, kind: str, reason: str) -> bool:
        """An operation failed; whether that opened the breaker."""
        self.failures += 1
        return self.failures >= self._limit and self.open(kind, reason)

    def open(self, kind: str, reason: str) -> bool:
        """Begin an incident; False when there is one already."""
        if self.incident is not None:
            return False
        now = self._clock()
        again = now - self._ended_at < _REPEATS_WITHIN_S
        if again:
            self._hold_s = min(max(1.0, 2 * self._hold_s), _LONGEST_HOLD_S)
        else:
            self._hold_s = 0.0
        self._hold_until = now + self._hold_s
        self.incident = Incident(kind=kind, reason=reason, since=time.time())
        self._log.error(
            "the store is degraded: answers go on, their records wait in memory",
            kind=kind,
            reason=reason,
        )
        return True

    def explain(self, kind: str, reason: str) -> None:
        """The error behind an incident that began as slowness."""
        if self.incident is not None and self.incident.kind == SLOW:
            self.incident.kind = kind
            self.incident.reason = reason

    def dropped(self, reason: str) -> None:
        """A record was dropped; the first one of an incident is logged."""
        incident = self.incident
        if incident is None:
            self._log.error("a record is dropped", reason=reason)
            return
        if not incident.dropped:
            self._log.error("records are dropped from now on", reason=reason)
        incident.dropped += 1

    @property
    def may_close(self) -> bool:
        """True if the incident has lasted long enough to be ended."""
        return self._clock() >= self._hold_until

    def close(self) -> None:
        """End the incident."""
        incident = self.incident
        self.incident = None
        self.failures = 0
        self._ended_at = self._clock()
        if incident is None:
            return
        self._log.warning(
            "the store works again",
            kind=incident.kind,
            seconds=round(max(0.0, time.time() - incident.since), 1),
            written=incident.written,
            dropped=incident.dropped,
            reopened=incident.reopened,
        )
