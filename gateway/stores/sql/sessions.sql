-- Sessions: a conversation and all below it. `@name` stands for a part, `@session` for the id of the
-- session of `conversations AS c`. Values in braces are filled in by sessions.py.

-- = of_runs
runs AS r JOIN conversations AS m ON m.pk = r.conversation_pk

-- = top
-- The conversation at the root, or the first one that is left of a tree whose root is gone.
c.version > 0 AND (c.id = @session OR NOT EXISTS (
    SELECT 1 FROM conversations AS p WHERE p.id = @session AND p.version > 0
) AND NOT EXISTS (
    SELECT 1 FROM conversations AS p
    WHERE (p.root_id = @session OR p.parent_id = @session {plain}) AND p.id < c.id
))

-- = in_tree
(m.id = @session OR m.root_id = @session OR m.parent_id = @session {plain})

-- = own
-- A person began it, or an agent did something: what a client asks for itself alone is no session.
(r.steps > 0 OR r.task_preview <> '' AND m.agent_kind <> 'side call')

-- = has_run
-- Asked of each session, so that a page of many that match reads few; from its conversations on, in
-- this order. With LIMIT and OFFSET no server joins it, and with CASE none begins at what the runs
-- are to be.
EXISTS (
    SELECT 1 FROM conversations AS m CROSS JOIN runs AS r
    WHERE r.conversation_pk = m.pk AND @in_tree AND CASE WHEN {runs} THEN TRUE END LIMIT 1 OFFSET 0
)

-- = answers
CASE WHEN r.steps > r.calls - r.retries THEN r.steps ELSE r.calls - r.retries END

-- = by_started_at
min(m.created_at)

-- = by_updated_at
max(@last)

-- = by_duration
max(@last) - min(r.started_at)

-- = by_steps
CAST(sum(@answers) AS DOUBLE PRECISION)

-- = by_tokens
sum(CAST(r.input_tokens + r.output_tokens AS DOUBLE PRECISION))

-- = by_cost
coalesce(sum(r.cost_usd), -1.0)

-- = by_peak
max(r.composite_peak)

-- = grouped
-- All sessions by reading each run once.
SELECT session, key, session AS place FROM (
    SELECT @session_of_m AS session, {key} AS key FROM @of_runs WHERE {where}
    GROUP BY 1 HAVING max(CASE WHEN @own THEN 1 ELSE 0 END) {having}
) AS sessions

-- = all
SELECT DISTINCT @session_of_m AS session FROM @of_runs WHERE {where} AND @own

-- = in_matching
@session_of_m IN (SELECT @session_of_m FROM @of_runs WHERE {runs})

-- = walked
SELECT @session AS session, c.created_at AS key, c.id AS place FROM conversations AS c
WHERE @top AND {where}

-- = of_each
-- In this order, like has_run.
EXISTS (
    SELECT 1 FROM conversations AS m CROSS JOIN runs AS r WHERE r.conversation_pk = m.pk
    AND (m.id = g.session OR m.root_id = g.session OR m.parent_id = g.session {plain})
    AND CASE WHEN {runs} THEN TRUE END LIMIT 1 OFFSET 0
)

-- = listed
SELECT session, key, place FROM (
    SELECT session, key, place FROM ({sessions}) AS g
    WHERE {after} ORDER BY key {order}, place {order} LIMIT {sorted}
) AS g WHERE {left} LIMIT {limit}

-- = count
SELECT count(*) FROM (SELECT 1 FROM ({sessions}) AS g WHERE {left} LIMIT {limit}) AS x

-- = named
-- The session of an id of a conversation or a run, or of the client's own.
SELECT @session FROM conversations AS c WHERE c.version > 0
    AND (CAST(:tenant AS TEXT) IS NULL OR c.tenant = :tenant) AND c.pk IN (
        SELECT pk FROM conversations WHERE id = :id OR external_key = :id
        UNION SELECT conversation_pk FROM runs WHERE id = :id
    )
ORDER BY c.id = :id DESC, c.updated_at DESC LIMIT 1

