"""The room for all bytes that a process holds for others: bodies, messages of sockets, answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from gateway.config.settings import ServerSettings
from gateway.errors import Overloaded

# Seconds that a refused client is asked to wait: about as long as a body of 60 MB takes.
RETRY_S = 5


# After `server.max_body_s`, so much of a body or message has to arrive in each second.
ARRIVAL_BYTES_S = 2**14


# A body or message up to this size waits for nothing, as most small calls: the room may be full of
# what others leave there, and thousands of these fit beside it.
SMALL_BYTES = 2**16


class Room:
    """The bytes that are held, from before they are read to the end of what needs them. Whoever
    waits for room gets it in the order of arrival, but what fits does not wait for something larger
    that does not. What is larger than all the room is let through when nothing else is held, and so
    is the one with the most when all that hold something wait for more: they would wait for each
    other. A gateway key has at most half of the room. `elsewhere` gives bytes that are held
    anyway."""

    def __init__(self, elsewhere: Callable[[], int] = lambda: 0):
        self._elsewhere = elsewhere
        self._held = 0
        # Bytes of answers among them, which clients may leave unread for ever.
        self.answers = 0
        self._of_keys = Counter[str]()
        self._waiting: dict[asyncio.Future[None], tuple[Share, int]] = {}
        self._turn = asyncio.Lock()

    async def give_way(self, pause_s: float = 0) -> None:
        """Wait for one's turn, of which each step of the event loop has one. Whoever is about to
        read, steer or write much asks for it, so that others go on between two such pieces of work,
        and not only between those of two hundred clients. `pause_s`: in which other threads have
        the interpreter; seconds."""
        async with self._turn:
            await asyncio.sleep(pause_s)

    def _fits(self, share: Share, size: int) -> bool:
        others = self._held - share.size
        if others and others + size + self._elsewhere() > share.limit:
            return False
        of_key = 0
        if share.key:
            of_key = self._of_keys[share.key] - share.size
        return not of_key or of_key + size <= share.limit // 2

    def _set(self, share: Share, size: int) -> None:
        gives_back = size < share.size
        self._held += size - share.size
        if share.key:
            self._of_keys[share.key] += size - share.size
            if not self._of_keys[share.key]:
                del self._of_keys[share.key]
        share.size = size
        if gives_back:
            for turn, (waiting, wanted) in list(self._waiting.items()):
                if not turn.done() and waiting.take(wanted):
                    turn.set_result(None)

    async def _wait(self, share: Share, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = share, size
        if sum([waiting.size for waiting, _ in self._waiting.values()]) == self._held:
            most = max(self._waiting, key=lambda each: self._waiting[each][0].size)
            if not most.done():
                self._set(*self._waiting[most])
                most.set_result(None)
        try:
            async with asyncio.timeout(share.settings.body_wait_s):
                await turn
        except TimeoutError:
            held = f"bodies and messages of {self._held / 2**20:.0f} MiB are in flight"
            if share.key:
                held += f", {self._of_keys[share.key] / 2**20:.0f} MiB of this key"
            raise Overloaded(
                f"{held}, of at most {share.limit / 2**20:g} MiB (server.max_bytes_in_flight_mb), "
                "half of it for one key",
                status=503,
                headers=(("retry-after", str(RETRY_S)),),
            ) from None
        finally:
            del self._waiting[turn]


class Share:
    """The room of one request or connection, nothing at first; its limits are those of the config
    it began with. `key`: the gateway key that it counts for. As a context it is given back."""

    def __init__(self, room: Room, settings: ServerSettings, key: str = ""):
        self._room = room
        self.settings = settings
        self.give_way = room.give_way
        self.key = key
        self.limit = int(settings.max_bytes_in_flight_mb * 2**20)
        self.size = 0
        self._answer = 0

    def take(self, size: int) -> bool:
        """Have room for `size` bytes in all, if there is any, and tell whether there is."""
        if size > self.size and self.limit:
            if size > SMALL_BYTES and not self._room._fits(self, size):
                return False
            self._room._set(self, size)
        return True

    def beside(self) -> Callable[[int], bool]:
        """Like `take`, for an answer: its bytes beside those that are held now. All answers
        together have at most half of the room, so that bodies find some while none is read."""
        own = self.size

        def take(size: int) -> bool:
            more = size - self._answer
            if self.limit and self._room.answers + more > self.limit // 2:
                return False
            if not self.take(own + size):
                return False
            self._answer = size
            self._room.answers += more
            return True

        return take

    async def grow(self, size: int) -> None:
        """The same, after waiting for it if need be. Raises: Overloaded: there was none within
        `server.body_wait_s`."""
        if not self.take(size):
            await self._room._wait(self, size)

    def shrink(self, size: int) -> None:
        """Give back what is more than `size` bytes."""
        if size < self.size:
            self._room._set(self, size)

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.answers -= self._answer
        self._answer = 0
        self.shrink(0)
