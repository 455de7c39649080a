"""A RunFilter as SQL, and the values that occur for its choices."""

import re
from typing import Any

from gateway.stores.queries import LIVE, UNFINISHED, Facets, RunFilter
from gateway.stores.records import IMPORTED
from gateway.stores.sql.engine import Connection, Dialect, conditions

_EQUAL = ("tenant", "agent", "experiment", "arm", "key_name")
IS_LIVE = f"r.mode <> '{IMPORTED}'"
"""A condition over `runs AS r`: the run was not imported."""

# From one name to the next in the index of experiments.
_EXPERIMENTS = """
WITH RECURSIVE names (name) AS (
    SELECT (SELECT r.experiment FROM runs AS r WHERE r.experiment > '' AND {condition}
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
UNION SELECT 'models', k.key FROM newest, {models}
UNION SELECT 'failure_types', k.key FROM newest, {failure_types}
"""


def where(runs: RunFilter, values: dict[str, Any], dialect: Dialect) -> str:
    """A condition over `runs AS r`, whose values are added to `values`."""
    of_conversation = "r.conversation_pk = (SELECT pk FROM conversations WHERE id = :conversation)"
    counted = {
        "model": "r.model_requested = :model OR " + dialect.has("r.counts", "model", "models"),
        "state": "r.state = :state OR " + dialect.has("r.counts", "state", "states"),
        "failure_type": dialect.has("r.counts", "failure_type", "failure_types"),
        "monitor": dialect.has("r.counts", "monitor", "fired"),
        "intervention": dialect.has("r.counts", "intervention", "human"),
    }
    escaped = re.sub("([!%_])", r"!\1", runs.task or "")
    task = None if runs.task is None else f"%{escaped}%"
    wanted = {
        **{name: (f"r.{name} = :{name}", getattr(runs, name)) for name in _EQUAL},
        "conversation": (of_conversation, runs.conversation_id),
        "mode": ("r.mode = :mode", None if runs.mode == LIVE else runs.mode),
        "since": ("r.started_at >= :since", runs.since),
        "until": ("r.started_at < :until", runs.until),
        "outcome": ("r.outcome = :outcome", None if runs.outcome == UNFINISHED else runs.outcome),
        "task": ("lower(r.task_preview) LIKE lower(:task) ESCAPE '!'", task),
        **{name: (f"({sql})", getattr(runs, name)) for name, sql in counted.items()},
    }
    for number, (tag, value) in enumerate(runs.tags):
        name = f"tag{number}"
        found = dialect.entry("r.tags", name)
        wanted[name] = (f"{found} IS NOT NULL", tag)
        wanted[f"{name}_value"] = (f"{found} = :{name}_value", value)
    unfinished = " AND r.outcome IS NULL" if runs.outcome == UNFINISHED else ""
    live = f" AND {IS_LIVE}" if runs.mode == LIVE else ""
    return conditions(wanted, values) + unfinished + live


async def facets(runs: RunFilter, newest: int, dialect: Dialect, connection: Connection) -> Facets:
    """The choices of a filter, without reading every run; see RunStore."""
    values: dict[str, Any] = {}
    condition = where(runs, values, dialect)
    rows = await connection.fetch(_EXPERIMENTS.format(condition=condition), **values)
    found: dict[str, set[str]] = {"experiments": {name for (name,) in rows}}
    sql = _NEWEST.format(
        condition=condition,
        newest=newest,
        models=dialect.keys("newest.counts", "models"),
        failure_types=dialect.keys("newest.counts", "failure_types"),
    )
    for kind, value in await connection.fetch(sql, **values):
        if value:
            found.setdefault(kind, set()).add(value)
    return Facets(**{kind: tuple(sorted(names)) for kind, names in found.items()})
