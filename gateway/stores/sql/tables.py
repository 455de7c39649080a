"""The tables of both databases, in the types of each.

What is here has shipped: the migrations of `sqlite/schema.py` and `postgres/schema.py` name it.
"""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """Types of columns. `name`: text that is compared or sorted, in the order of its bytes.
    `key`: counts up by itself. `by_key` and `often_changed`: suffixes of tables."""

    text: str
    name: str
    integer: str
    real: str
    boolean: str
    blob: str
    json: str
    key: str
    by_key: str
    often_changed: str


def conversations(t: Types) -> str:
    """Columns of `conversations`."""
    return f"""
    pk {t.key},
    id {t.name} NOT NULL UNIQUE,
    tenant {t.name} NOT NULL,
    source {t.text} NOT NULL,
    parent_id {t.text},
    external_key {t.name},
    version {t.integer} NOT NULL,
    created_at {t.real} NOT NULL,
    updated_at {t.real} NOT NULL,
    served_head {t.blob} NOT NULL,
    message_count {t.integer} NOT NULL,
    signature {t.blob} NOT NULL,
    has_tools {t.boolean} NOT NULL,
    state {t.blob} NOT NULL
"""


CONVERSATION_INDEXES = """
CREATE INDEX conversations_by_external_key ON conversations (tenant, external_key)
    WHERE external_key IS NOT NULL;
CREATE INDEX conversations_by_tenant ON conversations (tenant, created_at, id);
CREATE INDEX conversations_by_time ON conversations (created_at, id);
"""


def items(t: Types) -> str:
    """Items of answers that later requests name."""
    return f"""
CREATE TABLE items (
    tenant {t.name} NOT NULL,
    id {t.name} NOT NULL,
    conversation_pk {t.integer} NOT NULL,
    content {t.blob} NOT NULL,
    PRIMARY KEY (tenant, id)
){t.by_key};
CREATE INDEX items_by_conversation ON items (conversation_pk);
"""


def runs(t: Types) -> str:
    """Columns of `runs`, but for its key. Numbers that are only shown with their run are `counts`,
    one JSON text."""
    return f"""
    id {t.name} NOT NULL UNIQUE,
    conversation_pk {t.integer} NOT NULL,
    tenant {t.name} NOT NULL,
    sequence {t.integer} NOT NULL,
    started_at {t.real} NOT NULL,
    updated_at {t.real} NOT NULL,
    ended_at {t.real},
    state {t.name} NOT NULL,
    outcome {t.name},
    outcome_source {t.text} NOT NULL,
    agent {t.name} NOT NULL,
    task_preview {t.text} NOT NULL,
    profile {t.text} NOT NULL,
    mode {t.name} NOT NULL,
    experiment {t.name},
    arm {t.name},
    unit {t.text},
    policy_digest {t.text} NOT NULL,
    identity_source {t.text} NOT NULL,
    model_requested {t.name} NOT NULL,
    steps {t.integer} NOT NULL,
    scored_steps {t.integer} NOT NULL,
    calls {t.integer} NOT NULL,
    retries {t.integer} NOT NULL,
    errors {t.integer} NOT NULL,
    injections {t.integer} NOT NULL,
    input_tokens {t.integer} NOT NULL,
    cached_tokens {t.integer} NOT NULL,
    cache_write_tokens {t.integer} NOT NULL,
    output_tokens {t.integer} NOT NULL,
    reasoning_tokens {t.integer} NOT NULL,
    unpriced_calls {t.integer} NOT NULL,
    cost_usd {t.real},
    cost_unsteered_usd {t.real},
    saved_usd {t.real},
    composite_peak {t.real} NOT NULL,
    composite_sum {t.real} NOT NULL,
    latency_s {t.real} NOT NULL,
    overhead_ms {t.real} NOT NULL,
    counts {t.json} NOT NULL"""


RUN_INDEXES = """
CREATE INDEX runs_by_conversation ON runs (conversation_pk);
CREATE INDEX runs_by_tenant ON runs (tenant, started_at, id);
CREATE INDEX runs_by_time ON runs (started_at, id);
CREATE INDEX runs_by_experiment ON runs (experiment, started_at, id)
    WHERE experiment IS NOT NULL;
"""


def steps(t: Types) -> str:
    """Columns of `steps`, but for its key."""
    return f"""
    run_pk {t.integer} NOT NULL,
    step_index {t.integer} NOT NULL,
    at {t.real} NOT NULL,
    state {t.name} NOT NULL,
    difficulty {t.real},
    composite {t.real},
    failure_type {t.text},
    readings {t.text},
    call {t.text},
    content {t.text},
"""


