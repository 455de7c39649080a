"""The tables of alerts and their deliveries."""

from __future__ import annotations

ALERT_TABLES = """
CREATE TABLE alerts (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    rule TEXT NOT NULL,
    severity TEXT NOT NULL,
    title TEXT NOT NULL,
    raised_at REAL NOT NULL,
    tenant TEXT,
    facts TEXT NOT NULL,
    path TEXT NOT NULL
);
CREATE INDEX alerts_by_time ON alerts (raised_at);
CREATE TABLE alert_keys (
    key TEXT PRIMARY KEY,
    alert_id TEXT NOT NULL,
    seen_at REAL NOT NULL
);
CREATE TABLE alert_deliveries (
    alert_id TEXT NOT NULL,
    sink TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_at REAL NOT NULL,
    owner TEXT NOT NULL,
    leased_until REAL NOT NULL,
    done_at REAL,
    error TEXT NOT NULL,
    PRIMARY KEY (alert_id, sink)
);
CREATE INDEX alert_deliveries_due ON alert_deliveries (next_at) WHERE done_at IS NULL;
"""
