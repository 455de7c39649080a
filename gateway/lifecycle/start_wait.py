"""A gateway that starts while its database restarts: it waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from gateway.config import Settings
from gateway.config.storage import StorageSettings
from gateway.observability.logging import get_logger
from gateway.steering.fold import ConversationFold
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.transcript.steps import Action, Step
from gateway.stores.protocols import StoreUnreachable
from gateway.text.finder import Finder
from gateway.text.secrets import mask_secrets
from gateway.upstream.prices import default_list
from gateway.wire.search import use_engine

T = TypeVar("T")

_SAID_EVERY_S = 10.0


class Wait(Protocol):
    """Repeats work until the database answers."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T: ...


class StartWait:
    """Repeats what the start needs of a database until it answers, for `storage.start_wait_s` in
    all; every other fault ends the start at once. `stopping`: whether the process was asked to end.
    """

    def __init__(self, settings: StorageSettings, stopping: Callable[[], bool]) -> None:
        self._pause_s = min(settings.probe_interval_s, 1.0)
        self._limit_s = settings.start_wait_s
        self._stopping = stopping
        self._waited_since: float | None = None
        self._said_at = float("-inf")
        self._log = get_logger("gateway.store")

    async def until_reachable(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Raises: StoreUnreachable after the limit, and whatever else `work`
        raises."""
        while True:
            try:
                return await work()
            except StoreUnreachable as error:
                now = time.monotonic()
                self._waited_since = self._waited_since or now
                left_s = self._waited_since + self._limit_s - now
                if left_s <= 0 or self._stopping():
                    raise
                if now - self._said_at >= _SAID_EVERY_S:
                    self._said_at = now
                    self._log.warning(
                        "the database does not answer: the start waits for it",
                        reason=str(error),
                        gives_up_in_s=round(left_s),
                    )
            await asyncio.sleep(self._pause_s)


def warm_up(settings: Settings) -> None:
    """Import and load what steering needs: the first request has a deadline, the start has none."""
    use_engine(Finder)
    fold = ConversationFold(settings.policy())
    fold.extend([{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}])
    action = Action(name="-", arguments="{}", observation="at 10:15")
    fold.current.push(Step(index=0, thought="-", actions=(action,)))
    mask_secrets("-")
    shipped_calibration()
    default_list()
