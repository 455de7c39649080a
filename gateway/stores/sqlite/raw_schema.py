"""The table of raw calls."""

from __future__ import annotations

RAW_TABLES = """
CREATE TABLE raw_calls (
    run_pk INTEGER NOT NULL,
    step_index INTEGER NOT NULL,
    at REAL NOT NULL,
    bytes INTEGER NOT NULL,
    dialect TEXT NOT NULL,
    request BLOB NOT NULL,
    response BLOB NOT NULL,
    PRIMARY KEY (run_pk, step_index)
);
CREATE INDEX raw_calls_by_time ON raw_calls (at, bytes);
"""
