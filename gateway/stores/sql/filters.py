"""A RunFilter as SQL, and the values that occur for its choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.stores.queries import UNFINISHED, Facets, RunFilter
from gateway.stores.sql.engine import Connection, Dialect

_EQUAL = {
    "tenant": "r.tenant = :tenant",
    "conversation_id": (
        "r.conversation_pk = (SELECT pk FROM conversations WHERE id = :conversation_id)"
    ),
    "agent": "r.agent = :agent",
    "experiment": "r.experiment = :experiment",
    "arm": "r.arm = :arm",
    "mode": "r.mode = :mode",
    "key_name": "r.key_name = :key_name",
    "since": "r.started_at >= :since",
    "until": "r.started_at < :until",
}
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
    return " AND ".join(["TRUE", *_conditions(runs, values, dialect)])


def _conditions(runs: RunFilter, values: dict[str, Any], dialect: Dialect) -> Iterator[str]:
    for name, condition in _EQUAL.items():
        if (value := getattr(runs, name)) is not None:
            values[name] = value
            yield condition
    if runs.outcome == UNFINISHED:
        yield "r.outcome IS NULL"
    elif runs.outcome is not None:
        values["outcome"] = runs.outcome
        yield "r.outcome = :outcome"
    if runs.task is not None:
        escaped = runs.task.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        values["task"] = f"%{escaped}%"
        yield dialect.contains("r.task_preview", "task")
    for number, (tag, wanted) in enumerate(runs.tags):
        values[f"tag{number}"], values[f"tag_value{number}"] = tag, wanted
        if wanted is None:
            yield dialect.has("r.tags", f"tag{number}")
        else:
            yield f"{dialect.entry('r.tags', f'tag{number}')} = :tag_value{number}"
    yield from _counted(runs, values, dialect)


def _counted(runs: RunFilter, values: dict[str, Any], dialect: Dialect) -> Iterator[str]:
    for name in ("model", "state", "failure_type", "monitor"):
        if (value := getattr(runs, name)) is not None:
            values[name] = value
    if runs.model is not None:
        yield f"(r.model_requested = :model OR {dialect.has('r.counts', 'model', 'models')})"
    if runs.state is not None:
        yield f"(r.state = :state OR {dialect.has('r.counts', 'state', 'states')})"
    if runs.failure_type is not None:
        yield dialect.has("r.counts", "failure_type", "failure_types")
    if runs.monitor is not None:
        yield dialect.has("r.counts", "monitor", "fired")


async def facets(runs: RunFilter, newest: int, dialect: Dialect, connection: Connection) -> Facets:
    """Without reading every run."""
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
