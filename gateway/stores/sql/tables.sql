-- The tables of both databases. What is here has shipped: it is never edited.
-- Columns are `names: kind`, kinds on one line are separated by `|`, and `?` allows NULL. `name` is text that is
-- compared or sorted in the order of its bytes, `key` counts up by itself; `by_key` and `often_changed` are options of
-- tables. `@name` stands for the part of that name.

-- = conversations
    pk: key | id: name UNIQUE | tenant: name | source: text | parent_id: text?,
    external_key: name? | version: integer | created_at, updated_at: real | served_head: blob,
    message_count: integer | signature: blob | has_tools: boolean | state: blob

-- = conversation_indexes
CREATE INDEX conversations_by_external_key ON conversations (tenant, external_key)
    WHERE external_key IS NOT NULL;
CREATE INDEX conversations_by_tenant ON conversations (tenant, created_at, id);
CREATE INDEX conversations_by_time ON conversations (created_at, id);

-- = heads
-- These are the prefix hashes; table and column names of shipped databases stay.
    root: integer | digest: blob | conversation_pk: integer | kind: name,
    position, step: integer,

-- = items
-- Items of answers that later requests name.
CREATE TABLE items (
    tenant, id: name | conversation_pk: integer | content: blob,
    PRIMARY KEY (tenant, id)
) by_key;
CREATE INDEX items_by_conversation ON items (conversation_pk);

-- = runs
-- Numbers that are only shown with their run are `counts`, one JSON text.
    id: name UNIQUE | conversation_pk: integer | tenant: name | sequence: integer,
    started_at, updated_at: real | ended_at: real? | state: name | outcome: name?,
    outcome_source: text | agent: name | task_preview, profile: text | mode: name,
    experiment, arm: name? | unit: text? | policy_digest, identity_source: text,
    model_requested: name | steps, scored_steps, calls, retries, errors, injections: integer,
    input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens: integer,
    unpriced_calls: integer | cost_usd, cost_unsteered_usd, saved_usd: real?,
    composite_peak, composite_sum, latency_s, overhead_ms: real,
    counts: json

-- = run_indexes
CREATE INDEX runs_by_conversation ON runs (conversation_pk);
CREATE INDEX runs_by_tenant ON runs (tenant, started_at, id);
CREATE INDEX runs_by_time ON runs (started_at, id);
CREATE INDEX runs_by_experiment ON runs (experiment, started_at, id)
    WHERE experiment IS NOT NULL;

-- = steps
    run_pk, step_index: integer | at: real | state: name | difficulty, composite: real?,
    failure_type, readings, call, content: text?,

-- = injections
    run_pk, step_index, ordinal: integer | source: text | tier, pattern_id: text?,
    similarity: real? | failure_type, severity: text? | text, placement: text,
    message_position: integer? | applied: boolean,
    PRIMARY KEY (run_pk, step_index, ordinal)

-- = patterns
CREATE TABLE patterns (
    pk: key | tenant, pattern_id, tier, digest, failure_type, model_family: name,
    gate_threshold: real? | source_trace_id: text? | fields: text | created_at, updated_at: real,
    injected, helped, hurt: integer DEFAULT 0,
    UNIQUE (tenant, pattern_id),
    UNIQUE (tenant, digest)
);
CREATE INDEX patterns_by_id ON patterns (pattern_id);
CREATE INDEX patterns_by_tier ON patterns (tier, pattern_id);
CREATE INDEX patterns_by_family ON patterns (model_family);

-- = learning
ALTER TABLE patterns ADD COLUMN status: name DEFAULT 'active';
ALTER TABLE patterns ADD COLUMN version: integer DEFAULT 1;
ALTER TABLE patterns ADD COLUMN supersedes, origin, trust: text DEFAULT '';
ALTER TABLE patterns ADD COLUMN key: name DEFAULT '';
ALTER TABLE patterns ADD COLUMN applies_when: text DEFAULT '{}';
ALTER TABLE patterns ADD COLUMN last_confirmed_at: real DEFAULT 0;
ALTER TABLE patterns ADD COLUMN expires_at: real?;
ALTER TABLE patterns ADD COLUMN reason: text DEFAULT '';
CREATE INDEX patterns_by_status ON patterns (status, tenant) WHERE origin <> '';
CREATE INDEX patterns_by_key ON patterns (key, tenant) WHERE origin <> '';

CREATE TABLE outcomes (
    pk: key | run_id, tenant, source, metric: name | verdict: text | score: real? | comment: text,
    weight, at: real | evidence: text
);
CREATE INDEX outcomes_by_run ON outcomes (run_id, source, metric);

CREATE TABLE pattern_evidence (
    tenant, pattern_id, run_id: name | step_index: integer | kind: name | conversation, task: text,
    at: real,
    PRIMARY KEY (tenant, pattern_id, run_id, step_index, kind)
);
CREATE INDEX pattern_evidence_by_run ON pattern_evidence (run_id);

