"""How many bytes of request bodies are in memory at one time: further ones wait for room."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType

from gateway.config.settings import ServerSettings
from gateway.errors import Overloaded

_RETRY_S = 5
"""What a refused client is asked to wait: about what a body of 60 MB needs."""


class BodyRoom:
    """The bytes of all bodies that are held, from before they are read to the end of the request.

    Waiting bodies get room in the order of arrival, but one that fits does not wait for a larger
    one that does not. A body larger than all the room is let through when no other is held.
    """

    def __init__(self) -> None:
        self._held = 0
        self._waiting: OrderedDict[asyncio.Future[None], tuple[BodyShare, int]] = OrderedDict()

    def share(self, settings: ServerSettings) -> BodyShare:
        """One request's part of the room; nothing yet. Use it as a context, which gives it back."""
        return BodyShare(self, settings)

    def _take(self, share: BodyShare, size: int) -> bool:
        """Let a share be `size` bytes if there is room for that."""
        others = self._held - share.size
        if others and others + size > share.limit:
            return False
        self._held = others + size
        share.size = size
        return True

    def _give_back(self, share: BodyShare) -> None:
        self._held -= share.size
        share.size = 0
        for turn, (waiting, size) in list(self._waiting.items()):
            if not turn.done() and self._take(waiting, size):
                turn.set_result(None)

    async def _grow(self, share: BodyShare, size: int) -> None:
        if not share.limit or self._take(share, size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = share, size
        try:
            async with asyncio.timeout(share.wait_s):
                await turn
        except TimeoutError:
            raise Overloaded(
                f"request bodies of {self._held / 2**20:.0f} MiB are in flight, of at most "
                f"{share.limit / 2**20:g} MiB (server.max_bytes_in_flight_mb)",
                status=503,
                headers=(("retry-after", str(_RETRY_S)),),
            ) from None
        finally:
            del self._waiting[turn]


class BodyShare:
    """The room that one request has; its limits are those of the config it began with."""

    def __init__(self, room: BodyRoom, settings: ServerSettings) -> None:
        self._room = room
        self.limit = int(settings.max_bytes_in_flight_mb * 2**20)
        self.wait_s = settings.body_wait_s
        self.size = 0

    async def grow(self, size: int) -> None:
        """Have room for `size` bytes, after waiting for it if need be.

        Raises:
            Overloaded: there was none within `server.body_wait_s`.
        """
        if size > self.size:
            await self._room._grow(self, size)

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._room._give_back(self)
