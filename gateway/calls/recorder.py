"""Commits a finished call: its answer is applied to the conversation, and its record is stored.

An answer that is made in the background: `gateway/calls/background_answers.py`."""

import asyncio
import time
from collections.abc import Callable, Sequence

import orjson
from msgspec.structs import replace

from gateway.calls.background_answers import BackgroundAnswers
from gateway.calls.call import Call, Outcome
from gateway.calls.headers import STATE_HEADER
from gateway.calls.prompt_cache import SentPrompts
from gateway.calls.records import call_record
from gateway.conversations.apply_reply import (
    AppliedReply,
    apply_reply,
    note_cut,
    note_ended,
    note_failed,
    note_sending,
    replies_in,
)
from gateway.conversations.codec import from_record
from gateway.conversations.conversation import Conversation
from gateway.conversations.decision import Decision
from gateway.conversations.loading import merge
from gateway.core.fold import StepOutcome
from gateway.core.fsm import FSMState
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import UpstreamReply
from gateway.observability.logging import get_logger
from gateway.observability.otel import COST_NAMES, answer_names, call_texts
from gateway.runtime import Runtime
from gateway.stores.protocols import StoreError, StoreOverloaded, VersionConflict
from gateway.stores.raw_calls_and_answers import RawCall
from gateway.stores.records import CallRecord
from gateway.upstream.retries import AT_OTHER_TARGET
from gateway.upstream.token_estimates import estimated_usage
from gateway.values import FieldDict, Fields
from gateway.wire.headers import replaced
from gateway.wire.upstream_errors import status_of
from gateway.wire.usage import Loss

_log = get_logger("gateway.steering")
# Longest wait for the other calls of a conversation before an unsteered one is recorded.
_CATCH_UP_S = 10.0
# Attempts to save a call, when other gateways save the same conversation at the same time.
_ATTEMPTS = 5


