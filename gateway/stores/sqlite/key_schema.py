"""The table of gateway keys."""

from __future__ import annotations

from gateway.stores.sqlite.migrations import Migration, script

_KEYS = """
CREATE TABLE keys (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    hint TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    revoked_at REAL
);
"""

KEY_MIGRATIONS: tuple[Migration, ...] = (Migration(name="keys_001_keys", apply=script(_KEYS)),)
