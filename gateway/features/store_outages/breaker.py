"""Breaker of a store, and the limit after which a pending commit counts as slow. One line is logged
when an incident begins and one when it ends."""

import asyncio
import time
from collections.abc import Callable

import structlog

from gateway.stores.watched import Incident

SLOW = "slow"  # the kind of an incident that began with a commit above `storage.commit_limit_ms`
_REPEATS_WITHIN_S = 60.0  # an incident this soon after the last one belongs to the same trouble
_LONGEST_HOLD_S = 60.0


class Breaker:
    """Open during an incident: after `failures` in a row, or at once by `open`. Each incident that
    follows closely on another lasts longer, from 1 to 60 s, so that little is logged."""

    def __init__(self, *, failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._clock = clock
        self._failures = 0
        self._ended_at = float("-inf")
        self._hold_s = 0.0
        self._hold_until = 0.0
        self.incident: Incident | None = None
        self._log = structlog.get_logger("gateway.store")

    @property
    def is_open(self) -> bool:
        """True during an incident."""
        return self.incident is not None

    def succeeded(self) -> None:
        """An operation succeeded."""
        self._failures = 0

    def failed(self, kind: str, reason: str) -> bool:
        """An operation failed; whether that opened the breaker."""
        self._failures += 1
        return self._failures >= self._limit and self.open(kind, reason)

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
        self._failures = 0
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


# A timer this late: the process had no processor meanwhile, and a commit may be done unnoticed.
_LATE_S = 0.02
_EXTENSIONS = 8  # longest wait of all, in limits, for a store that goes on finishing other commits


class CommitLimit:
    """Calls `passed` when nothing has been finished for `limit_s`. On a busy machine commits wait
    for their turn: while others are finished, a commit in the queue will be done, too. One that is
    given up is in memory alone, where `kill -9` loses it."""

    def __init__(self, limit_s: float, passed: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        self._finished_at = float("-inf")

    def finished(self) -> None:
        """The store has finished something."""
        self._finished_at = self._loop.time()

    def watch(self, write: asyncio.Task[int]) -> Callable[[], None]:
        """Watch a commit that begins now; the result ends that."""
        begun = self._loop.time()
        timer: asyncio.TimerHandle

        def check(due: float) -> None:
            nonlocal timer
            now = self._loop.time()
            again = max(begun, self._finished_at) + self._limit_s
            if now - due > _LATE_S:
                again = now + self._limit_s / 4
            if write.done():
                return
            if again <= now or now - begun > _EXTENSIONS * self._limit_s:
                self._passed()
            else:
                timer = self._loop.call_at(again, check, again)

        timer = self._loop.call_at(begun + self._limit_s, check, begun + self._limit_s)
        return lambda: timer.cancel()
