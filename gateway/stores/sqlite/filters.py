"""A RunFilter as SQL."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from typing import Any

from gateway.stores.queries import UNFINISHED, RunFilter

_EQUAL = {
    "tenant": "r.tenant = ?",
    "conversation_id": "r.conversation_pk = (SELECT pk FROM conversations WHERE id = ?)",
    "agent": "r.agent = ?",
    "experiment": "r.experiment = ?",
    "arm": "r.arm = ?",
    "mode": "r.mode = ?",
    "key_name": "r.key_name = ?",
    "since": "r.started_at >= ?",
    "until": "r.started_at < ?",
}


def where(runs: RunFilter) -> tuple[str, list[Any]]:
    """A condition over `runs AS r`, and its values."""
    conditions, values = ["TRUE"], []
    for name, condition in _EQUAL.items():
        if (value := getattr(runs, name)) is not None:
            conditions.append(condition)
            values.append(value)
    for condition, bound in (*_outcome(runs), *_task(runs), *_tags(runs), *_counted(runs)):
        conditions.append(condition)
        values.extend(bound)
    return " AND ".join(conditions), values


def _outcome(runs: RunFilter) -> list[tuple[str, list[Any]]]:
    if runs.outcome is None:
        return []
    if runs.outcome == UNFINISHED:
        return [("r.outcome IS NULL", [])]
    return [("r.outcome = ?", [runs.outcome])]


def _task(runs: RunFilter) -> list[tuple[str, list[Any]]]:
    if runs.task is None:
        return []
    escaped = runs.task.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return [(r"r.task_preview LIKE ? ESCAPE '\'", [f"%{escaped}%"])]


def _tags(runs: RunFilter) -> list[tuple[str, list[Any]]]:
    has = "EXISTS (SELECT 1 FROM json_each(r.tags) WHERE key = ? AND value = coalesce(?, value))"
    return [(has, [name, value]) for name, value in runs.tags]


def _counted(runs: RunFilter) -> list[tuple[str, list[Any]]]:
    def has(counter: str) -> str:
        return f"EXISTS (SELECT 1 FROM json_each(r.counts, '$.{counter}') WHERE key = ?)"

    found: list[tuple[str, list[Any]]] = []
    if runs.model is not None:
        either = f"(r.model_requested = ? OR {has('models')})"
        found.append((either, [runs.model, runs.model]))
    if runs.state is not None:
        found.append((f"(r.state = ? OR {has('states')})", [runs.state, runs.state]))
    if runs.failure_type is not None:
        found.append((has("failure_types"), [runs.failure_type]))
    if runs.monitor is not None:
        found.append((has("fired"), [runs.monitor]))
    return found
