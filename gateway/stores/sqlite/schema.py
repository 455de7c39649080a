"""All tables, as the migrations that create them: only ever appended, each applied once to every
file, in order."""

from __future__ import annotations

import time
from collections.abc import Sequence

import apsw

from gateway.stores.protocols import SchemaMismatch
from gateway.stores.sql import tables
from gateway.stores.sql.tables import Migration

_TYPES = {
    **dict.fromkeys(("text", "name", "json"), "TEXT"),
    **dict.fromkeys(("integer", "boolean"), "INTEGER"),
    "real": "REAL",
    "blob": "BLOB",
    "key": "INTEGER PRIMARY KEY AUTOINCREMENT",
    **dict.fromkeys(("by_key", "often_changed"), " WITHOUT ROWID"),
}

# The design follows from what a commit costs: each database page that it changes.
# - heads are keyed by their history's root first, so that the two heads of a call share a page
#   with the others of the conversation; keyed by digest, each would be on a different page;
# - steps are appended and found through a small index: inserting rows of several kilobytes in
#   run order would split pages at every commit;
# - numbers that are only shown with their run are one JSON text per row, not columns.
# Rows refer to each other by integer keys, and deletion is explicit (sql/retention.py).
_CORE = f"""
CREATE TABLE conversations ({tables.CONVERSATIONS});
{tables.CONVERSATION_INDEXES}
CREATE TABLE heads ({tables.HEADS}
    PRIMARY KEY (root, digest, conversation_pk DESC, kind)
) by_key;

CREATE TABLE runs (
    pk: key,{tables.RUNS}
);
{tables.RUN_INDEXES}
CREATE TABLE steps (
    pk INTEGER PRIMARY KEY,{tables.STEPS}    UNIQUE (run_pk, step_index)
);

CREATE TABLE injections ({tables.INJECTIONS});
"""

# `generation`: of the index, which is rebuilt as another table.
_PATTERNS = f"""
{tables.PATTERNS}
CREATE TABLE pattern_spaces (
    number INTEGER PRIMARY KEY,
    embedder_id: name UNIQUE,
    dimensions: integer,
    generation: integer DEFAULT 1
);
"""

# Filled from the steps of an older file.
_USAGE_HOURS = f"""
CREATE TABLE usage_hours (
    hour: integer,
    tenant, agent, model: name,{tables.USAGE_SUMS}
    PRIMARY KEY (hour, tenant, agent, model)
) by_key;
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
_USAGE_TAGS = f"""
{tables.USAGE}
INSERT INTO usage_by_hour
SELECT hour, tenant, agent, model, '{{}}', calls, errors, unsteered, unpriced_calls, steps, alarms,
    input_tokens, cached_tokens, output_tokens, cost_usd, latency_s FROM usage_hours;
DROP TABLE usage_hours;
"""

_BY_TIME = "CREATE INDEX raw_calls_by_time ON raw_calls (at, bytes);\n"
_SCRIPTS = {
    "core_001_conversations_and_runs": _CORE,
    "core_002_items_of_answers": tables.ITEMS,
    "patterns_001_patterns_and_spaces": _PATTERNS,
    "keys_001_keys": tables.KEYS,
    "learning_001_outcomes_lessons_jobs": tables.LEARNING,
    "budgets_001_accounts": tables.ACCOUNTS,
    "budgets_002_controls": tables.CONTROLS,
    "budgets_003_tree_and_tags": tables.TREE,
    "usage_001_hours": _USAGE_HOURS,
    "alerts_001_alerts_and_deliveries": tables.ALERTS,
    "usage_002_tags": _USAGE_TAGS,
    "raw_001_calls": f"{tables.RAW_CALLS}{_BY_TIME}",
    "routing_001_workloads": tables.WORKLOADS,
    "learning_002_keys_of_evidence": tables.KEYS_OF_EVIDENCE,
    "usage_003_estimates": tables.USAGE_ESTIMATES,
    "budgets_004_estimates": tables.ACCOUNT_ESTIMATES,
    "answers_001_answers": tables.ANSWERS,
    "core_003_runs_under_way": tables.UNDER_WAY,
    "routing_002_own_risks": tables.OWN_RISKS,
    "learning_003_proof": tables.PROOF,
    "learning_004_forgotten_runs": tables.FORGOTTEN,
    "routing_003_fading_counts": tables.FADING_COUNTS,
}
MIGRATIONS = tables.rendered(_SCRIPTS, _TYPES)
"""Every change a file needs, in order; new ones are appended."""


def migrate(connection: apsw.Connection, migrations: Sequence[Migration], path: str) -> None:
    """Apply the missing changes. Raises: SchemaMismatch when the file has a change that this
    version does not know."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)"
    )
    applied = applied_to(connection)
    if unknown := applied - {migration.name for migration in migrations}:
        raise SchemaMismatch(
            f"{path!r} was written by a newer version of the gateway (it has "
            f"{', '.join(sorted(unknown))}); start that version, or use another file"
        )
    # A file that lacks nothing is opened while another process holds the write lock.
    for migration in migrations:
        if migration.name not in applied:
            _apply_once(migration, connection)


def applied_to(connection: apsw.Connection) -> set[str]:
    """The names of the changes that the file has."""
    return {name for (name,) in connection.execute("SELECT name FROM migrations")}


def _apply_once(migration: Migration, connection: apsw.Connection) -> None:
    # Two processes may open a new file at once: the check needs the write lock.
    connection.execute("BEGIN IMMEDIATE")
    try:
        if migration.name not in applied_to(connection):
            connection.execute(migration.sql)
            applied = (migration.name, time.time())
            connection.execute("INSERT INTO migrations (name, applied_at) VALUES (?, ?)", applied)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
