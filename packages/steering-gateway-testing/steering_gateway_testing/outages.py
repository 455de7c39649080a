"""What may happen to a database under a running gateway.

A SQLite file may be locked, full, read-only, deleted, replaced or damaged; a PostgreSQL server may
be stopped, killed, frozen, read-only or out of space. What ends again is a context manager, and
`FILE_OUTAGES` and `OUTAGES` name those that happen to any gateway.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from steering_gateway_testing.postgres import PostgresServer, new_folder
from steering_gateway_testing.server import AppServer

_WAIT_MS = 120_000  # for a lock of the gateway's
_LOCK = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(30000)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def nothing(_where: Path | PostgresServer) -> Iterator[None]:
    """Nothing happens."""
    yield


# To a file.


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
def fault(kind: str, server: AppServer, path: Path) -> Iterator[None]:
    """The store of a gateway in this process cannot be written, for one of the reasons `busy`,
    `full` and `read_only`."""
    if kind == "busy":
        with locked(path):
            yield
    elif kind == "full":
        with _pragma(server, "max_page_count", 1, 10**6):
            yield
    else:
        with _pragma(server, "query_only", True, False):
            yield


@contextmanager
def _pragma(server: AppServer, name: str, during: Any, after: Any) -> Iterator[None]:
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
    other.set_busy_timeout(_WAIT_MS)
    assert other.execute("SELECT count(*) FROM runs").get
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    other.close()


def overwrite(path: Path, content: bytes) -> None:
    """Write this over the database in place, as `cp` does."""
    with path.open("r+b") as file:
        file.truncate()
        file.write(content)


def cut(path: Path) -> None:
    """Cut the file off in its middle."""
    os.truncate(path, path.stat().st_size // 2)


def _copied(path: Path) -> None:
    overwrite(path, _backup(path).read_bytes())


def _replaced(path: Path) -> None:
    replace(path, _backup(path))


def _backup(path: Path) -> Path:
    made = path.with_suffix(".backup")
    copy(path, made)
    return made


def _harmed_by(harm: Callable[[Path], None]) -> Callable[[Path], AbstractContextManager[None]]:
    """The outage of a file that is harmed once, and stays so."""

    @contextmanager
    def harmed(path: Path) -> Iterator[None]:
        harm(path)
        yield

    return harmed


FILE_OUTAGES: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "none": nothing,
    "locked": locked,
    "gone": _harmed_by(delete),
    "copied": _harmed_by(_copied),
    "cut": _harmed_by(cut),
    "replaced": _harmed_by(_replaced),
}


# To a server.

SMALL_MB = 160
"""Room for a new database, its log, and some thousand calls."""

SMALL = ("-c", "min_wal_size=32MB", "-c", "max_wal_size=48MB", "-c", "listen_addresses=")
"""Options of a server with little room."""

_STARTS = 100
_PAUSE_S = 0.1


@contextmanager
def small_folder() -> Iterator[Path]:
    """A folder with `SMALL_MB` of room. Raises: OSError where nothing can be mounted."""
    folder = new_folder()
    owner = folder.stat()
    options = f"size={SMALL_MB}m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        raise OSError(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def start_again(server: PostgresServer) -> None:
    """Start a server that has ended, as soon as the children of the last one are gone."""
    for _ in range(_STARTS):
        with suppress(OSError):
            return server.start()
        time.sleep(_PAUSE_S)
    server.start()


@contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    """An administrator stops the server: it breaks off what it does, and loses nothing."""
    server.stop(signal.SIGINT)
    yield
    start_again(server)


@contextmanager
def killed(server: PostgresServer) -> Iterator[None]:
    """The server ends as in a power cut."""
    server.stop()
    yield
    start_again(server)


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    """No process of the server goes on; its socket still takes connections."""
    processes = server.pids
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def read_only(server: PostgresServer) -> Iterator[None]:
    """Every transaction is read-only, as on a server that has become a standby."""
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    server.execute("SELECT pg_reload_conf()")
    yield
    server.execute("ALTER SYSTEM RESET default_transaction_read_only")
    server.execute("SELECT pg_reload_conf()")


@contextmanager
def full(server: PostgresServer) -> Iterator[None]:
    """No table can grow; what fits into its pages still does."""
    filler = server.folder / "filler"
    fill_up(filler)
    yield
    filler.unlink()


@contextmanager
def log_full(server: PostgresServer) -> Iterator[None]:
    """The log of changes cannot grow either: the server ends, until there is room again."""
    assert server.process is not None
    filler = server.folder / "filler"
    fill_up(filler)
    ends = time.monotonic() + 30
    while server.process.poll() is None:
        if time.monotonic() > ends:  # it ended, and waits for room to begin again
            server.process.kill()
        with suppress(OSError):
            server.execute("SELECT pg_logical_emit_message(true, '', repeat('x', 1000000))")
    yield
    filler.unlink()
    start_again(server)


def fill_up(path: Path) -> None:
    """Write to a file until there is no room for another page."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12):
            with suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass


OUTAGES: dict[str, Callable[[PostgresServer], AbstractContextManager[None]]] = {
    "nothing": nothing,
    "stopped": stopped,
    "killed": killed,
    "frozen": frozen,
    "read-only": read_only,
    "full": full,
    "log full": log_full,
}
