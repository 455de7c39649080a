"""Runs that lessons come from, and the ids of lessons and tasks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from gateway.learning.reading import digest
from gateway.steering.guidance.pattern import Lesson, Pattern, Tier
from gateway.steering.transcript.steps import Step
from gateway.stores.learning import EvidenceRow

SOURCE_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRun:
    """One run to learn from. `conversation`: the root of its tree; `task`: a digest; `steps` have
    the index of the run log, from 1; `at`: its end; `key_name`: of the gateway key, or empty;
    `project`: its digest and its shown name (`corrections.project_of`)."""

    id: str
    tenant: str
    conversation: str
    task: str
    steps: Sequence[Step]
    at: float
    key_name: str = ""
    project: tuple[str, str] = ("", "")

    @property
    def marks(self) -> dict[str, str]:
        """The marks that keep a lesson to the project of the run, see `scope_of`."""
        return dict(zip(("scope", "project"), self.project, strict=True))

    def evidence(self, pattern_id: str, step: int, kind: str) -> EvidenceRow:
        """The run's support of a lesson, see EvidenceRow."""
        names = ("tenant", "conversation", "task", "at", "key_name")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return EvidenceRow(pattern_id=pattern_id, run_id=self.id, step_index=step, kind=kind, **own)


def instance(
    run: SourceRun, step: int, fields: Mapping[str, str], lesson: Lesson, *identity: str
) -> Pattern:
    """A lesson of one run and step, with the id that its key and `identity` give it."""
    return Pattern(
        tier=Tier.E1,
        fields=fields,
        pattern_id=lesson_id(Tier.E1, run.tenant, lesson.key, *identity),
        tenant=run.tenant,
        source_trace_id=f"{run.id}#{step}"[:SOURCE_CHARS],
        lesson=structs.replace(lesson, last_confirmed_at=run.at),
    )


def scope_of(pattern: Pattern) -> str | None:
    """The digest of the project that a lesson is for, "" for the runs without one; None for a
    shared one, and for one from before lessons had a project: they hold in all of them."""
    lesson = pattern.lesson if pattern.tenant else None
    return lesson.applies_when.get("scope") if lesson else None


def lesson_id(tier: Tier, *parts: str) -> str:
    """The id of a lesson: equal for equal parts, on every gateway."""
    return f"{tier.value}-{digest(chr(31).join(parts))}"


def task_digest(text: str) -> str:
    """The digest of a task; numbers, ids and letter case make no other task."""
    words = [word for word in text.lower().split() if word.isalpha()]
    return digest(" ".join(words or text.lower().split()))
