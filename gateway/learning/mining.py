"""Lessons of one run: a failed call and the move with which an attempt worked. Pure.

    fix       the first attempt after a failure that worked, with what was done otherwise
    fact      another program where one is missing, another look-up where one found nothing

Equal runs give equal lessons. Faults of the moment (5xx, rate limits) teach nothing, and neither
does a failure that nothing helped against. A lesson of one run is a candidate: what the other runs
of its workload do decides about it (`contrast.py`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from gateway.learning.contrast import LIKELY, Contrast, Move, attempts_of, best_move, said
from gateway.learning.reading import WINDOW_CALLS, ReadCallOfRun, digest
from gateway.steering.evidence.failure_keys import KIND_WORDS, Failure
from gateway.steering.guidance.pattern import Lesson, Pattern, Tier
from gateway.steering.transcript.steps import Step
from gateway.stores.learning import UNSURE, EvidenceRow

SOURCE_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedRun:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the run teaches. `move`: with which an attempt worked, None if none did or it
    may not be said; then there is no lesson. `times`: that the failure came;
    `held`: whether the runs bear the move out, or nothing can be compared yet."""

    kind: str
    key: str
    step: int
    times: int = 1
    held: bool | None = None
    move: Move | None = None
    pattern: Pattern | None = None
    evidence: EvidenceRow | None = None


UNSOLVED = "unsolved"  # kind of a finding about a failure that nothing helped against


def mine(
    run: MinedRun,
    calls: Sequence[ReadCallOfRun],
    *,
    expires_s: float,
    contrast: Contrast | None = None,
) -> list[Finding]:
    """Findings of the run, in the order of its steps; `contrast`: the runs of its workload."""
    contrast = contrast or Contrast()
    known, found = contrast.runs.get(run.id), dict[str, Finding]()
    attempts = known.attempts if known else tuple(attempts_of(calls))
    for at, call in enumerate(calls):
        failure = call.reading.failure
        if failure is None or failure.key in found:
            continue
        later = calls[at + 1 : at + 1 + WINDOW_CALLS]
        solved = any(each.works and each.reading.head == failure.head for each in later)
        own = [each for each in attempts if each.key == failure.key]
        # What failed in the run as well is half a fix, where something else was done at last.
        vain = frozenset[Move]().union(*(each.moves for each in own if not each.worked))
        worked = [a._replace(moves=a.moves - vain or a.moves) for a in own if a.worked]
        move = best_move(worked, call, contrast)
        kind = "fix" if worked or solved else UNSOLVED
        if move is not None and move.kind in ("instead", "elsewhere", "rather"):
            kind = "fact"
        times = sum(each.key == failure.key for each in calls)
        finding = Finding(kind=kind, key=failure.key, step=call.step, times=times, move=move)
        if move is not None:
            pattern = _lesson(run, call.step, failure, move, run.at + expires_s)
            evidence = run.evidence(pattern.pattern_id, call.step, kind)
            held = contrast.met(failure.key) < 2 or contrast.holds(failure.key, move)
            if held is None and contrast.holds(failure.key, move, LIKELY):
                evidence, held = replace(evidence, kind=UNSURE), True
            finding = replace(finding, pattern=pattern, evidence=evidence, held=held)
        found[failure.key] = finding
    return list(found.values())


def _lesson(run: MinedRun, step: int, failure: Failure, move: Move, expires_at: float) -> Pattern:
    text = said(move, failure.head)
    marks = {"head": failure.head, "kind": failure.kind, "move": " ".join(move).strip()}
    marks |= run.marks
    head = failure.head.lstrip("$")
    fields = {
        "task_context_embedding_text": f"`{head}`: {KIND_WORDS[failure.kind]}.",
        "observation": f"Sending the same call of `{head}` again: it failed in the same way.",
        "recommended_action": text,
    }
    lesson = Lesson(key=failure.key, applies_when=marks, expires_at=expires_at)
    return instance(run, step, fields, lesson, run.project[0], text)


def instance(
    run: MinedRun, step: int, fields: Mapping[str, str], lesson: Lesson, *identity: str
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
