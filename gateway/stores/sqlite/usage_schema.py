"""The tables of calls summed by the hour, filled from the steps of an older file."""

from __future__ import annotations

USAGE_TABLES = """
CREATE TABLE usage_hours (
    hour INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    calls INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    unsteered INTEGER NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    alarms INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_usd REAL,
    latency_s REAL NOT NULL,
    PRIMARY KEY (hour, tenant, agent, model)
) WITHOUT ROWID;
INSERT INTO usage_hours
SELECT CAST(s.at AS INTEGER) / 3600 * 3600, r.tenant, r.agent,
    coalesce(s.call ->> '$.model_asked', r.model_requested),
    sum(CASE WHEN s.call IS NULL THEN 0 ELSE 1 + coalesce(s.call ->> '$.retries', 0) END),
    sum(coalesce(s.call ->> '$.error' IS NOT NULL OR s.call ->> '$.status' >= 400, 0)),
    sum(coalesce(s.call ->> '$.unsteered', '') <> ''),
    sum(s.call IS NOT NULL AND s.call ->> '$.cost_usd' IS NULL AND s.call ->> '$.status' < 400),
    sum(s.composite IS NOT NULL), sum(coalesce(s.readings ->> '$.fired', '[]') <> '[]'),
    sum(coalesce(s.call ->> '$.input_tokens', 0)), sum(coalesce(s.call ->> '$.cached_tokens', 0)),
    sum(coalesce(s.call ->> '$.output_tokens', 0)), sum(s.call ->> '$.cost_usd'),
    sum(coalesce(s.call ->> '$.latency_s', 0.0))
FROM steps AS s JOIN runs AS r ON r.pk = s.run_pk GROUP BY 1, 2, 3, 4;
"""

# SQLite adds no column to a primary key: the table is made again.
USAGE_TAGS = """
CREATE TABLE usage_by_hour (
    hour INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    tags TEXT NOT NULL,
    calls INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    unsteered INTEGER NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    alarms INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_usd REAL,
    latency_s REAL NOT NULL,
    PRIMARY KEY (hour, tenant, agent, model, tags)
) WITHOUT ROWID;
INSERT INTO usage_by_hour
SELECT hour, tenant, agent, model, '{}', calls, errors, unsteered, unpriced_calls, steps, alarms,
    input_tokens, cached_tokens, output_tokens, cost_usd, latency_s FROM usage_hours;
DROP TABLE usage_hours;
"""

USAGE_ESTIMATES = """
ALTER TABLE usage_by_hour ADD COLUMN estimated_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_by_hour ADD COLUMN estimated_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_by_hour ADD COLUMN estimated_usd REAL NOT NULL DEFAULT 0.0;
"""
