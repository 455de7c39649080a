"""Sums over trees and groups of runs, and those of calls by the hour, to which each commit adds.

Sums, because the steps of ten thousand runs are too many to read for one page; by the call and not
by the run, because one run may last for days. They stay when retention removes the runs. Also a
`RunFilter` as SQL (`where`), and the values that occur for its choices."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.errors import ON_TROUBLE, UNANSWERED, BudgetExceeded
from gateway.stores import filters, usage
from gateway.stores.codec import HOLD, STOP_COLUMNS
from gateway.stores.controls import GATEWAY
from gateway.stores.filters import ANY, LIVE, UNFINISHED, Facets, RunFilter
from gateway.stores.records import IMPORTED
from gateway.stores.severity import DANGER_COMPOSITE, LENGTH_MONITOR, STUCK_STEPS, WARN_COMPOSITE
from gateway.stores.sql.engine import (
    Connection,
    Engine,
    Row,
    SqlForms,
    conditions,
    row_of,
)
from gateway.stores.usage import AMOUNTS, SUMS, UsagePoint, UsageQuery, bucket_sql, tag_of
from gateway.values import FieldDict, by_name

_EQUAL = ("tenant", "agent", "experiment", "arm", "key_name")
# A condition over `runs AS r`: the run was not imported.
IS_LIVE = f"r.mode <> '{IMPORTED}'"

# From one name to the next in the index of experiments.
_FACETS = """
WITH RECURSIVE names (name) AS (
    SELECT (SELECT r.experiment FROM runs AS r WHERE r.experiment > '' AND {condition}
        ORDER BY r.experiment LIMIT 1)
    UNION ALL
    SELECT (SELECT r.experiment FROM runs AS r WHERE r.experiment > names.name AND {condition}
        ORDER BY r.experiment LIMIT 1)
    FROM names WHERE names.name IS NOT NULL
), newest AS MATERIALIZED (
    SELECT r.agent, r.arm, CASE WHEN {is_live} THEN r.tags END AS tags,
        r.counts -> 'models' AS models, r.counts -> 'failure_types' AS failure_types
    FROM runs AS r WHERE {condition} ORDER BY r.started_at DESC, r.id DESC LIMIT {newest}
)
SELECT 'experiments', name FROM names
UNION ALL SELECT DISTINCT 'agents', agent FROM newest
UNION ALL SELECT DISTINCT 'arms', arm FROM newest
UNION ALL SELECT DISTINCT 'tags', CAST(tags AS TEXT) FROM newest
UNION ALL SELECT DISTINCT 'models', CAST(models AS TEXT) FROM newest
UNION ALL SELECT DISTINCT 'failure_types', CAST(failure_types AS TEXT) FROM newest
"""


def where(runs: RunFilter, forms: SqlForms, first: int = 0) -> tuple[str, FieldDict]:
    """A condition over `runs AS r`, and its values. `first`: the lowest key of the runs that are
    searched."""
    of_conversation = "r.conversation_pk = (SELECT pk FROM conversations WHERE id = :conversation)"
    counted = {
        "model": "r.model_requested = :model OR " + forms.has("r.counts", "model", "models"),
        "state": "r.state = :state OR " + forms.has("r.counts", "state", "states"),
        "failure_type": forms.has("r.counts", "failure_type", "failure_types"),
        "monitor": forms.has("r.counts", "monitor", "fired"),
        "intervention": forms.has("r.counts", "intervention", "human"),
    }
    escaped = re.sub("([!%_])", r"!\1", runs.task or "")
    if runs.task is None:
        task = None
    else:
        task = f"%{escaped}%"
    wanted = {
        **{name: (f"r.{name} = :{name}", getattr(runs, name)) for name in _EQUAL},
        "conversation": (of_conversation, runs.conversation_id),
        "mode": (IS_LIVE if runs.mode == LIVE else "r.mode = :mode", runs.mode),
        "since": ("r.started_at >= :since", runs.since),
        "until": ("r.started_at < :until", runs.until),
        "outcome": (
            "r.outcome IS NULL" if runs.outcome == UNFINISHED else "r.outcome = :outcome",
            runs.outcome,
        ),
        "task": ("lower(r.task_preview) LIKE lower(:task) ESCAPE '!'", task),
        **{name: (f"({sql})", getattr(runs, name)) for name, sql in counted.items()},
        "stopped": (
            _stopper(forms) + (" IS NOT NULL" if runs.stopped == ANY else " = :stopped"),
            runs.stopped,
        ),
        # A planner takes a third of all runs for a condition like this, but few for `=`.
        "severity": (f"coalesce({severity_sql(forms)} = :severity, FALSE)", runs.severity),
    }
    for number, (words, begins) in enumerate(filters.phrases(runs.search or "")):
        name = f"words{number}"
        wanted[name] = (forms.found(name), forms.phrase(words, begins))
    for number, (tag, value) in enumerate(runs.tags):
        name = f"tag{number}"
        found = forms.entry("r.tags", name)
        wanted[name] = (f"{found} IS NOT NULL", tag)
        wanted[f"{name}_value"] = (f"{found} = :{name}_value", value)
    if (runs.search or "").strip() and "words0" not in wanted:
        wanted["words0"] = ("CAST(:words0 AS TEXT) = ''", runs.search)  # signs alone are in no text
    values: FieldDict = {"first": first}
    return conditions(wanted, values), values


# As `held` tells it, by the author.
_HELD_BY = f"""CASE WHEN h.author <> '{GATEWAY}' THEN 'operator'
    WHEN h.reason LIKE '{ON_TROUBLE}%' THEN 'on_trouble'
    WHEN h.reason LIKE '{UNANSWERED}%' THEN 'ask' ELSE 'operator' END"""
_HOLDER = f"(SELECT {HOLD.format(_HELD_BY)} FROM conversations AS c WHERE c.pk = r.conversation_pk)"
# Few runs have errors or are held: each kind is found by an index, and only they are asked.
_STOPPER = f"""r.pk IN (
    SELECT x.pk FROM runs AS x WHERE x.errors > 0
    UNION ALL SELECT x.pk FROM run_controls AS h CROSS JOIN runs AS x WHERE x.id = h.subject
    UNION ALL SELECT x.pk FROM run_controls AS h CROSS JOIN conversations AS c
    JOIN runs AS x ON x.conversation_pk = c.pk
    WHERE c.id = h.subject OR c.parent_id = h.subject OR c.root_id = h.subject
) AND coalesce({_HOLDER}, CASE WHEN {{error}} = '{BudgetExceeded.label}' THEN 'budget' END)"""


def _stopper(forms: SqlForms) -> str:
    """SQL for `stopped.by` of a run, to be compared; few newest calls are read."""
    return _STOPPER.format(error=forms.member(STOP_COLUMNS[0], "error"))


_STEPS_IN = "coalesce(CAST(r.counts -> 'states' ->> '{}' AS BIGINT), 0)"
_SEVERITY = f"""(CASE
    WHEN r.composite_peak >= {DANGER_COMPOSITE} OR {_STEPS_IN.format("SKIP")} > 0
    OR r.counts -> 'fired' <> '{{{{}}}}' AND EXISTS (
        SELECT 1 FROM {{fired}} WHERE k.key <> '{LENGTH_MONITOR}'
        AND CAST(k.value AS BIGINT) >= {STUCK_STEPS}
    ) THEN 'danger'
    WHEN r.composite_peak >= {WARN_COMPOSITE} OR r.counts -> 'fired' <> '{{{{}}}}'
    OR {_STEPS_IN.format("SLOW")} > 0 THEN 'warn' ELSE 'low'
END)"""


def severity_sql(forms: SqlForms) -> str:
    """SQL for `run_severity` of a run."""
    return _SEVERITY.format(fired=forms.keys("r.counts", "fired"))


async def facets(runs: RunFilter, newest: int, forms: SqlForms, connection: Connection) -> Facets:
    """The choices of a filter, without reading every run; see RunStore."""
    condition, values = where(runs, forms)
    found = defaultdict(set)
    sql = _FACETS.format(
        condition=condition,
        newest=newest,
        is_live=IS_LIVE,
    )
    for kind, value in await connection.fetch(sql, **values):
        if value:
            found[kind].add(value)
    for kind in ("tags", "models", "failure_types"):
        found[kind] = {name for text in found[kind] for name in orjson.loads(text) or ()}
    return Facets(**{kind: tuple(sorted(names)) for kind, names in found.items()})


_ARMS = """
SELECT r.experiment, r.arm, count(*) FROM runs AS r
WHERE r.experiment > '' AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant) GROUP BY 1, 2
"""
_BY = {"model": ("model", "model_requested"), "agent": ("agent",) * 2, "tenant": ("tenant",) * 2}
_STARTED_HOUR = "(CAST(floor(r.started_at / 3600) AS BIGINT) * 3600)"
_AMOUNTS = ("cost_usd", *AMOUNTS)
# The sums that a commit adds to, for an hour, an agent and a model.
ADDED = (*SUMS, *_AMOUNTS)

_SUMMED = ", ".join(
    [*[f"CAST(sum(u.{name}) AS BIGINT)" for name in SUMS], *[f"sum(u.{name})" for name in _AMOUNTS]]
)
_OUTCOMES = ("runs", "successes", "failures")


async def usage_of(query: UsageQuery, forms: SqlForms, connection: Connection) -> list[UsagePoint]:
    values = row_of(query, ("since", "until", "tenant", "agent", "model"))
    values["by_tag"] = tag_of(query.by or "")
    sql = f"""
        SELECT {bucket_sql("u.hour", query.bucket)}, {_name(query, forms, "u", which=0)}, {_SUMMED}
        FROM usage_by_hour AS u WHERE {_where(query, "u", "hour", model="model")} GROUP BY 1, 2
    """
    usage = _by_place(ADDED, await connection.fetch(sql, **values))
    where = _where(query, "r", "started_at", model="model_requested")
    sql = f"""
        SELECT {bucket_sql(_STARTED_HOUR, query.bucket)}, {_name(query, forms, "r", which=1)},
            count(*), count(*) FILTER (WHERE r.outcome = 'success'),
            count(*) FILTER (WHERE r.outcome = 'failure')
        FROM runs AS r WHERE {IS_LIVE} AND {where}
        GROUP BY 1, 2
    """
    outcomes = _by_place(_OUTCOMES, await connection.fetch(sql, **values))
    return [
        UsagePoint(start=key[0], name=key[1], **usage.get(key, {}), **outcomes.get(key, {}))
        for key in sorted({*usage, *outcomes})
    ]


def _by_place(names: Sequence[str], rows: Sequence[Row]) -> dict[tuple[Any, Any], FieldDict]:
    """Sums by bucket and name."""
    return {(row[0], row[1]): by_name(names, row[2:]) for row in rows}


def _name(query: UsageQuery, forms: SqlForms, table: str, which: int) -> str:
    """The SQL expression that calls (0) and runs (1) are grouped by."""
    if query.by is None:
        return "''"
    if tag_of(query.by):
        return f"coalesce({forms.entry(f'{table}.tags', 'by_tag')}, '')"
    return f"{table}.{_BY[query.by][which]}"


def _where(query: UsageQuery, table: str, time: str, model: str) -> str:
    conditions = [
        f"{table}.{time} >= CAST(:since AS DOUBLE PRECISION)",
        f"{table}.{time} < CAST(:until AS DOUBLE PRECISION)",
    ]
    names = {"tenant": "tenant", "model": model, "agent": "agent"}
    wanted = {name: column for name, column in names.items() if getattr(query, name) is not None}
    return " AND ".join([*conditions, *[f"{table}.{c} = :{name}" for name, c in wanted.items()]])


def _sum(name: str) -> str:
    # sum() of only unknown values is NULL: the cost stays unknown.
    if name.endswith("usd"):
        return f"sum(r.{name}) AS {name}"
    return f"CAST(coalesce(sum(r.{name}), 0) AS BIGINT) AS {name}"


_SUMS = ", ".join([_sum(name) for name in usage.SUMMED if name not in usage.ESTIMATED])
_ESTIMATES = ", ".join(
    [
        f"sum(CAST(r.counts -> 'estimated' ->> '{member}' AS DOUBLE PRECISION)) AS {name}"
        for name, member in usage.ESTIMATED.items()
    ]
)
# The few runs with estimates are read apart, by an index.
_GROUPS = f"""
SELECT g.*, CAST(coalesce(e.estimated_calls, 0) AS BIGINT),
    CAST(coalesce(e.estimated_tokens, 0) AS BIGINT), coalesce(e.estimated_usd, 0.0)
