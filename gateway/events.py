"""What happens in the gateway, told to whoever is listening now."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]
"""One thing that happened: `type`, `tenant`, and numbers and names, no content."""

QUEUE_LIMIT = 1000
"""Events a listener may be behind. Source: the reference's queue, which drops the oldest too."""

MAX_SUBSCRIBERS = 100
"""Listeners at once; each costs one small dict entry per event."""


class TooManySubscribers(Exception):
    """MAX_SUBSCRIBERS are listening already."""


class Subscription:
    """One listener's queue; `dropped` counts the events it was too slow for."""

    def __init__(self, tenant: str | None, limit: int) -> None:
        self.dropped = 0
        self._tenant = tenant
        self._waiting: deque[Event] = deque(maxlen=limit)
        self._filled = asyncio.Event()

    def put(self, event: Event) -> None:
        """Keep an event of the listener's tenant; the oldest goes when the queue is full."""
        if self._tenant not in (None, event.get("tenant")):
            return
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(event)
        self._filled.set()

    async def take(self, timeout_s: float) -> list[Event]:
        """What has come since the last call, oldest first; empty when nothing came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        self._filled.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class EventHub:
    """Hands every event to every listener; never waits, never fails. Lives on one event loop."""

    def __init__(self, *, queue_limit: int = QUEUE_LIMIT, limit: int = MAX_SUBSCRIBERS) -> None:
        self._queue_limit = queue_limit
        self._limit = limit
        self._subscriptions: set[Subscription] = set()

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return len(self._subscriptions)

    @property
    def active(self) -> bool:
        """Whether anybody listens; when not, an event need not even be made."""
        return bool(self._subscriptions)

    def publish(self, event: Event) -> None:
        """Queue `event` for every listener of its tenant."""
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextlib.contextmanager
    def subscribe(self, *, tenant: str | None) -> Iterator[Subscription]:
        """Listen while the block runs; tenant None hears every tenant's events.

        Raises:
            TooManySubscribers: no more are admitted.
        """
        if len(self._subscriptions) >= self._limit:
            raise TooManySubscribers(f"{self._limit} listeners are connected already")
        subscription = Subscription(tenant, self._queue_limit)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
