"""One finished call as records for the store, and as an event for the live view.

Its steps and its cost, its guidance, and its system and user messages."""

import json
import time
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from gateway.calls.call import Call, Outcome
from gateway.conversations.apply_reply import echoed_items
from gateway.conversations.codec import to_record
from gateway.conversations.conversation import items_by_id, run_id
from gateway.conversations.decision import ActOfPerson, Decision
from gateway.core.fold import RunSnapshot, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import STANDING, Item
from gateway.core.guidance_state import Injection
from gateway.core.pattern import ETrace, PatternMatch, Tier, etrace_of
from gateway.core.placement import Placed
from gateway.core.step import Action
from gateway.core.trouble import HELD
from gateway.dialects.base import ANSWER_ID
from gateway.steering.transcript.interventions import (
    WORDS_CHARACTERS,
)
from gateway.steering.transcript.user_words import title_of
from gateway.stores.commit_plan import merged_content
from gateway.stores.learning import DecisionRow
from gateway.stores.records import (
    OWN_MODE,
    CallRecord,
    CallRow,
    InjectionRow,
    ItemRecord,
    RunUpdate,
    StepContent,
    StepRow,
)
from gateway.stores.totals import HAND_OVER
from gateway.text.secrets import mask_repeated
from gateway.values import FieldDict
from gateway.wire.message_identity import content_text

_PREVIEW_CHARACTERS = 200
_LONGEST_SECRET = 4096


def call_record(
    call: Call,
    decision: Decision,
    outcome: Outcome,
    snapshot: RunSnapshot | None,
    now: float,
) -> CallRecord:
    """Everything that is committed for one call; `snapshot`: that of its conversation."""
    conversation = decision.conversation
    masks_secrets = call.services.settings.storage.mask_secrets
    count = decision.resolved.incoming.hashes.state.count
    runs = {index for index, _ in conversation.unsaved.steps} | {decision.position.run}
    last = conversation.unsaved.snapshot
    if last is not None and last.run < conversation.run.index and last.state is not FSMState.END:
        runs.add(last.run)  # a new run has ended it
    ids = {index: run_id(conversation.id, index) for index in sorted(runs)}
    run = ids[decision.position.run]
    items = {}
    if outcome.completion is not None and outcome.completion.get(ANSWER_ID):
        items = items_by_id(echoed_items(outcome.completion))
    updates, steps = with_acts(
        [_run_update(call, decision, each, newest=snapshot, now=now) for each in ids.items()],
        _step_rows(call, decision, outcome, run=run, now=now),
        decision.acts,
        masks_secrets=masks_secrets,
    )
    return CallRecord(
        conversation=to_record(
            conversation, count, now, snapshot=snapshot, masks_secrets=masks_secrets
        ),
        heads=outcome.applied.hashes,
        runs=updates,
        steps=steps,
        injections=tuple(injection_rows(decision, call.delivery.placed, run)),
        items=tuple(
            [ItemRecord(id=name, content=json.dumps(item).encode()) for name, item in items.items()]
        ),
        decisions=tuple(decision_rows(decision, run)),
    )


def _call_row(call: Call, decision: Decision, outcome: Outcome) -> CallRow:
    exchange = call.exchange
    upstream = exchange.upstream
    tokens = exchange.upstream.tokens
    timing = exchange.timing
    served = None
    if outcome.completion:
        served = outcome.completion.get("model")
    finish = outcome.choices[0][1] if outcome.choices else None
    return CallRow(
        request_id=exchange.request.id,
        model_requested=exchange.request.model,
        model_asked=upstream.model or exchange.request.model,
        model_served=served if isinstance(served, str) else None,
        deployment=upstream.deployment,
        lane=upstream.lane,
        status=exchange.response.status or 200,
        error=exchange.response.error or None,
        finish_reason=finish if isinstance(finish, str) else None,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        cost_usd=outcome.cost_usd,
        cost_unsteered_usd=outcome.cost_unsteered_usd,
        latency_s=time.perf_counter() - timing.started,
        first_byte_s=timing.first_byte_s,
        overhead_ms=timing.own_s() * 1000,
        timings_ms=call.timings_ms,
        attempts=max(1, len(upstream.attempts)),
        retries=decision.conversation.history.branch.retries,
        streamed=exchange.request.streamed,
        unsteered=decision.unsteered,
        usage_estimated=upstream.usage_estimated,
        price_estimated=outcome.price_estimated,
        reasons=decision.reasons + call.delivery.reasons,
        lost_cause=outcome.loss.cause,
        lost_tokens=outcome.loss.tokens,
        lost_usd=outcome.loss.usd,
    )


def reply_content(choices: Sequence[tuple[FieldDict, str | None]]) -> StepContent:
    """The text and the calls of the first of these replies (see `replies_in`)."""
    if not choices:
        return StepContent()
    message = choices[0][0]
    text = message.get("content")
    calls = message.get("tool_calls")
    actions = []
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            name = function.get("name")
            arguments = function.get("arguments")
            actions.append(Action(name=str(name or ""), arguments=str(arguments or "")))
    if isinstance(text, str):
        said = text
    else:
        said = content_text(text)
    return StepContent(reply_text=said, reply_actions=tuple(actions))


