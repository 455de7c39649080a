"""How long things may take in tests that are not about time, and ways to wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

DEADLINE_MS = 60_000
"""For `steering.deadline_ms`, `steering.max_wait_ms` and `storage.commit_limit_ms`, in the gateways
of all tests that are not about them.

The deadline limits the processor time of a request (50 ms where nothing is configured), the second
what it waits for the store and for look-ups (5 s). One that a slow machine needs longer for would
go out unsteered, and a test would see other steps, states and models than it expects. The third
limits how long an answer waits for its record (250 ms): a test that reads the run log next would
not find it.
"""

ANSWER_S = 120.0
"""For an answer, a log line, a page or another process: what is there after milliseconds on a quiet
machine takes seconds on a busy one."""

_POLL_S = 0.02


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], folder: Path, limit_s: float = ANSWER_S
) -> subprocess.CompletedProcess[str]:
    """Exit status, standard output and standard error of a program without a terminal, which ends
    with all that it started, at the latest after `limit_s`. Raises: subprocess.TimeoutExpired."""
    with subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            out, err = started.communicate(timeout=limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, started.returncode, out, err)


def until(ask: Callable[[], Any]) -> Any:
    """What `ask` gives once it is true. Raises: AssertionError after `ANSWER_S`."""
    ends = time.monotonic() + ANSWER_S
    while not (found := ask()):
        assert time.monotonic() < ends, "it never became true"
        time.sleep(_POLL_S)
    return found


async def until_async(ask: Callable[[], Any]) -> Any:
    """What `ask`, a function or a coroutine function, gives once it is true; the loop goes on
    meanwhile. Raises: AssertionError after `ANSWER_S`."""
    ends = time.monotonic() + ANSWER_S
    while True:
        found = ask()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < ends, "it never became true"
        await asyncio.sleep(_POLL_S)


def runs_at(url: str, count: int = 1) -> list[dict[str, Any]]:
    """The runs on record at the gateway `url`, once there are `count` of them.

    A call that failed is written behind its last byte: who reads at once may be too early."""

    def listed() -> list[dict[str, Any]] | None:
        runs: list[dict[str, Any]] = httpx.get(f"{url}/api/runs", timeout=ANSWER_S).json()["runs"]
        return runs if len(runs) >= count else None

    found: list[dict[str, Any]] = until(listed)
    return found


async def readiness(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """The body of a gateway's `/readyz`, which answers 200."""
    answer = await http.get(f"{url}/readyz")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until_ready(http: httpx.AsyncClient, url: str, **fields: Any) -> dict[str, Any]:
    """The body of `/readyz` once it has these fields; without any, once the gateway is ready."""
    wanted = fields or {"status": "ready"}

    async def found() -> dict[str, Any] | None:
        body = await readiness(http, url)
        return body if wanted.items() <= body.items() else None

    body: dict[str, Any] = await until_async(found)
    return body
