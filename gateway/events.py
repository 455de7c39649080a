"""What happens in the gateway, told to whoever is listening now."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]
"""One thing that happened: `type`, `tenant`, and numbers and names, no content."""

QUEUE_LIMIT = 1000
"""Events a listener may be behind. Source: the reference's queue, which drops the oldest too."""

LINGER_S = 60.0
"""How long events go on being kept for a listener that has left: it may only have lost its line."""

MAX_SUBSCRIBERS = 100
"""Listeners at once; each costs one small dict entry per event."""


class TooManySubscribers(Exception):
    """MAX_SUBSCRIBERS are listening already."""


class Subscription:
    """One listener's queue; `dropped` counts the events it was too slow, or away, for."""

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

    def __init__(
        self,
        *,
        queue_limit: int = QUEUE_LIMIT,
        limit: int = MAX_SUBSCRIBERS,
        linger_s: float = LINGER_S,
    ) -> None:
        self._queue_limit = queue_limit
        self._limit = limit
        self._linger_s = linger_s
        self._kept_until = 0.0
        self._subscriptions: set[Subscription] = set()
        # The first is a place to go on from, the others events.
        self._recent: deque[Event] = deque([{"id": _fresh_id()}], maxlen=queue_limit + 1)

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return len(self._subscriptions)

    @property
    def active(self) -> bool:
        """Whether anybody listens, or may be back; when not, an event need not even be made."""
        return bool(self._subscriptions) or time.monotonic() < self._kept_until

    @property
    def newest(self) -> str:
        """The id of the newest event, or of the beginning."""
        return str(self._recent[-1]["id"])

    def publish(self, event: Event) -> None:
        """Queue `event`, with an `id`, for every listener of its tenant."""
        event = {**event, "id": _fresh_id()}
        self._recent.append(event)
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextlib.contextmanager
    def subscribe(self, *, tenant: str | None, after: str | None = None) -> Iterator[Subscription]:
        """Listen while the block runs; tenant None hears every tenant's events.

        `after`: the id of the last event heard before; what has come since is heard first. Of one
        that is not known (any more) nobody knows what came since: that counts as one dropped.

        Raises:
            TooManySubscribers: no more are admitted.
        """
        if len(self._subscriptions) >= self._limit:
            raise TooManySubscribers(f"{self._limit} listeners are connected already")
        subscription = Subscription(tenant, self._queue_limit)
        if after is not None:
            self._catch_up(subscription, after)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            self._kept_until = time.monotonic() + self._linger_s

    def _catch_up(self, subscription: Subscription, after: str) -> None:
        kept = [event["id"] for event in self._recent]
        if after not in kept:
            subscription.dropped += 1
            return
        for event in list(self._recent)[kept.index(after) + 1 :]:
            subscription.put(event)


def _fresh_id() -> str:
    # A number would tell one tenant how much the others do.
    return secrets.token_hex(6)
