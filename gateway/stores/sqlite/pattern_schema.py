"""Tables of the pattern store, and the extension that searches vectors."""

from __future__ import annotations

import apsw

from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite.migrations import Migration, script

_PATTERNS = """
CREATE TABLE patterns (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    pattern_id TEXT NOT NULL,
    tier TEXT NOT NULL,
    digest TEXT NOT NULL,
    failure_type TEXT NOT NULL,
    model_family TEXT NOT NULL,
    gate_threshold REAL,
    source_trace_id TEXT,
    fields TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    injected INTEGER NOT NULL DEFAULT 0,
    helped INTEGER NOT NULL DEFAULT 0,
    hurt INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, pattern_id),
    UNIQUE (tenant, digest)
);
CREATE INDEX patterns_by_id ON patterns (pattern_id);
CREATE INDEX patterns_by_tier ON patterns (tier, pattern_id);
CREATE INDEX patterns_by_family ON patterns (model_family);

CREATE TABLE pattern_spaces (
    number INTEGER PRIMARY KEY,
    embedder_id TEXT NOT NULL UNIQUE,
    dimensions INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 1
);
"""

PATTERN_MIGRATIONS: tuple[Migration, ...] = (
    Migration(name="patterns_001_patterns_and_spaces", apply=script(_PATTERNS)),
)


def load_vector_extension(connection: apsw.Connection) -> None:
    """Make sqlite-vec's functions and tables known to a connection.

    Raises: StoreUnavailable when the extension is not installed or does not load.
    """
    try:
        import sqlite_vec

        connection.enable_load_extension(True)
        try:
            connection.load_extension(sqlite_vec.loadable_path())
        finally:
            connection.enable_load_extension(False)
    except (ImportError, apsw.Error, OSError) as error:
        raise StoreUnavailable(
            f"the pattern store needs the sqlite-vec extension, which does not load ({error}); "
            "install the package sqlite-vec for this platform, or set etraces.enabled: false"
        ) from error
