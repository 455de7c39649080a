"""Lessons, rules and what was asked of the reader, as plain values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gateway.api.views import picked
from gateway.core.pattern import Lesson, content
from gateway.features.learning.gate import MOST_CHARS
from gateway.features.learning.life_cycle import why_not_active
from gateway.features.learning.reader.reader import day_start
from gateway.features.learning.settings import ReaderSettings
from gateway.features.learning.typed_counts import TypedCounts
from gateway.reporting.statistics import wilson
from gateway.steering.guidance.lessons import is_rule
from gateway.stores.learning import JOBS, SettledDecision, StoredLesson
from gateway.stores.sql.learning import LearningStore
from gateway.text.formatting import iso
from gateway.text.sanitize import one_line
from gateway.values import FieldDict


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


def rule_views(found: Sequence[StoredLesson], counts: Mapping[str, TypedCounts]) -> list[FieldDict]:
    """The rules that people stated, the most often said first, with project, author, words and how
    often they were typed. Projects of one name are listed with the beginning of their digest."""
    views = []
    for stored in sorted(found, key=lambda each: -each.support.conversations):
        if (lesson := stored.pattern.lesson) and is_rule(stored.pattern):
            marks = {"author": "", "project": "no name", "said": ""}
            said = lesson.applies_when
            view: FieldDict = {name: said.get(name, text) for name, text in marks.items()}
            view["typed"] = counts.get(stored.pattern.pattern_id, TypedCounts())
            view |= {"scope": lesson.key.split("|")[1], **lesson_view(stored)}
            views.append(view | {"since": lesson.last_confirmed_at - stored.support.span_s})
    folders = {(view["project"], view["scope"]) for view in views}
    several = [name for name, count in Counter(name for name, _ in folders).items() if count > 1]
    for view in views:
        if view["project"] in several:
            view["project"] += f" ({view['scope'][:6]})"
    return views


def exported(rule: FieldDict) -> str:
    """A rule as a line of an instruction file: behind it a comment with the day, the author where
    one is known, and the words as they were typed."""
    text = one_line(rule["advice"], MOST_CHARS)
    day = f" {iso(rule['since'])[:10]}" if rule["since"] else ""
    who = f" by {one_line(rule['author'], 80)}" if rule["author"] else ""
    said = one_line(rule["said"] or rule["advice"], MOST_CHARS)
    # Words that would end the comment cannot stand in it as they are.
    beside = f'typed{day}{who}: "{said}"'.replace("--", "- -")
    return f"{text} <!-- {beside} -->"


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
