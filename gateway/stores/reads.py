"""How those who read a store on the way of a request wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Reads(Protocol):
    """Makes a read, or refuses to: a gateway does not wait for a database that is away
    (`GuardedStateStore.read_beside`)."""

    async def __call__(self, work: Callable[[], Awaitable[T]], /) -> T:
        """The result of the read. Raises: StoreError."""


async def directly(work: Callable[[], Awaitable[T]], /) -> T:
    """Wait for a read, however long it takes."""
    return await work()
