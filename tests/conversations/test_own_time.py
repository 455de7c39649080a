"""Only a request's own work counts against its deadline; what it waits for has another limit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref

import pytest

from gateway.tasks import DeadlinePassed, OwnTime, Turns

LONG_S = 30.0


def work(processor_s: float) -> None:
    """Use so much processor time of this thread."""
    end = time.thread_time() + processor_s
    while time.thread_time() < end:
        pass


async def test_own_steps_count_and_waits_do_not() -> None:
    """Both steps around a wait are counted, whatever others do meanwhile."""
    own_time = OwnTime(LONG_S)

    async def busy() -> str:
        work(0.02)
        await asyncio.sleep(0.05)
        work(0.02)
        assert own_time.spent_s >= 0.04  # the step that is running counts, too
        return "done"

    async def other() -> None:
        for _ in range(20):
            work(0.01)
            await asyncio.sleep(0)

    done, _ = await asyncio.gather(own_time.run(busy(), LONG_S), other())
    assert done == "done"
    assert 0.04 <= own_time.spent_s < 0.2  # the others worked for 0.2 s


async def test_the_deadline_is_met_where_the_work_looks() -> None:
    """`check` raises once the limit is passed, however the steps are cut."""
    own_time = OwnTime(0.03)

    async def busy() -> None:
        for _ in range(4):
            work(0.01)
            await asyncio.sleep(0)
        own_time.check()

    with pytest.raises(DeadlinePassed):
        await own_time.run(busy(), LONG_S)


async def test_a_step_that_blocks_the_loop_counts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses no processor time, but nothing else runs meanwhile."""
    monkeypatch.setattr("gateway.tasks.HELD_LOOP_S", 0.01)
    own_time = OwnTime(LONG_S)

    async def blocks() -> None:
        time.sleep(0.05)  # noqa: ASYNC251 - that is what is tested

    await own_time.run(blocks(), LONG_S)
    assert own_time.spent_s >= 0.05


async def test_a_wait_that_does_not_end() -> None:
    """The work is cancelled where it waits, and can clean up."""
    cleaned = []

    async def hangs() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append(True)

    with pytest.raises(TimeoutError):
        await OwnTime(LONG_S).run(hangs(), 0.01)
    assert cleaned


async def test_a_turn_that_comes_late_is_no_wait() -> None:
    """What was waited for is there when the limit passes: the work goes on."""
    ready = asyncio.get_running_loop().create_future()

    async def waits() -> str:
        return str(await ready)

    running = asyncio.ensure_future(OwnTime(LONG_S).run(waits(), 0.02))
    await asyncio.sleep(0)
    ready.set_result("here")
    work(0.1)  # the loop is held by others until long after the limit
    assert await running == "here"


async def test_a_caller_that_leaves_cancels_the_work() -> None:
    """A cancellation from outside arrives as one, not as a timeout."""
    begun = asyncio.Event()

    async def hangs() -> None:
        begun.set()
        await asyncio.sleep(LONG_S)

    running = asyncio.ensure_future(OwnTime(LONG_S).run(hangs(), LONG_S))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class _Body:
    """Something large."""


async def test_work_that_is_cancelled_leaves_nothing_behind() -> None:
    """What its frames held is free at once, not when garbage is collected."""
    begun = asyncio.Event()

    async def hangs() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def caller() -> weakref.ref[_Body]:
        body = _Body()
        found = weakref.ref(body)
        held.append(found)
        await OwnTime(LONG_S).run(hangs(), LONG_S)
        return found

    held: list[weakref.ref[_Body]] = []
    gc.disable()
    try:
        running = asyncio.ensure_future(caller())
        await begun.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        del running
        await asyncio.sleep(0)
        assert held[0]() is None
    finally:
        gc.enable()


async def test_who_leaves_in_the_queue_for_a_turn_takes_none_along() -> None:
    """Before it had its place, or just as it was given one; the next has it then."""
    turns = Turns(1)

    async def turn() -> None:
        async with turns.turn(OwnTime(LONG_S)):
            pass

    for gives_first in (False, True):
        async with turns.turn(OwnTime(LONG_S)):
            gone, next_one = asyncio.ensure_future(turn()), asyncio.ensure_future(turn())
            await asyncio.sleep(0)
            if not gives_first:
                gone.cancel()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        async with asyncio.timeout(LONG_S):
            await next_one
            await turn()


async def test_a_turn_that_waits_for_too_long_is_lent() -> None:
    """A large body whose store hangs holds up no other; its own end takes no place more."""
    turns = Turns(1)
    hangs = asyncio.Event()

    async def stuck() -> None:
        own_time = OwnTime(LONG_S)
        async with turns.turn(own_time):
            await own_time.run(hangs.wait(), LONG_S)

    held = asyncio.ensure_future(stuck())
    await asyncio.sleep(0)
    async with asyncio.timeout(LONG_S), turns.turn(OwnTime(LONG_S)):
        assert not held.done()
        hangs.set()
        await held
        assert turns.turn(OwnTime(LONG_S))._places.locked()