CREATE TABLE pattern_decisions (
    run_id: name | step_index: integer | pattern_id, owner, tenant: name | version: integer,
    share: real | given: boolean | similarity: real | key, state, failure_type: text | at: real,
    recurred: boolean? | calls_to_success, steps_left: integer?,
    PRIMARY KEY (run_id, step_index, pattern_id)
);
CREATE INDEX pattern_decisions_by_pattern ON pattern_decisions (owner, pattern_id, version);

CREATE TABLE pattern_posteriors (
    owner, pattern_id: name | version, decisions, given: integer,
    rate_given, rate_held, effect, low, high, helps, harms: real? | share, updated_at: real,
    PRIMARY KEY (owner, pattern_id, version)
);

CREATE TABLE jobs (
    pk: key | kind, key, tenant: name | payload: text | state: name | attempts: integer,
    lease_until, claimed_at, created_at: real | done_at: real? | tokens: integer | cost_usd: real,
    error: text,
    UNIQUE (kind, key)
);
CREATE INDEX jobs_by_state ON jobs (kind, state, lease_until);

-- = keys_of_evidence
ALTER TABLE pattern_evidence ADD COLUMN key_name: name DEFAULT '';
UPDATE pattern_evidence SET key_name = coalesce(
    (SELECT r.key_name FROM runs AS r WHERE r.id = pattern_evidence.run_id), ''
);

-- = no_guesses
-- Lessons that earlier versions made without a reader: `mined` off the order of calls, `said` off a
-- person's words. One that an operator wrote or moved stays as it is.
UPDATE patterns SET status = 'retired', reason = CASE origin
    WHEN 'mined' THEN 'read off the order of calls, which shows no cause'
    ELSE 'made of a person''s words by expressions, which misread them' END
WHERE origin IN ('mined', 'said') AND trust <> 'operator'
    AND status IN ('candidate', 'trial', 'active') AND reason NOT LIKE '%by the operator';

-- = proof
ALTER TABLE pattern_posteriors ADD COLUMN success_given, success_held, harms_success: real?;
ALTER TABLE pattern_posteriors ADD COLUMN proof, safe: real DEFAULT 1.0;

-- = forgotten
CREATE TABLE forgotten_runs (
    run_id, tenant: name | at: real,
    PRIMARY KEY (run_id, tenant)
);

-- = accounts
CREATE TABLE budget_accounts (
    budget, subject, tenant: name | usd, input_tokens, output_tokens, calls, unpriced: integer,
    started_at, updated_at: real | limits: text | lifted, ends: boolean,
    PRIMARY KEY (budget, subject)
) often_changed;
CREATE INDEX budget_accounts_by_time ON budget_accounts (updated_at);

CREATE TABLE budget_reservations (
    budget, subject, claim: name | usd, input_tokens, output_tokens, calls: integer,
    expires_at: real,
    PRIMARY KEY (budget, subject, claim)
) by_key;

-- = account_estimates
ALTER TABLE budget_accounts ADD COLUMN estimated_usd, estimated_input_tokens: integer DEFAULT 0;
ALTER TABLE budget_accounts ADD COLUMN estimated_output_tokens, estimated_calls: integer DEFAULT 0;

-- = controls
CREATE TABLE run_controls (
    subject: name? PRIMARY KEY | tenant, action, reason: text | at: real
) by_key;

-- = tree
-- `root_id`: the first conversation of a tree, NULL for that one itself. A run is charged to its
-- `key_name` and `tags`.
ALTER TABLE conversations ADD COLUMN root_id: name?;
CREATE INDEX conversations_by_root ON conversations (root_id) WHERE root_id IS NOT NULL;
CREATE INDEX conversations_by_parent ON conversations (parent_id) WHERE parent_id IS NOT NULL;
ALTER TABLE runs ADD COLUMN key_name: name DEFAULT '';
ALTER TABLE runs ADD COLUMN tags: json DEFAULT '{}';

-- = usage_sums
    calls, errors, unsteered, unpriced_calls, steps, alarms: integer,
    input_tokens, cached_tokens, output_tokens: integer | cost_usd: real?,
    latency_s: real,

-- = usage
CREATE TABLE usage_by_hour (
    hour: integer | tenant, agent, model: name,
    tags: json,
@usage_sums
    PRIMARY KEY (hour, tenant, agent, model, tags)
) often_changed;

-- = usage_estimates
ALTER TABLE usage_by_hour ADD COLUMN estimated_calls, estimated_tokens: integer DEFAULT 0;
ALTER TABLE usage_by_hour ADD COLUMN estimated_usd: real DEFAULT 0.0;

