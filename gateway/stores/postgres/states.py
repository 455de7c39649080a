"""Conversations in PostgreSQL: found by prefix hashes, saved by compare-and-swap."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from gateway.stores import codec
from gateway.stores.guard.spool import size_of
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.group import root_key
from gateway.stores.postgres.text import read_text, stored_text
from gateway.stores.postgres.together import Key, ReadTogether
from gateway.stores.protocols import MAX_BRANCHES, MAX_HEADS
from gateway.stores.records import CallRecord, ConversationRecord, PrefixHashRecord
from gateway.stores.redact import redaction

# The newest messages are looked up first, so that a long history costs no more than a short one.
# That is enough when a match is in their newer half: all prefixes near it were looked up too.
_RECENT_DIGESTS = 64

# A thread costs more than it saves for a record this small.
_SMALL_BYTES = 16 * 1024

_COLUMNS = ", ".join(codec.CONVERSATION_COLUMNS)
_FIND_HEADS = f"""
SELECT h.digest, c.id, h.position, h.kind, h.step
FROM unnest($1::bytea[]) WITH ORDINALITY AS d(digest, n)
JOIN heads AS h ON h.root = $2 AND h.digest = d.digest
JOIN conversations AS c ON c.pk = h.conversation_pk AND c.tenant = $3
ORDER BY d.n, h.conversation_pk DESC, h.kind LIMIT {MAX_HEADS}
"""
_FIND_ITEMS = "SELECT id, content FROM items WHERE tenant = $1 AND id = ANY($2::text[])"
_VERSION = "SELECT version FROM conversations WHERE id = $1 AND tenant = $2"
_VERSIONS = "SELECT id, tenant, version FROM conversations WHERE id = ANY($1::text[])"
_LOAD = f"SELECT {_COLUMNS} FROM conversations WHERE id = $1 AND tenant = $2"
_LOAD_ALL = f"SELECT {_COLUMNS} FROM conversations WHERE id = ANY($1::text[])"
_BRANCHES = f"""
SELECT {_COLUMNS} FROM conversations WHERE tenant = $1 AND external_key = $2
ORDER BY updated_at DESC, pk DESC LIMIT {MAX_BRANCHES}
"""


class PostgresStateStore:
    """`StateStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._redact = redaction(database.settings)
        self._versions = ReadTogether(self._read_versions, "read versions")
        self._loads = ReadTogether(self._read_conversations, "load conversations")

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        """See StateStore."""
        if not digests:
            return []
        root, newest_first = digests[0], list(digests[::-1])

        async def work(connection: asyncpg.Connection) -> list[Any]:
            async def look_up(some: list[bytes]) -> list[Any]:
                wanted = (some, root_key(root), stored_text(tenant))
                found: list[Any] = await connection.fetch(_FIND_HEADS, *wanted)
                return found

            rows = await look_up(newest_first[:_RECENT_DIGESTS])
            if len(newest_first) > _RECENT_DIGESTS:
                near = rows and newest_first.index(rows[0][0]) < _RECENT_DIGESTS // 2
                rows = rows if near else await look_up(newest_first)
            return rows

        return [_head_of(tenant, root, row) for row in await self._database.run(work)]

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """See StateStore."""
        return await self._loads.get(tenant, conversation_id)

    async def version(self, tenant: str, conversation_id: str) -> int:
        """See StateStore."""
        return await self._versions.get(tenant, conversation_id) or 0

    async def _read_versions(self, keys: Sequence[Key]) -> dict[Key, int]:
        if len(keys) == 1:
            rows = await self._read(_VERSION, keys)
            return {keys[0]: rows[0][0]} if rows else {}
        rows = await self._read(_VERSIONS, keys)
        return {(read_text(name), read_text(tenant)): version for name, tenant, version in rows}

    async def _read_conversations(self, keys: Sequence[Key]) -> dict[Key, ConversationRecord]:
        rows = await self._read(_LOAD if len(keys) == 1 else _LOAD_ALL, keys)
        return {(found.id, found.tenant): found for found in map(_conversation_of, rows)}

    async def _read(self, statement: str, keys: Sequence[Key]) -> list[Any]:
        """The rows of one conversation or, with another statement, of several."""
        if len(keys) == 1:  # the driver takes a name for less than a list of names
            ((name, tenant),) = keys
            rows = await self._database.fetch(statement, stored_text(name), stored_text(tenant))
        else:
            names = list({stored_text(name) for name, _ in keys})
            rows = await self._database.fetch(statement, names)
        return list(rows)

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """See StateStore."""
        rows = await self._database.fetch(_BRANCHES, stored_text(tenant), stored_text(external_key))
        return list(map(_conversation_of, rows))

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        """See StateStore."""
        names = list(map(stored_text, ids))
        rows = await self._database.fetch(_FIND_ITEMS, stored_text(tenant), names)
        return {read_text(name): content for name, content in rows}

    async def commit(self, call: CallRecord) -> int:
        """See StateStore."""
        call.check()
        if size_of(call) < _SMALL_BYTES:
            return await self._database.commit(self._redact(call))
        return await self._database.commit(await asyncio.to_thread(self._redact, call))

    async def ping(self) -> None:
        """See StateStore."""
        await self._database.ping()

    async def reopen(self) -> None:
        """See StateStore. Connects again for every store in the database."""
        await self._database.reopen()

    async def close(self) -> None:
        """Close the database, for every store in it."""
        await self._database.close()


def _conversation_of(row: Sequence[Any]) -> ConversationRecord:
    return codec.conversation_of(list(map(read_text, row)))


def _head_of(tenant: str, root: bytes, row: Sequence[Any]) -> PrefixHashRecord:
    digest, conversation_id, position, kind, step = row
    return PrefixHashRecord(
        tenant=tenant,
        root=root,
        digest=digest,
        conversation_id=read_text(conversation_id),
        position=position,
        kind=kind,
        step=step,
    )
