"""Conversations in SQLite: found by prefix hashes, saved by compare-and-swap."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw
import orjson

from gateway.stores import codec
from gateway.stores.protocols import MAX_BRANCHES, MAX_HEADS
from gateway.stores.records import CallRecord, ConversationRecord, PrefixHashRecord
from gateway.stores.redact import encodable, redaction
from gateway.stores.sqlite.commits import root_key, save_call
from gateway.stores.sqlite.database import Database

# The newest messages are looked up first, so that a long history costs no more than a short one.
# That is enough when a match is in their newer half: all prefixes near it were looked up too.
_RECENT_DIGESTS = 64

_COLUMNS = ", ".join(codec.CONVERSATION_COLUMNS)

# CROSS JOIN keeps the order of the digests, longest history first, so that LIMIT keeps those.
_FIND_HEADS = f"""
SELECT h.digest, c.id, h.position, h.kind, h.step
FROM carray(?) AS d
CROSS JOIN heads AS h ON h.root = ? AND h.digest = d.value
CROSS JOIN conversations AS c ON c.pk = h.conversation_pk AND c.tenant = ?
LIMIT {MAX_HEADS}
"""
_FIND_ITEMS = """
SELECT id, content FROM items WHERE tenant = ? AND id IN (SELECT value FROM json_each(?))
"""
_LOAD = f"SELECT {_COLUMNS} FROM conversations WHERE tenant = ? AND id = ?"
_VERSION = "SELECT version FROM conversations WHERE tenant = ? AND id = ?"
_BRANCHES = f"""
SELECT {_COLUMNS} FROM conversations WHERE tenant = ? AND external_key = ?
ORDER BY updated_at DESC, pk DESC LIMIT {MAX_BRANCHES}
"""


class SQLiteStateStore:
    """`StateStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._redact = redaction(database.settings)

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        """See StateStore."""
        if not digests:
            return []
        return await self._database.read(partial(_find_heads, tenant, tuple(digests)))

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """See StateStore."""
        rows = await self._database.read(partial(_fetch, _LOAD, (tenant, conversation_id)))
        return codec.conversation_of(rows[0]) if rows else None

    async def version(self, tenant: str, conversation_id: str) -> int:
        """See StateStore."""
        rows = await self._database.read(partial(_fetch, _VERSION, (tenant, conversation_id)))
        return int(rows[0][0]) if rows else 0

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """See StateStore."""
        rows = await self._database.read(partial(_fetch, _BRANCHES, (tenant, external_key)))
        return [codec.conversation_of(row) for row in rows]

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        """See StateStore."""
        values = (tenant, json.dumps(list(ids)))
        return dict(await self._database.read(partial(_fetch, _FIND_ITEMS, values)))

    async def commit(self, call: CallRecord) -> int:
        """See StateStore."""
        call.check()
        try:
            return await self._database.write(partial(_save, call, self._redact))
        except (UnicodeEncodeError, OverflowError, orjson.JSONEncodeError):
            return await self._database.write(partial(_save, encodable(call), self._redact))

    async def ping(self) -> None:
        """See StateStore."""
        await self._database.ping()

    async def reopen(self) -> None:
        """See StateStore. Opens the database again for every store in it."""
        await self._database.reopen()

    async def close(self) -> None:
        """Close the database, for every store in it."""
        await self._database.close()


def _save(
    call: CallRecord, redact: Callable[[CallRecord], CallRecord], connection: apsw.Connection
) -> int:
    return save_call(redact(call), connection)


def _fetch(sql: str, values: tuple[Any, ...], connection: apsw.Connection) -> list[Any]:
    return connection.execute(sql, values).fetchall()


def _find_heads(
    tenant: str, digests: tuple[bytes, ...], connection: apsw.Connection
) -> list[PrefixHashRecord]:
    root, newest_first = digests[0], digests[::-1]

    def look_up(some: tuple[bytes, ...]) -> list[Any]:
        values = (apsw.carray(some), root_key(root), tenant)
        return connection.execute(_FIND_HEADS, values).fetchall()

    rows = look_up(newest_first[:_RECENT_DIGESTS])
    if len(newest_first) > _RECENT_DIGESTS:
        near = rows and newest_first.index(rows[0][0]) < _RECENT_DIGESTS // 2
        rows = rows if near else look_up(newest_first)
    return [_head_of(tenant, root, row) for row in rows]


def _head_of(tenant: str, root: bytes, row: Sequence[Any]) -> PrefixHashRecord:
    digest, conversation_id, position, kind, step = row
    return PrefixHashRecord(
        tenant=tenant,
        root=root,
        digest=digest,
        conversation_id=conversation_id,
        position=position,
        kind=kind,
        step=step,
    )
