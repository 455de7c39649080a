"""The table of answers that later requests name."""

from __future__ import annotations

ANSWER_TABLES = """
CREATE TABLE answers (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    at REAL NOT NULL,
    place TEXT NOT NULL,
    echo TEXT NOT NULL,
    call TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX answers_by_time ON answers (at);
"""
