"""Raw calls in SQLite."""

from __future__ import annotations

from typing import Any

import apsw

from gateway.stores.exchanges import RawCall
from gateway.stores.sqlite.database import Database

_RUN = "SELECT pk FROM runs WHERE id = ? AND tenant = ?"
_PUT = """
INSERT INTO raw_calls (run_pk, step_index, at, bytes, dialect, request, response)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_pk, step_index) DO UPDATE SET at = excluded.at, bytes = excluded.bytes,
    dialect = excluded.dialect, request = excluded.request, response = excluded.response
"""
_FIND = """
SELECT r.tenant, r.id, w.step_index, w.at, w.dialect, w.request, w.response
FROM raw_calls AS w JOIN runs AS r ON r.pk = w.run_pk
WHERE r.id = ? AND w.step_index = ? AND (?3 IS NULL OR r.tenant = ?3)
"""
# The newest calls that fit together; everything before the first that does not is removed.
_LAST_THAT_FITS = """
SELECT max(at) FROM (
    SELECT at, sum(bytes) OVER (ORDER BY at DESC ROWS UNBOUNDED PRECEDING) AS total FROM raw_calls
) AS sums WHERE total > ?
"""


class SQLiteRawStore:
    """`RawStore` over a Database; the bodies are compressed by whoever puts them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_raw(self, call: RawCall, *, most_bytes: int) -> bool:
        """See RawStore."""

        def work(connection: apsw.Connection) -> bool:
            run_pk = connection.execute(_RUN, (call.run_id, call.tenant)).get
            if run_pk is None:
                return False
            size = len(call.request) + len(call.response)
            place = (run_pk, call.step_index, call.at, size, call.dialect)
            connection.execute(_PUT, (*place, call.request, call.response))
            over = connection.execute(_LAST_THAT_FITS, (most_bytes,)).get
            if over is not None:
                connection.execute("DELETE FROM raw_calls WHERE at <= ?", (over,))
            return True

        return await self._database.write(work)

    async def find_raw(self, run_id: str, step_index: int, *, tenant: str | None) -> RawCall | None:
        """See RawStore."""

        def work(connection: apsw.Connection) -> list[Any]:
            return connection.execute(_FIND, (run_id, step_index, tenant)).fetchall()

        rows = await self._database.read(work)
        if not rows:
            return None
        owner, run, step, at, dialect, request, response = rows[0]
        return RawCall(
            tenant=owner,
            run_id=run,
            step_index=step,
            at=at,
            dialect=dialect,
            request=request,
            response=response,
        )
