"""Gateway keys in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from gateway.stores.records import KeyRecord
from gateway.stores.sqlite.database import Database

_COLUMNS = ("id", "tenant", "name", "hint", "digest", "created_at", "revoked_at")
_INSERT = (
    "INSERT INTO keys (id, tenant, name, hint, digest, created_at, revoked_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = "SELECT id, tenant, name, hint, digest, created_at, revoked_at FROM keys ORDER BY pk"


class SQLiteKeyStore:
    """`KeyStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_read: Sequence[KeyRecord] = ()
        database.after_reopening.append(self._restore)

    async def add_key(self, key: KeyRecord) -> None:
        """See KeyStore."""
        values = tuple(getattr(key, name) for name in _COLUMNS)

        def work(connection: apsw.Connection) -> None:
            connection.execute(_INSERT, values)

        await self._database.write(work)

    async def list_keys(self) -> Sequence[KeyRecord]:
        """See KeyStore."""

        def work(connection: apsw.Connection) -> list[KeyRecord]:
            found = connection.execute(_SELECT)
            return [KeyRecord(**dict(zip(_COLUMNS, row, strict=True))) for row in found]

        self._last_read = await self._database.read(work)
        return self._last_read

    def _restore(self, connection: apsw.Connection) -> None:
        """Store the keys again in a file that has none. Without a key every request is allowed:
        losing the file must not open the gateway."""
        if self._last_read and not connection.execute("SELECT count(*) FROM keys").get:
            rows = (tuple(getattr(key, name) for name in _COLUMNS) for key in self._last_read)
            connection.executemany(_INSERT, rows)

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """See KeyStore."""

        def work(connection: apsw.Connection) -> bool:
            connection.execute(
                "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (at, key_id)
            )
            return connection.changes() > 0

        return await self._database.write(work)

    async def delete_keys(self) -> int:
        """See KeyStore."""

        def work(connection: apsw.Connection) -> int:
            deleted = connection.execute("DELETE FROM keys RETURNING revoked_at").fetchall()
            return sum(revoked_at is None for (revoked_at,) in deleted)

        return await self._database.write(work)
