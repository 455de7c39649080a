"""Gateway keys."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec.structs import replace as changed

from gateway.features.keys.records import KeyRecord, KeyTerms
from gateway.stores.protocols import KEYS
from gateway.stores.sql.engine import Connection, Engine, Row, columns, insert, record_of, row_of
from gateway.values import FieldDict, Fields, by_name

_NAMES = ("id", "tenant", "name", "hint", "digest", "created_at", "revoked_at", "terms")
_INSERT = insert("keys", _NAMES)
_SELECT = f"SELECT {columns(_NAMES)} FROM keys ORDER BY pk"
_REVOKE = "UPDATE keys SET revoked_at = :at WHERE id = :id AND revoked_at IS NULL RETURNING TRUE"
_VALID = f"SELECT {columns(_NAMES)} FROM keys WHERE id = :id AND revoked_at IS NULL"
_CHANGE = "UPDATE keys SET terms = :terms WHERE id = :id"
_DELETE = "DELETE FROM keys RETURNING revoked_at"
_NO_TERMS = KeyTerms(models=(), routes=(), expires_at=0.0)  # for those that cannot be read
_UNREAD = (
    "key %r has terms that this version of the gateway does not know or does not allow, so it is "
    "good for nothing and stays as it is: change it with the version that made it, or revoke it "
    "and make another"
)


class KeyStore:
    """Gateway keys, over an engine. Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._last_read: Sequence[Row] = ()
        engine.after_reopening(self._restore)

    async def add_key(self, key: KeyRecord) -> None:
        """Store a new key."""
        await self._engine.announced(KEYS, self._engine.write(_INSERT, **_row(key)))

    async def list_keys(self) -> Sequence[KeyRecord]:
        """All keys, revoked ones included, oldest first."""
        self._last_read = await self._engine.fetch(_SELECT)
        return [_key(row) for row in self._last_read]

    async def _restore(self, connection: Connection) -> None:
        """Store the keys again in a database that has none. Without a key every request is
        allowed: losing the database must not open the gateway."""
        # One gateway restores them; the others wait, and then find them.
        await connection.take_turn("keys")
        if not await connection.value("SELECT count(*) FROM keys"):
            await connection.execute_many(
                _INSERT, [by_name(_NAMES, row) for row in self._last_read]
            )

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """Revoke a key; False when no key has that id, or it is already revoked."""
        revoking = self._engine.write(_REVOKE, id=key_id, at=at)
        return bool(await self._engine.announced(KEYS, revoking))

    async def change_key(self, key_id: str, changes: Fields) -> KeyRecord | None:
        """Replace some fields of a key's terms. Returns the key afterwards; None if no key has
        that id, or it is revoked. Raises: ValueError: a value that is not allowed, or this version
        cannot read the key's terms."""

        async def work(connection: Connection) -> KeyRecord | None:
            await connection.take_turn("keys")
            row = await connection.row(_VALID, id=key_id)
            if row is None:
                return None
            key = _key(row)
            if key.terms is _NO_TERMS:
                raise ValueError(_UNREAD % key_id)
            key = replace(key, terms=changed(key.terms, **changes))
            await connection.execute_many(_CHANGE, [{"id": key_id, "terms": _row(key)["terms"]}])
            return key

        return await self._engine.announced(KEYS, self._engine.transact(work))

    async def delete_keys(self) -> int:
        """Delete all keys, as if none had been made; returns how many were valid."""
        deleted = await self._engine.announced(KEYS, self._engine.write(_DELETE))
        return sum(revoked_at is None for (revoked_at,) in deleted)


def _row(key: KeyRecord) -> FieldDict:
    return row_of(key, _NAMES) | {"terms": msgspec.json.encode(key.terms).decode()}


def _key(row: Row) -> KeyRecord:
    key = record_of(KeyRecord, _NAMES)(row)
    try:
        terms = msgspec.json.decode(row[-1], type=KeyTerms)
    except msgspec.MsgspecError:  # of a later version: a right that is not understood is not given
        terms = _NO_TERMS
    return replace(key, terms=terms)
