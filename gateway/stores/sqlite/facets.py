"""The choices of a filter in SQLite, without reading every run."""

from __future__ import annotations

import apsw

from gateway.stores.queries import Facets, RunFilter
from gateway.stores.sqlite import filters

# From one name to the next in the index of experiments.
_NEXT_EXPERIMENT = """
SELECT r.experiment FROM runs AS r WHERE r.experiment > ? AND {condition}
ORDER BY r.experiment LIMIT 1
"""
_NEWEST = """
WITH newest AS MATERIALIZED (
    SELECT r.agent, r.arm, r.counts FROM runs AS r WHERE {condition}
    ORDER BY r.started_at DESC, r.id DESC LIMIT {newest}
)
SELECT 'agents', agent FROM newest
UNION SELECT 'arms', arm FROM newest
UNION SELECT 'models', k.key FROM newest, json_each(newest.counts, '$.models') AS k
UNION SELECT 'failure_types', k.key FROM newest, json_each(newest.counts, '$.failure_types') AS k
"""


def facets(runs: RunFilter, newest: int, connection: apsw.Connection) -> Facets:
    """See RunStore.facets."""
    condition, values = filters.where(runs)
    found: dict[str, set[str]] = {"experiments": set()}
    sql, name = _NEXT_EXPERIMENT.format(condition=condition), ""
    while rows := connection.execute(sql, (name, *values)).fetchall():
        name = str(rows[0][0])
        found["experiments"].add(name)
    sql = _NEWEST.format(condition=condition, newest=newest)
    for kind, value in connection.execute(sql, values):
        if value:
            found.setdefault(str(kind), set()).add(str(value))
    return Facets(**{kind: tuple(sorted(names)) for kind, names in found.items()})
