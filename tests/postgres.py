"""A real PostgreSQL server for tests: one for each process of tests, in a folder of its own.

It is started when the first test needs it and killed at the end. `new_database` skips the test
where no server can be started; the summary of the tests says how many were skipped for that.
"""

from __future__ import annotations

import atexit
import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from gateway.config.storage import STORES
from steering_gateway_testing.postgres import PostgresServer, new_folder

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
