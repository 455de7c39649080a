"""The guidance of a call as rows of the run log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gateway.conversations.steering_result import SteeringResult
from gateway.steering.guidance.decide import Item
from gateway.steering.guidance.pattern import Tier
from gateway.steering.guidance.state import Injection
from gateway.steering.guidance.texts import skip_directive
from gateway.stores.learning import DecisionRow
from gateway.stores.records import CandidateRow, InjectionRow


def injection_rows(result: SteeringResult) -> list[InjectionRow]:
    """One row for each piece of guidance that is new in this call; repeated ones have a row."""
    placed, decided = result.placed, result.decided
    if placed is None or decided is None:
        return []
    run_id = result.conversation.run_id(result.run)
    blocks = placed.added
    rules = [item for item in decided.items if item.tier is Tier.E3]
    others = [item for item in decided.items if item.tier is not Tier.E3]
    rows = [
        _injection_row(result, run_id, ordinal, item, _block_of(item, blocks))
        for ordinal, item in enumerate(others, start=2)
    ]
    rows = [*_rules_row(result, run_id, rules, blocks), *rows]
    # A retry gets the directive again; it counts as one piece of guidance.
    if placed.directive is not None and not result.conversation.history.branch.retries:
        rows.insert(0, _directive_row(result, run_id, placed.directive))
    return rows


def candidate_rows(result: SteeringResult) -> tuple[CandidateRow, ...]:
    """The patterns that the look-ups of this call found, given or not; lessons last."""
    if result.decision is None or result.unsteered:
        return ()
    decided = result.decision.decided
    found = [
        CandidateRow(
            tier=each.tier.value,
            pattern_id=each.pattern_id,
            similarity=each.similarity,
            cleared=each.cleared,
        )
        for each in decided.candidates
    ]
    lessons = [
        CandidateRow(
            tier=each.pattern.tier.value,
            pattern_id=each.pattern.pattern_id,
            similarity=each.similarity,
            cleared=True,
        )
        for each in decided.lessons
    ]
    return (*found, *lessons)


def decision_rows(result: SteeringResult) -> list[DecisionRow]:
    """One row for each lesson that fitted this call, given or not; none where nothing is sent."""
    decision = result.decision
    if decision is None or not result.applies or result.unsteered:
        return []
    run_id = result.conversation.run_id(result.run)
    readings = decision.proposal.signals.guidance.readings
    return [
        DecisionRow(
            run_id=run_id,
            step_index=result.step,
            pattern_id=each.pattern.pattern_id,
            owner=each.pattern.tenant,
            version=each.pattern.lesson.version if each.pattern.lesson else 1,
            share=each.share,
            given=each.given,
            similarity=each.similarity,
            key=each.key,
            state=result.state.value,
            failure_type=(readings.failure_type if readings else None) or "",
        )
        for each in decision.decided.lessons
    ]


def _directive_row(result: SteeringResult, run_id: str, block: Injection) -> InjectionRow:
    row = InjectionRow(run_id=run_id, step_index=result.step, ordinal=0, source="skip")
    decided = result.decided
    text = skip_directive(
        repairing=decided is not None and decided.repairing,
        spent=decided is not None and decided.spent,
    )
    return replace(row, text=text, applied=result.applies, **_place_of(block))


def _place_of(block: Injection | None) -> dict[str, Any]:
    if block is None:
        return {"placement": "", "message_position": None}
    between = block.place != "system"
    return {"placement": block.place, "message_position": block.offset if between else None}


def _rules_row(
    result: SteeringResult, run_id: str, rules: Sequence[Item], blocks: Sequence[Injection]
) -> list[InjectionRow]:
    """The universal rules of a run in one row: they are always sent together."""
    if not rules:
        return []
    first = _injection_row(result, run_id, 1, rules[0], _block_of(rules[0], blocks))
    ids = ",".join(item.match.pattern.pattern_id for item in rules if item.match)
    return [replace(first, pattern_id=ids, text="\n\n".join(item.text for item in rules))]


def _block_of(item: Item, blocks: Sequence[Injection]) -> Injection | None:
    return next((block for block in blocks if item.text in block.text), None)


def _injection_row(
    result: SteeringResult, run_id: str, ordinal: int, item: Item, block: Injection | None
) -> InjectionRow:
    match = item.match
    return InjectionRow(
        run_id=run_id,
        step_index=result.step,
        ordinal=ordinal,
        source=item.tier.value if item.tier else "monitor",
        tier=item.tier.value if item.tier else None,
        pattern_id=match.pattern.pattern_id if match else None,
        similarity=match.similarity if match else None,
        failure_type=item.failure_type,
        severity=str(item.severity) if item.severity is not None else None,
        text=item.text,
        applied=result.applies,
        **_place_of(block),
    )
