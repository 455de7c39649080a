"""From instances to a general lesson: what several runs on several tasks support. Pure.

A general lesson (tier e2) belongs to one key, or to situations of one tool and kind of failure that
resemble each other. Its text is that of the most typical instance (the medoid), never a summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.embedding.base import Embedder, EmbeddingError
from gateway.learning.life_cycle import NEEDED_CONVERSATIONS, NEEDED_TASKS
from gateway.learning.mining import lesson_id, lesson_signs
from gateway.steering.guidance.pattern import Pattern, Tier, content
from gateway.stores.learning import EvidenceRow, Learned, LearningStore, LessonFilter

Entry = tuple[Pattern, Sequence[EvidenceRow]]
Vectors = Mapping[str, Sequence[float]]  # vectors of texts, all of unit length


def general_lesson(instances: Sequence[Entry], vectors: Vectors | None = None) -> Entry | None:
    """The general lesson of one tenant's instances of a situation; None without support, and what a
    model wrote supports nothing. Without `vectors` the medoid is what most runs support."""
    instances = [one for one in instances if one[0].lesson and one[0].lesson.trust.advises]
    rows = [row for _, evidence in instances for row in evidence if row.kind != "failed_again"]
    conversations, tasks = {row.conversation for row in rows}, {row.task for row in rows}
    if len(conversations) < NEEDED_CONVERSATIONS or len(tasks) < NEEDED_TASKS:
        return None

    def support(entry: Entry) -> tuple[float, int, str]:
        pattern, evidence = entry
        near = sum(_nearness(pattern, other, vectors) for other, _ in instances) if vectors else 0.0
        return near, len({row.run_id for row in evidence}), pattern.pattern_id

    chosen = max(instances, key=support)[0]
    assert chosen.lesson is not None, "an instance is a lesson"
    texts = content(chosen.fields)
    pattern = replace(
        chosen,
        tier=Tier.E2,
        pattern_id=lesson_id(Tier.E2, chosen.tenant, chosen.lesson.key),
        fields={
            "situation": texts.situation,
            "intervention": texts.move,
            "anti_pattern": texts.avoid,
        },
    )
    return _supported(pattern, instances)


def _supported(general: Pattern, instances: Sequence[Entry]) -> Entry:
    rows = [row for _, evidence in instances for row in evidence if row.kind != "failed_again"]
    return general, [dataclasses.replace(row, pattern_id=general.pattern_id) for row in rows]


def _nearness(a: Pattern, b: Pattern, vectors: Vectors) -> float:
    return sum(dot(vectors[x], vectors[y]) for x, y in zip(texts_of(a), texts_of(b), strict=True))


def texts_of(pattern: Pattern) -> tuple[str, str]:
    """The lesson's situation and its advice."""
    return lesson_signs(pattern), content(pattern.fields).move


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of two unit vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True))


MOST_COMPARED = 500
"""Instances of one tool and kind of failure, the last changed first, that are compared."""


@dataclass(eq=False)
class Generaliser:
    """Over one store. `similarity`: in [0, 1], that two failures of one tool and kind need to count
    as the same situation; without an embedder only equal keys do."""

    store: LearningStore
    embedder: Embedder | None
    similarity: Callable[[], float]

    async def generalise(self, tenant: str, key: str) -> Learned:
        """Make or confirm the general lesson of a key; where the key alone has not enough support,
        that of the situations which resemble it. Raises: StoreError."""
        wanted = LessonFilter(tenant=tenant, tier=Tier.E1, key=key)
        own = await self._entries(await self._patterns(wanted))
        found = general_lesson(own, await self._vectors([pattern for pattern, _ in own]))
        if found is None and own:
            found = await self._of_similar(tenant, key, own)
        return await self.store.learn([found]) if found else Learned()

    async def _of_similar(self, tenant: str, key: str, own: Sequence[Entry]) -> Entry | None:
        prefix, centre = f"{key.rpartition('|')[0]}|", own[0][0]
        wanted = LessonFilter(tenant=tenant, tier=Tier.E1, key_prefix=prefix)
        others = [pattern for pattern in await self._patterns(wanted) if _key(pattern) != key]
        vectors = await self._vectors([*(pattern for pattern, _ in own), *others])
        if vectors is None:
            return None
        signs = vectors[lesson_signs(centre)]
        near = [(dot(signs, vectors[lesson_signs(other)]), other) for other in others]
        near = [each for each in near if each[0] >= self.similarity()]
        if not near:
            return None
        wanted = LessonFilter(tenant=tenant, tier=Tier.E2, key_prefix=prefix)
        found = await self.store.lessons(wanted, limit=MOST_COMPARED)
        general = {_key(stored.pattern): stored.pattern for stored in found}
        if known := [each for each in near if _key(each[1]) in general]:
            nearest = max(known, key=lambda each: (each[0], each[1].pattern_id))[1]
            return _supported(general[_key(nearest)], own)  # its text stays as it is
        return general_lesson([*own, *await self._entries([p for _, p in near])], vectors)

    async def _patterns(self, wanted: LessonFilter) -> list[Pattern]:
        found = await self.store.lessons(wanted, limit=MOST_COMPARED)
        return [stored.pattern for stored in found if stored.pattern.tenant == wanted.tenant]

    async def _entries(self, patterns: Sequence[Pattern]) -> list[Entry]:
        return [(p, await self.store.evidence(p.tenant, p.pattern_id)) for p in patterns]

    async def _vectors(self, patterns: Sequence[Pattern]) -> Vectors | None:
        """Of the texts of patterns; None without an embedder, or when it fails."""
        if self.embedder is None or len(patterns) < 2:
            return None
        texts = sorted({text for pattern in patterns for text in texts_of(pattern)})
        try:
            found = await self.embedder.embed(texts)
        except EmbeddingError:
            return None
        return {text: vector.tolist() for text, vector in zip(texts, found, strict=True)}


def _key(pattern: Pattern) -> str:
    return pattern.lesson.key if pattern.lesson else ""