def injections(t: Types) -> str:
    """Columns of `injections`."""
    return f"""
    run_pk {t.integer} NOT NULL,
    step_index {t.integer} NOT NULL,
    ordinal {t.integer} NOT NULL,
    source {t.text} NOT NULL,
    tier {t.text},
    pattern_id {t.text},
    similarity {t.real},
    failure_type {t.text},
    severity {t.text},
    text {t.text} NOT NULL,
    placement {t.text} NOT NULL,
    message_position {t.integer},
    applied {t.boolean} NOT NULL,
    PRIMARY KEY (run_pk, step_index, ordinal)
"""


def patterns(t: Types) -> str:
    """Patterns; lessons are added by `learning`."""
    return f"""
CREATE TABLE patterns (
    pk {t.key},
    tenant {t.name} NOT NULL,
    pattern_id {t.name} NOT NULL,
    tier {t.name} NOT NULL,
    digest {t.name} NOT NULL,
    failure_type {t.name} NOT NULL,
    model_family {t.name} NOT NULL,
    gate_threshold {t.real},
    source_trace_id {t.text},
    fields {t.text} NOT NULL,
    created_at {t.real} NOT NULL,
    updated_at {t.real} NOT NULL,
    injected {t.integer} NOT NULL DEFAULT 0,
    helped {t.integer} NOT NULL DEFAULT 0,
    hurt {t.integer} NOT NULL DEFAULT 0,
    UNIQUE (tenant, pattern_id),
    UNIQUE (tenant, digest)
);
CREATE INDEX patterns_by_id ON patterns (pattern_id);
CREATE INDEX patterns_by_tier ON patterns (tier, pattern_id);
CREATE INDEX patterns_by_family ON patterns (model_family);
"""


def keys(t: Types) -> str:
    """Gateway keys."""
    return f"""
CREATE TABLE keys (
    pk {t.key},
    id {t.name} NOT NULL UNIQUE,
    tenant {t.name} NOT NULL,
    name {t.text} NOT NULL,
    hint {t.text} NOT NULL,
    digest {t.blob} NOT NULL UNIQUE,
    created_at {t.real} NOT NULL,
    revoked_at {t.real}
);
"""


def learning(t: Types, more: str = "") -> str:
    """Outcomes, lessons, decisions and jobs. `more`: further indexes of the evidence."""
    return f"""
ALTER TABLE patterns ADD COLUMN status {t.name} NOT NULL DEFAULT 'active';
ALTER TABLE patterns ADD COLUMN version {t.integer} NOT NULL DEFAULT 1;
ALTER TABLE patterns ADD COLUMN supersedes {t.text} NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN origin {t.text} NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN trust {t.text} NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN key {t.name} NOT NULL DEFAULT '';
ALTER TABLE patterns ADD COLUMN applies_when {t.text} NOT NULL DEFAULT '{{}}';
ALTER TABLE patterns ADD COLUMN last_confirmed_at {t.real} NOT NULL DEFAULT 0;
ALTER TABLE patterns ADD COLUMN expires_at {t.real};
ALTER TABLE patterns ADD COLUMN reason {t.text} NOT NULL DEFAULT '';
CREATE INDEX patterns_by_status ON patterns (status, tenant) WHERE origin <> '';
CREATE INDEX patterns_by_key ON patterns (key, tenant) WHERE origin <> '';

CREATE TABLE outcomes (
    pk {t.key},
    run_id {t.name} NOT NULL,
    tenant {t.name} NOT NULL,
    source {t.name} NOT NULL,
    metric {t.name} NOT NULL,
    verdict {t.text} NOT NULL,
    score {t.real},
    comment {t.text} NOT NULL,
    weight {t.real} NOT NULL,
    at {t.real} NOT NULL,
    evidence {t.text} NOT NULL
);
CREATE INDEX outcomes_by_run ON outcomes (run_id, source, metric);

CREATE TABLE pattern_evidence (
    tenant {t.name} NOT NULL,
    pattern_id {t.name} NOT NULL,
    run_id {t.name} NOT NULL,
    step_index {t.integer} NOT NULL,
    kind {t.name} NOT NULL,
    conversation {t.text} NOT NULL,
    task {t.text} NOT NULL,
    at {t.real} NOT NULL,
    PRIMARY KEY (tenant, pattern_id, run_id, step_index, kind)
);
CREATE INDEX pattern_evidence_by_run ON pattern_evidence (run_id);
{more}
CREATE TABLE pattern_decisions (
    run_id {t.name} NOT NULL,
    step_index {t.integer} NOT NULL,
    pattern_id {t.name} NOT NULL,
    owner {t.name} NOT NULL,
    tenant {t.name} NOT NULL,
    version {t.integer} NOT NULL,
    share {t.real} NOT NULL,
    given {t.boolean} NOT NULL,
    similarity {t.real} NOT NULL,
    key {t.text} NOT NULL,
    state {t.text} NOT NULL,
    failure_type {t.text} NOT NULL,
    at {t.real} NOT NULL,
    recurred {t.boolean},
    calls_to_success {t.integer},
    steps_left {t.integer},
    PRIMARY KEY (run_id, step_index, pattern_id)
);
CREATE INDEX pattern_decisions_by_pattern ON pattern_decisions (owner, pattern_id, version);

CREATE TABLE pattern_posteriors (
    owner {t.name} NOT NULL,
    pattern_id {t.name} NOT NULL,
    version {t.integer} NOT NULL,
    decisions {t.integer} NOT NULL,
    given {t.integer} NOT NULL,
    rate_given {t.real},
    rate_held {t.real},
    effect {t.real},
    low {t.real},
    high {t.real},
    helps {t.real},
    harms {t.real},
    share {t.real} NOT NULL,
    updated_at {t.real} NOT NULL,
    PRIMARY KEY (owner, pattern_id, version)
);

CREATE TABLE jobs (
    pk {t.key},
    kind {t.name} NOT NULL,
    key {t.name} NOT NULL,
    tenant {t.name} NOT NULL,
    payload {t.text} NOT NULL,
    state {t.name} NOT NULL,
    attempts {t.integer} NOT NULL,
    lease_until {t.real} NOT NULL,
    claimed_at {t.real} NOT NULL,
    created_at {t.real} NOT NULL,
    done_at {t.real},
    tokens {t.integer} NOT NULL,
    cost_usd {t.real} NOT NULL,
    error {t.text} NOT NULL,
    UNIQUE (kind, key)
);
CREATE INDEX jobs_by_state ON jobs (kind, state, lease_until);
"""


