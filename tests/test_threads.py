"""Threads for what would block the event loop, and the end of a process that has some."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.tasks import Threads, ThreadsBusy, spawn
from steering_gateway_testing.patience import ANSWER_S


async def test_a_result_and_an_error_arrive() -> None:
    """With the context of the caller, as if the work were awaited."""
    said = contextvars.ContextVar[str]("said")
    said.set("the caller's")
    threads = Threads("test", 1)
    assert await threads.run(said.get) == "the caller's"
    assert await threads.run(int, "12", base=3) == 5
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run(int, "x")


async def test_work_shares_as_many_threads_as_there_may_be() -> None:
    """All of them are in use at once, and no more."""
    threads, together = Threads("test", 3), threading.Barrier(3)

    def work() -> str:
        together.wait(ANSWER_S)
        return threading.current_thread().name

    names = await asyncio.gather(*[threads.run(work) for _ in range(9)])
    assert set(names) == {"test_0", "test_1", "test_2"}


async def test_an_idle_thread_is_used_again() -> None:
    """What comes one by one takes one thread."""
    threads = Threads("test", 3)
    names = set[str]()
    idle = threads._pool._idle_semaphore
    for _ in range(5):
        names.add((await threads.run(threading.current_thread)).name)
        assert await asyncio.to_thread(idle.acquire, True, ANSWER_S)  # a moment after its result
        idle.release()
    assert names == {"test_0"}


async def test_work_of_a_caller_that_left_is_not_begun() -> None:
    """What has begun goes on, and its thread is there for the next."""
    threads, begun, go = Threads("test", 1), threading.Event(), threading.Event()
    done = list[str]()

    def first() -> None:
        begun.set()
        go.wait(ANSWER_S)
        done.append("first")

    under_way = spawn(threads.run(first))
    waiting = spawn(threads.run(done.append, "second"))
    await asyncio.to_thread(begun.wait, ANSWER_S)
    for task in (under_way, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    go.set()
    await threads.run(done.append, "third")
    assert done == ["first", "third"]


async def test_no_more_waits_than_may() -> None:
    """With one thread at work and one piece waiting, the next is refused."""
    threads, begun, go = Threads("test", 1, most_waiting=1), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go.wait(ANSWER_S)

    under_way = spawn(threads.run(first))
    await asyncio.to_thread(begun.wait, ANSWER_S)
    waiting = spawn(threads.run(int))
    await asyncio.sleep(0)
    with pytest.raises(ThreadsBusy):
        await threads.run(int)
    go.set()
    assert await waiting == 0
    await under_way


@pytest.mark.parametrize("work", ["time.sleep", "lambda _: sys.stdin.readline()"])
def test_neither_a_loop_nor_a_process_waits_for_a_thread(work: str) -> None:
    """With the status that the process has, and with all that was printed: also while a thread
    holds the lock of the standard input, where Python's own end is a fatal error."""
    program = f"""
import asyncio, sys, threading, time
from gateway.cli import leave
from gateway.tasks import off_loop, spawn

async def main():
    begun = threading.Event()
    work = {work}
    spawn(off_loop(lambda: (begun.set(), work(10_000))))
    while not begun.is_set():
        await asyncio.sleep(0)

asyncio.run(main())
print("said", end="")
leave(7)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.wait(ANSWER_S) == 7
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == ("said", "")


_SERVED = """
import sys
from dataclasses import replace
from gateway import server
from gateway.config import Settings
server.GatewayServer.run = lambda *_, **__: {look}
server.GatewayServer.started = True
own = Settings()
server.serve(replace(own, server=replace(own.server, port=0)), Settings, None)
"""


def _seen_in_gateway(look: str, directory: Path) -> str:
    """What a gateway's process prints where it would serve."""
    command = [sys.executable, "-c", _SERVED.replace("{look}", look)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=ANSWER_S, check=True, cwd=directory
    ).stdout


def test_a_gateway_passes_the_interpreter_on_soon(tmp_path: Path) -> None:
    """The event loop waits for a thread that computes in each of its turns."""
    assert float(_seen_in_gateway("print(sys.getswitchinterval())", tmp_path)) < 0.001


_LOOK = """
import ctypes
class Info(ctypes.Structure):
    _fields_ = [(str(n), ctypes.c_size_t) for n in range(10)]
count = ctypes.CDLL(None).mallinfo2
count.restype = Info
bytes(2**23)
before = getattr(count(), "4")  # bytes in blocks of their own
body = bytes(2**23)
print(getattr(count(), "4") - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="another C library",
)
def test_a_gateway_gives_large_bodies_back(tmp_path: Path) -> None:
    """After one of 8 MB was freed, the next one still has memory of its own from the system."""
    (tmp_path / "look.py").write_text(_LOOK)
    assert int(_seen_in_gateway("exec(open('look.py').read(), {})", tmp_path)) >= 2**23
