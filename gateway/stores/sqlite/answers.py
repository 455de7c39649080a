"""Answers that later requests name, in SQLite."""

from __future__ import annotations

import apsw

from gateway.stores.exchanges import AnswerRecord
from gateway.stores.sqlite.database import Database

_KEEP = """
INSERT INTO answers (tenant, id, at, place, echo, call) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, id) DO UPDATE SET at = excluded.at, place = excluded.place,
    echo = excluded.echo, call = excluded.call
"""
_FIND = "SELECT place, echo, call, at FROM answers WHERE tenant = ? AND id = ?"
_TAKE = "UPDATE answers SET call = '' WHERE tenant = ? AND id = ? AND call <> ''"


class SQLiteAnswerStore:
    """`AnswerStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep_answer(self, answer: AnswerRecord) -> None:
        """See AnswerStore."""
        texts = (answer.place, answer.echo, answer.call)
        values = (answer.tenant, answer.id, answer.at, *texts)

        def work(connection: apsw.Connection) -> None:
            connection.execute(_KEEP, values)

        await self._database.write(work)

    async def find_answer(self, tenant: str, id: str) -> AnswerRecord | None:
        """See AnswerStore."""

        def work(connection: apsw.Connection) -> AnswerRecord | None:
            for place, echo, call, at in connection.execute(_FIND, (tenant, id)):
                return AnswerRecord(tenant=tenant, id=id, at=at, place=place, echo=echo, call=call)
            return None

        return await self._database.read(work)

    async def take_call(self, tenant: str, id: str) -> bool:
        """See AnswerStore."""

        def work(connection: apsw.Connection) -> bool:
            connection.execute(_TAKE, (tenant, id))
            return connection.changes() > 0

        return await self._database.write(work)
