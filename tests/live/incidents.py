"""What happens to the file of a running gateway: locked, full, read-only, deleted, replaced."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx

from gateway.config import LoggingSettings
from gateway.observability.logging import configure_logging
from steering_gateway_testing import AppServer

PATIENCE_S = 120.0

_LOCK = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(30000)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the file's write lock."""
    command = [sys.executable, "-c", _LOCK, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield
        holder.communicate()


@contextmanager
def pragma(server: AppServer, name: str, during: Any, after: Any) -> Iterator[None]:
    """The connection that writes has another setting."""
    writer = server.app.runtime.store._store._engine.database._writer
    perform, value = writer._perform, [during]

    def with_setting(jobs: Any) -> Any:
        # On the writer's thread, which alone may use its connection.
        writer.connection.pragma(name, value[0])
        return perform(jobs)

    writer._perform = with_setting
    yield
    value[0] = after


@contextmanager
def fault(kind: str, server: AppServer, path: Path) -> Iterator[None]:
    """The store cannot be written, for one of the reasons `busy`, `full` and `read_only`."""
    if kind == "busy":
        with locked(path):
            yield
    elif kind == "full":
        with pragma(server, "max_page_count", 1, 10**6):
            yield
    else:
        with pragma(server, "query_only", True, False):
            yield


def delete(path: Path) -> None:
    """Delete the database with all that belongs to it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        (path.parent / name).unlink()


def copy(path: Path, target: Path) -> None:
    """Copy a database that is in use."""
    source = apsw.Connection(str(path))
    source.execute("VACUUM INTO ?", (str(target),))
    source.close()


def replace(path: Path, by: Path) -> None:
    """Put another file in its place, as a restored backup is."""
    fresh = path.with_suffix(".new")
    shutil.copy(by, fresh)
    os.replace(fresh, path)


def moved(path: Path) -> None:
    """Another process moves the log into the file, so that it begins again."""
    other = apsw.Connection(str(path))
    other.set_busy_timeout(120_000)
    assert other.execute("SELECT count(*) FROM runs").get
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    other.close()


def overwrite(path: Path, by: Path) -> None:
    """Copy a file over the database, as `cp` does."""
    with path.open("r+b") as file:
        file.truncate()
        file.write(by.read_bytes())


def cut(path: Path) -> None:
    """Cut the file off in its middle."""
    os.truncate(path, path.stat().st_size // 2)


async def readiness(http: httpx.AsyncClient, server: AppServer) -> dict[str, Any]:
    """The body of `/readyz`, which answers 200."""
    answer = await http.get(f"{server.url}/readyz")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for an awaitable condition; what it came to."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = await condition()
        if found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.02)


async def run_of(http: httpx.AsyncClient, server: AppServer, conversation: str) -> dict[str, Any]:
    """The first run of a conversation with its steps, once it is on record."""

    async def found() -> dict[str, Any] | None:
        answer = await http.get(f"{server.url}/api/runs/{conversation}.0")
        return answer.json() if answer.status_code == 200 else None

    recorded = await until(found)
    assert recorded, f"{conversation} is never on record"
    return dict(recorded)


async def until_status(http: httpx.AsyncClient, server: AppServer, status: str) -> dict[str, Any]:
    """Wait until `/readyz` says `status`; its body."""

    async def found() -> dict[str, Any] | None:
        body = await readiness(http, server)
        return body if body["status"] == status else None

    body = await until(found)
    assert body, f"never {status}"
    return dict(body)


@asynccontextmanager
async def logged() -> AsyncIterator[Callable[..., list[dict[str, Any]]]]:
    """The log lines so far whose event begins with a text; for gateways started after this."""
    stream = io.StringIO()
    configure_logging(LoggingSettings(format="json"), stream)

    def lines(*begins: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [line for line in found if line["event"].startswith(begins)]

    yield lines
    configure_logging(LoggingSettings(level="error", format="json"))
