"""All tables, as the list of migrations that create them."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from gateway.stores.sql import tables
from gateway.stores.sqlite.migrations import Migration, script

_TYPES = tables.Types(
    text="TEXT",
    name="TEXT",
    integer="INTEGER",
    real="REAL",
    boolean="INTEGER",
    blob="BLOB",
    json="TEXT",
    key="INTEGER PRIMARY KEY AUTOINCREMENT",
    by_key=" WITHOUT ROWID",
    often_changed=" WITHOUT ROWID",
)

# The design follows from what a commit costs: each database page that it changes.
# (`heads` are the prefix hashes; table and column names of shipped files stay.)
# - heads are keyed by their history's root first, so that the two heads of a call share a page
#   with the others of the conversation; keyed by digest, each would be on a different page;
# - steps are appended and found through a small index: inserting rows of several kilobytes in
#   run order would split pages at every commit;
# - numbers that are only shown with their run are one JSON text per row, not columns.
# Rows refer to each other by integer keys, and deletion is explicit (retention.py).
_CORE = f"""
CREATE TABLE conversations ({tables.conversations(_TYPES)});
{tables.CONVERSATION_INDEXES}
CREATE TABLE heads (
    root INTEGER NOT NULL,
    digest BLOB NOT NULL,
    conversation_pk INTEGER NOT NULL,
    kind TEXT NOT NULL,
    position INTEGER NOT NULL,
    step INTEGER NOT NULL,
    PRIMARY KEY (root, digest, conversation_pk DESC, kind)
) WITHOUT ROWID;

CREATE TABLE runs (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,{tables.runs(_TYPES)}
);
{tables.RUN_INDEXES}
CREATE TABLE steps (
    pk INTEGER PRIMARY KEY,{tables.steps(_TYPES)}    UNIQUE (run_pk, step_index)
);

CREATE TABLE injections ({tables.injections(_TYPES)});
"""

# `generation`: of the index, which is rebuilt as another table.
_PATTERNS = f"""
{tables.patterns(_TYPES)}
CREATE TABLE pattern_spaces (
    number INTEGER PRIMARY KEY,
    embedder_id TEXT NOT NULL UNIQUE,
    dimensions INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 1
);
"""

# Filled from the steps of an older file.
_USAGE_HOURS = """
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
_USAGE_TAGS = f"""
{tables.usage(_TYPES)}
INSERT INTO usage_by_hour
SELECT hour, tenant, agent, model, '{{}}', calls, errors, unsteered, unpriced_calls, steps, alarms,
    input_tokens, cached_tokens, output_tokens, cost_usd, latency_s FROM usage_hours;
DROP TABLE usage_hours;
"""

_SCRIPTS = {
    "core_001_conversations_and_runs": _CORE,
    "core_002_items_of_answers": tables.items(_TYPES),
    "patterns_001_patterns_and_spaces": _PATTERNS,
    "keys_001_keys": tables.keys(_TYPES),
    "learning_001_outcomes_lessons_jobs": tables.learning(_TYPES),
    "budgets_001_accounts": tables.accounts(_TYPES),
    "budgets_002_controls": tables.controls(_TYPES),
    "budgets_003_tree_and_tags": tables.tree(_TYPES),
    "usage_001_hours": _USAGE_HOURS,
    "alerts_001_alerts_and_deliveries": tables.alerts(_TYPES),
    "usage_002_tags": _USAGE_TAGS,
    "raw_001_calls": tables.raw_calls(_TYPES, "(at, bytes)"),
    "routing_001_workloads": tables.workloads(_TYPES),
    "learning_002_keys_of_evidence": tables.keys_of_evidence(_TYPES),
    "usage_003_estimates": tables.usage_estimates(_TYPES),
    "budgets_004_estimates": tables.account_estimates(_TYPES),
    "answers_001_answers": tables.answers(_TYPES),
    "core_003_runs_under_way": tables.UNDER_WAY,
}
MIGRATIONS: tuple[Migration, ...] = tuple(
    [Migration(name=name, apply=script(sql)) for name, sql in _SCRIPTS.items()]
)
"""Every change a file needs, in order; new ones are appended."""
