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

-- = search_001_words_of_runs
-- The words of a run's task, of what the user said and of errors. A row is a step's, or the task's
-- (the last of its run): rowid = run * 2^20 + step. Triggers, so that whatever writes, late scores
-- and removals too, keeps them. `words_of_steps` says what is searched.
CREATE VIRTUAL TABLE run_words USING fts5 (
    words, content = '', contentless_delete = 1, tokenize = "unicode61 remove_diacritics 0"
);

CREATE VIEW words_of_steps AS
SELECT (s.run_pk << 20) + min(s.step_index, 1048574) AS place, s.pk, (
    SELECT substr(group_concat(t, ' '), 1, 8000) FROM (
        SELECT substr(value ->> 'text', 1, 4000) AS t FROM json_each(s.content, '$.messages')
        WHERE value ->> 'role' = 'user'
        UNION ALL SELECT substr(value ->> 'words', 1, 2000) FROM json_each(s.content, '$.human')
        UNION ALL SELECT substr(o, 1, 1000) || ' ' || substr(o, -1000) FROM (
            SELECT value ->> 'observation' AS o FROM json_each(s.content, '$.actions')
            WHERE value ->> 'is_error' OR s.failure_type <> ''
        )
        UNION ALL SELECT s.call ->> 'error'
    ) WHERE t <> ''
) AS words
FROM steps AS s
WHERE s.failure_type <> '' OR instr(s.content, '"role":"user"') OR instr(s.content, '"human":[{')
    OR instr(s.content, '"is_error":true') OR instr(s.call, '"error":"');

CREATE TRIGGER words_of_new_runs AFTER INSERT ON runs WHEN NEW.task_preview <> '' BEGIN
    INSERT INTO run_words (rowid, words) VALUES ((NEW.pk << 20) + 1048575, NEW.task_preview);
END;

CREATE TRIGGER words_of_new_steps AFTER INSERT ON steps BEGIN
    INSERT OR REPLACE INTO run_words (rowid, words)
    SELECT place, words FROM words_of_steps WHERE pk = NEW.pk AND words IS NOT NULL;
END;

CREATE TRIGGER words_of_changed_steps AFTER UPDATE OF content, call, failure_type ON steps BEGIN
    INSERT OR REPLACE INTO run_words (rowid, words)
    SELECT place, words FROM words_of_steps WHERE pk = NEW.pk AND words IS NOT NULL;
END;

CREATE TRIGGER words_of_removed_runs AFTER DELETE ON runs BEGIN
    DELETE FROM run_words WHERE rowid >= OLD.pk << 20 AND rowid < (OLD.pk + 1) << 20;
END;

INSERT INTO run_words (rowid, words)
SELECT (pk << 20) + 1048575, task_preview FROM runs WHERE task_preview <> '';
INSERT OR REPLACE INTO run_words (rowid, words)
SELECT place, words FROM words_of_steps WHERE words IS NOT NULL;

-- = control_004_questions
@questions

-- = patterns_002_vectors_in_one_table
-- Each space had a table of vectors and an index of coarse codes. The indexes stay, unused: to drop
-- one takes the extension. Vectors of a fourth embedder, and those after it, are made again by
-- `gateway patterns reindex`.
CREATE TABLE pattern_vectors (
    space, pk: integer,
    tenant, tier: name,
    vector: blob,
    UNIQUE (space, pk)
);
CREATE INDEX pattern_vectors_by_scope ON pattern_vectors (space, tenant, tier);
CREATE INDEX pattern_vectors_by_pattern ON pattern_vectors (pk);
CREATE TABLE IF NOT EXISTS pattern_vectors_1 (pk INTEGER PRIMARY KEY, vector BLOB);
CREATE TABLE IF NOT EXISTS pattern_vectors_2 (pk INTEGER PRIMARY KEY, vector BLOB);
CREATE TABLE IF NOT EXISTS pattern_vectors_3 (pk INTEGER PRIMARY KEY, vector BLOB);
INSERT INTO pattern_vectors (space, pk, tenant, tier, vector)
SELECT s.number, p.pk, p.tenant, p.tier, v.vector
FROM (
    SELECT 1 AS number, pk, vector FROM pattern_vectors_1
    UNION ALL SELECT 2, pk, vector FROM pattern_vectors_2
    UNION ALL SELECT 3, pk, vector FROM pattern_vectors_3
) AS v JOIN pattern_spaces AS s USING (number) JOIN patterns AS p USING (pk)
WHERE length(v.vector) = 4 * s.dimensions;
DROP TABLE pattern_vectors_1;
DROP TABLE pattern_vectors_2;
DROP TABLE pattern_vectors_3;
ALTER TABLE pattern_spaces DROP COLUMN generation;

-- = control_005_admin_keys
@admin_keys

-- = learning_005_no_guesses
@no_guesses

-- = sessions_001_kinds
@sessions

-- = search_002_results_of_tools
-- The words of what tools gave back, a row for each step that has some. They come in by batches
-- (`index_results` in engine.py): a row of its own for each commit would write ten pages more.
@steps_to_search

CREATE VIRTUAL TABLE result_words USING fts5 (
    words, content = '', contentless_delete = 1, tokenize = "unicode61 remove_diacritics 0"
);

CREATE TRIGGER results_of_new_steps AFTER INSERT ON steps
WHEN NEW.content GLOB '*"observation":"[^"]*' BEGIN
    INSERT OR IGNORE INTO steps_to_search VALUES (NEW.run_pk, NEW.step_index);
END;

CREATE TRIGGER results_of_changed_steps AFTER UPDATE OF content ON steps
WHEN NEW.content IS NOT OLD.content AND (
    NEW.content GLOB '*"observation":"[^"]*' OR OLD.content GLOB '*"observation":"[^"]*'
) BEGIN
    INSERT OR IGNORE INTO steps_to_search VALUES (NEW.run_pk, NEW.step_index);
END;

CREATE TRIGGER results_of_removed_runs AFTER DELETE ON runs BEGIN
    DELETE FROM result_words WHERE rowid >= OLD.pk << 20 AND rowid < (OLD.pk + 1) << 20;
    DELETE FROM steps_to_search WHERE run_pk = OLD.pk;
END;

INSERT INTO steps_to_search SELECT run_pk, step_index FROM steps;

-- = learning_006_jobs_by_run
CREATE INDEX jobs_by_run ON jobs ((payload ->> 'run'));

-- = core_004_runs_by_update
-- The runs with the newest calls, and those that a budget may have stopped: pages and alerts look for
-- both every few seconds. The runs under way are among the first. Runs are counted by time, and the
-- sums of sessions ordered, without reading their rows.
DROP INDEX runs_under_way;
CREATE INDEX runs_by_update ON runs (updated_at, id);
CREATE INDEX runs_with_errors ON runs (started_at) WHERE errors > 0;
DROP INDEX runs_by_time;
CREATE INDEX runs_by_time ON runs (started_at, id, mode, outcome, tenant, agent, model_requested);
DROP INDEX runs_by_conversation;
CREATE INDEX runs_by_conversation ON runs (
    conversation_pk, started_at, updated_at, ended_at, mode, steps, calls, retries, input_tokens,
    output_tokens, cost_usd, composite_peak, task_preview
);

-- = usage_004_runs_with_estimates
CREATE INDEX runs_with_estimates ON runs (started_at) WHERE counts -> 'estimated' <> '{}';
