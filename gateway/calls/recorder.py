"""Commits a finished call: its answer is applied to the conversation, and its record is stored.

A call whose answer is made in the background, or relayed by another gateway, has three states:

    committing  known here at once, because a request for the answer may come before the commit
    committed   on record without its answer; any gateway on the store can read it (`resumed`)
    settled     the first gateway that sees the answer takes the call, pays for it and records it

Memory (`StoredAnswers` in `gateway/conversations/index.py`) is asked first; the store keeps the
same for other gateways and after a restart."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import orjson
from msgspec.structs import replace

from gateway.calls.call import Call, Outcome
from gateway.calls.headers import STATE_HEADER, ControlHeaders, identity_label
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
from gateway.conversations.decision import Decision, Delivery
from gateway.conversations.loading import merge
from gateway.conversations.resolve import Resolved
from gateway.core.fold import StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.steer import RunPosition
from gateway.dialects import RESPONSES
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import (
    Exchange,
    RequestInfo,
    ResponseInfo,
    Timing,
    UpstreamInfo,
    UpstreamReply,
)
from gateway.observability.logging import get_logger
from gateway.observability.otel import COST_NAMES, answer_names, call_texts
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.identity import ConversationMatch, Incoming, MatchKind
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.stores.exchanges import AnswerRecord, AnswerStore, RawCall
from gateway.stores.protocols import StoreError, StoreOverloaded, VersionConflict
from gateway.stores.records import CallRecord
from gateway.stores.sql.runs import RunStore
from gateway.tasks import spawn
from gateway.upstream.deployments import Target
from gateway.upstream.retries import AT_OTHER_TARGET
from gateway.upstream.tokens import estimated_usage
from gateway.values import FieldDict, Fields, T
from gateway.wire.echo import EchoFilter
from gateway.wire.headers import replaced
from gateway.wire.prefix_hash import ChainState, extend
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
        self.answers = BackgroundAnswers(runtime, self)
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
            self._keep_place(call, response_id)
            if reply.pending_id is None:
                await self.answers.keep(call.tenant, response_id, target=call.target)
        if reply.pending_id is None and call.spending is not None:
            await call.settle()
        await self._record_when_scored(call, completion, reply.pending_id)
        if call.outcome is not None and call.outcome.applied.ends_run:
            # A stream's head is sent by now; a whole answer still says that it ended the run.
            headers = exchange.response.headers
            exchange.response.headers = replaced(headers, STATE_HEADER, FSMState.END.value.encode())
            exchange.notes["state"] = FSMState.END.value

    def _keep_place(self, call: Call, response_id: str) -> None:
        """Whoever asks for a stored answer later is sent to where it is stored, and does not see
        the guidance in the instructions that it repeats."""
        known = self._runtime.stored_answers
        if call.target is not None:
            known.targets.put(call.tenant, response_id, call.target)
        if (echo := call.echo()) is not None:
            known.echoes.put(call.tenant, response_id, echo)

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
        settings = services.settings
        conversation = decision.conversation
        applied = AppliedReply()
        choices = replies_in(completion)
        if not decision.unread:
            index = services.index
            try:
                applied = apply_reply(
                    decision,
                    completion,
                    choices,
                    index=index,
                    keep=settings.storage.store_content,
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
            unsteered = services.catalogue.cost(exchange.request.model, exchange.upstream.usage)
        loss = Loss()
        if completion is not None:
            try:
                loss = self._prompts.lost(call, time.time())
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


_CONTROL = ("outcome", "unit", "agent", "experiment", "arm")
_UPSTREAM = ("lane", "deployment", "provider", "model", "attempts")
# Done when a call is committed; its result is that of `BackgroundAnswers.keep`.
_Committed = asyncio.Future["asyncio.Task[bool] | None"]


class BackgroundAnswers:
    """Keeps and reads what is known of answers; settles the calls that they complete."""

    def __init__(self, runtime: Runtime, recorder: Recorder):
        self._runtime = runtime
        self._recorder = recorder

    @property
    def _store(self) -> AnswerStore | None:
        # A store that is away is not asked: memory is all there is meanwhile.
        if self._runtime.degraded():
            return None
        return self._runtime.opened.stores.answers

    async def commit(self, call: Call, response_id: str) -> None:
        """Commit what is known, and the rest when a request fetches the answer `response_id`."""
        decision = call.decision
        if decision is None:
            return
        tenant = call.tenant
        committed: _Committed = asyncio.get_running_loop().create_future()
        settle = partial(self._settle_own, call, response_id, committed)
        self._runtime.stored_answers.pending[tenant, response_id] = settle
        kept = None
        try:
            await self._recorder.catch_up(call)
            await self._recorder.record(call, None, pending_id=response_id)
            as_json = ""
            if self._store is not None:
                as_json = call_to_json(call, call.decision or decision, time.time())
            kept = await self.keep(tenant, response_id, target=call.target, call=as_json)
        finally:
            call.stored = True
            decision = call.decision or decision
            read = replace(decision.resolved.incoming, messages=())
            resolved = replace(decision.resolved, incoming=read)
            call.decision = replace(decision, resolved=resolved)
            committed.set_result(kept)

    async def _settle_own(
        self,
        call: Call,
        response_id: str,
        committed: _Committed,
        reply: UpstreamReply,
    ) -> None:
        """Record the answer of a call of this process, once the call itself is committed."""
        kept = await committed
        decision = call.decision
        assert decision is not None
        conversation = decision.conversation
        # What the store does not have, no other gateway can have taken.
        shared = kept is not None and await kept
        if shared and not await self._take(conversation.tenant, response_id):
            return  # another gateway has seen the answer, recorded it, and paid for it
        # The conversation may have been dropped from memory and loaded again in the meantime.
        known = call.services.index.get(conversation.id)
        call.decision = replace(decision, conversation=known or conversation)
        await self._settle(call, reply)

    async def _settle_stored(
        self,
        services: Services,
        answer: AnswerRecord,
        reply: UpstreamReply,
    ) -> None:
        """Record the answer of a call that another process has made."""
        try:
            call = await resumed(answer, services, self._runtime.runs)
        except StoreError:
            return  # the next poll tries again
        if call is None or not await self._take(answer.tenant, answer.id):
            return
        await self._settle(call, reply)
        if call.decision is not None:
            # The fold has replaced the transcript, which this process has not read.
            call.decision.conversation.run.fold = None

    async def _settle(self, call: Call, reply: UpstreamReply) -> None:
        call.exchange.upstream.bill(reply.usage, reply.completion)
        if reply.failure is not None:
            call.note_failure(reply.failure)
        await call.settle()
        await self._recorder.record(call, reply.completion)

    async def _take(self, tenant: str, response_id: str) -> bool:
        """Whether this gateway is the one that records the call of an answer. While the store is
        away it is: a call that is recorded twice is one in the run log."""
        store = self._store
        if store is None:
            return True
        return await self._attempt(lambda: store.take_call(tenant, response_id), True)

    async def keep(
        self, tenant: str, response_id: str, target: Target | None, call: str = ""
    ) -> asyncio.Task[bool] | None:
        """Keep what is known of an answer, with the call that it completes as JSON. With several
        gateways that is awaited: the next request may go to another one. Returns the task whose
        result says whether the store has it; None when there is nothing to keep, or no store."""
        place = ""
        if target is not None:
            place = target.place
        filtered = self._runtime.stored_answers.echoes.find(tenant, response_id)
        echo = ""
        if filtered is not None:
            echo = filtered.to_json()
        store = self._store
        if store is None or not (place or echo or call):
            return None
        answer = AnswerRecord(
            tenant=tenant, id=response_id, at=time.time(), place=place, echo=echo, call=call
        )

        async def work() -> bool:
            await store.keep_answer(answer)
            return True

        kept = spawn(self._attempt(work, False))
        if self._runtime.settings.storage.shared:
            await kept
        return kept

    async def learn(self, services: Services, tenant: str, response_id: str | None) -> None:
        """Load the stored answer that a request names, if memory does not know it."""
        known = self._runtime.stored_answers
        store = self._store
        if not response_id or store is None or known.has(tenant, response_id):
            return
        found = await self._attempt(lambda: store.find_answer(tenant, response_id), None)
        if found is None:
            return
        target = None
        if found.place:
            target = services.table.at_place(found.place)
        if target is not None:
            known.targets.put(tenant, response_id, target.for_dialect(RESPONSES))
        if found.echo:
            known.echoes.put(tenant, response_id, EchoFilter.from_json(found.echo))
        if found.call:
            settle = partial(self._settle_stored, services, found)
            known.pending[tenant, response_id] = settle

    async def _attempt(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """The result, within the store's limits; `otherwise` when it fails."""
        try:
            return await self._runtime.store.read(work)
        except StoreError as error:
            _log.debug("answers are not shared at the moment", reason=str(error))
            return otherwise


