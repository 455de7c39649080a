"""What may happen to a database's server: stopped, killed, frozen, read-only, out of space."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from bench.processes import tree
from tests.postgres import PostgresServer, new_folder

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
def nothing(_server: PostgresServer) -> Iterator[None]:
    """Nothing happens."""
    yield


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
    assert server.process is not None
    processes = tree(server.process.pid)
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
