"""Gateway keys in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text
from gateway.stores.protocols import KEYS
from gateway.stores.records import KeyRecord

_COLUMNS = ("id", "tenant", "name", "hint", "digest", "created_at", "revoked_at")
_INSERT = (
    "INSERT INTO keys (id, tenant, name, hint, digest, created_at, revoked_at) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7)"
)
_SELECT = "SELECT id, tenant, name, hint, digest, created_at, revoked_at FROM keys ORDER BY pk"
_REVOKE = "UPDATE keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING TRUE"


class PostgresKeyStore:
    """`KeyStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_read: Sequence[KeyRecord] = ()
        database.after_reopening.append(self._restore)

    async def add_key(self, key: KeyRecord) -> None:
        """See KeyStore."""
        await self._database.fetch(_INSERT, *_values(key))
        await self._database.changed(KEYS)

    async def list_keys(self) -> Sequence[KeyRecord]:
        """See KeyStore."""

        found = await self._database.fetch(_SELECT)
        self._last_read = [
            KeyRecord(**dict(zip(_COLUMNS, map(read_text, row), strict=True))) for row in found
        ]
        return self._last_read

    async def _restore(self, connection: asyncpg.Connection) -> None:
        """Store the keys again in a database that has none. Without a key every request is
        allowed: losing the database must not open the gateway."""
        # One gateway restores them; the others wait, and then find them.
        await connection.execute("LOCK TABLE keys IN SHARE ROW EXCLUSIVE MODE")
        if not await connection.fetchval("SELECT count(*) FROM keys"):
            await connection.executemany(_INSERT, list(map(_values, self._last_read)))

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """See KeyStore."""
        revoked = bool(await self._database.fetch(_REVOKE, stored_text(key_id), at))
        await self._database.changed(KEYS)
        return revoked

    async def delete_keys(self) -> int:
        """See KeyStore."""
        deleted = await self._database.fetch("DELETE FROM keys RETURNING revoked_at")
        await self._database.changed(KEYS)
        return sum(revoked_at is None for (revoked_at,) in deleted)


def _values(key: KeyRecord) -> list[Any]:
    values = [getattr(key, name) for name in _COLUMNS]
    return [stored_text(value) if isinstance(value, str) else value for value in values]
