"""A run as the report of its experiment reads it: the sums that arms are compared by, no texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

COLUMNS = """
r.id, r.started_at, r.arm, coalesce(nullif(r.unit, ''), c.id), r.outcome,
r.profile, r.agent, r.model_requested, r.tenant, r.policy_digest,
r.steps, r.scored_steps, r.input_tokens, r.cached_tokens, r.input_tokens + r.output_tokens,
CASE WHEN r.unpriced_calls = 0 THEN r.cost_usd END,
r.composite_peak, r.composite_sum, r.injections, r.counts
"""
"""What `experiment_run_of` reads, from `codec.RUNS`: the fields of ExperimentRun in order."""

AT_ONCE = 5_000
"""Runs read at once: about 50 ms in the thread that reads; other reads come between."""


class ExperimentRun(Struct, frozen=True):
    """One run of an experiment; fields are as in RunRecord and RunTotals, except these.

    `unit`: the conversation where no unit was named. `tokens`: input and output. `cost_usd`: None
    where the price of a call is unknown. `estimated`: how much of the sums is estimated, as
    `calls`, `tokens` and `cost_usd`.
    """

    id: str
    started_at: float
    arm: str | None
    unit: str
    outcome: str | None
    profile: str
    agent: str
    model_requested: str
    tenant: str
    policy_digest: str
    steps: int
    scored_steps: int
    input_tokens: int
    cached_tokens: int
    tokens: int
    cost_usd: float | None
    composite_peak: float
    composite_sum: float
    injections: int
    models: Mapping[str, int]
    estimated: Mapping[str, float]


def experiment_run_of(row: Sequence[Any]) -> ExperimentRun:
    """From COLUMNS."""
    *values, text = row
    counts = orjson.loads(text)
    return ExperimentRun(*(*values, counts.get("models", {}), counts.get("estimated", {})))
