"""Which stores the settings call for: one SQLite file, or memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from gateway.stores.base import RunStore, StateStore
from gateway.stores.keys import KeyRecord, KeyStore
from gateway.stores.memory import MemoryRunStore, MemoryStateStore, Tables
from gateway.stores.patterns import PatternStore
from gateway.stores.patterns_memory import MemoryPatternStore
from gateway.stores.settings import StorageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Everything a gateway keeps; `close` ends them all."""

    states: StateStore
    runs: RunStore
    patterns: PatternStore
    keys: KeyStore
    close: Callable[[], Awaitable[None]]


async def open_stores(settings: StorageSettings, *, vectors: bool = False) -> Stores:
    """The stores at `settings.path`; `:memory:` keeps nothing beyond the process.

    `vectors`: patterns are going to be searched.

    Raises:
        StoreError: the file cannot be used.
    """
    return _in_memory(settings) if settings.in_memory else await _in_sqlite(settings, vectors)


def _in_memory(settings: StorageSettings) -> Stores:
    tables = Tables(store_content=settings.store_content)
    states = MemoryStateStore(tables)
    return Stores(
        states=states,
        runs=MemoryRunStore(tables),
        patterns=MemoryPatternStore(),
        keys=MemoryKeyStore(),
        close=states.close,
    )


async def _in_sqlite(settings: StorageSettings, vectors: bool) -> Stores:
    # SQLite's own library is loaded only by those who use it.
    from gateway.stores.sqlite.keys import SqliteKeyStore
    from gateway.stores.sqlite.opening import open_gateway_file
    from gateway.stores.sqlite.patterns import SQLitePatternStore
    from gateway.stores.sqlite.runs import SqliteRunStore
    from gateway.stores.sqlite.states import SqliteStateStore

    database = await open_gateway_file(settings, vectors=vectors)
    return Stores(
        states=SqliteStateStore(database),
        runs=SqliteRunStore(database),
        patterns=SQLitePatternStore(database),
        keys=SqliteKeyStore(database),
        close=database.close,
    )


class MemoryKeyStore:
    """`KeyStore` without a disk."""

    def __init__(self) -> None:
        self._keys: dict[str, KeyRecord] = {}

    async def add_key(self, key: KeyRecord) -> None:
        """See KeyStore."""
        self._keys[key.id] = key

    async def list_keys(self) -> Sequence[KeyRecord]:
        """See KeyStore."""
        return tuple(self._keys.values())

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """See KeyStore."""
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return False
        self._keys[key_id] = replace(key, revoked_at=at)
        return True
