"""The time that steering takes itself, apart from its turn on the loop and what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

HELD_LOOP_S = 1.0
"""A step that holds the event loop for longer counts whole, also where it used no processor time:
then it was blocked, which a busy machine alone does not do for so long."""


class DeadlinePassed(Exception):
    """The work took more of its own time than it was given."""


class OwnTime:
    """Adds up the processor time of one coroutine, step by step, and compares it with a limit.

    A step is what runs between two waits. A step cannot be interrupted: the work calls `check`
    where it can stop.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._spent_s = 0.0
        self._begun: tuple[float, float] | None = None
        self._waits_for: asyncio.Future[Any] | None = None
        self._timer: asyncio.Handle | None = None
        self._on_wait: Callable[[], None] | None = None

    @property
    def spent_s(self) -> float:
        """The work's own time until now, in seconds."""
        return self._spent_s + self._step_s()

    @property
    def waiting(self) -> bool:
        """Whether what the work waits for is not there yet; False while it waits for its turn."""
        return self._waits_for is not None and not self._waits_for.done()

    def check(self) -> None:
        """Raises: DeadlinePassed, when the work has taken longer than its limit."""
        if self.spent_s > self._limit_s:
            raise DeadlinePassed

    def on_wait(self, call: Callable[[], None]) -> None:
        """Have `call` called once, when the work waits for the first time; most never does."""
        self._on_wait = call

    async def run(self, work: Coroutine[Any, Any, T], wait_s: float) -> T:
        """The result of `work`, whose own time is counted.

        Raises:
            TimeoutError: it was still waiting for something `wait_s` after its first wait began.
        """
        self._begin()
        try:
            waits_for = work.send(None)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            self._pause()
        if self._on_wait is not None:
            self._on_wait()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            self._timer = loop.call_later(wait_s, self._expire, loop, limit)
            try:
                return await _Driven(self, work, waits_for)
            finally:
                self._timer.cancel()

    def _expire(self, loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        if self.waiting:
            limit.reschedule(loop.time())
        else:
            self._timer = loop.call_soon(self._expire, loop, limit)

    def _step_s(self) -> float:
        if self._begun is None:
            return 0.0
        processor_s, began = self._begun
        held_s = time.perf_counter() - began
        return held_s if held_s > HELD_LOOP_S else time.thread_time() - processor_s

    def _begin(self) -> None:
        self._waits_for = None
        self._begun = time.thread_time(), time.perf_counter()

    def _pause(self) -> None:
        self._spent_s += self._step_s()
        self._begun = None


class _Driven(Generic[T]):
    """Awaits a coroutine that waits for something, one step at a time; each step is counted."""

    def __init__(self, own_time: OwnTime, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._own_time = own_time
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        own_time, work, waits_for = self._own_time, self._work, self._waits_for
        while True:
            own_time._waits_for = waits_for
            thrown: BaseException | None = None
            try:
                yield waits_for
            except BaseException as exc:  # a cancellation, for the work to handle
                thrown = exc
            own_time._begin()
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                own_time._pause()
