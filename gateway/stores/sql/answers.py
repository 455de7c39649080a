"""Answers that later requests name."""

from __future__ import annotations

from gateway.stores.exchanges import AnswerRecord
from gateway.stores.sql.engine import Engine, excluded

_KEEP = f"""
INSERT INTO answers (tenant, id, at, place, echo, call)
VALUES (:tenant, :id, :at, :place, :echo, :answered)
ON CONFLICT (tenant, id) DO UPDATE SET {excluded(("at", "place", "echo", "call"))}
"""
_FIND = """
SELECT place, echo, call AS answered, at FROM answers WHERE tenant = :tenant AND id = :id
"""
_TAKE = """
UPDATE answers SET call = '' WHERE tenant = :tenant AND id = :id AND call <> '' RETURNING TRUE
"""


class SQLAnswerStore:
    """`AnswerStore` over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def keep_answer(self, answer: AnswerRecord) -> None:
        await self._engine.write(
            _KEEP,
            tenant=answer.tenant,
            id=answer.id,
            at=answer.at,
            place=answer.place,
            echo=answer.echo,
            answered=answer.call,
        )

    async def find_answer(self, tenant: str, id: str) -> AnswerRecord | None:
        for place, echo, call, at in await self._engine.fetch(_FIND, tenant=tenant, id=id):
            return AnswerRecord(tenant=tenant, id=id, at=at, place=place, echo=echo, call=call)
        return None

    async def take_call(self, tenant: str, id: str) -> bool:
        return bool(await self._engine.write(_TAKE, tenant=tenant, id=id))