def keys_of_evidence(t: Types) -> str:
    """`key_name`: of the gateway key that the run was made with."""
    return f"""
ALTER TABLE pattern_evidence ADD COLUMN key_name {t.name} NOT NULL DEFAULT '';
UPDATE pattern_evidence SET key_name = coalesce(
    (SELECT r.key_name FROM runs AS r WHERE r.id = pattern_evidence.run_id), ''
);
"""


def accounts(t: Types) -> str:
    """Accounts of budgets, and reservations."""
    return f"""
CREATE TABLE budget_accounts (
    budget {t.name} NOT NULL,
    subject {t.name} NOT NULL,
    tenant {t.name} NOT NULL,
    usd {t.integer} NOT NULL,
    input_tokens {t.integer} NOT NULL,
    output_tokens {t.integer} NOT NULL,
    calls {t.integer} NOT NULL,
    unpriced {t.integer} NOT NULL,
    started_at {t.real} NOT NULL,
    updated_at {t.real} NOT NULL,
    limits {t.text} NOT NULL,
    lifted {t.boolean} NOT NULL,
    ends {t.boolean} NOT NULL,
    PRIMARY KEY (budget, subject)
){t.often_changed};
CREATE INDEX budget_accounts_by_time ON budget_accounts (updated_at);

CREATE TABLE budget_reservations (
    budget {t.name} NOT NULL,
    subject {t.name} NOT NULL,
    claim {t.name} NOT NULL,
    usd {t.integer} NOT NULL,
    input_tokens {t.integer} NOT NULL,
    output_tokens {t.integer} NOT NULL,
    calls {t.integer} NOT NULL,
    expires_at {t.real} NOT NULL,
    PRIMARY KEY (budget, subject, claim)
){t.by_key};
"""


def account_estimates(t: Types) -> str:
    """The part of what was spent that is estimated."""
    return f"""
ALTER TABLE budget_accounts ADD COLUMN estimated_usd {t.integer} NOT NULL DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_input_tokens {t.integer} NOT NULL DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_output_tokens {t.integer} NOT NULL DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_calls {t.integer} NOT NULL DEFAULT 0;
"""


def controls(t: Types) -> str:
    """Holds on runs."""
    return f"""
CREATE TABLE run_controls (
    subject {t.name} PRIMARY KEY,
    tenant {t.text} NOT NULL,
    action {t.text} NOT NULL,
    reason {t.text} NOT NULL,
    at {t.real} NOT NULL
){t.by_key};
"""


def tree(t: Types) -> str:
    """`root_id`: the first conversation of a tree, NULL for that one itself. `key_name` and
    `tags`: to whom a run is charged."""
    return f"""
ALTER TABLE conversations ADD COLUMN root_id {t.name};
CREATE INDEX conversations_by_root ON conversations (root_id) WHERE root_id IS NOT NULL;
CREATE INDEX conversations_by_parent ON conversations (parent_id) WHERE parent_id IS NOT NULL;
ALTER TABLE runs ADD COLUMN key_name {t.name} NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN tags {t.json} NOT NULL DEFAULT '{{}}';
"""


