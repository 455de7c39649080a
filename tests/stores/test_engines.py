"""The engine of the stores in a file: work that is driven in a thread."""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores.sql.engine import Connection
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine


async def test_work_on_a_file_awaits_only_its_connection(database: Database) -> None:
    """Anything else cannot be awaited in the thread: it is an error, and nothing is written."""

    async def work(connection: Connection) -> None:
        await connection.fetch("INSERT INTO alert_keys VALUES ('k', 'a', 1.0)")
        await asyncio.sleep(0)

    engine = SQLiteEngine(database)
    with pytest.raises(RuntimeError, match="awaited something else"):
        await engine.transact(work)
    assert await engine.fetch("SELECT key FROM alert_keys") == []