-- = sums
-- In the order of the fields of SessionSums. A sum() of only unknown values is NULL.
SELECT @session,
    CAST(coalesce(sum(r.input_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(r.cached_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(r.cache_write_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(r.output_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(r.reasoning_tokens), 0) AS BIGINT),
    sum(r.cost_usd), sum(r.cost_unsteered_usd), sum(r.saved_usd),
    count(DISTINCT c.pk), count(r.pk), CAST(coalesce(sum(@answers), 0) AS BIGINT),
    CAST(coalesce(sum(r.calls), 0) AS BIGINT),
    CAST(coalesce(sum(r.errors), 0) AS BIGINT),
    CAST(coalesce(sum(r.injections), 0) AS BIGINT),
    coalesce(max(r.composite_peak), 0.0),
    coalesce(max(CASE {severity} WHEN 'danger' THEN 2 WHEN 'warn' THEN 1 ELSE 0 END), 0),
    min(c.tenant), min(c.created_at), coalesce(max(@last), 0.0)
FROM conversations AS c LEFT JOIN runs AS r ON r.conversation_pk = c.pk
WHERE {chosen} GROUP BY 1

-- = runs
SELECT @run FROM @runs_of WHERE {chosen} AND r.pk IN (SELECT x.pk FROM (
    SELECT r.pk, row_number() OVER (PARTITION BY @session ORDER BY r.started_at DESC, r.id DESC) AS place
    FROM @runs_of WHERE {chosen}
) AS x WHERE x.place <= {most})
ORDER BY r.started_at DESC, r.id DESC

-- = members
-- A fork has the tools and the role of its parent.
SELECT @session, c.id, c.tenant, c.source, c.parent_id, c.external_key, c.created_at, c.updated_at,
    c.message_count, c.agent_kind, c.task, (
        SELECT count(*) FROM runs AS r JOIN steps AS s ON s.run_pk = r.pk
        WHERE r.conversation_pk = c.pk AND s.step_index < 0
    ),
    CASE WHEN c.agent_kind = 'side call' THEN 'side_call' WHEN c.id = @session THEN 'main'
        WHEN c.agent_kind <> '' OR p.signature IS NULL OR length(p.signature) = 0 THEN 'sub_agent'
        WHEN c.signature = p.signature THEN 'fork'
        WHEN NOT c.has_tools AND NOT EXISTS (
            SELECT 1 FROM runs AS r WHERE r.conversation_pk = c.pk AND r.steps > 0
        ) THEN 'side_call' ELSE 'sub_agent' END
FROM conversations AS c LEFT JOIN conversations AS p ON p.id = c.parent_id
WHERE {chosen} ORDER BY @root_first, c.created_at, c.id

-- = root_first
CASE WHEN c.id = @session THEN 0 ELSE 1 END

-- = said
SELECT x.session, x.text FROM (
    SELECT @session AS session, coalesce(nullif(@read_title, ''), r.task_preview) AS text,
        row_number() OVER (
            PARTITION BY @session ORDER BY @root_first, r.started_at, r.sequence
        ) AS place
    FROM @runs_of WHERE {chosen} AND r.task_preview <> ''
) AS x WHERE x.place <= 5 ORDER BY x.session, x.place

-- = tasks
SELECT @session, c.task FROM conversations AS c WHERE {chosen} AND c.task <> ''
ORDER BY @root_first, c.created_at

-- = done
SELECT x.session, x.content FROM (
    SELECT @session AS session, s.content, row_number() OVER (
        PARTITION BY @session ORDER BY @root_first, r.started_at, s.step_index
    ) AS place
    FROM @runs_of JOIN steps AS s ON s.run_pk = r.pk
    WHERE {chosen} AND s.content IS NOT NULL AND s.step_index BETWEEN 0 AND 3
) AS x WHERE x.place <= 3 ORDER BY x.session, x.place

-- = calls
-- Of the texts of a step only those with an act of a person are read: few, while all may be 100 MB.
SELECT r.id, s.step_index, s.at, s.state, s.difficulty, s.composite, s.failure_type, s.readings, s.call,
    CASE WHEN r.counts -> 'human' <> '{{}}' AND s.content LIKE '%"human":[{{%' THEN s.content END
FROM @runs_of JOIN steps AS s ON s.run_pk = r.pk
WHERE {chosen} AND s.call IS NOT NULL ORDER BY s.at, r.id, s.step_index LIMIT {most}

-- = texts
SELECT r.id, @injections FROM @runs_of JOIN injections AS i ON i.run_pk = r.pk
WHERE {chosen} AND i.applied ORDER BY r.id, i.step_index, i.ordinal

-- = read
SELECT CAST(coalesce(sum(j.tokens), 0) AS BIGINT), coalesce(sum(j.cost_usd), 0.0) FROM jobs AS j
WHERE {run_of_job} IN (SELECT r.id FROM @runs_of WHERE {chosen}) AND j.kind = :kind
