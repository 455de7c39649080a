"""Bounded store reads on the request path, and time limits with one timer for all of them:
`asyncio.timeout` takes a quarter of the instructions of looking up a conversation's version."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol

from gateway.values import T


class Reads(Protocol):
    """Makes a read, or refuses to: a gateway does not wait for a database that is away
    (`GuardedStateStore.read_beside`)."""

    async def __call__(self, work: Callable[[], Awaitable[T]], /) -> T:
        """The result of the read. Raises: StoreError."""


async def directly(work: Callable[[], Awaitable[T]], /) -> T:
    """Wait for a read, however long it takes."""
    return await work()


class TimeLimits:
    """The pieces of work that are under way, each with a limit of its own. For one event loop."""

    def __init__(self) -> None:
        self._under_way: set[_Limit] = set()
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0  # uvloop's handle of a time that has passed does not tell it

    def within(self, seconds: float) -> "_Limit":
        """For `with`: cancels the block after `seconds` and raises TimeoutError. Like
        `asyncio.timeout`, it does not hide a cancellation from elsewhere."""
        return _Limit(self, seconds)

    def begin(self, limit: "_Limit") -> None:
        """Watch a piece of work."""
        self._under_way.add(limit)
        if self._timer is None or limit.due < self._rings_at:
            self._look_at(limit.due)

    def end(self, limit: "_Limit") -> None:
        """Watch it no longer. The timer stays: the next piece of work will need one."""
        self._under_way.discard(limit)

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for limit in [each for each in self._under_way if each.due <= now]:
            self._under_way.discard(limit)
            limit.pass_by()
        if self._under_way:
            self._look_at(min(limit.due for limit in self._under_way))


class _Limit:
    """One piece of work and when it is to be over."""

    __slots__ = ("_cancelling", "_limits", "_passed", "_seconds", "_task", "due")

    def __init__(self, limits: TimeLimits, seconds: float):
        self._limits = limits
        self._seconds = seconds
        self._passed = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "a limit needs a task to cancel"
        self._task = task
        self._cancelling = task.cancelling()
        self.due = loop.time() + self._seconds
        self._limits.begin(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._limits.end(self)
        if not self._passed or self._task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def pass_by(self) -> None:
        """The time is over."""
        self._passed = True
        self._task.cancel()
