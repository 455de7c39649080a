"""All tables, as the list of migrations that create them."""

from __future__ import annotations

from gateway.stores.sqlite.alerts_schema import ALERT_TABLES
from gateway.stores.sqlite.answers_schema import ANSWER_TABLES
from gateway.stores.sqlite.budget_tables import BUDGET_MIGRATIONS, ESTIMATES
from gateway.stores.sqlite.migrations import Migration, script
from gateway.stores.sqlite.raw_schema import RAW_TABLES
from gateway.stores.sqlite.usage_schema import USAGE_ESTIMATES, USAGE_TABLES, USAGE_TAGS

# The design follows from what a commit costs: each database page that it changes.
# (`heads` are the prefix hashes; table and column names of shipped files stay.)
# - heads are keyed by their history's root first, so that the two heads of a call share a page
#   with the others of the conversation; keyed by digest, each would be on a different page;
# - steps are appended and found through a small index: inserting rows of several kilobytes in
#   run order would split pages at every commit;
# - numbers that are only shown with their run are one JSON text per row, not columns.
# Rows refer to each other by integer keys, and deletion is explicit (retention.py).
_CORE = """
CREATE TABLE conversations (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    parent_id TEXT,
    external_key TEXT,
    version INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    served_head BLOB NOT NULL,
    message_count INTEGER NOT NULL,
    signature BLOB NOT NULL,
    has_tools INTEGER NOT NULL,
    state BLOB NOT NULL
);
CREATE INDEX conversations_by_external_key ON conversations (tenant, external_key)
    WHERE external_key IS NOT NULL;
CREATE INDEX conversations_by_tenant ON conversations (tenant, created_at, id);
CREATE INDEX conversations_by_time ON conversations (created_at, id);

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
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    conversation_pk INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    started_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    ended_at REAL,
    state TEXT NOT NULL,
    outcome TEXT,
    outcome_source TEXT NOT NULL,
    agent TEXT NOT NULL,
    task_preview TEXT NOT NULL,
    profile TEXT NOT NULL,
    mode TEXT NOT NULL,
    experiment TEXT,
    arm TEXT,
    unit TEXT,
    policy_digest TEXT NOT NULL,
    identity_source TEXT NOT NULL,
    model_requested TEXT NOT NULL,
    steps INTEGER NOT NULL,
    scored_steps INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    injections INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    cost_usd REAL,
    cost_unsteered_usd REAL,
    saved_usd REAL,
    composite_peak REAL NOT NULL,
    composite_sum REAL NOT NULL,
    latency_s REAL NOT NULL,
    overhead_ms REAL NOT NULL,
    counts TEXT NOT NULL
);
CREATE INDEX runs_by_conversation ON runs (conversation_pk);
CREATE INDEX runs_by_tenant ON runs (tenant, started_at, id);
CREATE INDEX runs_by_time ON runs (started_at, id);
CREATE INDEX runs_by_experiment ON runs (experiment, started_at, id)
    WHERE experiment IS NOT NULL;

CREATE TABLE steps (
    pk INTEGER PRIMARY KEY,
    run_pk INTEGER NOT NULL,
    step_index INTEGER NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL,
    difficulty REAL,
    composite REAL,
    failure_type TEXT,
    readings TEXT,
    call TEXT,
    content TEXT,
    UNIQUE (run_pk, step_index)
);

CREATE TABLE injections (
    run_pk INTEGER NOT NULL,
    step_index INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    source TEXT NOT NULL,
    tier TEXT,
    pattern_id TEXT,
    similarity REAL,
    failure_type TEXT,
    severity TEXT,
    text TEXT NOT NULL,
    placement TEXT NOT NULL,
    message_position INTEGER,
    applied INTEGER NOT NULL,
    PRIMARY KEY (run_pk, step_index, ordinal)
);
"""

_ITEMS = """
CREATE TABLE items (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation_pk INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX items_by_conversation ON items (conversation_pk);
"""

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

