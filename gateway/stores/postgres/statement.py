"""The statement that commits a group of calls, all of it for the calls whose version is current.

Rows are locked in one order by every gateway: conversations by id, first those to be created, then
those to be changed; runs, steps and hashes belong to a conversation that is locked by then; items
by id; the sums by the hour in the order of their keys. So two gateways never wait for each other
in a circle.
"""

from __future__ import annotations

from gateway.stores import codec, usage
from gateway.stores.postgres.group import (
    COSTS,
    DECISION,
    INJECTION,
    STEP,
    SUMS,
    TABLES,
    UPDATE,
    USAGE,
)
from gateway.stores.postgres.partitions import TODAY
from gateway.stores.postgres.schema import DAY_BITS

RUN_KEY = f"({TODAY} << {DAY_BITS}) + nextval('run_numbers')"
"""The key of a new run: the partition of its steps follows from it."""


def _tables() -> str:
    """The parameters as tables; $1 is the value of `synchronous_commit`."""
    parts = []
    for position, (name, columns) in enumerate(TABLES.items(), start=2):
        typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        parameter = f"convert_from(${position}, 'UTF8')::json"
        parts.append(
            f"{name} AS MATERIALIZED (SELECT * FROM json_to_recordset({parameter}) AS t({typed}))"
        )
    return ",\n".join(parts)


def _sum(name: str) -> str:
    """Sum of a total of the stored run `x` and that of the call."""
    if name in ("steps", "composite_peak"):
        return f"{name} = greatest(x.{name}, excluded.{name})"
    if name in COSTS:
        known = f"coalesce(x.{name}, 0) + excluded.{name}"
        return f"{name} = CASE WHEN excluded.{name} IS NULL THEN x.{name} ELSE {known} END"
    return f"{name} = x.{name} + excluded.{name}"


_CONVERSATION = ", ".join(codec.CONVERSATION_COLUMNS)
_STATE = "decode(c.state, 'base64')"
_FIRST = ", ".join(
    {"version": "1", "state": _STATE}.get(name, name) for name in codec.CONVERSATION_COLUMNS
)
_RUN = ", ".join(name for name in ("id", *UPDATE, *SUMS, "bytes") if name != "tags")
_DECISION = ", ".join(DECISION)
_USAGE_KEY = "hour, tenant, agent, model, tags"
_USAGE_ADDED = ", ".join(f"{n} = x.{n} + excluded.{n}" for n in (*usage.SUMS, *usage.AMOUNTS))
_USAGE_SUMS = ", ".join(
    f"sum(u.{name})::{kind}" for name, kind in USAGE.items() if name not in _USAGE_KEY
)
_USAGE = ", ".join(name for name in USAGE if name not in _USAGE_KEY)
# The stored outcome stays when the call has none, or only a derived one for a reported one.
_STAYS = (
    "excluded.outcome IS NULL OR (x.outcome IS NOT NULL AND x.outcome_source <> 'derived' "
    "AND excluded.outcome_source = 'derived')"
)


