"""Answers that are made in the background, and who records and pays for their calls.

A call whose answer is made in the background, or relayed by another gateway, has three states:

    committing  known here at once, because a request for the answer may come before the commit
    committed   on record without its answer; any gateway on the store can read it (`resumed`)
    settled     the first gateway that sees the answer takes the call, pays for it and records it

Memory (`StoredAnswers` in `gateway/conversations/in_memory.py`) is asked first; the store keeps the
same for other gateways and after a restart."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from gateway.calls.call import Call
from gateway.calls.headers import ControlHeaders, identity_label
from gateway.conversations.conversation import Conversation
from gateway.conversations.decision import Decision, Delivery
from gateway.conversations.resolve import Resolved
from gateway.core.fsm import FSMState
from gateway.core.steer import RunPosition
from gateway.dialects import RESPONSES
from gateway.exchange import (
    Exchange,
    RequestInfo,
    ResponseInfo,
    Timing,
    UpstreamInfo,
    UpstreamReply,
)
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.identity import ConversationMatch, Incoming, MatchKind
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.stores.protocols import StoreError
from gateway.stores.raw_calls_and_answers import AnswerRecord, AnswerStore
from gateway.stores.sql.runs import RunStore
from gateway.tasks import spawn
from gateway.upstream.deployments import Target
from gateway.values import Fields, T
from gateway.wire.echo import EchoFilter
from gateway.wire.prefix_hash import ChainState, extend

_log = get_logger("gateway.steering")

_CONTROL = ("outcome", "unit", "agent", "experiment", "arm")
_UPSTREAM = ("lane", "deployment", "provider", "model", "attempts")
# Done when a call is committed; its result is that of `BackgroundAnswers.keep`.
_Committed = asyncio.Future["asyncio.Task[bool] | None"]


class BackgroundAnswers:
    """Keeps and reads what is known of answers; settles the calls that they complete."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        catch_up: Callable[[Call], Awaitable[None]],
        record: Callable[..., Awaitable[None]],
    ):
        self._runtime = runtime
        self._catch_up = catch_up  # see `Recorder`
        self._record = record

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
            await self._catch_up(call)
            await self._record(call, None, pending_id=response_id)
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
        await self._record(call, reply.completion)

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

    async def learn(self, services: Services, tenant: str, response_id: str) -> None:
        """Load the stored answer that a request names, if memory does not know it."""
        known = self._runtime.stored_answers
        store = self._store
        if store is None or known.has(tenant, response_id):
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
