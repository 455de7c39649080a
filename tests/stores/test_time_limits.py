"""Time limits that share a timer behave as `asyncio.timeout` does."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from gateway.stores.time_limits import TimeLimits
from gateway.tasks import spawn

LONG_S = 3600.0


async def _wait(limits: TimeLimits, seconds: float, event: asyncio.Event) -> str:
    with limits.within(seconds):
        await event.wait()
    return "done"


async def test_work_that_takes_too_long_ends_with_a_timeout() -> None:
    """It is cancelled, and the task that did it can go on: nothing of the cancellation is left."""
    with pytest.raises(TimeoutError):
        await _wait(TimeLimits(), 0.01, asyncio.Event())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_shorter_limit_that_begins_later_is_over_first() -> None:
    """The timer that was set for the longer one is set anew."""
    limits, event = TimeLimits(), asyncio.Event()
    longer = spawn(_wait(limits, LONG_S, event))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await _wait(limits, 0.01, event)
    event.set()
    assert await longer == "done"


async def test_each_piece_of_work_has_its_own_limit() -> None:
    """Those that are over end, whatever their order; the one with time left goes on."""
    limits, event = TimeLimits(), asyncio.Event()
    seconds = (0.05, 0.01, LONG_S, 0.03)
    tasks = [spawn(_wait(limits, each, event)) for each in seconds]
    short = [tasks[0], tasks[1], tasks[3]]
    await asyncio.wait(short)
    assert all(isinstance(task.exception(), TimeoutError) for task in short)
    assert not tasks[2].done()
    event.set()
    assert await tasks[2] == "done"


async def test_work_that_is_over_is_not_cancelled_by_the_timer() -> None:
    """The timer outlives the work, and serves the next piece."""
    limits, event = TimeLimits(), asyncio.Event()
    event.set()
    assert await _wait(limits, 0.01, event) == "done"
    await asyncio.sleep(0.05)  # the timer fires meanwhile
    with pytest.raises(TimeoutError):
        await _wait(limits, 0.01, asyncio.Event())


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    """A request whose client is gone is not taken for a slow store."""
    task = spawn(_wait(TimeLimits(), LONG_S, asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_inner_limit_leaves_the_outer_one_to_its_time() -> None:
    """A statement in a read ends when the read is over: cancelled, without a timeout of its own."""
    limits, ended = TimeLimits(), list[str]()

    async def inner() -> None:
        try:
            await _wait(limits, LONG_S, asyncio.Event())
        except TimeoutError:
            ended.append("inner")
            raise

    with pytest.raises(TimeoutError), limits.within(0.05):
        await inner()
    assert ended == []


def test_a_limit_may_begin_when_another_has_just_passed() -> None:
    """Also with uvloop, whose handle of a time that has passed is no timer's."""

    async def begin_late() -> None:
        limits = TimeLimits()
        with pytest.raises(TimeoutError), limits.within(-1.0):
            await _wait(limits, LONG_S, asyncio.Event())

    uvloop.run(begin_late())
