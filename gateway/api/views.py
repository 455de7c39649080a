"""Runs, steps and patterns as the control plane shows them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gateway.config import Settings
from gateway.steering.guidance.codec import to_record
from gateway.stores.patterns import StoredPattern
from gateway.stores.queries import RunTrace
from gateway.stores.totals import DANGER_COMPOSITE, WARN_COMPOSITE, RunRecord


def run_view(run: RunRecord, settings: Settings) -> dict[str, Any]:
    """A run with values derived from its totals."""
    totals = run.totals
    tokens = totals.input_tokens + totals.output_tokens
    budget = settings.steering.token_budget
    return {
        **_values(run),
        "composite_mean": totals.composite_mean,
        "duration_s": max(0.0, run.updated_at - run.started_at),
        "tokens": tokens,
        "token_budget": budget,
        "budget_used": None if budget is None else min(1.0, tokens / budget),
    }


def thresholds(settings: Settings) -> dict[str, float]:
    """The thresholds in force now, to draw next to a run's curves."""
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
    """A pattern with its owner, its times and its statistics."""
    pattern = stored.pattern
    return {
        "failure_type": None,
        "model_family": "",
        "gate_threshold": None,
        "source_trace_id": None,
        **_without(to_record(pattern), "lesson"),
        "status": pattern.lesson.status.value if pattern.lesson else "active",
        "origin": pattern.lesson.origin if pattern.lesson else "",
        "tenant": pattern.tenant,
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
        "counts": {"injected": stored.counts.get("injected", 0)},
        "indexed": stored.indexed,
    }


def _without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def _values(record: Struct, *without: str) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name not in without}
