"""Lessons as plain values, without what a visitor may not see; and what was asked of the reader."""

from collections.abc import Mapping
from dataclasses import asdict

from gateway.api.views import picked
from gateway.auth.access import Access
from gateway.core.pattern import Lesson, content
from gateway.features.learning.gate import strange
from gateway.features.learning.life_cycle import why_not_active
from gateway.features.learning.reader.reader import day_start
from gateway.features.learning.settings import ReaderSettings
from gateway.features.learning.typed_counts import TypedCounts
from gateway.reporting.statistics import wilson
from gateway.stores.learning import JOBS, MARK, SettledDecision, StoredLesson
from gateway.stores.sql.learning import LearningStore
from gateway.values import FieldDict

_MOST_DECISIONS = 1000


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
        **picked(lesson, "version", "supersedes", "origin", "key", "last_confirmed_at"),
        "status": lesson.status.value,
        "trust": lesson.trust.value,
        "situation": texts.situation,
        "advice": texts.move or texts.avoid,
        **picked(stored.support, "conversations", "tasks", "keys", "against"),
        **picked(stored, "created_at", "updated_at", "reason"),
        "why_not_active": why_not_active(stored),
        "posterior": asdict(found),
        "arms": [
            {"name": name, "rate": rate, "decisions": decisions, "low": low, "high": high}
            for name, rate, decisions in arms
            for low, high in [wilson((rate or 0.0) * decisions, decisions) if decisions else (0, 1)]
        ],
    }


def visible_lesson(stored: StoredLesson, access: Access) -> FieldDict:
    """A lesson; names that only the runs it is from may know are for the operator."""
    view = lesson_view(stored)
    known = stored.pattern.lesson
    view["applies_when"] = dict(known.applies_when) if known and access.operator else {}
    if access.operator and known and (words := known.applies_when.get("failure")):
        view["situation"] += f": {words}"
    if not access.operator and strange(f"{view['situation']} {view['advice']}"):
        view |= {"situation": "", "advice": "It has names that only some runs know.", "key": ""}
    return view


async def lesson_detail(
    store: LearningStore,
    stored: StoredLesson,
    access: Access,
    *,
    typed: Mapping[str, TypedCounts],
) -> FieldDict:
    """A lesson with its evidence and decisions, those of the caller's own runs."""
    pattern = stored.pattern
    version = pattern.lesson.version if pattern.lesson else 1
    evidence = await store.evidence(pattern.tenant, pattern.pattern_id)
    decisions = await store.decisions(pattern.tenant, pattern.pattern_id, version)
    seen = [each for each in decisions if access.tenant in (None, each.tenant)]
    return {
        **visible_lesson(stored, access),
        "typed": typed.get(pattern.pattern_id),
        "reminds_at": sorted({row.task for row in evidence if row.kind == MARK}),
        "evidence": [
            {"step": row.step_index, **picked(row, "run_id", "kind", "at")}
            for row in evidence
            if access.tenant in (None, row.tenant)
        ],
        "decisions": [_decision(each) for each in seen[-_MOST_DECISIONS:]],
    }


def _decision(found: SettledDecision) -> FieldDict:
    """A decision about a lesson, with what came after it."""
    own = ("run_id", "share", "given", "similarity", "state", "failure_type")
    return {
        **picked(found.decision, *own),
        "step": found.decision.step_index,
        **picked(found, "at", "recurred", "calls_to_success", "steps_left"),
    }


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