def call_to_json(call: Call, decision: Decision, now: float) -> str:
    """A pending call as the gateway needs it that will see the answer. `now`: the wall clock."""
    exchange = call.exchange
    request = exchange.request
    timing = exchange.timing
    resolved = decision.resolved
    values = {
        "conversation": decision.conversation.id,
        "run": decision.position.run,
        "step": decision.position.step,
        "state": decision.position.state.value,
        "mode": decision.mode,
        "identity": [identity_label(resolved.source, resolved.match.kind), resolved.source],
        "reasons": decision.reasons + call.delivery.reasons,
        "unsteered": decision.unsteered,
        "model": call.delivery.model,
        "billed_model": call.billed_model,
        "request": [request.id, request.key, request.model, request.streamed],
        "upstream": {name: getattr(exchange.upstream, name) for name in _UPSTREAM},
        "status": exchange.response.status,
        "began_at": now - (time.perf_counter() - timing.started),
        "first_byte_s": timing.first_byte_s,
        "overhead_s": timing.overhead_s,
        "control": {name: getattr(call.control, name) for name in _CONTROL},
        "tags": dict(call.control.tags),
        "held": call.spending.hand_over() if call.spending is not None else [],
    }
    return json.dumps(values)


async def resumed(answer: AnswerRecord, services: Services, runs: RunStore) -> Call | None:
    """The call of an answer; None when its conversation is not stored. Raises: StoreError."""
    values = json.loads(answer.call)
    name, stored = await services.loader.response(answer.tenant, answer.id)
    conversation = None
    if stored is not None:
        conversation = services.index.get(name)
    if stored is None or conversation is None:
        return None
    decision = _result(conversation, stored.chain, values)
    # The step as it is in the run log: what it was scored by stays.
    before = decision.position.step - 1
    tenant = answer.tenant
    trace = await runs.get_run(decision.run_id, tenant=tenant, after_step=before, limit=1)
    logged = None
    if trace is not None and trace.steps:
        logged = trace.steps[0]
        if logged.content is not None:
            decision = replace(decision, prompts=logged.content.messages)
    run = conversation.run
    if run.fold is None:  # one at the newest stored step tells whether the answer ends the run
        run.fold = ConversationFold(
            services.settings.policy(),
            base=conversation.unsaved.snapshot,
            judged=run.judged,
            answers=run.answers,
        )
    exchange = _exchange(answer.tenant, values)
    held = values.get("held", [])  # a version before this one kept none
    spending = None
    if held and services.budgets is not None:
        spending = services.budgets.left_open(held, exchange)
    request = RESPONSES.opaque(b"")  # this process has not seen it
    return Call(
        request=request,
        services=services,
        tenant=tenant,
        exchange=exchange,
        control=ControlHeaders(**values["control"], tags=values["tags"]),
        decision=decision,
        delivery=Delivery(model=values["model"]),
        spending=spending,
        stored=True,
        logged=logged,
        billed_model=values["billed_model"],
    )


