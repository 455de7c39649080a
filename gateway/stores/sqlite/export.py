"""The rows of a SQLite file, table by table, for a copy in another database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from gateway.stores.sqlite.database import Database

_BATCH = 1000


class SQLiteExport:
    """Reads the tables of an open Database, a thousand rows at a time, in order of their keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def columns(self, table: str) -> list[str]:
        """The names of a table's columns."""

        def work(connection: apsw.Connection) -> list[str]:
            return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]

        return await self._database.read(work)

    async def count(self, table: str) -> int:
        """Number of rows of a table."""

        def work(connection: apsw.Connection) -> int:
            return int(connection.execute(f"SELECT count(*) FROM {table}").get)

        return await self._database.read(work)

    async def vectors(self) -> Sequence[tuple[int, str]]:
        """The number of each space of vectors, and the table that holds them."""

        def work(connection: apsw.Connection) -> list[tuple[int, str]]:
            numbers: list[Any] = connection.execute("SELECT number FROM pattern_spaces").fetchall()
            return [(number, f"pattern_vectors_{number}") for (number,) in numbers]

        return await self._database.read(work)

    async def batch(
        self, table: str, columns: Sequence[str], key: Sequence[str], after: Sequence[Any] | None
    ) -> list[tuple[Any, ...]]:
        """The next rows in the order of `key`, which has to be unique, after one's key."""
        chosen, order = ", ".join(columns), ", ".join(key)
        where, values = "", list[Any]()
        if after is not None:
            where = f"WHERE ({order}) > ({', '.join('?' * len(key))})"
            values = list(after)

        def work(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            sql = f"SELECT {chosen} FROM {table} {where} ORDER BY {order} LIMIT {_BATCH}"
            return connection.execute(sql, values).fetchall()

        return await self._database.read(work)
