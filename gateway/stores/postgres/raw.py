"""Raw calls in PostgreSQL."""

from __future__ import annotations

import asyncpg

from gateway.stores.exchanges import RawCall
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text

_PUT = """
INSERT INTO raw_calls (run_pk, step_index, at, bytes, dialect, request, response)
SELECT pk, $3, $4, $5, $6, $7, $8 FROM runs WHERE id = $1 AND tenant = $2
ON CONFLICT (run_pk, step_index) DO UPDATE SET at = excluded.at, bytes = excluded.bytes,
    dialect = excluded.dialect, request = excluded.request, response = excluded.response
RETURNING TRUE
"""
_FIND = """
SELECT r.tenant, r.id, w.step_index, w.at, w.dialect, w.request, w.response
FROM raw_calls AS w JOIN runs AS r ON r.pk = w.run_pk
WHERE r.id = $1 AND w.step_index = $2 AND ($3::text IS NULL OR r.tenant = $3)
"""
# The newest calls that fit together stay. What another gateway removes is passed over.
_MAKE_ROOM = """
DELETE FROM raw_calls WHERE (run_pk, step_index) IN (
    SELECT run_pk, step_index FROM raw_calls WHERE at <= (
        SELECT max(at) FROM (
            SELECT at, sum(bytes) OVER (ORDER BY at DESC ROWS UNBOUNDED PRECEDING) AS total
            FROM raw_calls
        ) AS sums WHERE total > $1
    ) FOR UPDATE SKIP LOCKED
)
"""


class PostgresRawStore:
    """`RawStore` over a Database; the bodies are compressed by whoever puts them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_raw(self, call: RawCall, *, most_bytes: int) -> bool:
        """See RawStore."""
        whose = (stored_text(call.run_id), stored_text(call.tenant), call.step_index, call.at)
        size = len(call.request) + len(call.response)

        async def work(connection: asyncpg.Connection) -> bool:
            what = (size, stored_text(call.dialect), call.request, call.response)
            if not await connection.fetchval(_PUT, *whose, *what):
                return False
            await connection.execute(_MAKE_ROOM, most_bytes)
            return True

        return await self._database.transact(work)

    async def find_raw(self, run_id: str, step_index: int, *, tenant: str | None) -> RawCall | None:
        """See RawStore."""
        owner = None if tenant is None else stored_text(tenant)
        rows = await self._database.fetch(_FIND, stored_text(run_id), step_index, owner)
        if not rows:
            return None
        owner, run, step, at, dialect, request, response = map(read_text, rows[0])
        return RawCall(
            tenant=owner,
            run_id=run,
            step_index=step,
            at=at,
            dialect=dialect,
            request=request,
            response=response,
        )