-- = raw_calls
CREATE TABLE raw_calls (
    run_pk, step_index: integer | at: real | bytes: integer | dialect: text,
    request, response: blob,
    PRIMARY KEY (run_pk, step_index)
);

-- = workloads
CREATE TABLE workload_runs (
    run_id: name PRIMARY KEY | tenant, workload: name | client, requested: text | model: name,
    at: real | choice: text? | outcome: name
);
CREATE INDEX workload_runs_by_time ON workload_runs (at);

CREATE TABLE workload_models (
    tenant, workload, model: name | client, requested: text | solved, failed, updated_at: real,
    PRIMARY KEY (tenant, workload, model)
);

-- = fading_counts
ALTER TABLE workload_models ADD COLUMN recent_solved: real DEFAULT 0;
ALTER TABLE workload_models ADD COLUMN recent_failed: real DEFAULT 0;
UPDATE workload_models SET recent_solved = solved, recent_failed = failed;
UPDATE workload_models SET
    recent_solved = solved * 288 / (solved + failed),
    recent_failed = failed * 288 / (solved + failed)
WHERE solved + failed > 288;

-- = own_risks
CREATE TABLE own_risks (
    tenant: name PRIMARY KEY | fitted_at: real | fit: text
);

-- = answers
-- Answers that later requests name.
CREATE TABLE answers (
    tenant, id: name | at: real | place, echo, call: text,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX answers_by_time ON answers (at);

-- = under_way
-- For the page of the runs under way: the rest of a week's runs is not read.
CREATE INDEX runs_under_way ON runs (started_at) WHERE ended_at IS NULL AND outcome IS NULL;

-- = operator_changes
-- What operators declared, in order; no row is changed.
CREATE TABLE operator_changes (
    id: name PRIMARY KEY | kind, subject, tenant: name | at: real | author, reason, body: text
);
CREATE INDEX operator_changes_by_kind ON operator_changes (kind, at);

-- = authors_of_holds
ALTER TABLE run_controls ADD COLUMN author: text DEFAULT '';

-- = leases
-- What gateways hold of an account is in its row. A reservation of an earlier version counts as
-- spent; if its call ends after all, the difference is corrected.
ALTER TABLE budget_accounts ADD COLUMN leases: text DEFAULT '{}';
ALTER TABLE budget_accounts ADD COLUMN leased_until: real DEFAULT 0.0;
ALTER TABLE budget_accounts ADD COLUMN version: integer DEFAULT 1;
UPDATE budget_accounts SET usd = budget_accounts.usd + r.usd,
    input_tokens = budget_accounts.input_tokens + r.input_tokens,
    output_tokens = budget_accounts.output_tokens + r.output_tokens,
    calls = budget_accounts.calls + r.calls,
    estimated_usd = estimated_usd + r.usd,
    estimated_input_tokens = estimated_input_tokens + r.input_tokens,
    estimated_output_tokens = estimated_output_tokens + r.output_tokens,
    estimated_calls = estimated_calls + r.calls
FROM (
    SELECT budget, subject, sum(usd) AS usd, sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens, sum(calls) AS calls
    FROM budget_reservations GROUP BY budget, subject
) AS r WHERE budget_accounts.budget = r.budget AND budget_accounts.subject = r.subject;
DELETE FROM budget_reservations;

-- = questions
-- `about`: what a person is asked about a run, as JSON.
ALTER TABLE run_controls ADD COLUMN about: text DEFAULT '';

-- = admin_keys
-- What proves that somebody has the admin key of a gateway, by the process that has made the key up;
-- 0: that of the config, -1: the salt of the database. `mac`: of what an operator set for an
-- account, under that key.
CREATE TABLE admin_keys (
    pid: integer PRIMARY KEY | proof: text
);
ALTER TABLE budget_accounts ADD COLUMN mac: text DEFAULT '';

-- = sessions
-- Of a sub-agent, or of what a client asks for itself. The first versions stored the parent only.
ALTER TABLE conversations ADD COLUMN agent_kind, task: text DEFAULT '';
UPDATE conversations SET root_id = (
    WITH RECURSIVE above (id, parent_id, depth) AS (
        SELECT c.id, c.parent_id, 0 FROM conversations AS c WHERE c.id = conversations.parent_id
        UNION ALL
        SELECT c.id, c.parent_id, a.depth + 1
        FROM above AS a JOIN conversations AS c ON c.id = a.parent_id WHERE a.depth < 32
    )
    SELECT a.id FROM above AS a ORDER BY a.depth DESC LIMIT 1
) WHERE root_id IS NULL AND parent_id IS NOT NULL;

-- = steps_to_search
-- Steps whose results of tools are not among the words yet: a commit only notes them.
CREATE TABLE steps_to_search (
    run_pk, step_index: integer,
    PRIMARY KEY (run_pk, step_index)
) by_key;
