"""The conversations as the rest of the gateway reads and writes them: a store, and its health."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from gateway.stores.protocols import StateStore
from gateway.stores.records import CallRecord
from gateway.values import T, Value


class Incident(Struct, kw_only=True):
    """A time in which the store is unavailable or slow."""

    kind: str  # label of the first error, or `slow`
    reason: str  # the first error, for people
    since: float  # epoch seconds of its beginning
    written: int = 0  # records that waited and were stored meanwhile
    dropped: int = 0  # records that found no room and are lost
    reopened: bool = False  # the database was opened again


class StoreHealth(Value):
    """The state of the store."""

    incident: Incident | None  # None while the store works
    waiting: int  # records in memory that are not stored yet
    waiting_bytes: int  # their size in memory
    waiting_on_disk: int = 0  # waiting records that a killed gateway does not lose
    # seconds until there is no room for another record, or would be while the store is away, at
    # today's rate of calls; None when nothing is known of the rate
    lasts_s: float | None = None
    damaged: tuple[str, ...] = ()  # names under which damaged databases are kept since the start


_PASSED_ON = (
    "find_prefix_hashes",
    "load",
    "version",
    "branches",
    "find_items",
    "commit",
    "ping",
    "reopen",
    "close",
)


class WatchedStates(StateStore):
    """A `StateStore` over another one that is followed, and that knows how it does. This one adds
    nothing: each call waits for the store, and gets its errors."""

    # called after the store was opened again, which may be an empty one
    reopened: list[Callable[[], Awaitable[None]]]

    def __init__(self, store: StateStore, *_: Any):
        for name in _PASSED_ON:
            setattr(self, name, getattr(store, name))
        self.reopened = []
        self._damaged: list[str] = []

    @property
    def health(self) -> StoreHealth:
        """The state of the store now."""
        return StoreHealth(incident=None, waiting=0, waiting_bytes=0, damaged=tuple(self.damaged))

    @property
    def lost(self) -> int:
        """The number of records that could not be kept when the store was closed."""
        return 0

    @property
    def damaged(self) -> list[str]:
        """The names under which damaged databases are kept since the start."""
        return self._damaged

    def active_within(self, seconds: float) -> list[str]:
        """The conversations committed by this process in the last `seconds`, if it remembers."""
        return []

    async def take_over(self) -> None:
        """Keep what a gateway that ended has left on disk; returns when look-ups find it."""

    async def follow(self) -> None:
        """Check the store, without end."""

    async def keep(self, call: CallRecord) -> int:
        """Store a record whose conversation has changed in the store and cannot be read: it is
        joined with that later. Raises: StoreOverloaded when there is no room for it to wait."""
        return await self.commit(call)

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read of this store. Raises: StoreError."""
        return await work()

    async def read_beside(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read of another store in the same database. Raises: StoreError."""
        return await work()
