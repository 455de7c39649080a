"""What an operator does with a lesson: approve, pause, retire, edit, share."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from gateway.learning.life_cycle import may_approve
from gateway.learning.mining import lesson_id
from gateway.learning.posterior import ACTIVE_SHARE
from gateway.learning.templates import has_secret
from gateway.steering.guidance.pattern import Pattern, Status, Tier, Trust
from gateway.stores.learning import LearningStore, StoredLesson

MAX_ADVICE_CHARS = 600
"""Longest text of a lesson that an operator writes. Source: `learning.md`, 7."""


class LessonActions:
    """Changes of lessons by hand. `at`: seconds of the epoch."""

    def __init__(self, store: LearningStore) -> None:
        self._store = store

    async def move(self, stored: StoredLesson, status: Status, reason: str, at: float) -> bool:
        """Change the status; False when it is the lesson's already."""
        pattern = stored.pattern
        if pattern.lesson is None or pattern.lesson.status is status:
            return False
        if status is Status.TRIAL and not may_approve(pattern.lesson.status):
            return False  # it is active: nothing to approve
        moved = await self._store.move(
            pattern.tenant, pattern.pattern_id, status, reason=reason, at=at
        )
        if moved and status is Status.ACTIVE:
            posterior = dataclasses.replace(stored.posterior, share=ACTIVE_SHARE)
            version = pattern.lesson.version
            await self._store.put_posterior(
                pattern.tenant, pattern.pattern_id, version, posterior, at
            )
        return moved

    async def share(self, stored: StoredLesson, at: float) -> bool:
        """Give a tenant's general lesson to all tenants."""
        pattern = stored.pattern
        if pattern.tier is not Tier.E2 or not pattern.tenant:
            return False
        return await self._store.share(pattern.tenant, pattern.pattern_id, at)

    async def edit(self, stored: StoredLesson, advice: str, at: float) -> Pattern:
        """A new version with another text, in trial; the old one is retired.

        Raises: ValueError for a text that no lesson may have.
        """
        old = stored.pattern
        if old.lesson is None or not 0 < len(advice.strip()) <= MAX_ADVICE_CHARS:
            raise ValueError(f"the text needs 1 to {MAX_ADVICE_CHARS} characters")
        if has_secret(advice):
            raise ValueError("the text holds what looks like a credential")
        name = "intervention" if old.tier is Tier.E2 else "recommended_action"
        lesson = replace(
            old.lesson,
            version=old.lesson.version + 1,
            supersedes=old.pattern_id,
            status=Status.TRIAL,
            origin="written",
            trust=Trust.OPERATOR,
            last_confirmed_at=at,
        )
        new = replace(
            old,
            pattern_id=lesson_id(old.tier, old.tenant, old.lesson.key, advice, old.pattern_id),
            fields={**old.fields, name: advice.strip()},
            lesson=lesson,
        )
        evidence = await self._store.evidence(old.tenant, old.pattern_id)
        own = [dataclasses.replace(row, pattern_id=new.pattern_id) for row in evidence]
        await self._store.learn([(new, own)])
        await self.move(stored, Status.RETIRED, f"replaced by {new.pattern_id}", at)
        return new