def _step_rows(
    call: Call, decision: Decision, outcome: Outcome, run: str, now: float
) -> list[StepRow]:
    """Every step that is not stored yet, and the step at which the call was made, with the call."""
    conversation = decision.conversation
    position = decision.position
    rows = {
        key: scored_row(run if key[0] == position.run else run_id(conversation.id, key[0]), o, now)
        for key, o in conversation.unsaved.steps.items()
    }
    newest = rows.pop((position.run, position.step), None)
    if newest is None and position.latest is not None:
        # A retry, or a call after one that failed: the step is stored, the call is new.
        newest = scored_row(run, position.latest, now)
    if newest is None:
        newest = call.logged or StepRow(
            run_id=run, step_index=position.step, at=now, state=position.state.value
        )
    own = newest.content or StepContent()
    reply = reply_content(outcome.choices)
    found = etraces_of(decision)
    matches = (each.pattern_id for each in found if each.cleared and each.tier == Tier.E1.value)
    newest = replace(
        newest,
        call=_call_row(call, decision, outcome) if outcome.answered else None,
        content=merged_content(replace(reply, messages=decision.prompts), own),
        candidates=found,
        e1_match=next(matches, None),
        acts=_acts(call, decision),
    )
    return [*rows.values(), newest]


def scored_row(run: str, outcome: StepOutcome, now: float) -> StepRow:
    """The step that an outcome is of, without a call."""
    readings = outcome.readings
    step = outcome.observed.step
    return StepRow(
        run_id=run,
        step_index=outcome.index,
        at=now,
        state=outcome.state.value,
        difficulty=outcome.difficulty,
        scores=readings.scores,
        composite=readings.composite,
        fired=readings.fired,
        failure_type=readings.failure_type,
        evidence=readings.evidence,
        loop_count=max([each.count for _, each in outcome.observed.actions], default=1) - 1,
        reason=outcome.reason,
        alarms=tuple([alarm.sentence for alarm in readings.alarms]),
        content=StepContent(
            thought=step.thought,
            reasoning=step.reasoning,
            actions=step.actions,
            prompted=step.prompted,
        ),
    )


def _run_update(
    call: Call,
    decision: Decision,
    numbered: tuple[int, str],
    newest: RunSnapshot | None,
    now: float,
) -> RunUpdate:
    """The row of one run, given its number and its id."""
    run, name = numbered
    settings = call.services.settings
    conversation = decision.conversation
    own = run == decision.position.run
    control = call.control
    task = decision.tasks.get(run)
    title = title_of(task) if task else ""
    ended = call.outcome is not None and call.outcome.applied.ends_run
    if ended or run < conversation.run.index:
        state = FSMState.END
    else:
        state = decision.position.state
    model = call.exchange.request.model
    if decision.position.step < 0:  # another model's call says nothing of the run's
        model = conversation.history.branch.model or model
    if run > decision.position.run and newest is not None:
        # Another request has begun the next run in the meantime.
        state = newest.state
    return RunUpdate(
        id=name,
        sequence=run,
        started_at=conversation.run.started_at or now,
        updated_at=now,
        ended_at=now if state is FSMState.END else None,
        state=state.value,
        outcome=control.outcome if own else None,
        outcome_source="header" if control.outcome and own else "",
        agent=control.agent,
        task_preview=preview(title, masks_secrets=settings.storage.mask_secrets),
        profile=settings.monitors.profile,
        mode=decision.mode,
        experiment=control.experiment,
        arm=control.arm,
        unit=control.unit if control.experiment else None,
        policy_digest=call.services.policy_digest,
        identity_source=decision.resolved.source,
        model_requested=model,
        key_name=call.exchange.request.key,
        tags=control.tags if own else {},
    )


def preview(text: str, *, masks_secrets: bool, most: int = _PREVIEW_CHARACTERS) -> str:
    """The beginning of a text, masked before it is cut: half of a secret has no form."""
    head = text[: most + _LONGEST_SECRET]
    return (mask_repeated(head) if masks_secrets else head)[:most]


def with_acts(
    runs: Sequence[RunUpdate],
    steps: Sequence[StepRow],
    acts: Sequence[ActOfPerson],
    *,
    masks_secrets: bool,
) -> tuple[tuple[RunUpdate, ...], tuple[StepRow, ...]]:
    """Returns the rows with acts of a person added, and new rows for acts on steps and runs that
    are stored already."""
    if not acts:
        return tuple(runs), tuple(steps)
    updates = {run.id: run for run in runs}
    rows = {(step.run_id, step.step_index): step for step in steps}
    for (run, step), act in acts:
        words = preview(act.words, masks_secrets=masks_secrets, most=WORDS_CHARACTERS)
        updates.setdefault(run, RunUpdate(id=run, started_at=0.0, updated_at=0.0))
        row = rows.get((run, step)) or StepRow(run_id=run, step_index=step, at=0.0, state="END")
        content = row.content or StepContent()
        content = replace(content, human=(*content.human, replace(act, words=words)))
        rows[run, step] = replace(row, content=content)
    return tuple(updates.values()), tuple(rows.values())


