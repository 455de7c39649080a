"""From instances to a general lesson: what several runs on several tasks support. Pure.

A general lesson (tier e2) belongs to one key of one project. Its text is that of the instance which
most runs support; instances of the same tool and kind of failure with this very text support it,
too."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.learning.life_cycle import NEEDED_CONVERSATIONS, NEEDED_TASKS
from gateway.learning.mining import lesson_id, scope_of
from gateway.steering.guidance.pattern import Pattern, Tier, content
from gateway.stores.learning import NO_SUPPORT, EvidenceRow, Learned, LessonFilter
from gateway.stores.sql.learning import LearningStore

Entry = tuple[Pattern, Sequence[EvidenceRow]]
MOST_COMPARED = 500  # instances of one tool and kind of failure, the last changed first


def general_lesson(instances: Sequence[Entry], key: str) -> Entry | None:
    """The general lesson for a key of one project's instances of its tool and kind of failure; None
    without support, and what a model wrote supports nothing."""
    by_text: dict[str, list[Entry]] = defaultdict(list)
    for pattern, rows in instances:
        if pattern.lesson is not None and pattern.lesson.trust.advises:
            kept = [row for row in rows if row.kind not in NO_SUPPORT]
            by_text[content(pattern.fields).move].append((pattern, kept))
    found: list[tuple[int, str, Pattern]] = []
    for text, entries in by_text.items():
        own = [each for each in entries if each[0].lesson and each[0].lesson.key == key]
        every = [row for _, rows in entries for row in rows]
        enough = len({row.conversation for row in every}) >= NEEDED_CONVERSATIONS
        if own and enough and len({row.task for row in every}) >= NEEDED_TASKS:
            runs = {row.run_id for _, rows in own for row in rows}
            found.append((len(runs), text, own[0][0]))
    if not found:
        return None
    _, text, pattern = max(found, key=lambda each: each[:2])
    chosen = by_text[text]
    texts = content(pattern.fields)
    general = replace(
        pattern,
        tier=Tier.E2,
        pattern_id=lesson_id(Tier.E2, pattern.tenant, key, scope_of(pattern) or "", texts.move),
        fields={
            "situation": texts.situation,
            "intervention": texts.move,
            "anti_pattern": texts.avoid,
        },
    )
    rows = [row for _, evidence in chosen for row in evidence]
    return general, [dataclasses.replace(row, pattern_id=general.pattern_id) for row in rows]


@dataclass(eq=False)
class Generaliser:
    """Over one store."""

    store: LearningStore

    async def generalise(self, tenant: str, key: str, scope: str) -> Learned:
        """Make or confirm the general lesson of a key in a project. Raises: StoreError."""
        prefix = f"{key.rpartition('|')[0]}|"
        wanted = LessonFilter(tenant=tenant, tier=Tier.E1, key_prefix=prefix)
        stored = await self.store.lessons(wanted, limit=MOST_COMPARED)
        patterns = [each.pattern for each in stored if scope_of(each.pattern) == scope]
        entries = [(p, await self.store.evidence(p.tenant, p.pattern_id)) for p in patterns]
        found = general_lesson(entries, key)
        return await self.store.learn([found]) if found else Learned()
