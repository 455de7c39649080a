"""Rows of the patterns table, and what SQLite and PostgreSQL read from it with the same words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from gateway.steering.guidance.pattern import Lesson, Pattern, Status, Tier, Trust, content_id
from gateway.stores import codec
from gateway.stores.learning import Posterior, StoredLesson
from gateway.stores.patterns import Event, StoredPattern
from gateway.stores.protocols import StoreCorrupt

CONTENT_COLUMNS = (
    *("tier", "digest", "failure_type", "model_family", "gate_threshold"),
    *("source_trace_id", "fields", "updated_at"),
)
"""The values of `content_values`."""

LESSON_COLUMNS = (
    *("status", "version", "supersedes", "origin", "trust", "key", "applies_when"),
    *("last_confirmed_at", "expires_at"),
)
"""The values of `lesson_values`."""

NEW_COLUMNS = (*CONTENT_COLUMNS, "created_at", "tenant", "pattern_id", *LESSON_COLUMNS)
"""Columns of a new row."""

_READ = (
    *("pk", "tenant", "pattern_id", "tier", "failure_type", "model_family", "gate_threshold"),
    *("source_trace_id", "fields", "created_at", "updated_at", "injected", "helped", "hurt"),
    *LESSON_COLUMNS,
)
COLUMNS = ", ".join(f"p.{name}" for name in _READ)
"""Columns that `pattern_of` reads, from `patterns AS p`."""

FIELDS = _READ.index("fields")
"""Position in `COLUMNS` of a pattern's texts, as JSON."""

_CREATED, _COUNTS, _LESSON, _INDEXED = 9, 11, 14, len(_READ)
_POSTERIOR = codec.names(Posterior)
_SUPPORT = (
    "FROM pattern_evidence AS e WHERE e.pattern_id = p.pattern_id "
    "AND (p.tenant = '' OR e.tenant = p.tenant) AND e.kind <> 'failed_again'"
)
SELECT_LESSONS = (
    f"SELECT {COLUMNS}, p.reason, "
    f"(SELECT count(DISTINCT e.conversation) {_SUPPORT}), "
    f"(SELECT count(DISTINCT e.task) {_SUPPORT}), "
    f"(SELECT count(DISTINCT e.key_name) {_SUPPORT}), "
    "(SELECT count(DISTINCT coalesce(nullif(k.name, ''), k.id)) FROM keys AS k "
    "WHERE k.tenant = p.tenant AND k.revoked_at IS NULL), "
    + ", ".join(f"q.{name}" for name in _POSTERIOR)
    + " FROM patterns AS p LEFT JOIN pattern_posteriors AS q ON q.owner = p.tenant "
    "AND q.pattern_id = p.pattern_id AND q.version = p.version WHERE p.origin <> ''"
)
"""Query whose rows `stored_lesson` reads."""

# Jumps from family to family through the index instead of reading every pattern.
FAMILIES = """
WITH RECURSIVE found(name) AS (
    SELECT min(model_family) FROM patterns
    UNION ALL
    SELECT (SELECT min(model_family) FROM patterns WHERE model_family > name)
    FROM found WHERE name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
"""


def pattern_of(row: Sequence[Any]) -> Pattern:
    """The pattern of a row of `COLUMNS`. Raises: StoreCorrupt for an invalid row."""
    _, tenant, pattern_id, tier, failure_type, family, gate, trace, fields, *others = row
    lesson = dict(zip(LESSON_COLUMNS, others[_LESSON - _CREATED :], strict=False))
    try:
        return Pattern(
            tenant=tenant,
            pattern_id=pattern_id,
            tier=Tier(tier),
            failure_type=failure_type or None,
            model_family=family,
            gate_threshold=gate,
            source_trace_id=trace,
            fields=orjson.loads(fields),
            lesson=_lesson(lesson) if lesson["origin"] else None,
        )
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"the pattern {pattern_id!r} is damaged ({error})") from error


def stored_pattern(row: Sequence[Any]) -> StoredPattern:
    """From `COLUMNS` and whether the pattern can be found. Raises: StoreCorrupt."""
    return StoredPattern(
        pattern=pattern_of(row),
        created_at=row[_CREATED],
        updated_at=row[_CREATED + 1],
        counts=dict(zip((event.value for event in Event), row[_COUNTS:_LESSON], strict=True)),
        indexed=bool(row[_INDEXED]),
    )


def stored_lesson(row: Sequence[Any]) -> StoredLesson:
    """From `SELECT_LESSONS`. Raises: StoreCorrupt."""
    pattern = pattern_of(row)
    reason, conversations, tasks, keys, tenant_keys, *numbers = row[len(_READ) :]
    posterior = Posterior()
    if numbers[0] is not None:
        posterior = Posterior(**dict(zip(_POSTERIOR, numbers, strict=True)))
    if pattern.lesson is not None:
        pattern = replace(pattern, lesson=replace(pattern.lesson, share=posterior.share))
    return StoredLesson(
        pattern=pattern,
        created_at=row[_CREATED],
        updated_at=row[_CREATED + 1],
        conversations=conversations,
        tasks=tasks,
        keys=keys,
        tenant_keys=tenant_keys,
        reason=reason,
        posterior=posterior,
    )


def new_values(pattern: Pattern) -> tuple[Any, ...]:
    """A new row: the values of `NEW_COLUMNS`."""
    values = content_values(pattern)
    names = (pattern.tenant, pattern.pattern_id)
    return (*values, values[-1], *names, *lesson_values(pattern.lesson))


def content_values(pattern: Pattern) -> tuple[Any, ...]:
    """The content of a pattern, written now: the values of `CONTENT_COLUMNS`."""
    return (
        pattern.tier.value,
        content_id(pattern),
        pattern.failure_type or "",
        pattern.model_family,
        pattern.gate_threshold,
        pattern.source_trace_id,
        orjson.dumps(dict(pattern.fields)).decode(),
        time.time(),
    )


def lesson_values(lesson: Lesson | None) -> tuple[Any, ...]:
    """The columns of a lesson; the defaults for a pattern that was not learned."""
    if lesson is None:
        return (Status.ACTIVE.value, 1, "", "", "", "", "{}", 0.0, None)
    values = {name: getattr(lesson, name) for name in LESSON_COLUMNS}
    values["status"], values["trust"] = lesson.status.value, lesson.trust.value
    values["applies_when"] = orjson.dumps(dict(lesson.applies_when)).decode()
    return tuple(values.values())


def _lesson(values: dict[str, Any]) -> Lesson:
    values["status"], values["trust"] = Status(values["status"]), Trust(values["trust"])
    values["applies_when"] = orjson.loads(values["applies_when"])
    return Lesson(**values)
