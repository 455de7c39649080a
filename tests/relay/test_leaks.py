"""After many rounds of every fault nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.text import last_user_text

FEW, MANY = 5, 200
"""Rounds. A file or task left by each call of one kind makes twice as many of them.

`leaked` of a test is what only that can leave: connections kept alive come and go by less.
"""
GROWTH_BYTES = {FEW: 32 * 2**20, MANY: 24 * 2**20}
"""What memory may grow by over all rounds: more than allocators keep, less than one answer each.
In few rounds much of it is still what is loaded for the first time."""

ALONE = "TEST_LEAKS_ALONE"
"""Rounds, rounds before counting, and what only a leak can leave, for the process that counts."""

LEAVES = ("leaves-early", "leaves-late")
SPOILT = Reply("one two three four")


def faulty(request: ReceivedRequest) -> Reply | Fault:
    """The fault that the request's own text names."""
    name = last_user_text(request)
    if name == LEAVES[0]:
        return Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=60)
    if name == LEAVES[1]:
        return Reply("word " * 2000, chunk_delay_s=0.01)
    kind = FaultKind(name)
    slow = 60 if kind in (FaultKind.SLOW_FIRST_BYTE, FaultKind.STALL) else None
    return Fault(kind, delay_s=slow, retry_after="0", size_mb=0.05, reply=SPOILT)


def resident_bytes() -> int:
    """Memory of this process, which holds client, gateway and upstream; what is free is given back
    first."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def falls_below(limit: int, count: Callable[[], int]) -> bool:
    """Whether a count does in time: what is kept alive is closed after 30 s, a leak stays."""
    end = time.monotonic() + ANSWER_S
    while count() >= limit:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.5)
    return True


def unfinished_tasks() -> int:
    gc.collect()
    tasks = (o for o in gc.get_objects() if isinstance(o, asyncio.Task))
    return sum(not task.done() for task in tasks)


async def one(client: httpx.AsyncClient, name: str, stream: bool) -> None:
    """One call, read to its end, or left."""
    body = {"model": "m", "messages": [{"role": "user", "content": name}], "stream": stream}
    request = client.build_request("POST", "/chat/completions", json=body)
    try:
        if name == LEAVES[0]:
            await asyncio.wait_for(client.send(request), 0.05)
        answer = await client.send(request, stream=True)
        async for _ in answer.aiter_raw():
            if name == LEAVES[1]:
                break
        await answer.aclose()
    except (httpx.TransportError, TimeoutError):
        pass


async def served(client: httpx.AsyncClient) -> bool:
    """Whether a call is answered; on a busy machine it may still meet the short limits."""
    body = {"model": "m", "messages": [{"role": "user", "content": "content-filter"}]}
    return (await client.post("/chat/completions", json=body)).status_code == 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ScriptedUpstream, AppServer]]:
    """A gateway with short limits before the faulty upstream, which keeps no record."""
    settings: dict[str, Any] = {
        "timeouts": {"first_byte_s": 0.1, "idle_s": 0.1},
        "router": {"num_retries": 1},
        "logging": {"level": "error"},
    }
    with (
        ScriptedUpstream(faulty, record=0) as upstream,
        a_gateway(upstream.base_url, tmp_path, settings) as gateway,
    ):
        yield upstream, gateway


@pytest.mark.parametrize(
    ("rounds", "warm_up", "leaked"),
    [
        pytest.param(FEW, 3, 2 * FEW - 2, marks=pytest.mark.slow),
        pytest.param(MANY, 140, MANY // 2, marks=pytest.mark.nightly),
    ],
)
def test_nothing_leaks(rounds: int, warm_up: int, leaked: int) -> None:
    """Nothing is left after many rounds, counted in a process of its own: one that has run other
    tests may hold gigabytes of free memory, of which the allocator takes as it likes."""
    test = f"{__file__}::{test_rounds_of_every_fault.__name__}"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", "-m", "", test],
        env={**os.environ, ALONE: f"{rounds} {warm_up} {leaked}"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "grown by" in ended.stdout


@pytest.mark.skipif(ALONE not in os.environ, reason="run by test_nothing_leaks")
async def test_rounds_of_every_fault(server: tuple[ScriptedUpstream, AppServer]) -> None:
    """Connections, tasks, files and memory are where they were, and the gateway serves."""
    rounds, warm_up, leaked = map(int, os.environ[ALONE].split())
    upstream, gateway = server
    names = [*FaultKind, *LEAVES]
    marks: dict[str, int] = {}
    async with httpx.AsyncClient(base_url=gateway.base_url, timeout=120) as client:
        for number in range(rounds + warm_up):
            if number == warm_up:
                await asyncio.sleep(0.5)
                marks = {"memory": resident_bytes(), "files": open_files()}
                marks["tasks"] = unfinished_tasks()
            await asyncio.gather(*(one(client, n, s) for n in names for s in (False, True)))
        async with asyncio.timeout(120):
            while not await served(client):
                pass
        await asyncio.sleep(0.5)
        grown = resident_bytes() - marks["memory"]
        print(f"memory {marks['memory'] / 2**20:.0f} MiB, grown by {grown / 2**20:.1f} MiB")
        print(f"files {marks['files']} -> {open_files()}, tasks {unfinished_tasks()}")
        assert grown < GROWTH_BYTES[rounds]
        assert await falls_below(marks["files"] + leaked, open_files)
        assert await falls_below(marks["tasks"] + leaked, unfinished_tasks)
    metrics = gateway.app.runtime.metrics
    deadline = time.monotonic() + 120
    while b"gateway_requests_in_flight 0.0" not in metrics.render():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    pool = gateway.app.runtime.services.native._pool
    assert not pool.in_use
    assert upstream.open_connections < 100
