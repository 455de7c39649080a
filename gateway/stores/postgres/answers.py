"""Answers that later requests name, in PostgreSQL."""

from __future__ import annotations

from gateway.stores.exchanges import AnswerRecord
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text

_KEEP = """
INSERT INTO answers (tenant, id, at, place, echo, call) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, id) DO UPDATE SET at = excluded.at, place = excluded.place,
    echo = excluded.echo, call = excluded.call
"""
_FIND = "SELECT place, echo, call, at FROM answers WHERE tenant = $1 AND id = $2"
_TAKE = "UPDATE answers SET call = '' WHERE tenant = $1 AND id = $2 AND call <> '' RETURNING TRUE"


class PostgresAnswerStore:
    """`AnswerStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep_answer(self, answer: AnswerRecord) -> None:
        """See AnswerStore."""
        key = map(stored_text, (answer.tenant, answer.id))
        texts = map(stored_text, (answer.place, answer.echo, answer.call))
        await self._database.fetch(_KEEP, *key, answer.at, *texts)

    async def find_answer(self, tenant: str, id: str) -> AnswerRecord | None:
        """See AnswerStore."""
        rows = await self._database.fetch(_FIND, stored_text(tenant), stored_text(id))
        if not rows:
            return None
        place, echo, call = map(read_text, rows[0][:3])
        return AnswerRecord(tenant=tenant, id=id, at=rows[0][3], place=place, echo=echo, call=call)

    async def take_call(self, tenant: str, id: str) -> bool:
        """See AnswerStore."""
        return bool(await self._database.fetch(_TAKE, stored_text(tenant), stored_text(id)))
