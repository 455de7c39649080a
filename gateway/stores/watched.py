"""The conversations as the rest of the gateway reads and writes them: a store, and its health."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from gateway.stores.protocols import StateStore
from gateway.stores.records import CallRecord
from gateway.values import Value

T = TypeVar("T")


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


class WatchedStates(StateStore, Protocol):
    """A `StateStore` that is followed, and that knows how it does."""

    # called after the store was opened again, which may be an empty one
    reopened: list[Callable[[], Awaitable[None]]]

    @property
    def health(self) -> StoreHealth:
        """The state of the store now."""

    @property
    def lost(self) -> int:
        """The number of records that could not be kept when the store was closed."""

    @property
    def damaged(self) -> list[str]:
        """The names under which damaged databases are kept since the start."""

    def active_within(self, seconds: float) -> list[str]:
        """The conversations committed by this process in the last `seconds`."""

    async def take_over(self) -> None:
        """Keep what a gateway that ended has left on disk; returns when look-ups find it."""

    async def follow(self) -> None:
        """Check the store, without end."""

    async def keep(self, call: CallRecord) -> int:
        """Store a record whose conversation has changed in the store and cannot be read: it is
        joined with that later. Raises: StoreOverloaded when there is no room for it to wait."""

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read of this store. Raises: StoreError."""

    async def read_beside(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read of another store in the same database. Raises: StoreError."""


class PlainStates:
    """`WatchedStates` that add nothing to a store: each call waits for it, and gets its errors."""

    def __init__(self, store: StateStore, *_: Any) -> None:
        self._store = store
        self.reopened: list[Callable[[], Awaitable[None]]] = []
        self.damaged: list[str] = []
        self.lost = 0
        self.keep = store.commit

    def __getattr__(self, name: str) -> Any:
        """The store's own."""
        return getattr(self._store, name)

    @property
    def health(self) -> StoreHealth:
        """See WatchedStates."""
        return StoreHealth(incident=None, waiting=0, waiting_bytes=0, damaged=tuple(self.damaged))

    def active_within(self, seconds: float) -> list[str]:
        """See WatchedStates. This one does not remember them."""
        return []

    async def take_over(self) -> None:
        """See WatchedStates."""

    async def follow(self) -> None:
        """See WatchedStates."""

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """See WatchedStates."""
        return await work()

    read_beside = read
