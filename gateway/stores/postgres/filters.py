"""A RunFilter as SQL."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.stores.postgres.text import Arguments
from gateway.stores.queries import UNFINISHED, RunFilter

_EQUAL = {
    "tenant": "r.tenant = {}",
    "conversation_id": "r.conversation_pk = (SELECT pk FROM conversations WHERE id = {})",
    "agent": "r.agent = {}",
    "experiment": "r.experiment = {}",
    "arm": "r.arm = {}",
    "mode": "r.mode = {}",
    "key_name": "r.key_name = {}",
    "since": "r.started_at >= {}",
    "until": "r.started_at < {}",
}


def where(runs: RunFilter, values: Arguments) -> str:
    """A condition over `runs AS r`, whose values are added to `values`."""
    return " AND ".join(["TRUE", *_conditions(runs, values)])


def _conditions(runs: RunFilter, values: Arguments) -> Iterator[str]:
    for name, condition in _EQUAL.items():
        if (value := getattr(runs, name)) is not None:
            yield condition.format(values.add(value))
    if runs.outcome == UNFINISHED:
        yield "r.outcome IS NULL"
    elif runs.outcome is not None:
        yield f"r.outcome = {values.add(runs.outcome)}"
    if runs.task is not None:
        escaped = runs.task.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        yield f"r.task_preview ILIKE {values.add(f'%{escaped}%')}"
    for tag, wanted in runs.tags:
        name = values.add(tag)
        if wanted is None:
            yield f"r.tags ? {name}"
        else:
            yield f"r.tags ->> {name} = {values.add(wanted)}"
    yield from _counted(runs, values)


def _counted(runs: RunFilter, values: Arguments) -> Iterator[str]:
    if runs.model is not None:
        model = values.add(runs.model)
        yield f"(r.model_requested = {model} OR r.counts -> 'models' ? {model})"
    if runs.state is not None:
        state = values.add(runs.state)
        yield f"(r.state = {state} OR r.counts -> 'states' ? {state})"
    if runs.failure_type is not None:
        yield f"r.counts -> 'failure_types' ? {values.add(runs.failure_type)}"
    if runs.monitor is not None:
        yield f"r.counts -> 'fired' ? {values.add(runs.monitor)}"
