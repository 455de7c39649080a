"""The engines of the stores in SQL: values by name, work that is driven, texts that come back."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.stores.postgres.database import Database as PostgresDatabase
from gateway.stores.postgres.engine import PostgresEngine, _numbered
from gateway.stores.sql.engine import Connection
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from tests.postgres import empty_database

STRANGE = "a\x00b\U0010ffff0c"
"""A NUL, and the character that marks one in PostgreSQL, followed by what would make it one."""


def test_values_are_numbered_by_their_first_place() -> None:
    """A name that occurs twice is one value; a cast is none."""
    sql = "SELECT :b::text, :a, :b WHERE x = ANY(:list::text[])"
    assert _numbered(sql) == (
        "SELECT $1::text, $2, $1 WHERE x = ANY($3::text[])",
        ("b", "a", "list"),
    )


async def test_work_on_a_file_awaits_only_its_connection(database: Database) -> None:
    """Anything else cannot be awaited in the thread: it is an error, and nothing is written."""

    async def work(connection: Connection) -> None:
        await connection.fetch("INSERT INTO alert_keys VALUES ('k', 'a', 1.0)")
        await asyncio.sleep(0)

    engine = SQLiteEngine(database)
    with pytest.raises(RuntimeError, match="awaited something else"):
        await engine.transact(work)
    assert await engine.fetch("SELECT key FROM alert_keys") == []


async def test_texts_come_back_from_a_server() -> None:
    """Also in a list of values; a column of JSON has its text as it is."""
    with empty_database() as url:
        database = await PostgresDatabase.open(StorageSettings(url=Secret(url)))
        engine = PostgresEngine(database)
        where = engine.dialect.among("key", "keys", "text")
        await engine.write("INSERT INTO alert_keys VALUES (:key, :id, 1.0)", key=STRANGE, id="a")
        found = await engine.fetch(f"SELECT key FROM alert_keys WHERE {where}", keys=[STRANGE])
        assert [list(row) for row in found] == [[STRANGE]]
        (row,) = await engine.fetch(
            "SELECT CAST(:content AS TEXT) AS content", content="\U0010ffff0"
        )
        assert list(row) == ["\U0010ffff0"]
        await database.close()
