"""Publish and subscribe for live events, within one process."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex

from gateway.values import Fields

# One event: `type`, `tenant`, and numbers and names; never texts of a conversation.
Event = Fields
# Events queued per subscriber. Source: the reference's queue, which also drops the oldest.
QUEUE_LIMIT = 1000
# Seconds for which events are kept after a subscriber leaves: it may have lost its connection.
LINGER_S = 60.0
MAX_SUBSCRIBERS = 100  # subscribers at once; each costs one queue entry per event


class TooManySubscribers(Exception):
    """MAX_SUBSCRIBERS are subscribed already."""


class Subscription:
    """One subscriber's queue; `dropped` counts events it missed by being slow or disconnected."""

    def __init__(self, tenant: str | None):
        self.dropped = 0
        self._tenant = tenant
        self._waiting: deque[Event] = deque(maxlen=QUEUE_LIMIT)
        self._filled = asyncio.Event()

    def put(self, event: Event) -> None:
        """Queue an event of the subscriber's tenant; a full queue drops its oldest."""
        if self._tenant not in (None, event.get("tenant")):
            return
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(event)
        self._filled.set()

    async def take(self, timeout_s: float) -> list[Event]:
        """The events since the last call, oldest first; empty after `timeout_s` without one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        self._filled.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class EventHub:
    """Delivers each event to each subscriber without waiting; used on one event loop only."""

    def __init__(self) -> None:
        self._kept_until = 0.0
        self._subscriptions: set[Subscription] = set()
        # The first entry is only a position to resume from; the others are events.
        self._recent: deque[Event] = deque([{"id": _new_id()}], maxlen=QUEUE_LIMIT + 1)

    @property
    def subscribers(self) -> int:
        """Number of subscribers now."""
        return len(self._subscriptions)

    @property
    def active(self) -> bool:
        """Whether anybody is subscribed or may reconnect; if not, events need not be made."""
        return bool(self._subscriptions) or time.monotonic() < self._kept_until

    @property
    def newest(self) -> str:
        """The id of the newest event, or of the start."""
        return str(self._recent[-1]["id"])

    def publish(self, event: Event) -> None:
        """Give `event` an `id` and queue it for every subscriber of its tenant."""
        event = {**event, "id": _new_id()}
        self._recent.append(event)
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextmanager
    def subscribe(self, *, tenant: str | None, after: str | None = None) -> Iterator[Subscription]:
        """Subscribe while the block runs; tenant None receives every tenant's events. Events
        after the id `after` are delivered first; if that id is no longer kept, one dropped event
        is counted. Raises: TooManySubscribers."""
        if len(self._subscriptions) >= MAX_SUBSCRIBERS:
            raise TooManySubscribers(f"{MAX_SUBSCRIBERS} subscribers are connected already")
        subscription = Subscription(tenant)
        if after is not None:
            kept = [event["id"] for event in self._recent]
            subscription.dropped += after not in kept
            if after in kept:
                missed = kept.index(after) + 1
            else:
                missed = len(kept)
            for event in list(self._recent)[missed:]:
                subscription.put(event)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            self._kept_until = time.monotonic() + LINGER_S


def _new_id() -> str:
    # A counter would reveal to one tenant how many events others have.
    return token_hex(6)
