"""Runs, steps and patterns as the control plane shows them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.api.schema import Schema, nullable, object_of, schema_of
from gateway.config import Settings
from gateway.steering.etrace.codec import to_record
from gateway.stores.patterns import StoredPattern
from gateway.stores.queries import RunTrace
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import DANGER_COMPOSITE, WARN_COMPOSITE, RunRecord

_NUMBER: Schema = {"type": "number"}

RUN: Schema = object_of(
    RunRecord,
    composite_mean={"type": "number", "minimum": 0, "maximum": 1},
    duration_s={"type": "number", "description": "From the first call to the newest."},
    tokens={"type": "integer", "description": "Input and output tokens together."},
    token_budget={"type": ["integer", "null"], "description": "steering.token_budget."},
    budget_used={"type": ["number", "null"], "description": "Tokens over the budget."},
)
GUIDANCE: Schema = object_of(InjectionRow, without=("run_id", "step_index"))
STEP: Schema = object_of(
    StepRow, without=("run_id",), guidance={"type": "array", "items": GUIDANCE}
)
_LINES = ("fast", "slow", "skip", "margin", "fire", "warn", "danger")
THRESHOLDS: Schema = {
    "type": "object",
    "description": "The lines to read the curves by: those in force now.",
    "properties": dict.fromkeys(_LINES, _NUMBER),
    "required": list(_LINES),
}
TRACE: Schema = {
    "type": "object",
    "properties": {
        "run": RUN,
        "steps": {"type": "array", "items": STEP},
        "next_after_step": {
            "type": ["integer", "null"],
            "description": "`after_step` of the next part; null when there is none.",
        },
        "thresholds": THRESHOLDS,
        "policy_in_force": {
            "type": "boolean",
            "description": "Whether the run's newest step was decided by the policy of now.",
        },
    },
    "required": ["run", "steps", "next_after_step", "thresholds", "policy_in_force"],
}
PATTERN: Schema = {
    "type": "object",
    "properties": {
        "pattern_id": {"type": "string"},
        "tier": {"enum": ["e1", "e2", "e3"]},
        "tenant": {"type": "string", "description": "Empty for what all tenants share."},
        "failure_type": {"type": ["string", "null"]},
        "model_family": {"type": "string"},
        "gate_threshold": nullable({"type": "number"}),
        "source_trace_id": {"type": ["string", "null"]},
        "fields": {"type": "object"},
        "created_at": _NUMBER,
        "updated_at": _NUMBER,
        "counts": schema_of(dict[str, int]),
        "indexed": {"type": "boolean", "description": "Whether a look-up can find it."},
    },
    "required": ["pattern_id", "tier", "tenant", "fields", "counts", "indexed"],
}


def run_view(run: RunRecord, settings: Settings) -> dict[str, Any]:
    """A run with what follows from its totals."""
    totals = run.totals
    tokens = totals.input_tokens + totals.output_tokens
    budget = settings.steering.token_budget
    return {
        **_values(run),
        "composite_mean": totals.composite_mean,
        "duration_s": max(0.0, run.updated_at - run.started_at),
        "tokens": tokens,
        "token_budget": budget,
        "budget_used": None if budget is None else tokens / budget,
    }


def thresholds(settings: Settings) -> dict[str, float]:
    """The lines to read a run's curves by."""
    fsm = settings.fsm
    return {
        "fast": fsm.fast_threshold,
        "slow": fsm.slow_threshold,
        "skip": fsm.skip_threshold,
        "margin": fsm.hysteresis_margin,
        "fire": settings.monitors.fire_threshold,
        "warn": WARN_COMPOSITE,
        "danger": DANGER_COMPOSITE,
    }


def step_views(trace: RunTrace) -> list[dict[str, Any]]:
    """The steps, each with the guidance decided at it."""
    guidance: dict[int, list[dict[str, Any]]] = {}
    for row in trace.injections:
        guidance.setdefault(row.step_index, []).append(_values(row, "run_id", "step_index"))
    return [
        {**_values(step, "run_id"), "guidance": guidance.get(step.step_index, [])}
        for step in trace.steps
    ]


def pattern_view(stored: StoredPattern) -> dict[str, Any]:
    """A pattern with its owner and its history."""
    pattern = stored.pattern
    return {
        "failure_type": None,
        "model_family": "",
        "gate_threshold": None,
        "source_trace_id": None,
        **to_record(pattern),
        "tenant": pattern.tenant,
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
        "counts": dict(stored.counts),
        "indexed": stored.indexed,
    }


def _values(record: Any, *without: str) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record) if f.name not in without}
