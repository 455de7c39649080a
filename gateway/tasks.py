"""Background tasks, and the time and the places that concurrent work is given."""

import asyncio
import contextvars
import os
import sys
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec

from gateway.values import T

P = ParamSpec("P")
_running: set[asyncio.Task[Any]] = set()
# A step that holds the event loop for longer counts whole, also where it used no processor time:
# then it was blocked, which a busy machine alone does not do for so long.
HELD_LOOP_S = 1.0
# A request that waits for longer, for the store or a model, lends its place to the next: a part
# that hangs must not stop the requests that do not need it.
LENDING_S = 0.1


def spawn(coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start `coro` and hold the task until it ends. The event loop keeps only a weak reference to a
    task, so an unreferenced one may vanish."""
    task = asyncio.get_running_loop().create_task(coro, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


class ThreadsBusy(Exception):
    """As much work waits for a thread as may."""


class Threads:
    """Up to `most` threads for one kind of work that would block the event loop, so that work of
    one kind never waits for another's. The end of the loop does not wait for them, as it does for
    asyncio's own, nor does that of the process (`gateway.cli.leave`): an import may take a minute.
    `most_waiting`: how many pieces of work may wait for a thread."""

    def __init__(self, name: str, most: int, most_waiting: int = sys.maxsize):
        self._pool = ThreadPoolExecutor(most, name)
        self._most_open = most + most_waiting
        self._open = 0

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, from a thread. If the caller is cancelled, work that has not begun
        is left out, and what has begun goes on. Raises: ThreadsBusy, and whatever `work` raises."""
        if self._open >= self._most_open:
            raise ThreadsBusy
        call = partial(contextvars.copy_context().run, work, *args, **kwargs)
        self._open += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        finally:
            self._open -= 1


# Does work that uses the processor for more than a few milliseconds.
off_loop = Threads("computing", min(32, (os.cpu_count() or 1) + 4)).run
# Reads large bodies, in one thread: each further one would ask for the interpreter, too, and every
# turn of the event loop would wait for all of them.
reading = Threads("reading", 1).run
# Imports and reads what takes up to a minute on a busy machine.
loading = Threads("loading", 8).run
# Reads and writes files, on a disk that may not answer.
on_disk = Threads("disk", 4).run


class Unfinished:
    """Remaining work of requests that were answered; a stop waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do it in a task of the event loop, which is returned."""
        task = spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self, timeout_s: float) -> None:
        """Return when all is done, or after so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)


class DeadlinePassed(Exception):
    """The work took more of its own time than it was given."""


class OwnTime:
    """Adds up the processor time of one coroutine, step by step, and compares it with a limit. A
    step is what runs between two waits. A step cannot be interrupted: the work calls `check` where
    it can stop."""

    def __init__(self, limit_s: float):
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
        """True while the work waits for something else, such as the store; False while it only
        waits for its turn."""
        return self._waits_for is not None and not self._waits_for.done()

    def check(self) -> None:
        """Raises: DeadlinePassed, when the work has taken longer than its limit."""
        if self.spent_s > self._limit_s:
            raise DeadlinePassed

    def on_wait(self, call: Callable[[], None]) -> None:
        """Have `call` called once, when the work waits for the first time; most never does."""
        self._on_wait = call

    async def run(self, work: Coroutine[Any, Any, T], wait_s: float) -> T:
        """The result of `work`, whose own time is counted. Raises TimeoutError: it was still
        waiting for something `wait_s` after its first wait began."""
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
                return await _driven(self, work, waits_for)
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
        if held_s > HELD_LOOP_S:
            return held_s
        return time.thread_time() - processor_s

    def _begin(self) -> None:
        self._waits_for = None
        self._begun = time.thread_time(), time.perf_counter()

    def _pause(self) -> None:
        self._spent_s += self._step_s()
        self._begun = None


@types.coroutine
def _driven(
    own_time: OwnTime, work: Coroutine[Any, Any, T], waits_for: Any
) -> Generator[Any, Any, T]:
    """Await a coroutine that waits for something, one step at a time; each step is counted."""
    while True:
        own_time._waits_for = waits_for
        thrown = None
        try:
            yield waits_for
        except BaseException as exc:  # a cancellation, for the work to handle
            thrown = exc
        own_time._begin()
        try:
            if thrown is None:
                waits_for = work.send(None)
            else:
                waits_for = work.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            thrown = None  # it has this frame, and with it the body of whoever waits here
            own_time._pause()


class Turns:
    """A limited number of places, given in the order of arrival. Without a limit a thousand
    requests that arrive at once would each do one step at a time: all of them would be in memory
    half done, and all would be sent late."""

    def __init__(self, places: int):
        self._places = asyncio.Semaphore(places)

    def turn(self, own_time: OwnTime) -> "_Turn":
        """One request's turn, as an asynchronous context: a place, from the moment it is free until
        the work is done or waits for too long."""
        return _Turn(self._places, own_time)


class _Turn:
    def __init__(self, places: asyncio.Semaphore, own_time: OwnTime):
        self._places = places
        self._own_time = own_time
        self._timer: asyncio.Handle | None = None
        self._held = False

    async def __aenter__(self) -> None:
        await self._places.acquire()
        self._held = True
        self._own_time.on_wait(self._look_later)

    async def __aexit__(self, *_: object) -> None:
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
