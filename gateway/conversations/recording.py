"""What one finished call leaves in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.conversations.answered import items_by_id
from gateway.conversations.replies import echo_of, messages_of
from gateway.conversations.steered import Steered
from gateway.conversations.told import injection_rows
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import Exchange
from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.steps import Action
from gateway.stores.records import (
    CallRecord,
    CallRow,
    HeadRecord,
    ItemRecord,
    RunUpdate,
    StepContent,
    StepRow,
)
from gateway.wire.usage import token_usage

_PREVIEW_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """About the call itself: who asked, under which experiment, and what it cost."""

    agent: str = ""
    profile: str = ""
    policy_digest: str = ""
    experiment: str | None = None
    arm: str | None = None
    unit: str | None = None
    outcome: str | None = None
    cost_usd: float | None = None
    cost_unsteered_usd: float | None = None
    answered: bool = True
    """False for a call whose answer is still being made."""


def call_record(
    steered: Steered,
    exchange: Exchange,
    completion: Mapping[str, Any] | None,
    facts: CallFacts,
    heads: Sequence[HeadRecord],
    now: float,
) -> CallRecord:
    """Everything that is committed for one call."""
    conversation = steered.conversation
    call = _call_row(steered, exchange, completion, facts)
    reply = replace(_reply_content(completion), messages=tuple(steered.prompts))
    steps = _step_rows(steered, call if facts.answered else None, reply, now)
    record = conversation.record(steered.recalled.incoming.heads.state.count, now)
    return CallRecord(
        conversation=record,
        heads=tuple(heads),
        runs=tuple(
            _run_update(steered, run, exchange, facts, now) for run in _runs_to_tell(steered)
        ),
        steps=tuple(steps),
        injections=tuple(injection_rows(steered)),
        items=tuple(_items(completion)),
    )


def _items(completion: Mapping[str, Any] | None) -> Iterator[ItemRecord]:
    """The items of an answer that the server keeps, so that clients may name them."""
    if completion is None or not completion.get(ANSWER_ID):
        return
    for name, item in items_by_id(echo_of(completion)).items():
        yield ItemRecord(id=name, content=json.dumps(item).encode())


def _runs_to_tell(steered: Steered) -> list[int]:
    """The runs that have new rows, and the one that turned out to be over when the next began."""
    conversation = steered.conversation
    runs = {run for run, _ in conversation.unrecorded} | {steered.run}
    last = conversation.last
    if last is not None and last.run < conversation.run and last.state is not FSMState.END:
        runs.add(last.run)
    return sorted(runs)


def _call_row(
    steered: Steered,
    exchange: Exchange,
    completion: Mapping[str, Any] | None,
    facts: CallFacts,
) -> CallRow:
    tokens = token_usage(exchange.usage)
    choices = messages_of(completion)
    served = completion.get("model") if completion else None
    return CallRow(
        request_id=exchange.request_id,
        model_requested=exchange.model,
        model_asked=exchange.model_asked or exchange.model,
        model_served=served if isinstance(served, str) else None,
        deployment=exchange.deployment,
        lane=exchange.lane,
        status=exchange.status or 200,
        error=exchange.error or None,
        finish_reason=choices[0][1] if choices else None,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        cost_usd=facts.cost_usd,
        cost_unsteered_usd=facts.cost_unsteered_usd,
        latency_s=exchange.elapsed_s(),
        first_byte_s=exchange.first_byte_s,
        overhead_ms=exchange.own_ms(),
        timings_ms=steered.timings_ms,
        attempts=max(1, len(exchange.attempts)),
        retries=steered.conversation.retries,
        streamed=exchange.streamed,
        reasons=tuple(steered.reasons),
    )


def _reply_content(completion: Mapping[str, Any] | None) -> StepContent:
    choices = messages_of(completion)
    if not choices:
        return StepContent()
    message = choices[0][0]
    text = message.get("content")
    calls = message.get("tool_calls")
    actions = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            name, arguments = function.get("name"), function.get("arguments")
            actions.append(Action(name=str(name or ""), arguments=str(arguments or "")))
    return StepContent(
        reply_text=text if isinstance(text, str) else "", reply_actions=tuple(actions)
    )


def _step_rows(
    steered: Steered, call: CallRow | None, reply: StepContent, now: float
) -> list[StepRow]:
    """Every step that the store lacks, and the one the call was made at, with the call."""
    conversation = steered.conversation
    rows = {
        key: _scored_row(conversation.run_id(key[0]), outcome, now)
        for key, outcome in conversation.unrecorded.items()
    }
    here, run_id = (steered.run, steered.step), conversation.run_id(steered.run)
    newest = rows.pop(here, None)
    if newest is None and steered.latest is not None:
        # A retry, or a call after one that failed: the step is known, the call is new.
        newest = _scored_row(run_id, steered.latest, now)
    if newest is None:
        newest = StepRow(run_id=run_id, step_index=steered.step, at=now, state=steered.state.value)
    own = newest.content or StepContent()
    content = replace(
        reply,
        thought=own.thought,
        reasoning=own.reasoning,
        actions=own.actions,
        prompted=own.prompted,
    )
    return [*rows.values(), replace(newest, call=call, content=content)]


def _scored_row(run_id: str, outcome: StepOutcome, now: float) -> StepRow:
    readings = outcome.readings
    step = outcome.step
    return StepRow(
        run_id=run_id,
        step_index=outcome.index,
        at=now,
        state=outcome.state.value,
        difficulty=outcome.difficulty,
        scores=readings.scores,
        composite=readings.composite,
        fired=readings.fired,
        failure_type=readings.failure_type,
        evidence=readings.evidence,
        content=StepContent(
            thought=step.thought,
            reasoning=step.reasoning,
            actions=step.actions,
            prompted=step.prompted,
        ),
    )


def _run_update(
    steered: Steered, run: int, exchange: Exchange, facts: CallFacts, now: float
) -> RunUpdate:
    conversation, own = steered.conversation, run == steered.run
    state = FSMState.END if run < conversation.run else steered.state_after
    stands = conversation.stands()
    if run > steered.run and stands is not None:
        # Another request has begun the next run meanwhile.
        state = stands.state
    return RunUpdate(
        id=conversation.run_id(run),
        sequence=run,
        started_at=conversation.run_started_at or now,
        updated_at=now,
        ended_at=now if state is FSMState.END else None,
        state=state.value,
        outcome=facts.outcome if own else None,
        outcome_source="header" if facts.outcome and own else "",
        agent=facts.agent,
        task_preview=steered.tasks.get(run, "")[:_PREVIEW_CHARACTERS],
        profile=facts.profile,
        mode=steered.mode,
        experiment=facts.experiment,
        arm=facts.arm,
        unit=facts.unit,
        policy_digest=facts.policy_digest,
        identity_source=steered.recalled.source,
        model_requested=exchange.model,
    )
