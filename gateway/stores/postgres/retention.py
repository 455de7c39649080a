"""Rounds of retention: one gateway does them for all that share the database, the others nothing.

Whole days go first: when every run of a day is old, its steps and guidance are dropped with their
partitions, whatever their number. Sizes are those of what is stored, before compression and
indexes."""

from __future__ import annotations

import asyncpg

from gateway.stores.postgres.database import PATIENT_S, Database
from gateway.stores.postgres.schema import (
    DAY_BITS,
    add_partitions,
    days_with_partitions,
    drop_partitions,
)
from gateway.stores.sql.engine import Connection, Upkeep

_FIXED_BYTES = 1000  # of a conversation or run besides its texts: columns and hashes

# For half an interval after the last round of a gateway, no other one does it.
_LEASE = """
INSERT INTO leases AS l (name, holder, until)
VALUES ('retention', $1, now() + make_interval(secs => $2))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < now()
RETURNING TRUE
"""
_DAY_IN_USE = """
SELECT EXISTS (
    SELECT 1 FROM runs WHERE pk >= $1 AND pk < $2
    AND (started_at >= $3 OR updated_at >= $3 OR conversation_pk = ANY($4::int8[]))
)
"""
_RUNS_OF_DAY = "DELETE FROM runs WHERE pk >= $1 AND pk < $2"
_RAW_OF_DAY = "DELETE FROM raw_calls WHERE run_pk >= $1 AND run_pk < $2"
# As by a commit: in the order of the ids. What a commit holds at the moment is in use.
_LOCK = f"""
WITH locked AS (
    SELECT pk, octet_length(state) + {_FIXED_BYTES} AS bytes FROM conversations
    WHERE pk = ANY(:pks::int8[]) ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT pk, (bytes + (
    SELECT coalesce(sum(r.bytes + {_FIXED_BYTES}), 0) FROM runs AS r WHERE r.conversation_pk = l.pk
))::bigint FROM locked AS l
"""
_LEFT = "SELECT conversation_pk FROM removed LIMIT 200"


class PostgresUpkeep(Upkeep):
    """`Upkeep` of a Database."""

    runs_at_once = 500
    conversations_at_once = 200
    used = f"""
        SELECT ((SELECT coalesce(sum(bytes + {_FIXED_BYTES}), 0) FROM runs) + (
            SELECT coalesce(sum(octet_length(state) + {_FIXED_BYTES}), 0) FROM conversations
        ))::bigint
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self) -> bool:
        """Whether this gateway does the rounds; the partitions of the next days are made."""
        held_s = self._database.settings.retention_interval_s / 2
        if not await self._database.fetch(_LEASE, self._database.holder, held_s):
            return False
        await self._database.run(add_partitions)
        return True

    async def remove_days(self, older_than: float, kept: list[int]) -> int:
        """The number of runs whose steps went with the partitions of whole old days."""

        async def drop(connection: asyncpg.Connection) -> int:
            runs = 0
            for day in await days_with_partitions(connection):
                span = (day << DAY_BITS, (day + 1) << DAY_BITS)
                if (day + 1) * 86_400 > older_than:
                    break
                if await connection.fetchval(_DAY_IN_USE, *span, older_than, kept):
                    continue
                if await drop_partitions(connection, day):
                    await connection.execute(_RAW_OF_DAY, *span)
                    status = await connection.execute(_RUNS_OF_DAY, *span)
                    runs += int(status.rpartition(" ")[2])
            return runs

        return await self._database.run(drop, limit_s=PATIENT_S)

    async def choose(
        self, pks: list[int], surplus: float, connection: Connection
    ) -> tuple[list[int], int | None]:
        """Lock and choose the conversations that are not in use, in their order."""
        sizes = dict(map(tuple, await connection.fetch(_LOCK, pks=pks)))
        chosen, freed = list[int](), 0
        for pk in pks:
            if pk in sizes and freed < surplus:
                chosen.append(pk)
                freed += sizes[pk]
        await connection.fetch("INSERT INTO removed SELECT unnest(:pks::int8[])", pks=chosen)
        return chosen, freed

    async def remove_heads(self, removed: int) -> None:
        """Remove the heads of conversations, those of an interrupted round as well."""

        async def work(connection: asyncpg.Connection) -> int:
            pks = [pk for (pk,) in await connection.fetch(_LEFT)]
            for table in ("heads", "removed"):
                sql = f"DELETE FROM {table} WHERE conversation_pk = ANY($1::int8[])"
                await connection.execute(sql, pks)
            return len(pks)

        while await self._database.transact(work, limit_s=PATIENT_S):
            pass