def _result(conversation: Conversation, chain: ChainState, values: Fields) -> Decision:
    branch = conversation.history.branch
    _, source = values["identity"]
    hashes = extend(chain, ())
    state = FSMState(values["state"])
    return Decision(
        resolved=Resolved(
            source=source,
            match=ConversationMatch(kind=MatchKind.RETRY, conversation_id=conversation.id),
            incoming=Incoming(
                hashes=hashes, signature=branch.signature, has_tools=branch.has_tools
            ),
        ),
        mode=values["mode"],
        conversation=conversation,
        position=RunPosition(run=values["run"], step=values["step"], state=state),
        model=values["model"],
        observed=True,
        unsteered=values["unsteered"],
        reasons=tuple(values["reasons"]),
        applies=values["mode"] == "on",
    )


def _exchange(tenant: str, values: Fields) -> Exchange:
    name, key, model, streamed = values["request"]
    request = RequestInfo(
        method="POST",
        path="/v1/responses",
        id=name,
        tenant=tenant,
        key=key,
        model=model,
        streamed=streamed,
    )
    return Exchange(
        request,
        upstream=UpstreamInfo(**values["upstream"]),
        response=ResponseInfo(status=values["status"]),
        timing=Timing(
            started=time.perf_counter() - max(0.0, time.time() - values["began_at"]),
            first_byte_s=values["first_byte_s"],
            overhead_s=values["overhead_s"],
        ),
    )
