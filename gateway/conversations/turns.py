"""How many requests are steered at one time: the others wait, in the order in which they came."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from gateway.conversations.own_time import OwnTime

LENDING_S: Final = 0.1
"""A request that waits for longer than this, for the store or a model, lends its place to the next:
a part that hangs must not stop the requests that do not need it."""


class Turns:
    """A limited number of places, given in the order of arrival.

    Without a limit a thousand requests that arrive at once would each do one step at a time: all of
    them would be in memory half done, and all would be sent late.
    """

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)

    def turn(self, own_time: OwnTime) -> _Turn:
        """One request's turn, as an asynchronous context."""
        return _Turn(self._places, own_time)


class _Turn:
    """A place, from the moment it is free until the work is done or waits for too long."""

    def __init__(self, places: asyncio.Semaphore, own_time: OwnTime) -> None:
        self._places = places
        self._own_time = own_time
        self._timer: asyncio.Handle | None = None
        self._held = False

    async def __aenter__(self) -> None:
        await self._places.acquire()
        self._held = True
        self._own_time.on_wait(self._look_later)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._held:
            self._places.release()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LENDING_S, self._look)

    def _look(self) -> None:
        if self._own_time.waiting:
            self._held = False
            self._places.release()
        else:
            self._look_later()
