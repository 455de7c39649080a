"""Retention: removes what is too old, or exceeds the size limit; one gateway does it for all.

Whole days go first: when every run of a day is old, its steps and guidance are dropped with their
partitions, whatever their number. The rest is deleted in small batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from gateway.stores.postgres.database import Database
from gateway.stores.postgres.partitions import add_partitions, days_with_partitions, drop_partitions
from gateway.stores.postgres.schema import DAY_BITS
from gateway.stores.postgres.text import stored_text
from gateway.stores.queries import PruneReport

# One batch is one transaction, short enough for commits to wait for its locks.
_RUNS_AT_ONCE = 500
_CONVERSATIONS_AT_ONCE = 200
_BATCH_S = 60.0

_FIXED_BYTES = 1000  # of a conversation or run besides its texts: columns and hashes

_LEASE = """
INSERT INTO leases AS l (name, holder, until)
VALUES ('retention', $1, now() + make_interval(secs => $2))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < now()
RETURNING TRUE
"""
_USED_BYTES = f"""
SELECT (SELECT coalesce(sum(bytes + {_FIXED_BYTES}), 0) FROM runs)::bigint
    + (SELECT coalesce(sum(octet_length(state) + {_FIXED_BYTES}), 0) FROM conversations)::bigint
"""
_KEPT = "SELECT pk FROM conversations WHERE id = ANY($1::text[])"
_DAY_IN_USE = """
SELECT EXISTS (
    SELECT 1 FROM runs WHERE pk >= $1 AND pk < $2
    AND (started_at >= $3 OR updated_at >= $3 OR conversation_pk = ANY($4::int8[]))
)
"""
_RUNS_OF_DAY = "DELETE FROM runs WHERE pk >= $1 AND pk < $2"
_RAW_OF_DAY = "DELETE FROM raw_calls WHERE run_pk >= $1 AND run_pk < $2"
_OLD_RUNS = f"""
SELECT pk FROM runs WHERE started_at < $1 AND updated_at < $1
AND conversation_pk <> ALL($2::int8[]) LIMIT {_RUNS_AT_ONCE}
"""
_OLD_CONVERSATIONS = f"""
SELECT pk FROM conversations WHERE created_at < $1 AND updated_at < $1
AND pk <> ALL($2::int8[]) LIMIT {_CONVERSATIONS_AT_ONCE}
"""
_LEAST_USED = f"""
SELECT pk FROM conversations WHERE updated_at < $1 AND pk <> ALL($2::int8[])
ORDER BY updated_at, pk LIMIT {_CONVERSATIONS_AT_ONCE}
"""
# As by a commit: in the order of the ids. What a commit holds at the moment is in use.
_LOCK = """
SELECT pk, octet_length(state) FROM conversations WHERE pk = ANY($1::int8[])
ORDER BY id FOR UPDATE SKIP LOCKED
"""
_OF_CONVERSATIONS = """
SELECT conversation_pk, pk, bytes FROM runs WHERE conversation_pk = ANY($1::int8[])
"""
_LEFT = f"SELECT conversation_pk FROM removed LIMIT {_CONVERSATIONS_AT_ONCE}"


async def prune(
    database: Database,
    older_than: float | None,
    max_bytes: int | None,
    active_since: float | None,
    keep: Sequence[str],
) -> PruneReport:

    async def used(connection: asyncpg.Connection) -> int:
        return int(await connection.fetchval(_USED_BYTES))

    before = await database.run(used)
    if not await database.run(lambda c: _leads(c, database)):
        return PruneReport(conversations=0, runs=0, bytes_before=before, bytes_after=before)
    await database.run(add_partitions)

    kept = [pk for (pk,) in await database.fetch(_KEPT, list(map(stored_text, keep)))]
    runs = conversations = 0
    if older_than is not None:
        await database.fetch("DELETE FROM answers WHERE at < $1", older_than, limit_s=_BATCH_S)
        runs += await _drop_days(database, older_than, kept)
        removed = await _remove_old(database, older_than, kept)
        conversations, runs = removed[0], runs + removed[1]
    if max_bytes is not None:
        limit = float("inf") if active_since is None else active_since
        removed = await _make_room(database, await database.run(used) - max_bytes, limit, kept)
        conversations, runs = conversations + removed[0], runs + removed[1]
    await _remove_heads(database)
    return PruneReport(
        conversations=conversations,
        runs=runs,
        bytes_before=before,
        bytes_after=await database.run(used),
    )


async def _leads(connection: asyncpg.Connection, database: Database) -> bool:
    """Whether this gateway does the rounds: for half an interval after its last one, no other."""
    held_s = database.settings.retention_interval_s / 2
    return bool(await connection.fetchval(_LEASE, database.holder, held_s))


async def _drop_days(database: Database, older_than: float, kept: list[int]) -> int:
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
                runs += _count(await connection.execute(_RUNS_OF_DAY, *span))
        return runs

    return await database.run(drop, limit_s=_BATCH_S)


async def _remove_old(database: Database, older_than: float, kept: list[int]) -> tuple[int, int]:
    """(conversations, runs) removed for their age."""
    conversations = runs = 0
    while pks := await _column(database, _OLD_RUNS, older_than, kept):
        await database.transact(lambda c, pks=pks: _remove_runs(c, pks), limit_s=_BATCH_S)  # type: ignore[misc]
        runs += len(pks)
    while pks := await _column(database, _OLD_CONVERSATIONS, older_than, kept):
        removed = await _remove_conversations(database, pks)
        if not removed[0]:
            break  # all are in use at the moment
        conversations, runs = conversations + removed[0], runs + removed[1]
    return conversations, runs


async def _make_room(
    database: Database, surplus: int, limit: float, kept: list[int]
) -> tuple[int, int]:
    """(conversations, runs) removed, the least recently used first, until `surplus` is gone."""
    conversations = runs = 0
    while surplus > 0 and (pks := await _column(database, _LEAST_USED, limit, kept)):
        removed = await _remove_conversations(database, pks, surplus)
        if not removed[0]:
            break
        conversations, runs = conversations + removed[0], runs + removed[1]
        surplus -= removed[2]
    return conversations, runs


async def _remove_conversations(
    database: Database, pks: list[int], surplus: float = float("inf")
) -> tuple[int, int, int]:
    """(conversations, runs, bytes) removed: those not in use, in order, until `surplus` is gone.

    Their hashes no longer match, and are removed later.
    """

    async def work(connection: asyncpg.Connection) -> tuple[int, int, int]:
        sizes = dict(tuple(row) for row in await connection.fetch(_LOCK, pks))
        runs: dict[int, list[tuple[int, int]]] = {}
        for owner, pk, size in await connection.fetch(_OF_CONVERSATIONS, list(sizes)):
            runs.setdefault(owner, []).append((pk, size))
        chosen, freed = list[int](), 0
        for pk in pks:
            if pk in sizes and freed < surplus:
                chosen.append(pk)
                of_runs = sum(size + _FIXED_BYTES for _, size in runs.get(pk, ()))
                freed += sizes[pk] + _FIXED_BYTES + of_runs
        run_pks = [run for pk in chosen for run, _ in runs.get(pk, ())]
        await _remove_runs(connection, run_pks)
        await connection.execute("INSERT INTO removed SELECT unnest($1::int8[])", chosen)
        for table, column in (("items", "conversation_pk"), ("conversations", "pk")):
            sql = f"DELETE FROM {table} WHERE {column} = ANY($1::int8[])"
            await connection.execute(sql, chosen)
        return len(chosen), len(run_pks), freed

    return await database.transact(work, limit_s=_BATCH_S)


async def _remove_runs(connection: asyncpg.Connection, pks: list[int]) -> None:
    for table in ("raw_calls", "injections", "steps"):
        await connection.execute(f"DELETE FROM {table} WHERE run_pk = ANY($1::int8[])", pks)
    await connection.execute("DELETE FROM runs WHERE pk = ANY($1::int8[])", pks)


async def _remove_heads(database: Database) -> None:
    """Remove the hashes of removed conversations, also of those of an interrupted round."""

    async def work(connection: asyncpg.Connection) -> int:
        pks = [pk for (pk,) in await connection.fetch(_LEFT)]
        for table in ("heads", "removed"):
            sql = f"DELETE FROM {table} WHERE conversation_pk = ANY($1::int8[])"
            await connection.execute(sql, pks)
        return len(pks)

    while await database.transact(work, limit_s=_BATCH_S):
        pass


async def _column(database: Database, sql: str, bound: float, kept: list[int]) -> list[int]:
    return [pk for (pk,) in await database.fetch(sql, bound, kept, limit_s=_BATCH_S)]


def _count(status: str) -> int:
    return int(status.rpartition(" ")[2])