def usage(t: Types) -> str:
    """Calls summed by the hour."""
    return f"""
CREATE TABLE usage_by_hour (
    hour {t.integer} NOT NULL,
    tenant {t.name} NOT NULL,
    agent {t.name} NOT NULL,
    model {t.name} NOT NULL,
    tags {t.json} NOT NULL,
    calls {t.integer} NOT NULL,
    errors {t.integer} NOT NULL,
    unsteered {t.integer} NOT NULL,
    unpriced_calls {t.integer} NOT NULL,
    steps {t.integer} NOT NULL,
    alarms {t.integer} NOT NULL,
    input_tokens {t.integer} NOT NULL,
    cached_tokens {t.integer} NOT NULL,
    output_tokens {t.integer} NOT NULL,
    cost_usd {t.real},
    latency_s {t.real} NOT NULL,
    PRIMARY KEY (hour, tenant, agent, model, tags)
){t.often_changed};
"""


def usage_estimates(t: Types) -> str:
    """The part of the sums that is estimated."""
    return f"""
ALTER TABLE usage_by_hour ADD COLUMN estimated_calls {t.integer} NOT NULL DEFAULT 0;
ALTER TABLE usage_by_hour ADD COLUMN estimated_tokens {t.integer} NOT NULL DEFAULT 0;
ALTER TABLE usage_by_hour ADD COLUMN estimated_usd {t.real} NOT NULL DEFAULT 0.0;
"""


def alerts(t: Types) -> str:
    """Alerts and their deliveries."""
    return f"""
CREATE TABLE alerts (
    id {t.name} PRIMARY KEY,
    key {t.name} NOT NULL,
    rule {t.text} NOT NULL,
    severity {t.text} NOT NULL,
    title {t.text} NOT NULL,
    raised_at {t.real} NOT NULL,
    tenant {t.name},
    facts {t.text} NOT NULL,
    path {t.text} NOT NULL
);
CREATE INDEX alerts_by_time ON alerts (raised_at);
CREATE TABLE alert_keys (
    key {t.name} PRIMARY KEY,
    alert_id {t.name} NOT NULL,
    seen_at {t.real} NOT NULL
);
CREATE TABLE alert_deliveries (
    alert_id {t.name} NOT NULL,
    sink {t.name} NOT NULL,
    attempts {t.integer} NOT NULL,
    next_at {t.real} NOT NULL,
    owner {t.text} NOT NULL,
    leased_until {t.real} NOT NULL,
    done_at {t.real},
    error {t.text} NOT NULL,
    PRIMARY KEY (alert_id, sink)
);
CREATE INDEX alert_deliveries_due ON alert_deliveries (next_at) WHERE done_at IS NULL;
"""


def raw_calls(t: Types, by_time: str) -> str:
    """Raw calls. `by_time`: the columns of the index by time."""
    return f"""
CREATE TABLE raw_calls (
    run_pk {t.integer} NOT NULL,
    step_index {t.integer} NOT NULL,
    at {t.real} NOT NULL,
    bytes {t.integer} NOT NULL,
    dialect {t.text} NOT NULL,
    request {t.blob} NOT NULL,
    response {t.blob} NOT NULL,
    PRIMARY KEY (run_pk, step_index)
);
CREATE INDEX raw_calls_by_time ON raw_calls {by_time};
"""


def workloads(t: Types) -> str:
    """Runs of workloads, and how often each model solved one."""
    return f"""
CREATE TABLE workload_runs (
    run_id {t.name} NOT NULL PRIMARY KEY,
    tenant {t.name} NOT NULL,
    workload {t.name} NOT NULL,
    client {t.text} NOT NULL,
    requested {t.text} NOT NULL,
    model {t.name} NOT NULL,
    at {t.real} NOT NULL,
    choice {t.text},
    outcome {t.name} NOT NULL
);
CREATE INDEX workload_runs_by_time ON workload_runs (at);

CREATE TABLE workload_models (
    tenant {t.name} NOT NULL,
    workload {t.name} NOT NULL,
    model {t.name} NOT NULL,
    client {t.text} NOT NULL,
    requested {t.text} NOT NULL,
    solved {t.real} NOT NULL,
    failed {t.real} NOT NULL,
    updated_at {t.real} NOT NULL,
    PRIMARY KEY (tenant, workload, model)
);
"""


def answers(t: Types) -> str:
    """Answers that later requests name."""
    return f"""
CREATE TABLE answers (
    tenant {t.name} NOT NULL,
    id {t.name} NOT NULL,
    at {t.real} NOT NULL,
    place {t.text} NOT NULL,
    echo {t.text} NOT NULL,
    call {t.text} NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX answers_by_time ON answers (at);
"""


# For the page of the runs under way: the rest of a week's runs is not read.
UNDER_WAY = """
CREATE INDEX runs_under_way ON runs (started_at) WHERE ended_at IS NULL AND outcome IS NULL;
"""
