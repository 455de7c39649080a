"""One finished call as records for the store, and as an event for the live view.

Its steps and its cost, its guidance, and its system and user messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.conversations.apply_reply import echoed_items, replies_in
from gateway.conversations.codec import to_record
from gateway.conversations.conversation import items_by_id
from gateway.conversations.steering_result import SteeringResult
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import Exchange
from gateway.observability.live_events import Event
from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.decide import Item
from gateway.steering.guidance.pattern import Tier
from gateway.steering.guidance.state import Injection
from gateway.steering.transcript.steps import Action, Step
from gateway.stores.learning import DecisionRow
from gateway.stores.records import (
    CallRecord,
    CallRow,
    CandidateRow,
    InjectionRow,
    ItemRecord,
    PrefixHashRecord,
    PromptMessage,
    RunUpdate,
    StepContent,
    StepRow,
)
from gateway.stores.totals import RunRecord
from gateway.text.secrets import mask_repeated
from gateway.wire.coerce import as_list, as_mapping, as_text
from gateway.wire.messages import SYSTEM_ROLES, content_text, is_result

_PREVIEW_CHARACTERS = 200
_LONGEST_SECRET = 4096
MOST_MESSAGES = 512
"""Messages in a row that are read for what they say: results of so many calls come at once, and no
client writes as many. Each takes some 2 us."""
_ROLES = (*SYSTEM_ROLES, "user")


class CallFacts(Struct, frozen=True, kw_only=True):
    """About the call itself: its agent, its experiment, and its cost."""

    agent: str = ""
    profile: str = ""
    policy_digest: str = ""
    experiment: str | None = None
    arm: str | None = None
    unit: str | None = None
    outcome: str | None = None
    cost_usd: float | None = None
    cost_unsteered_usd: float | None = None
    key_name: str = ""
    tags: Mapping[str, str] = {}
    answered: bool = True
    """False for a call whose answer is still being made."""
    masks_secrets: bool = False
    """Whether texts are stored without what looks like a secret."""


def call_record(
    result: SteeringResult,
    exchange: Exchange,
    completion: Mapping[str, Any] | None,
    facts: CallFacts,
    prefix_hashes: Sequence[PrefixHashRecord],
    now: float,
) -> CallRecord:
    """Everything that is committed for one call."""
    conversation = result.conversation
    call = _call_row(result, exchange, completion, facts)
    reply = replace(_reply_content(completion), messages=tuple(result.prompts))
    steps = _step_rows(result, call if facts.answered else None, reply, now)
    count = result.resolved.incoming.hashes.state.count
    record = to_record(conversation, count, now, masks_secrets=facts.masks_secrets)
    return CallRecord(
        conversation=record,
        heads=tuple(prefix_hashes),
        runs=tuple(
            _run_update(result, run, exchange, facts, now) for run in _runs_to_record(result)
        ),
        steps=tuple(steps),
        injections=tuple(injection_rows(result)),
        items=tuple(_items(completion)),
        decisions=tuple(decision_rows(result)),
    )


def _items(completion: Mapping[str, Any] | None) -> Iterator[ItemRecord]:
    """The items of an answer that clients may later send by id only."""
    if completion is None or not completion.get(ANSWER_ID):
        return
    for name, item in items_by_id(echoed_items(completion)).items():
        yield ItemRecord(id=name, content=json.dumps(item).encode())


def _runs_to_record(result: SteeringResult) -> list[int]:
    """The runs with new rows, and the earlier run that a new run has ended."""
    conversation = result.conversation
    runs = {run for run, _ in conversation.unsaved.steps} | {result.position.run}
    last = conversation.unsaved.snapshot
    if last is not None and last.run < conversation.run.index and last.state is not FSMState.END:
        runs.add(last.run)
    return sorted(runs)


def _call_row(
    result: SteeringResult,
    exchange: Exchange,
    completion: Mapping[str, Any] | None,
    facts: CallFacts,
) -> CallRow:
    tokens = exchange.upstream.tokens
    choices = replies_in(completion)
    served = as_text(as_mapping(completion).get("model"), None)
    return CallRow(
        request_id=exchange.request.id,
        model_requested=exchange.request.model,
        model_asked=exchange.upstream.model or exchange.request.model,
        model_served=served,
        deployment=exchange.upstream.deployment,
        lane=exchange.upstream.lane,
        status=exchange.response.status or 200,
        error=exchange.response.error or None,
        finish_reason=as_text(choices[0][1], None) if choices else None,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        cost_usd=facts.cost_usd,
        cost_unsteered_usd=facts.cost_unsteered_usd,
        latency_s=exchange.timing.elapsed_s(),
        first_byte_s=exchange.timing.first_byte_s,
        overhead_ms=exchange.timing.own_ms(),
        timings_ms=result.timings_ms,
        attempts=max(1, len(exchange.upstream.attempts)),
        retries=result.conversation.history.branch.retries,
        streamed=exchange.request.streamed,
        unsteered=result.unsteered,
        usage_estimated=exchange.upstream.usage_estimated,
        reasons=tuple(result.reasons),
    )


def _reply_content(completion: Mapping[str, Any] | None) -> StepContent:
    choices = replies_in(completion)
    if not choices:
        return StepContent()
    message = choices[0][0]
    text = message.get("content")
    calls = message.get("tool_calls")
    actions = []
    for call in as_list(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            name, arguments = function.get("name"), function.get("arguments")
            actions.append(Action(name=str(name or ""), arguments=str(arguments or "")))
    return StepContent(reply_text=as_text(text, ""), reply_actions=tuple(actions))


def _step_rows(
    result: SteeringResult, call: CallRow | None, reply: StepContent, now: float
) -> list[StepRow]:
    """Every step that is not stored yet, and the step at which the call was made, with the call."""
    conversation = result.conversation
    rows = {
        key: _scored_row(conversation.run_id(key[0]), outcome, now)
        for key, outcome in conversation.unsaved.steps.items()
    }
    position, run_id = result.position, result.run_id
    newest = rows.pop((position.run, position.step), None)
    if newest is None and position.latest is not None:
        # A retry, or a call after one that failed: the step is stored, the call is new.
        newest = _scored_row(run_id, position.latest, now)
    if newest is None:
        newest = result.logged or StepRow(
            run_id=run_id, step_index=position.step, at=now, state=position.state.value
        )
    own = newest.content or StepContent()
    content = replace(
        reply,
        thought=own.thought,
        reasoning=own.reasoning,
        actions=own.actions,
        prompted=own.prompted,
    )
    found = candidate_rows(result)
    matches = (each.pattern_id for each in found if each.cleared and each.tier == Tier.E1.value)
    newest = replace(
        newest, call=call, content=content, candidates=found, e1_match=next(matches, None)
    )
    return [*rows.values(), newest]


def _scored_row(run_id: str, outcome: StepOutcome, now: float) -> StepRow:
    readings = outcome.readings
    step = outcome.step
    return StepRow(
        run_id=run_id,
        step_index=outcome.index,
        at=now,
        state=outcome.state.value,
        difficulty=outcome.difficulty,
        risk=outcome.risk.probability,
        scores=readings.scores,
        composite=readings.composite,
        fired=readings.fired,
        failure_type=readings.failure_type,
        evidence=readings.evidence,
        loop_count=outcome.loop_count,
        content=StepContent(
            thought=step.thought,
            reasoning=step.reasoning,
            actions=step.actions,
            prompted=step.prompted,
        ),
    )


def _run_update(
    result: SteeringResult, run: int, exchange: Exchange, facts: CallFacts, now: float
) -> RunUpdate:
    conversation, own = result.conversation, run == result.position.run
    state = FSMState.END if run < conversation.run.index else result.state_after
    newest = conversation.snapshot()
    if run > result.position.run and newest is not None:
        # Another request has begun the next run in the meantime.
        state = newest.state
    return RunUpdate(
        id=conversation.run_id(run),
        sequence=run,
        started_at=conversation.run.started_at or now,
        updated_at=now,
        ended_at=now if state is FSMState.END else None,
        state=state.value,
        outcome=facts.outcome if own else None,
        outcome_source="header" if facts.outcome and own else "",
        agent=facts.agent,
        task_preview=_preview(result.tasks.get(run, ""), facts),
        profile=facts.profile,
        mode=result.mode,
        experiment=facts.experiment,
        arm=facts.arm,
        unit=facts.unit,
        policy_digest=facts.policy_digest,
        identity_source=result.resolved.source,
        model_requested=exchange.request.model,
        key_name=facts.key_name,
        tags=facts.tags if own else {},
    )


def _preview(task: str, facts: CallFacts) -> str:
    """The start of a task, masked before it is cut: half of a secret has no form."""
    start = task[: _PREVIEW_CHARACTERS + _LONGEST_SECRET]
    return (mask_repeated(start) if facts.masks_secrets else start)[:_PREVIEW_CHARACTERS]


def call_event(record: CallRecord) -> Event | None:
    """The event for the newest step of `record`; None when it has no call."""
    steps = [step for step in record.steps if step.call is not None]
    if not steps:
        return None
    step, conversation = steps[-1], record.conversation
    run = next(run for run in record.runs if run.id == step.run_id)
    return step_event(conversation.tenant, conversation.id, run, step, record.injections)


def step_event(
    tenant: str,
    conversation_id: str,
    run: RunUpdate | RunRecord,
    step: StepRow,
    injections: Sequence[InjectionRow],
) -> Event | None:
    """The event of one step; None when no call was made at it. `injections`: those at the step."""
    call = step.call
    if call is None:
        return None
    return {
        "type": "step",
        "tenant": tenant,
        "conversation_id": conversation_id,
        "run_id": step.run_id,
        "step": step.step_index,
        "at": step.at,
        "state": run.state,
        "ended": run.ended_at is not None,
        "outcome": run.outcome,
        "difficulty": step.difficulty,
        "risk": step.risk,
        "composite": step.composite,
        "fired": step.fired,
        "failure_type": step.failure_type,
        "guidance": [
            f"{row.source}:{row.pattern_id or row.failure_type or 'directive'}"
            for row in injections
            if row.applied
        ],
        "model_requested": call.model_requested,
        "model_asked": call.model_asked,
        "status": call.status,
        "error": call.error,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost_usd": call.cost_usd,
        "usage_estimated": call.usage_estimated,
        "unsteered": call.unsteered,
        "latency_s": call.latency_s,
    }


def injection_rows(result: SteeringResult) -> list[InjectionRow]:
    """One row for each piece of guidance that is new in this call; repeated ones have a row."""
    placed, decided = result.placed, result.decided
    if placed is None or decided is None:
        return []
    run_id = result.run_id
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
        rows.insert(0, _directive_row(result, run_id, decided.directive, placed.directive))
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
    run_id = result.run_id
    readings = decision.proposal.signals.guidance.readings
    return [
        DecisionRow(
            run_id=run_id,
            step_index=result.position.step,
            pattern_id=each.pattern.pattern_id,
            owner=each.pattern.tenant,
            version=each.pattern.lesson.version if each.pattern.lesson else 1,
            share=each.share,
            given=each.given,
            similarity=each.similarity,
            key=each.key,
            state=result.position.state.value,
            failure_type=(readings.failure_type if readings else None) or "",
        )
        for each in decision.decided.lessons
    ]


def _directive_row(
    result: SteeringResult, run_id: str, text: str, block: Injection
) -> InjectionRow:
    row = InjectionRow(run_id=run_id, step_index=result.position.step, ordinal=0, source="skip")
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
        step_index=result.position.step,
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


def opening_prompts(
    body: Mapping[str, Any], transcript: Sequence[Any], start: int
) -> list[PromptMessage]:
    """The opening of a run: the system prompt, then the messages before its first reply.

    `start` is the index of the run's first message.
    """
    separate = [content_text(body.get(key)) for key in ("system", "instructions")]
    lead = islice(transcript, min(start, MOST_MESSAGES))
    opening = [PromptMessage(role="system", text=text) for text in separate if text]
    opening += _read(_until(lead, lambda message: _role(message) not in SYSTEM_ROLES))
    own = (transcript[at] for at in range(start, min(start + MOST_MESSAGES, len(transcript))))
    opening += _read(_until(own, _is_reply))
    return opening


def later_prompts(transcript: Sequence[Any], latest: Step | None) -> list[PromptMessage]:
    """The system and user messages since the last reply.

    A user message with the results of calls that an agent wrote into its text belongs to the step
    `latest` and is left out.
    """
    since: list[Any] = []
    newest = len(transcript) - 1
    for position in range(newest, max(newest - MOST_MESSAGES, -1), -1):
        if _is_reply(transcript[position]):
            break
        since.append(transcript[position])
    since.reverse()
    found = list(_read(since))
    if latest is None or any(map(is_result, since)):
        return found
    results = [action.observation.strip() for action in latest.actions if action.observation]
    return [item for item in found if not any(result in item.text for result in results)]


def _read(messages: Iterable[Any]) -> Iterator[PromptMessage]:
    for message in messages:
        role = _role(message)
        text = content_text(message.get("content")) if role in _ROLES else ""
        if text:
            yield PromptMessage(role=role, text=text)


def _until(messages: Iterable[Any], ends: Any) -> Iterator[Any]:
    for message in messages:
        if ends(message):
            return
        yield message


def _role(message: Any) -> str:
    return as_text(as_mapping(message).get("role"), "")


def _is_reply(message: Any) -> bool:
    return _role(message) == "assistant" or _kind(message).endswith("_call")


def _kind(message: Any) -> str:
    return as_text(as_mapping(message).get("type"), "")