def _commit(stored: str) -> str:
    """`stored`: which steps and guidance of a run may be stored already, by their number."""
    return f"""
WITH durability AS MATERIALIZED (SELECT set_config('synchronous_commit', $1, true) AS mode),
{_tables()},
stored AS MATERIALIZED (
    SELECT r.n, r.m, x.pk, x.steps, x.tenant, x.tags FROM r JOIN runs AS x ON x.id = r.id
),
-- Calls with rows that may be stored already, or with a run of another tenant: not in a group.
barred AS MATERIALIZED (
    SELECT x.n FROM stored AS x JOIN c USING (n) WHERE x.tenant <> c.tenant
    UNION SELECT x.n FROM stored AS x JOIN s USING (m) WHERE s.step_index {stored}
    UNION SELECT x.n FROM stored AS x JOIN g USING (m) WHERE g.step_index {stored}
),
inserted AS (
    INSERT INTO conversations ({_CONVERSATION})
    SELECT {_FIRST} FROM c
    WHERE version = 0 AND n NOT IN (SELECT n FROM barred)
        AND (SELECT mode FROM durability) <> ''
    ORDER BY id
    ON CONFLICT (id) DO NOTHING RETURNING pk, id
),
locked AS MATERIALIZED (
    SELECT v.pk, c.n FROM c JOIN conversations AS v ON v.id = c.id
    WHERE c.version > 0 AND c.n NOT IN (SELECT n FROM barred)
        AND (SELECT count(*) FROM inserted) >= 0
    ORDER BY v.id FOR UPDATE OF v
),
updated AS (
    UPDATE conversations AS v
    SET version = v.version + 1, updated_at = c.updated_at, served_head = c.served_head,
        message_count = c.message_count, signature = c.signature, has_tools = c.has_tools,
        state = {_STATE}
    FROM locked JOIN c USING (n)
    WHERE v.pk = locked.pk AND v.version = c.version AND v.tenant = c.tenant
    RETURNING v.pk, c.n
),
passed AS MATERIALIZED (
    SELECT x.pk AS conversation_pk, c.n, c.tenant FROM inserted AS x JOIN c USING (id)
    UNION ALL SELECT x.pk, c.n, c.tenant FROM updated AS x JOIN c USING (n)
),
run AS MATERIALIZED (
    SELECT r.*, p.conversation_pk, p.tenant, coalesce(x.pk, {RUN_KEY}) AS pk,
        r.tags::jsonb || coalesce(x.tags, '{{}}') AS all_tags
    FROM r JOIN passed AS p USING (n) LEFT JOIN stored AS x USING (m)
),
kept_heads AS (
    INSERT INTO heads (root, digest, conversation_pk, kind, position, step)
    SELECT h.root, h.digest, p.conversation_pk, h.kind, h.position, h.step
    FROM h JOIN passed AS p USING (n)
    ON CONFLICT DO NOTHING
),
kept_items AS (
    INSERT INTO items AS x (tenant, id, conversation_pk, content)
    SELECT DISTINCT ON (p.tenant, i.id) p.tenant, i.id, p.conversation_pk, i.content
    FROM i JOIN passed AS p USING (n) ORDER BY p.tenant, i.id, n DESC
    ON CONFLICT (tenant, id) DO UPDATE
    SET conversation_pk = excluded.conversation_pk, content = excluded.content
),
kept_runs AS (
    INSERT INTO runs AS x (pk, conversation_pk, tenant, {_RUN}, counts, tags)
    SELECT pk, conversation_pk, tenant, {_RUN}, counts::jsonb, tags::jsonb FROM run
    ON CONFLICT (id) DO UPDATE SET
        updated_at = excluded.updated_at, ended_at = coalesce(excluded.ended_at, x.ended_at),
        state = excluded.state, mode = excluded.mode, policy_digest = excluded.policy_digest,
        model_requested = excluded.model_requested,
        outcome = CASE WHEN {_STAYS} THEN x.outcome ELSE excluded.outcome END,
        outcome_source = CASE WHEN {_STAYS} THEN x.outcome_source ELSE excluded.outcome_source END,
        {", ".join(map(_sum, SUMS))},
        counts = gateway_add_counts(x.counts, excluded.counts), bytes = x.bytes + excluded.bytes,
        tags = excluded.tags || x.tags
),
kept_steps AS (
    INSERT INTO steps (run_pk, {", ".join(STEP)})
    SELECT run.pk, {", ".join(f"s.{name}" for name in STEP)} FROM s JOIN run USING (m)
),
kept_injections AS (
    INSERT INTO injections (run_pk, {", ".join(INJECTION)})
    SELECT run.pk, {", ".join(f"g.{name}" for name in INJECTION)} FROM g JOIN run USING (m)
),
kept_decisions AS (
    INSERT INTO pattern_decisions ({_DECISION}, tenant, at)
    SELECT {", ".join(f"d.{name}" for name in DECISION)}, c.tenant, c.updated_at
    FROM d JOIN passed USING (n) JOIN c USING (n)
    ON CONFLICT DO NOTHING
),
-- Sums that all gateways add to: last, and in one order.
kept_usage AS (
    INSERT INTO usage_by_hour AS x ({_USAGE_KEY}, {_USAGE})
    SELECT u.hour, run.tenant, u.agent, u.model, run.all_tags, {_USAGE_SUMS}
    FROM u JOIN run USING (m) GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT ({_USAGE_KEY}) DO UPDATE SET {_USAGE_ADDED},
        cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN x.cost_usd
            ELSE coalesce(x.cost_usd, 0) + excluded.cost_usd END
)
SELECT c.n, p.n IS NOT NULL, b.n IS NOT NULL
FROM c LEFT JOIN passed AS p USING (n) LEFT JOIN barred AS b USING (n) ORDER BY c.n
"""


COMMIT = _commit("<= x.steps")
"""Gives for each call its number, whether it was stored, and whether it was barred."""

COMMIT_ALONE = _commit("< -1")
"""The same for a call of whose rows nothing is stored: none is barred for its steps."""
