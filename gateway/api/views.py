"""Runs, steps and patterns as plain values, for the control plane, pages and commands.

Plain values are many times faster than pydantic for long traces. Pydantic types describe them in
the OpenAPI document, and a test compares the two."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from gateway.config import Settings
from gateway.reporting.trace_state import assessment
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.patterns import StoredPattern
from gateway.stores.records import InjectionRow, StepContent, StepRow
from gateway.stores.severity import DANGER_COMPOSITE, WARN_COMPOSITE
from gateway.stores.totals import RunRecord
from gateway.stores.traces import RunTrace
from gateway.text.page import rendered
from gateway.values import FieldDict


def run_view(run: RunRecord, settings: Settings) -> FieldDict:
    """A run with values derived from its totals."""
    totals = run.totals
    budget = settings.steering.token_budget
    return {
        **_values(run),
        **totals.in_words,
        "composite_mean": totals.composite_mean,
        "duration_s": run.duration_s,
        "handed_over": run.handed_over,
        "tokens": totals.tokens,
        "token_budget": budget,
        "budget_used": None if budget is None else min(1.0, totals.tokens / budget),
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
        "at_risk": WARN_COMPOSITE,
        "in_trouble": DANGER_COMPOSITE,
        "warn": WARN_COMPOSITE,
        "danger": DANGER_COMPOSITE,
    }


def step_views(trace: RunTrace) -> list[FieldDict]:
    """The steps, each with the guidance decided at it."""
    guidance: dict[int, list[FieldDict]] = {}
    for row in trace.injections:
        guidance.setdefault(row.step_index, []).append(_values(row, "run_id", "step_index"))
    return [
        {
            **_values(step, "run_id"),
            "assessment": assessment(step),
            "guidance": guidance.get(step.step_index, []),
        }
        for step in trace.steps
    ]


def pattern_view(stored: StoredPattern) -> FieldDict:
    """A pattern with its owner, its times and its statistics."""
    pattern = stored.pattern
    lesson = pattern.lesson
    return {
        **_values(pattern, "lesson"),
        "tier": pattern.tier.value,
        "status": lesson.status.value if lesson else "active",
        "origin": lesson.origin if lesson else "",
        **picked(stored, "created_at", "updated_at", "indexed"),
        "counts": {"injected": stored.injected},
    }


def _values(record: Struct, *without: str) -> FieldDict:
    return {name: value for name, value in asdict(record).items() if name not in without}


def picked(value: object, *names: str) -> FieldDict:
    """Some attributes of a value by their names."""
    return {name: getattr(value, name) for name in names}


def step_text(step: StepRow, guidance: Sequence[InjectionRow]) -> str:
    """The texts of a step under headings, sanitized for a terminal and a browser."""
    content = step.content or StepContent()
    values = {"step": step, "content": content, "guidance": guidance, "labels": KIND_LABELS}
    return rendered(__package__, "step.txt", values).rstrip()