class Recorder:
    """Applies finished calls to their conversations and commits them to the store."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self.answers = BackgroundAnswers(runtime, catch_up=self.catch_up, record=self.record)
        self._prompts = SentPrompts(runtime.unsteady)

    async def complete(self, call: Call, reply: UpstreamReply) -> None:
        """Record the complete answer, before the client gets its last byte. That goes on when the
        client leaves meanwhile: the answer was made, and is paid for."""
        failure = reply.failure
        if call.target is not None:
            failed = failure is not None and status_of(failure) in AT_OTHER_TARGET
            call.services.dispatcher.note_end(call.target, failed=failed)
        if failure is not None:  # `end` records it like a refusal with a status
            call.note_failure(failure)
            return
        call.completed = True
        await asyncio.shield(self._runtime.unfinished.start(self._complete(call, reply)))

    async def _complete(self, call: Call, reply: UpstreamReply) -> None:
        decision = call.decision
        exchange = call.exchange
        completion = reply.completion
        if decision is not None:
            note_sending(decision)
        if reply.unread is not None:  # the gateway does not know what was answered
            exchange.notes["unread"] = reply.unread
            self._runtime.metrics.unread.labels(reply.unread).inc()
            call.note_reason(f"answer not read: {reply.unread}")
        _bill(call, reply.usage, completion)
        settings = call.services.settings
        if self._runtime.telemetry is not None:
            exchange.texts |= answer_names(completion or {})
            if call.target is not None and call.target.lane == "native":
                exchange.texts["server.address"] = call.target.api_base.host
            if settings.otel.content:
                mask = settings.storage.mask_secrets
                history = call.request.own_messages
                exchange.texts |= call_texts(history, completion, settings.otel, mask=mask)
        if call.connection is not None and completion is not None:
            completion[ANSWER_ID] = call.connection.answer_id
        response_id = reply.pending_id or (completion or {}).get(ANSWER_ID)
        if isinstance(response_id, str) and response_id and call.target is not None:
            kept = self._keep_place(call, response_id)
            if kept and reply.pending_id is None:
                await self.answers.keep(call.tenant, response_id, target=call.target)
        if reply.pending_id is None and call.spending is not None:
            await call.settle()
        await self._record_when_scored(call, completion, reply.pending_id)
        if call.outcome is not None and call.outcome.applied.ends_run:
            # A stream's head is sent by now; a whole answer still says that it ended the run.
            headers = exchange.response.headers
            exchange.response.headers = replaced(headers, STATE_HEADER, FSMState.END.value.encode())
            exchange.notes["state"] = FSMState.END.value

    def _keep_place(self, call: Call, response_id: str) -> bool:
        """Whoever asks for a stored answer later is sent to where it is stored, and does not see
        the guidance in the instructions that it repeats. True if the store has to know that."""
        known = self._runtime.stored_answers
        place = ""
        if call.target is not None:
            place = call.target.place
            known.targets.put(call.tenant, response_id, call.target)
        if (echo := call.echo()) is not None:
            known.echoes.put(call.tenant, response_id, echo)
        return bool(place or echo)

    def end(self, call: Call, received: Callable[[], bytes]) -> None:
        """No more is sent. Record a call without a complete answer, in a task of the event loop.
        `received` returns the part of a stream that arrived. Its tokens are estimates: what was
        reported before the end is not all. If it shows that the answer is made in the background,
        the call stays pending: the client may still ask for the answer."""
        decision = call.decision
        request = call.request
        if decision is not None and call.exchange.response.client_gone:
            note_cut(decision)
        if call.completed:
            if decision is not None:
                note_ended(decision)
            return
        read = request.dialect.read_stream(received(), orjson.loads)
        _bill(call, read.usage, read.completion or read.partial)
        upstream = call.exchange.upstream
        upstream.usage_estimated = upstream.usage is not None
        pending_id = None
        if request.dialect.in_background(request):
            pending_id = read.pending_id
        if pending_id is not None:
            self._keep_place(call, pending_id)
        elif call.spending is not None:
            self._runtime.unfinished.start(call.settle())
        if decision is None:
            return
        if pending_id is None:
            # At once: a client that gave up may send the request again before this is recorded.
            note_failed(decision)
        self._runtime.unfinished.start(self._record_when_scored(call, None, pending_id))

    async def _record_when_scored(
        self, call: Call, completion: FieldDict | None, pending_id: str | None
    ) -> None:
        """Commit the call. A call whose answer is still being made in the background is noted as
        such at once."""
        if pending_id is not None:
            await self.answers.commit(call, pending_id)
            return
        await self.catch_up(call)
        await self.record(call, completion)

    async def catch_up(self, call: Call) -> None:
        """Score the steps of a call that went out before that was done, for its record."""
        decision = call.decision
        if decision is None or decision.observed:
            return
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                call.decision = await call.services.steerer.catch_up(
                    decision, call.request, time.time(), timings=call.timings_ms
                )
        except Exception as exc:
            _log.warning(
                "steps of an unsteered call not scored",
                kind=type(exc).__name__,
                request_id=call.exchange.request.id,
            )

    def keep_raw(self, call: Call, received: Callable[[], bytes]) -> None:
        """Keep the call as it was sent and received, if that is switched on, in a task of the event
        loop."""
        decision = call.decision
        sent = call.sent
        if decision is None:
            return
        raw = RawCall(
            tenant=call.tenant,
            run_id=decision.run_id,
            step_index=decision.position.step,
            at=time.time(),
            dialect=call.request.dialect.name,
            request=sent if isinstance(sent, bytes) else orjson.dumps(sent, default=str),
            response=call.request.dialect.plain(received(), orjson.loads),
        )
        self._runtime.unfinished.start(self.keep(raw))

    async def keep(self, raw: RawCall) -> None:
        """Keep a call as it was sent and received, if that is switched on."""
        storage = self._runtime.settings.storage
        longest = int(storage.raw_max_kb * 2**10)
        most = int(storage.raw_mb * 2**20)
        if (keeper := self._runtime.raw_calls) is not None:
            await keeper.keep(raw, max_bytes=longest, most_bytes=most)

    async def record(
        self,
        call: Call,
        completion: Fields | None,
        *,
        pending_id: str | None = None,
    ) -> None:
        """Commit the call. If the store fails or is slow, its record waits in memory
        (`gateway/features/store_outages/guarded.py`), and the client gets its answer. Content and
        cost of an answer that is still being made, `pending_id`, are recorded later."""
        decision = call.decision
        metrics = self._runtime.metrics
        if decision is None:
            return
        if decision.position.step < 0:  # its session may have begun meanwhile
            known = call.services.index.get(decision.conversation.id)
            decision = replace(decision, conversation=known or decision.conversation)
            call.decision = decision
        try:
            async with decision.conversation.lock:
                await self._commit(call, decision, completion, pending_id=pending_id)
        except StoreOverloaded:
            # Logged once in an incident. The scored steps stay in memory for a later commit.
            metrics.store_dropped.inc()
        except StoreError as exc:
            metrics.store_failures.labels(exc.label).inc()
            _log.error("call not recorded", reason=str(exc))
        except Exception as exc:
            metrics.store_failures.labels("internal").inc()
            _log.exception("call not recorded", reason=str(exc))

    async def _commit(
        self,
        call: Call,
        decision: Decision,
        completion: Fields | None,
        pending_id: str | None,
    ) -> None:
        exchange = call.exchange
        services = call.services
        conversation = decision.conversation
        applied = AppliedReply()
        choices = replies_in(completion)
        if not decision.unread:
            try:
                applied = apply_reply(
                    decision,
                    completion,
                    choices,
                    index=services.index,
                    keep=services.settings.storage.store_content,
                    pending_id=pending_id,
                    stored=call.stored,
                )
            except Exception as exc:  # its next call finds no history, but it was answered
                _log.exception("answer not applied to its history", reason=str(exc))
        used = (exchange.upstream.tokens.input or 0) + (exchange.upstream.tokens.output or 0)
        memory = conversation.run.memory
        conversation.run.memory = replace(memory, tokens=memory.tokens + used)
        usage = exchange.upstream.usage
        cost = services.catalogue.cost(call.billed_model, usage)
        near = None
        if cost is None and usage:
            near = services.catalogue.relative(exchange.upstream.model)
            if near is not None:
                cost = near[1].cost(usage)
                call.note_reason(f"price: in no list, that of {near[0]} instead")
        if call.dry is not None:
            call.dry.charge(exchange.upstream.deployment, cost)
        unsteered = cost
        if call.delivery.model != exchange.request.model:
            unsteered = services.catalogue.cost(exchange.request.model, usage)
        loss = Loss()
        if completion is not None:
            try:
                loss = self._prompts.lost(call, time.perf_counter())
            except Exception as exc:  # the call is recorded without this figure
                _log.warning("prompt not compared", reason=str(exc))
        if self._runtime.telemetry is not None and cost is not None:
            exchange.texts |= dict.fromkeys(COST_NAMES, cost)
        outcome = call.outcome = Outcome(
            completion=completion,
            choices=choices,
            applied=applied,
            cost_usd=cost,
            cost_unsteered_usd=unsteered,
            price_estimated=near is not None,
            answered=pending_id is None,
            loss=loss,
        )
        outcomes = list(conversation.unsaved.steps.values())
        record = await self._save(call, decision, outcome, tokens=used)
        self._note_workload(call, decision)
        if self._runtime.learning is not None:
            self._runtime.learning.recorded(record)
        self._count(record, call, decision, outcomes=outcomes)
        self._runtime.replicas.publish(record)

    async def _save(
        self,
        call: Call,
        decision: Decision,
        outcome: Outcome,
        tokens: int,
    ) -> CallRecord:
        """Commit a call, joined with what other gateways have stored of its conversation. It is on
        record, whatever happens: what cannot be joined now waits to be joined later."""
        conversation = decision.conversation
        store = self._runtime.store
        for attempt in range(1, _ATTEMPTS + 1):
            snapshot = conversation.snapshot()
            record = call_record(call, decision, outcome, snapshot=snapshot, now=time.time())
            try:
                version = await store.commit(record)
                break
            except VersionConflict as conflict:
                try:
                    if attempt < _ATTEMPTS:
                        await self._merge(conversation, conflict, tokens)
                        continue
                except Exception as exc:
                    if not isinstance(exc, StoreError):
                        _log.exception("call not joined with what is stored")
                version = await store.keep(record)
                break
        conversation.stored(version, snapshot)
        return record

    async def _merge(
        self, conversation: Conversation, conflict: VersionConflict, tokens: int
    ) -> None:
        """Another gateway has stored a newer version: its rows stay, the rows of this call are
        added, and the states are joined."""
        stored = await self._runtime.store.load(conversation.tenant, conversation.id)
        try:
            found = None
            if stored is not None:
                found = from_record(stored)
        except ValueError as exc:
            _log.warning("stored conversation cannot be read", reason=str(exc))
            found = None
        if found is None:
            conversation.unsaved.version = conflict.actual
        else:
            merge(conversation, found, tokens=tokens)

    def _note_workload(self, call: Call, decision: Decision) -> None:
        """Say once where a run began: on the model that its first recorded call went to."""
        run = decision.conversation.run
        workloads = self._runtime.opened.workloads
        if workloads is None or run.workload is None or run.workload_noted:
            return
        if run.index == decision.position.run and decision.position.step >= 0:
            run.workload_noted = True
            choice = None
            if decision.applies:
                choice = run.memory.choice
            workloads.note(run.workload, decision.run_id, call.delivery.model, choice=choice)

    def _count(
        self,
        record: CallRecord,
        call: Call,
        decision: Decision,
        outcomes: Sequence[StepOutcome],
    ) -> None:
        """Count a call that was recorded, in metrics and for the patterns that were given."""
        metrics = self._runtime.metrics
        for step in record.steps:
            if (made := step.call) is not None and made.cost_usd is not None:
                metrics.charge(made.cost_usd, made.cost_unsteered_usd)
            elif made is not None and made.unpriced:
                metrics.unpriced.inc()
        for outcome in outcomes:
            metrics.steps.labels(outcome.state.value).inc()
            metrics.difficulty.observe(outcome.difficulty)
            metrics.composite.observe(outcome.readings.composite)
            for name in outcome.readings.fired:
                metrics.monitor_fires.labels(name).inc()
        if call.stored:
            return  # the rest was counted when its answer was being made
        for row in record.injections:
            if row.applied:
                metrics.injections.labels(row.source).inc()
        patterns = self._runtime.opened.patterns
        conclusion = None
        if call.delivery.placed is not None and decision.applies:
            conclusion = decision.conclusion
        if patterns is not None and conclusion is not None:
            # The run's outcome is no evidence about a pattern: patterns are given to runs in
            # trouble, and those fail more often anyway.
            new = [i.match.pattern.pattern_id for i in conclusion.decided.items if i.match]
            if new:
                patterns.tally.note(decision.conversation.tenant, new)
        if call.delivery.model != call.exchange.request.model:
            metrics.reroutes.labels(decision.position.state.value).inc()


def _bill(call: Call, usage: FieldDict | None, reply: Fields | None) -> None:
    """Note the usage: as it was reported, else estimated from the texts; and whose prices hold: the
    answer names the model of a request that could not be read."""
    upstream = call.exchange.upstream
    if call.request.opaque and isinstance(named := (reply or {}).get("model"), str):
        call.exchange.request.model = upstream.model = named
        call.delivery = replace(call.delivery, model=call.delivery.model or named)
    call.billed_model = call.delivery.model
    target = call.target
    if target is not None and (target.key or target.model):  # not the default upstream
        call.billed_model = call.services.catalogue.billed_name(call.billed_model, target)
    upstream.bill(usage, reply)
    if upstream.tokens.input is None and upstream.tokens.output is None and reply:
        estimate = estimated_usage(call.request.raw, reply)
        if estimate is not None:
            upstream.bill(estimate, estimated=True)
