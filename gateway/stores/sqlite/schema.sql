-- The migrations that create the tables, each applied once, in order: only ever appended.
-- `@name` stands for a part of `gateway/stores/sql/tables.sql`.

-- = core_001_conversations_and_runs
-- The design follows from what a commit costs: each database page that it changes.
-- - heads are keyed by their history's root first, so that the two heads of a call share a page
--   with the others of the conversation; keyed by digest, each would be on a different page;
-- - steps are appended and found through a small index: inserting rows of several kilobytes in
--   run order would split pages at every commit;
-- - numbers that are only shown with their run are one JSON text per row, not columns.
-- Rows refer to each other by integer keys, and deletion is explicit (sql/retention.py).
CREATE TABLE conversations (
@conversations
);

@conversation_indexes

CREATE TABLE heads (
@heads
    PRIMARY KEY (root, digest, conversation_pk DESC, kind)
) by_key;

CREATE TABLE runs (
    pk: key,
@runs
);

@run_indexes

CREATE TABLE steps (
    pk INTEGER PRIMARY KEY,
@steps
    UNIQUE (run_pk, step_index)
);

CREATE TABLE injections (
@injections
);

-- = core_002_items_of_answers
@items

-- = patterns_001_patterns_and_spaces
-- `generation`: of the index, which is rebuilt as another table.
@patterns

CREATE TABLE pattern_spaces (
    number INTEGER PRIMARY KEY,
    embedder_id: name UNIQUE,
    dimensions: integer,
    generation: integer DEFAULT 1
);

-- = keys_001_keys
@keys

-- = learning_001_outcomes_lessons_jobs
@learning

-- = budgets_001_accounts
@accounts

-- = budgets_002_controls
@controls

-- = budgets_003_tree_and_tags
@tree

-- = usage_001_hours
-- Filled from the steps of an older file.
CREATE TABLE usage_hours (
    hour: integer,
    tenant, agent, model: name,
@usage_sums
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

-- = alerts_001_alerts_and_deliveries
@alerts

-- = usage_002_tags
-- SQLite adds no column to a primary key: the table is made again.
@usage

INSERT INTO usage_by_hour
SELECT hour, tenant, agent, model, '{}', calls, errors, unsteered, unpriced_calls, steps, alarms,
    input_tokens, cached_tokens, output_tokens, cost_usd, latency_s FROM usage_hours;
DROP TABLE usage_hours;

-- = raw_001_calls
@raw_calls

CREATE INDEX raw_calls_by_time ON raw_calls (at, bytes);

-- = routing_001_workloads
@workloads

-- = learning_002_keys_of_evidence
@keys_of_evidence

-- = usage_003_estimates
@usage_estimates

-- = budgets_004_estimates
@account_estimates

-- = answers_001_answers
@answers

-- = core_003_runs_under_way
@under_way

-- = routing_002_own_risks
@own_risks

-- = learning_003_proof
@proof

-- = learning_004_forgotten_runs
@forgotten

-- = routing_003_fading_counts
@fading_counts

-- = control_001_operator_changes
@operator_changes

-- = control_002_authors_of_holds
@authors_of_holds

-- = control_003_leases
@leases