FROM (
    SELECT {{value}} AS value, count(r.pk) AS runs, {_SUMS} FROM runs AS r
    WHERE {{condition}} GROUP BY 1
) AS g LEFT JOIN (
    SELECT {{value}} AS value, {_ESTIMATES} FROM runs AS r
    WHERE {{condition}} AND r.counts -> 'estimated' <> '{{{{}}}}' GROUP BY 1
) AS e ON e.value = g.value
ORDER BY coalesce(g.cost_usd, 0) DESC, 1
"""
_EXPRESSIONS = {"key": "r.key_name", "model": "r.model_requested"} | {
    name: f"coalesce(r.{name}, '')"
    for name in ("tenant", "agent", "experiment", "arm", "mode", "outcome", "state")
}


class AttributionStore:
    """Sums over the run log. Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def groups(self, runs: RunFilter, by: str) -> tuple[usage.Group, ...]:
        """The runs that match (`RunFilter.summed`), by one of GROUPS or `tag:NAME`, the costliest
        first. Raises: ValueError for another `by`."""
        if by not in usage.GROUPS and not (by.startswith(usage.TAG) and len(by) > len(usage.TAG)):
            raise ValueError(
                f"by: must be {usage.TAG}NAME or one of {', '.join(usage.GROUPS)}, not {by[:60]!r}"
            )
        forms = self._engine.forms
        condition, values = where(runs.summed, forms)
        if by.startswith(usage.TAG):
            expression = f"coalesce({forms.entry('r.tags', 'by_tag')}, '')"
        elif by == "day":
            expression = forms.day("r.started_at")
        elif by == "week":
            expression = forms.day(bucket_sql(_STARTED_HOUR, "week"))
        else:
            expression = _EXPRESSIONS[by]
        value = f"({expression}) {forms.bytewise}"
        sql = _GROUPS.format(value=value, condition=condition)
        rows = await self._engine.fetch(sql, by_tag=by.removeprefix(usage.TAG), **values)
        return tuple(
            [
                usage.Group(
                    value=str(value),
                    sums=usage.Sums(runs=runs, **by_name(usage.SUMMED, sums)),
                )
                for value, runs, *sums in rows
            ]
        )

    async def arms(self, tenant: str | None) -> Sequence[Row]:
        """The runs of each experiment by arm: its id, the arm, their number."""
        return await self._engine.fetch(_ARMS, tenant=tenant)
