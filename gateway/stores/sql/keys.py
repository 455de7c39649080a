"""Gateway keys."""

from collections.abc import Sequence

from gateway.stores.protocols import KEYS
from gateway.stores.records import KeyRecord
from gateway.stores.sql.engine import Connection, Engine, columns, insert, made, row_of

_NAMES = ("id", "tenant", "name", "hint", "digest", "created_at", "revoked_at")
_INSERT = insert("keys", _NAMES)
_SELECT = f"SELECT {columns(_NAMES)} FROM keys ORDER BY pk"
_REVOKE = "UPDATE keys SET revoked_at = :at WHERE id = :id AND revoked_at IS NULL RETURNING TRUE"
_DELETE = "DELETE FROM keys RETURNING revoked_at"


class SQLKeyStore:
    """`KeyStore` over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last_read: Sequence[KeyRecord] = ()
        engine.after_reopening(self._restore)

    async def add_key(self, key: KeyRecord) -> None:
        await self._engine.write(_INSERT, **row_of(key, _NAMES))
        await self._engine.changed(KEYS)

    async def list_keys(self) -> Sequence[KeyRecord]:
        rows = await self._engine.fetch(_SELECT)
        self._last_read = [made(KeyRecord, _NAMES, row) for row in rows]
        return self._last_read

    async def _restore(self, connection: Connection) -> None:
        """Store the keys again in a database that has none. Without a key every request is
        allowed: losing the database must not open the gateway."""
        # One gateway restores them; the others wait, and then find them.
        await connection.take_turn("keys")
        if not await connection.value("SELECT count(*) FROM keys"):
            await connection.execute_many(_INSERT, [row_of(key, _NAMES) for key in self._last_read])

    async def revoke_key(self, key_id: str, at: float) -> bool:
        revoked = bool(await self._engine.write(_REVOKE, id=key_id, at=at))
        await self._engine.changed(KEYS)
        return revoked

    async def delete_keys(self) -> int:
        deleted = await self._engine.write(_DELETE)
        await self._engine.changed(KEYS)
        return sum(revoked_at is None for (revoked_at,) in deleted)
