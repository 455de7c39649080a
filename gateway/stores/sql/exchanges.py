"""Raw calls, and answers that later requests name."""

from __future__ import annotations

from gateway.stores.exchanges import AnswerRecord, RawCall
from gateway.stores.sql.engine import Connection, Engine, excluded, made, row_of

_BODY = ("at", "bytes", "dialect", "request", "response")
_PUT = f"""
INSERT INTO raw_calls (run_pk, step_index, at, bytes, dialect, request, response)
SELECT pk, :step_index, :at, :bytes, :dialect, :request, :response
FROM runs WHERE id = :run_id AND tenant = :tenant
ON CONFLICT (run_pk, step_index) DO UPDATE SET {excluded(_BODY)}
RETURNING TRUE
"""
_FOUND = ("tenant", "run_id", "step_index", "at", "dialect", "request", "response")
_FIND_RAW = """
SELECT r.tenant, r.id, w.step_index, w.at, w.dialect, w.request, w.response
FROM raw_calls AS w JOIN runs AS r ON r.pk = w.run_pk
WHERE r.id = :run_id AND w.step_index = :step_index
    AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
"""
# The newest calls that fit together stay. What another gateway removes is passed over.
_MAKE_ROOM = """
DELETE FROM raw_calls WHERE (run_pk, step_index) IN (
    SELECT run_pk, step_index FROM raw_calls WHERE at <= (
        SELECT max(at) FROM (
            SELECT at, sum(bytes) OVER (ORDER BY at DESC ROWS UNBOUNDED PRECEDING) AS total
            FROM raw_calls
        ) AS sums WHERE total > :most_bytes
    ) {locked}
)
"""
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


class SQLRawStore:
    """`RawStore` over an engine; the bodies are compressed by whoever puts them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._make_room = _MAKE_ROOM.format(locked=engine.dialect.locked("raw_calls"))

    async def put_raw(self, call: RawCall, *, most_bytes: int) -> bool:
        row = row_of(call, _FOUND) | {"bytes": len(call.request) + len(call.response)}

        async def work(connection: Connection) -> bool:
            if not await connection.fetch(_PUT, **row):
                return False
            await connection.fetch(self._make_room, most_bytes=most_bytes)
            return True

        return await self._engine.transact(work)

    async def find_raw(self, run_id: str, step_index: int, *, tenant: str | None) -> RawCall | None:
        place = {"run_id": run_id, "step_index": step_index, "tenant": tenant}
        rows = await self._engine.fetch(_FIND_RAW, **place)
        return made(RawCall, _FOUND, rows[0]) if rows else None


class SQLAnswerStore:
    """`AnswerStore` over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def keep_answer(self, answer: AnswerRecord) -> None:
        row = row_of(answer, ("tenant", "id", "at", "place", "echo"))
        await self._engine.write(_KEEP, **row, answered=answer.call)

    async def find_answer(self, tenant: str, id: str) -> AnswerRecord | None:
        for place, echo, call, at in await self._engine.fetch(_FIND, tenant=tenant, id=id):
            return AnswerRecord(tenant=tenant, id=id, at=at, place=place, echo=echo, call=call)
        return None

    async def take_call(self, tenant: str, id: str) -> bool:
        return bool(await self._engine.write(_TAKE, tenant=tenant, id=id))
