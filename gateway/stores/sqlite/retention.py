"""Retention: removes what is too old, or exceeds the size limit, in small batches.

The rows to remove are selected on a reader, so that the selection never delays a commit; each
write removes one batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw

from gateway.stores.queries import PruneReport
from gateway.stores.sqlite.database import Database

# One batch is one write, of a few milliseconds, between the commits of requests.
_RUNS_AT_ONCE = 20
_CONVERSATIONS_AT_ONCE = 20
_HEADS_AT_ONCE = 500
_CANDIDATES = 500

_OLD_RUNS = f"""
SELECT pk FROM runs WHERE started_at < ?1 AND updated_at < ?1
AND conversation_pk NOT IN (SELECT value FROM json_each(?2)) LIMIT {_RUNS_AT_ONCE}
"""
_OLD_CONVERSATIONS = f"""
SELECT pk FROM conversations WHERE created_at < ?1 AND updated_at < ?1
AND pk NOT IN (SELECT value FROM json_each(?2)) LIMIT {_CONVERSATIONS_AT_ONCE}
"""
_LEAST_USED = f"""
SELECT pk FROM conversations WHERE updated_at < ?1
AND pk NOT IN (SELECT value FROM json_each(?2)) ORDER BY updated_at LIMIT {_CANDIDATES}
"""
_ORPHANED_HEADS = f"""
SELECT root, digest, conversation_pk, kind FROM heads AS h
WHERE root >= ? AND NOT EXISTS (SELECT 1 FROM conversations AS c WHERE c.pk = h.conversation_pk)
ORDER BY root LIMIT {_HEADS_AT_ONCE}
"""
_LOWEST_ROOT = -(2**63)
_USED_BYTES = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""

_Removal = Callable[[list[int], apsw.Connection], int]


async def prune(
    database: Database,
    older_than: float | None,
    max_bytes: int | None,
    active_since: float | None,
    keep: Sequence[str],
) -> PruneReport:
    before = await database.read(_used_bytes)
    kept = await database.read(partial(_rows_of, json.dumps(list(keep))))
    if database.size_limit is not None:
        # The rest is room for what arrives before the next pass.
        most = database.size_limit * 3 // 4
        max_bytes = most if max_bytes is None else min(max_bytes, most)
    runs = conversations = 0
    if older_than is not None:
        await database.write(partial(_remove_answers, older_than))
        while pks := await database.read(partial(_column, _OLD_RUNS, older_than, kept)):
            runs += await database.write(partial(_remove_runs, pks))
        while pks := await database.read(partial(_column, _OLD_CONVERSATIONS, older_than, kept)):
            runs += await database.write(partial(_remove_conversations, pks))
            conversations += len(pks)
    if max_bytes is not None:
        for_room = await _make_room(database, max_bytes, active_since, kept)
        conversations, runs = conversations + for_room[0], runs + for_room[1]
    if conversations:
        await _remove_orphaned_heads(database)
    return PruneReport(
        conversations=conversations,
        runs=runs,
        bytes_before=before,
        bytes_after=await database.read(_used_bytes),
    )


async def _make_room(
    database: Database, max_bytes: int, active_since: float | None, kept: str
) -> tuple[int, int]:
    """(conversations, runs) removed, the least recently used first."""
    limit = float("inf") if active_since is None else active_since
    conversations = runs = 0
    while await database.read(_used_bytes) > max_bytes:
        candidates = await database.read(partial(_column, _LEAST_USED, limit, kept))
        if not candidates:
            break
        while candidates and await database.read(_used_bytes) > max_bytes:
            batch = candidates[:_CONVERSATIONS_AT_ONCE]
            del candidates[:_CONVERSATIONS_AT_ONCE]
            runs += await database.write(partial(_remove_conversations, batch))
            conversations += len(batch)
    return conversations, runs


async def _remove_orphaned_heads(database: Database) -> None:
    root = _LOWEST_ROOT
    while keys := await database.read(partial(_orphaned_heads, root)):
        await database.write(partial(_remove_heads, keys))
        root = keys[-1][0]


def _remove_answers(older_than: float, connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM answers WHERE at < ?", (older_than,))


def _used_bytes(connection: apsw.Connection) -> int:
    return connection.execute(_USED_BYTES).get  # type: ignore[no-any-return]


def _rows_of(ids: str, connection: apsw.Connection) -> str:
    """The keys of the conversations with these ids; both are JSON arrays."""
    sql = "SELECT pk FROM conversations WHERE id IN (SELECT value FROM json_each(?))"
    return json.dumps([pk for (pk,) in connection.execute(sql, (ids,))])


def _column(sql: str, bound: float, kept: str, connection: apsw.Connection) -> list[int]:
    return [value for (value,) in connection.execute(sql, (bound, kept))]


def _remove_conversations(pks: list[int], connection: apsw.Connection) -> int:
    """The number of runs removed with them. Their heads no longer match, and are removed later."""
    runs = 0
    for pk in pks:
        of_it = "SELECT pk FROM runs WHERE conversation_pk = ?"
        runs += _remove_runs([run for (run,) in connection.execute(of_it, (pk,))], connection)
        connection.execute("DELETE FROM items WHERE conversation_pk = ?", (pk,))
        connection.execute("DELETE FROM conversations WHERE pk = ?", (pk,))
    return runs


def _remove_runs(pks: list[int], connection: apsw.Connection) -> int:
    for pk in pks:
        for table, column in (
            ("raw_calls", "run_pk"),
            ("injections", "run_pk"),
            ("steps", "run_pk"),
            ("runs", "pk"),
        ):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (pk,))
    return len(pks)


def _orphaned_heads(root: int, connection: apsw.Connection) -> list[Any]:
    return connection.execute(_ORPHANED_HEADS, (root,)).fetchall()


def _remove_heads(keys: list[Any], connection: apsw.Connection) -> None:
    connection.executemany(
        "DELETE FROM heads WHERE root = ? AND digest = ? AND conversation_pk = ? AND kind = ?", keys
    )
