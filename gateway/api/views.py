"""Runs, steps, patterns and lessons as plain values, for the control plane, pages and commands.

Plain values are many times faster than pydantic for long traces. Pydantic types describe them in
the OpenAPI document, and a test compares the two."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from gateway.config import Settings
from gateway.config.models import ReaderSettings
from gateway.core.pattern import Lesson, content
from gateway.learning.life_cycle import why_not_active
from gateway.reader.reader import JOBS, day_start
from gateway.reporting.rates import wilson
from gateway.reporting.trace_state import assessment
from gateway.steering.guidance.lessons import is_rule
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.learning import Job, SettledDecision, StoredLesson
from gateway.stores.patterns import StoredPattern
from gateway.stores.queries import RunTrace
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.sql.learning import LearningStore
from gateway.stores.totals import DANGER_COMPOSITE, WARN_COMPOSITE, RunRecord
from gateway.text.sanitize import visible
from gateway.values import FieldDict


def run_view(run: RunRecord, settings: Settings) -> FieldDict:
    """A run with values derived from its totals."""
    totals = run.totals
    tokens = totals.input_tokens + totals.output_tokens
    budget = settings.steering.token_budget
    return {
        **_values(run),
        "composite_mean": totals.composite_mean,
        "duration_s": run.duration_s,
        "handed_over": run.handed_over,
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
    lesson = stored.pattern.lesson
    return {
        **_values(pattern, "lesson"),
        "tier": pattern.tier.value,
        "status": lesson.status.value if lesson else "active",
        "origin": lesson.origin if lesson else "",
        **picked(stored, "created_at", "updated_at", "indexed"),
        "counts": {"injected": stored.counts.get("injected", 0)},
    }


def _values(record: Struct, *without: str) -> FieldDict:
    return {name: value for name, value in asdict(record).items() if name not in without}


def picked(value: object, *names: str) -> FieldDict:
    """Some attributes of a value by their names."""
    return {name: getattr(value, name) for name in names}


def lesson_view(stored: StoredLesson) -> FieldDict:
    """A lesson with its support, its trial with the rate at which the failure recurred in each arm
    (95 % intervals), and why it is not active."""
    pattern = stored.pattern
    lesson = pattern.lesson or Lesson(key="")
    texts = content(pattern.fields)
    found = stored.posterior
    held = found.decisions - found.given
    arms = (("given", found.rate_given, found.given), ("held", found.rate_held, held))
    return {
        **picked(pattern, "pattern_id", "tenant", "source_trace_id"),
        "tier": pattern.tier.value,
        **picked(lesson, "version", "supersedes", "origin", "key"),
        **picked(lesson, "last_confirmed_at", "expires_at"),
        "status": lesson.status.value,
        "trust": lesson.trust.value,
        "situation": texts.situation,
        "advice": texts.move or texts.avoid,
        **picked(stored.support, "conversations", "tasks", "keys"),
        **picked(stored, "created_at", "updated_at", "reason"),
        "why_not_active": why_not_active(stored),
        "posterior": dataclasses.asdict(found),
        "arms": [
            {"name": name, "rate": rate, "decisions": decisions, "low": low, "high": high}
            for name, rate, decisions in arms
            for low, high in [wilson((rate or 0.0) * decisions, decisions) if decisions else (0, 1)]
        ],
    }


def rule_views(found: Sequence[StoredLesson]) -> list[FieldDict]:
    """The rules that people stated, the most often said first, with project, author and words.
    Projects of one name are distinguished by the beginning of their digest."""
    views = []
    for stored in sorted(found, key=lambda each: -each.support.conversations):
        if (lesson := stored.pattern.lesson) and is_rule(stored.pattern):
            marks = {"author": "", "project": "no name", "said": ""}
            said = lesson.applies_when
            view: FieldDict = {name: said.get(name, text) for name, text in marks.items()}
            view |= {"scope": lesson.key.split("|")[1], **lesson_view(stored)}
            views.append(view | {"since": lesson.last_confirmed_at - stored.support.span_s})
    folders = {(view["project"], view["scope"]) for view in views}
    several = [name for name, count in Counter(name for name, _ in folders).items() if count > 1]
    for view in views:
        if view["project"] in several:
            view["project"] += f" ({view['scope'][:6]})"
    return views


async def reader_view(
    store: LearningStore, settings: ReaderSettings, tenant: str | None, now: float
) -> FieldDict:
    """Describes the reader's model: its limits, its use since midnight (UTC), and the number of
    jobs in each state. `tenant` None: of all tenants."""
    tokens, usd = await store.spent(JOBS, tenant, day_start(now))
    return {
        "model": settings.model,
        "tokens": tokens,
        "tokens_per_day": settings.tokens_per_day,
        "cost_usd": usd,
        "usd_per_day": settings.usd_per_day,
        "counts": {"waiting": 0, "done": 0, "failed": 0} | await store.count_jobs(JOBS, tenant),
    }


def job_view(job: Job) -> FieldDict:
    """A job with its run, what was asked about it, its state and its use."""
    names = ("tenant", "state", "attempts", "tokens", "cost_usd", "created_at", "done_at", "error")
    asked = {"run_id": str(job.payload.get("run", "")), "question": job.payload.get("question")}
    return {**asked, **picked(job, *names)}


def decision_views(decisions: Sequence[SettledDecision]) -> list[FieldDict]:
    """Decisions about a lesson, with what came after each."""
    own = ("run_id", "share", "given", "similarity", "state", "failure_type")
    return [
        {
            **picked(each.decision, *own),
            "step": each.decision.step_index,
            **picked(each, "at", "recurred", "calls_to_success", "steps_left"),
        }
        for each in decisions
    ]


def step_text(step: StepRow, guidance: Sequence[InjectionRow]) -> str:
    """The texts of a step under headings, sanitized for a terminal and a browser."""
    parts = [f"=== {heading}\n{text}" for heading, text in _parts(step, guidance)]
    return visible("\n\n".join(parts))


def _parts(step: StepRow, guidance: Sequence[InjectionRow]) -> Iterator[tuple[str, str]]:
    content = step.content
    if content is not None:
        for message in content.messages:
            yield f"{message.role} message", message.text
        if content.thought:
            yield "thought", content.thought
        if content.reasoning:
            yield "reasoning", content.reasoning
        for action in content.actions:
            yield f"call of {action.name}", action.arguments
            yield "error" if action.is_error else "result", action.observation
    for row in guidance:
        if row.step_index == step.step_index:
            yield f"guidance ({row.source}, {row.placement or 'not placed'})", row.text
    if content is not None:
        if content.reply_text:
            yield "reply", content.reply_text
        for action in content.reply_actions:
            yield f"next call of {action.name}", action.arguments
        for act in content.human:
            yield KIND_LABELS.get(act.kind, act.kind), act.words
