"""The engine of the stores: values by name, texts that come back."""

from __future__ import annotations

from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.postgres.database import Database
from gateway.features.postgres.engine import PostgresEngine, _numbered
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


async def test_texts_come_back_from_a_server() -> None:
    """Also in a list of values; a column of JSON has its text as it is."""
    with empty_database() as url:
        database = await Database.open(StorageSettings(url=Secret(url)))
        engine = PostgresEngine(database)
        where = engine.forms.among("key", "keys", "text")
        await engine.write("INSERT INTO alert_keys VALUES (:key, :id, 1.0)", key=STRANGE, id="a")
        found = await engine.fetch(f"SELECT key FROM alert_keys WHERE {where}", keys=[STRANGE])
        assert [list(row) for row in found] == [[STRANGE]]
        (row,) = await engine.fetch(
            "SELECT CAST(:content AS TEXT) AS content", content="\U0010ffff0"
        )
        assert list(row) == ["\U0010ffff0"]
        await database.close()
