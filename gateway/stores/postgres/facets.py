"""The choices of a filter in PostgreSQL, without reading every run."""

from __future__ import annotations

import asyncpg

from gateway.stores.postgres import filters
from gateway.stores.postgres.text import Arguments, read_text
from gateway.stores.queries import Facets, RunFilter

# From one name to the next in the index of experiments.
_EXPERIMENTS = """
WITH RECURSIVE names (name) AS (
    (SELECT r.experiment FROM runs AS r WHERE r.experiment > '' AND {condition}
        ORDER BY r.experiment LIMIT 1)
    UNION ALL
    SELECT (SELECT r.experiment FROM runs AS r WHERE r.experiment > names.name AND {condition}
        ORDER BY r.experiment LIMIT 1)
    FROM names WHERE names.name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_NEWEST = """
WITH newest AS MATERIALIZED (
    SELECT r.agent, r.arm, r.counts FROM runs AS r WHERE {condition}
    ORDER BY r.started_at DESC, r.id DESC LIMIT {newest}
)
SELECT 'agents', agent FROM newest
UNION SELECT 'arms', arm FROM newest
UNION SELECT 'models', jsonb_object_keys(counts -> 'models') FROM newest
UNION SELECT 'failure_types', jsonb_object_keys(counts -> 'failure_types') FROM newest
"""


async def facets(runs: RunFilter, newest: int, connection: asyncpg.Connection) -> Facets:
    """See RunStore.facets."""
    values = Arguments()
    condition = filters.where(runs, values)
    rows = await connection.fetch(_EXPERIMENTS.format(condition=condition), *values)
    found: dict[str, set[str]] = {"experiments": {read_text(name) for (name,) in rows}}
    sql = _NEWEST.format(condition=condition, newest=newest)
    for kind, value in await connection.fetch(sql, *values):
        if value:
            found.setdefault(kind, set()).add(read_text(value))
    return Facets(**{kind: tuple(sorted(names)) for kind, names in found.items()})
