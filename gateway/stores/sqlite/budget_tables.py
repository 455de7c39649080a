"""The tables of budgets and of what operators do to runs; part of the schema."""

from __future__ import annotations

from gateway.stores.sqlite.migrations import Migration, script

_ACCOUNTS = """
CREATE TABLE budget_accounts (
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,
    tenant TEXT NOT NULL,
    usd INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,
    started_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    limits TEXT NOT NULL,
    lifted INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    PRIMARY KEY (budget, subject)
) WITHOUT ROWID;
CREATE INDEX budget_accounts_by_time ON budget_accounts (updated_at);

CREATE TABLE budget_reservations (
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,
    claim TEXT NOT NULL,
    usd INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (budget, subject, claim)
) WITHOUT ROWID;
"""

_CONTROLS = """
CREATE TABLE run_controls (
    subject TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL
) WITHOUT ROWID;
"""

# `root_id`: the first conversation of a tree, NULL for that one itself. `key_name` and
# `tags`: to whom a run is charged.
_TREE = """
ALTER TABLE conversations ADD COLUMN root_id TEXT;
CREATE INDEX conversations_by_root ON conversations (root_id) WHERE root_id IS NOT NULL;
CREATE INDEX conversations_by_parent ON conversations (parent_id) WHERE parent_id IS NOT NULL;
ALTER TABLE runs ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '{}';
"""

# The part of what was spent that is estimated.
_ESTIMATES = """
ALTER TABLE budget_accounts ADD COLUMN estimated_usd INTEGER NOT NULL DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_output_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_calls INTEGER NOT NULL DEFAULT 0;
"""

BUDGET_MIGRATIONS: tuple[Migration, ...] = (
    Migration(name="budgets_001_accounts", apply=script(_ACCOUNTS)),
    Migration(name="budgets_002_controls", apply=script(_CONTROLS)),
    Migration(name="budgets_003_tree_and_tags", apply=script(_TREE)),
)
"""Appended to the schema's list."""

ESTIMATES = Migration(name="budgets_004_estimates", apply=script(_ESTIMATES))
"""Appended behind what was there before it."""