_LEARNING = """
ALTER TABLE patterns ADD COLUMN status TEXT NOT NULL DEFAULT 'active';
ALTER TABLE patterns ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE patterns ADD COLUMN supersedes TEXT NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN trust TEXT NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN key TEXT NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN applies_when TEXT NOT NULL DEFAULT '{}';
ALTER TABLE patterns ADD COLUMN last_confirmed_at REAL NOT NULL DEFAULT 0;
ALTER TABLE patterns ADD COLUMN expires_at REAL;
ALTER TABLE patterns ADD COLUMN reason TEXT NOT NULL DEFAULT '';
CREATE INDEX patterns_by_status ON patterns (status, tenant) WHERE origin <> '';
CREATE INDEX patterns_by_key ON patterns (key, tenant) WHERE origin <> '';

CREATE TABLE outcomes (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    metric TEXT NOT NULL,
    verdict TEXT NOT NULL,
    score REAL,
    comment TEXT NOT NULL,
    weight REAL NOT NULL,
    at REAL NOT NULL,
    evidence TEXT NOT NULL
);
CREATE INDEX outcomes_by_run ON outcomes (run_id, source, metric);

CREATE TABLE pattern_evidence (
    tenant TEXT NOT NULL,
    pattern_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    kind TEXT NOT NULL,
    conversation TEXT NOT NULL,
    task TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (tenant, pattern_id, run_id, step_index, kind)
);
CREATE INDEX pattern_evidence_by_run ON pattern_evidence (run_id);

CREATE TABLE pattern_decisions (
    run_id TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    pattern_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    version INTEGER NOT NULL,
    share REAL NOT NULL,
    given INTEGER NOT NULL,
    similarity REAL NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    failure_type TEXT NOT NULL,
    at REAL NOT NULL,
    recurred INTEGER,
    calls_to_success INTEGER,
    steps_left INTEGER,
    PRIMARY KEY (run_id, step_index, pattern_id)
);
CREATE INDEX pattern_decisions_by_pattern ON pattern_decisions (owner, pattern_id, version);

CREATE TABLE pattern_posteriors (
    owner TEXT NOT NULL,
    pattern_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    decisions INTEGER NOT NULL,
    given INTEGER NOT NULL,
    rate_given REAL,
    rate_held REAL,
    effect REAL,
    low REAL,
    high REAL,
    helps REAL,
    harms REAL,
    share REAL NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (owner, pattern_id, version)
);

CREATE TABLE jobs (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    lease_until REAL NOT NULL,
    claimed_at REAL NOT NULL,
    created_at REAL NOT NULL,
    done_at REAL,
    tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    error TEXT NOT NULL,
    UNIQUE (kind, key)
);
CREATE INDEX jobs_by_state ON jobs (kind, state, lease_until);
"""

_WORKLOADS = """
CREATE TABLE workload_runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    workload TEXT NOT NULL,
    client TEXT NOT NULL,
    requested TEXT NOT NULL,
    model TEXT NOT NULL,
    at REAL NOT NULL,
    choice TEXT,
    outcome TEXT NOT NULL
);
CREATE INDEX workload_runs_by_time ON workload_runs (at);

CREATE TABLE workload_models (
    tenant TEXT NOT NULL,
    workload TEXT NOT NULL,
    model TEXT NOT NULL,
    client TEXT NOT NULL,
    requested TEXT NOT NULL,
    solved REAL NOT NULL,
    failed REAL NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (tenant, workload, model)
);
"""

# `key_name`: of the gateway key that the run was made with.
_KEYS_OF_EVIDENCE = """
ALTER TABLE pattern_evidence ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
UPDATE pattern_evidence SET key_name = coalesce(
    (SELECT r.key_name FROM runs AS r WHERE r.id = pattern_evidence.run_id), ''
);
"""

# For the page of the runs under way: the rest of a week's runs is not read.
_UNDER_WAY = """
CREATE INDEX runs_under_way ON runs (started_at) WHERE ended_at IS NULL AND outcome IS NULL;
"""

MIGRATIONS: tuple[Migration, ...] = (
    Migration(name="core_001_conversations_and_runs", apply=script(_CORE)),
    Migration(name="core_002_items_of_answers", apply=script(_ITEMS)),
    Migration(name="patterns_001_patterns_and_spaces", apply=script(_PATTERNS)),
    Migration(name="keys_001_keys", apply=script(_KEYS)),
    Migration(name="learning_001_outcomes_lessons_jobs", apply=script(_LEARNING)),
    *BUDGET_MIGRATIONS,
    Migration(name="usage_001_hours", apply=script(USAGE_TABLES)),
    Migration(name="alerts_001_alerts_and_deliveries", apply=script(ALERT_TABLES)),
    Migration(name="usage_002_tags", apply=script(USAGE_TAGS)),
    Migration(name="raw_001_calls", apply=script(RAW_TABLES)),
    Migration(name="routing_001_workloads", apply=script(_WORKLOADS)),
    Migration(name="learning_002_keys_of_evidence", apply=script(_KEYS_OF_EVIDENCE)),
    Migration(name="usage_003_estimates", apply=script(USAGE_ESTIMATES)),
    ESTIMATES,
    Migration(name="answers_001_answers", apply=script(ANSWER_TABLES)),
    Migration(name="core_003_runs_under_way", apply=script(_UNDER_WAY)),
)
"""Every change a file needs, in order; new ones are appended."""
