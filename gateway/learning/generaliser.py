"""Makes and confirms a tenant's general lessons from its instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.embedding.base import Embedder, EmbeddingError
from gateway.learning.generalise import Entry, Vectors, dot, general_lesson, texts_of
from gateway.learning.signs import lesson_signs
from gateway.steering.guidance.pattern import Pattern, Tier
from gateway.stores.learning import Learned, LearningStore, LessonFilter

MOST_COMPARED = 500
"""Instances of one tool and kind of failure, the last changed first, that are compared."""


class Generaliser:
    """Over one store. `similarity`: in [0, 1], that two failures of one tool and kind need to count
    as the same situation; without an embedder only equal keys do."""

    def __init__(
        self, store: LearningStore, embedder: Embedder | None, similarity: Callable[[], float]
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._similarity = similarity

    async def generalise(self, tenant: str, key: str) -> Learned:
        """Make or confirm the general lesson of a key; where the key alone has not enough support,
        that of the situations which resemble it. Raises: StoreError."""
        wanted = LessonFilter(tenant=tenant, tier=Tier.E1, key=key)
        own = await self._entries(await self._patterns(wanted, tenant))
        found = general_lesson(own, await self._vectors([pattern for pattern, _ in own]))
        if found is None and own:
            found = await self._of_similar(tenant, key, own)
        return await self._store.learn([found]) if found else Learned()

    async def _of_similar(self, tenant: str, key: str, own: Sequence[Entry]) -> Entry | None:
        prefix = f"{key.rpartition('|')[0]}|"
        wanted = LessonFilter(tenant=tenant, tier=Tier.E1, key_prefix=prefix)
        others = [p for p in await self._patterns(wanted, tenant) if _key(p) != key]
        vectors = await self._vectors([*(pattern for pattern, _ in own), *others])
        if vectors is None:
            return None
        centre = own[0][0]
        near = [(_likeness(centre, other, vectors), other) for other in others]
        near = [each for each in near if each[0] >= self._similarity()]
        if not near:
            return None
        general = {_key(pattern): pattern for pattern in await self._general(tenant, prefix)}
        known = [(likeness, other) for likeness, other in near if _key(other) in general]
        if known:
            nearest = max(known, key=lambda each: (each[0], each[1].pattern_id))[1]
            return _confirmed(general[_key(nearest)], own)
        return general_lesson([*own, *await self._entries([p for _, p in near])], vectors)

    async def _general(self, tenant: str, prefix: str) -> list[Pattern]:
        wanted = LessonFilter(tenant=tenant, tier=Tier.E2, key_prefix=prefix)
        found = await self._store.lessons(wanted, limit=MOST_COMPARED)
        return [stored.pattern for stored in found]

    async def _patterns(self, wanted: LessonFilter, tenant: str) -> list[Pattern]:
        found = await self._store.lessons(wanted, limit=MOST_COMPARED)
        return [stored.pattern for stored in found if stored.pattern.tenant == tenant]

    async def _entries(self, patterns: Sequence[Pattern]) -> list[Entry]:
        return [
            (pattern, await self._store.evidence(pattern.tenant, pattern.pattern_id))
            for pattern in patterns
        ]

    async def _vectors(self, patterns: Sequence[Pattern]) -> Vectors | None:
        """Of what the instances are about and what they say; None without an embedder, or when it
        fails."""
        if self._embedder is None or len(patterns) < 2:
            return None
        texts = sorted({text for pattern in patterns for text in texts_of(pattern)})
        try:
            found = await self._embedder.embed(texts)
        except EmbeddingError:
            return None
        return {text: vector.tolist() for text, vector in zip(texts, found, strict=True)}


def _key(pattern: Pattern) -> str:
    return pattern.lesson.key if pattern.lesson else ""


def _likeness(a: Pattern, b: Pattern, vectors: Vectors) -> float:
    return dot(vectors[lesson_signs(a)], vectors[lesson_signs(b)])


def _confirmed(general: Pattern, own: Sequence[Entry]) -> Entry:
    """A general lesson with the evidence of further instances; its text stays as it is."""
    rows = [row for _, evidence in own for row in evidence if row.kind != "failed_again"]
    return general, [replace(row, pattern_id=general.pattern_id) for row in rows]
