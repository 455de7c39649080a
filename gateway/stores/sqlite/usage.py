"""Adds the calls of a commit to the sums by the hour."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence

import apsw

from gateway.stores.records import RunUpdate, StepRow
from gateway.stores.usage import AMOUNTS, SUMS

_KEY = ("hour", "tenant", "agent", "model", "tags")
_NAMES = (*SUMS, "cost_usd", *AMOUNTS)
_COLUMNS = (*_KEY, *_NAMES)
_ADD = f"""
INSERT INTO usage_by_hour ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET
    {", ".join(f"{n} = usage_by_hour.{n} + excluded.{n}" for n in (*SUMS, *AMOUNTS))},
    cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN usage_by_hour.cost_usd
        ELSE coalesce(usage_by_hour.cost_usd, 0.0) + excluded.cost_usd END
"""


def add_usage(
    tenant: str,
    run: RunUpdate,
    fresh: Sequence[StepRow],
    called: Sequence[StepRow],
    tags: str,
    connection: apsw.Connection,
) -> None:
    """Add scored steps that are stored for the first time, and calls, to the sums.

    `tags`: of the run, as its column has them.
    """
    new, made = {id(step) for step in fresh}, {id(step) for step in called}
    silent: dict[int, list[bool]] = {}
    for step in {id(step): step for step in (*fresh, *called)}.values():
        is_new = step.composite is not None and id(step) in new
        call = step.call if id(step) in made else None
        hour = int(step.at) // 3600 * 3600
        if call is not None:
            tokens = (call.input_tokens or 0, call.cached_tokens or 0, call.output_tokens or 0)
            how = (call.failed, bool(call.unsteered), call.unpriced)
            *guessed, guessed_usd = call.estimated
            amounts = (call.cost_usd, call.latency_s, guessed_usd)
            counts = (int(is_new), int(is_new and bool(step.fired)))
            values = (1, *how, *counts, *tokens, *guessed, *amounts)
            key = (hour, tenant, run.agent, call.model_asked, tags)
            connection.execute(_ADD, (*key, *values))
        elif is_new:
            silent.setdefault(hour, []).append(bool(step.fired))
    # The steps of a history that is seen for the first time: one row for all of them.
    for hour, fired in silent.items():
        none = (0, 0, 0, 0, len(fired), sum(fired), 0, 0, 0, 0, 0, None, 0.0, 0.0)
        connection.execute(_ADD, (hour, tenant, run.agent, run.model_requested, tags, *none))