def injection_rows(decision: Decision, placed: Placed | None, run: str) -> list[InjectionRow]:
    """One row for each piece of guidance that is new in this call; repeated ones have a row. The
    universal rules are always sent together, and have one row."""
    if placed is None or decision.conclusion is None:
        return []
    rows = []
    decided = decision.conclusion.decided
    made = partial(_injection_row, decision, placed, run)
    # A retry gets the directive again; it counts as one piece of guidance.
    if placed.directive is not None and not decision.conversation.history.branch.retries:
        row = InjectionRow(run_id=run, step_index=decision.position.step, ordinal=0, source="skip")
        where = _place_of(placed.directive)
        rows.append(replace(row, text=decided.directive, applied=decision.applies, **where))
    if rules := [item for item in decided.items if item.tier is Tier.E3]:
        ids = ",".join(item.match.pattern.pattern_id for item in rules if item.match)
        first = made(1, item=rules[0])
        text = "\n\n".join(item.text for item in rules)
        rows.append(replace(first, pattern_id=ids, text=text))
    others = [item for item in decided.items if item.tier is not Tier.E3]
    return rows + [made(at, item=item) for at, item in enumerate(others, start=2)]


def etraces_of(decision: Decision) -> tuple[ETrace, ...]:
    """The patterns that the look-ups of this call found, given or not; lessons last."""
    if decision.conclusion is None or decision.unsteered:
        return ()
    decided = decision.conclusion.decided
    lessons = [PatternMatch(pattern=e.pattern, similarity=1.0) for e in decided.lessons]
    return (*decided.candidates, *[etrace_of(match, cleared=True) for match in lessons])


def _acts(call: Call, decision: Decision) -> tuple[str, ...]:
    """Returns the kinds of acts that were decided for this call, carried out or not. For a
    refused call that is only the end of the run."""
    conclusion = decision.conclusion
    if call.control.mode:
        return (OWN_MODE,)
    if conclusion is None or decision.unsteered:
        return ()
    decided = conclusion.decided
    found = set()
    lessons = [each.pattern for each in decided.lessons if each.given]
    sent = "refused" not in call.exchange.notes
    for item in decided.items if sent else ():
        if item.source == STANDING or (item.match and item.match.pattern in lessons):
            found.add("lessons")
        elif item.tier is Tier.E3:
            found.add("rules")
        else:
            found.add(HAND_OVER if item.source == HAND_OVER else "guidance")
    if (decided.directive and sent) or conclusion.proposal.act.name in HELD:
        found.add(HAND_OVER)
    if sent and conclusion.proposal.routed.model != call.exchange.request.model:
        found.add("routing")
    return tuple(sorted(found))


def decision_rows(decision: Decision, run: str) -> list[DecisionRow]:
    """One row for each lesson that fitted this call, given or not; none where nothing is sent."""
    conclusion = decision.conclusion
    if conclusion is None or not decision.applies or decision.unsteered:
        return []
    readings = conclusion.proposal.signal.readings
    return [
        DecisionRow(
            run_id=run,
            step_index=decision.position.step,
            pattern_id=each.pattern.pattern_id,
            owner=each.pattern.tenant,
            version=each.pattern.lesson.version if each.pattern.lesson else 1,
            share=each.share,
            given=each.given,
            similarity=1.0,
            key=each.key,
            state=decision.position.state.value,
            failure_type=(readings.failure_type if readings else None) or "",
        )
        for each in conclusion.decided.lessons
    ]


def _place_of(block: Injection | None) -> FieldDict:
    if block is None:
        return {"placement": "", "message_position": None}
    between = block.place != "system"
    return {"placement": block.place, "message_position": block.offset if between else None}


def _injection_row(
    decision: Decision, placed: Placed, run: str, ordinal: int, *, item: Item
) -> InjectionRow:
    match = item.match
    # A rule may stand where an earlier run has put it.
    blocks = (*placed.added, *placed.state.injections)
    block = next((block for block in blocks if item.text in block.text), None)
    return InjectionRow(
        run_id=run,
        step_index=decision.position.step,
        ordinal=ordinal,
        source=item.tier.value if item.tier else item.source,
        tier=item.tier.value if item.tier else None,
        pattern_id=match.pattern.pattern_id if match else None,
        similarity=match.similarity if match else None,
        failure_type=item.failure_type,
        severity=str(item.severity) if item.severity is not None else None,
        text=item.text,
        applied=decision.applies,
        **_place_of(block),
    )
