"""Lessons about exact failures: what ended them, as a run shows it. Pure."""

from collections.abc import Sequence

from gateway.core.pattern import ENDED, Lesson, Pattern, Tier
from gateway.features.learning.context import project_of
from gateway.features.learning.ended_failures import endings
from gateway.features.learning.life_cycle import lesson_id
from gateway.features.learning.reading import ReadCallOfRun, digest
from gateway.stores.learning import AGAINST, EvidenceRow
from gateway.stores.traces import RunTrace
from gateway.text.secrets import mask_secrets

_WORDS_CHARS = 160  # of a complaint, as people are shown it


def lessons_of(
    trace: RunTrace, calls: Sequence[ReadCallOfRun]
) -> list[tuple[Pattern, list[EvidenceRow]]]:
    """The things that ended failures of a run, and what did not help, each with its evidence."""
    run = trace.run
    openings = [step.content.messages for step in trace.steps[:1] if step.content]
    scope, project = project_of(*(openings or [()]))
    found = []
    for each in endings(calls):
        failure = each.failure
        words = mask_secrets(failure.words)[:_WORDS_CHARS]
        kind = AGAINST
        if each.helped:
            kind = ENDED
        lesson = Lesson(
            key=failure.key,
            origin=ENDED,
            applies_when={"scope": scope, "project": project, "failure": words},
            last_confirmed_at=run.last_at,
        )
        pattern = Pattern(
            tier=Tier.E1,
            fields={
                "task_context_embedding_text": f"`{failure.head.lstrip('$')}` fails",
                "recommended_action": each.move,
            },
            pattern_id=lesson_id(Tier.E1, run.tenant, scope, failure.key, each.move),
            tenant=run.tenant,
            source_trace_id=f"{run.id}#{each.step}"[:128],
            lesson=lesson,
        )
        row = EvidenceRow(
            pattern_id=pattern.pattern_id,
            run_id=run.id,
            step_index=each.step,
            kind=kind,
            tenant=run.tenant,
            conversation=run.unit or run.conversation_id,
            task=digest(run.task_preview),
            at=run.last_at,
            key_name=run.key_name,
        )
        found.append((pattern, [row]))
    return found
