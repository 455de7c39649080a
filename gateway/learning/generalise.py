"""From instances to a general lesson: what several runs on several tasks support. Pure.

A general lesson (tier e2) belongs to one key, or to the situations of one tool and kind of failure
that resemble each other. Its key and text are those of the most typical of the instances (the
medoid), never a summary, and are not written again when more evidence comes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gateway.learning.life_cycle import NEEDED_CONVERSATIONS, NEEDED_TASKS
from gateway.learning.mining import lesson_id
from gateway.learning.signs import lesson_signs
from gateway.steering.guidance.pattern import Pattern, Tier, content
from gateway.stores.learning import EvidenceRow

Entry = tuple[Pattern, Sequence[EvidenceRow]]
Vectors = Mapping[str, Sequence[float]]
"""Vectors of texts, all of unit length."""


def general_lesson(instances: Sequence[Entry], vectors: Vectors | None = None) -> Entry | None:
    """The general lesson of instances of one situation, with its evidence; None without support.

    `instances`: of one tenant. `vectors`: of the instances' `texts_of`, for the choice of the
    medoid; without them it is the instance that most runs support. What a model wrote supports
    nothing.
    """
    instances = [entry for entry in instances if _advises(entry[0])]
    rows = [row for _, evidence in instances for row in evidence if row.kind != "failed_again"]
    conversations, tasks = {row.conversation for row in rows}, {row.task for row in rows}
    if len(conversations) < NEEDED_CONVERSATIONS or len(tasks) < NEEDED_TASKS:
        return None
    chosen = _medoid(instances, vectors)
    known = chosen.lesson
    assert known is not None, "an instance is a lesson"
    pattern = replace(
        chosen,
        tier=Tier.E2,
        pattern_id=lesson_id(Tier.E2, chosen.tenant, known.key),
        fields={
            "situation": content(chosen.fields).situation,
            "intervention": content(chosen.fields).move,
            "anti_pattern": content(chosen.fields).avoid,
        },
    )
    return pattern, [dataclasses.replace(row, pattern_id=pattern.pattern_id) for row in rows]


def _advises(pattern: Pattern) -> bool:
    return pattern.lesson is not None and pattern.lesson.trust.advises


def _medoid(instances: Sequence[Entry], vectors: Vectors | None) -> Pattern:
    def support(entry: Entry) -> tuple[float, int, str]:
        pattern, evidence = entry
        near = sum(_nearness(pattern, other, vectors) for other, _ in instances) if vectors else 0.0
        return near, len({row.run_id for row in evidence}), pattern.pattern_id

    return max(instances, key=support)[0]


def _nearness(a: Pattern, b: Pattern, vectors: Vectors) -> float:
    return sum(dot(vectors[x], vectors[y]) for x, y in zip(texts_of(a), texts_of(b), strict=True))


def texts_of(pattern: Pattern) -> tuple[str, str]:
    """What the lesson is about, and what it says."""
    return lesson_signs(pattern), content(pattern.fields).move


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of two unit vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True))
