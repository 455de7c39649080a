"""A call whose answer is still being made, as JSON: for the gateway that will see the answer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.conversations.control_headers import ControlHeaders
from gateway.conversations.conversation import Conversation
from gateway.conversations.index import ConversationIndex
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.resolve import Resolved
from gateway.conversations.steering_result import SteeringResult
from gateway.exchange import Exchange, RequestInfo, Timing
from gateway.steering.fold import ConversationFold
from gateway.steering.fsm import FSMState
from gateway.steering.identity import ConversationMatch, Incoming, MatchKind
from gateway.steering.policy import Policy
from gateway.steering.steer import RunPosition
from gateway.stores.exchanges import AnswerRecord
from gateway.stores.protocols import RunStore
from gateway.stores.records import StepRow
from gateway.wire.prefix_hash import ChainState, extend

_CONTROL = ("outcome", "unit", "agent", "experiment", "arm")
_UPSTREAM = ("lane", "deployment", "provider", "model", "attempts")


class Pending(Protocol):
    """A call that is on record without its answer."""

    exchange: Exchange
    control: ControlHeaders
    result: SteeringResult | None

    @property
    def model(self) -> str: ...

    @property
    def billed_model(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class ResumedCall:
    """A call that another process has made, to be recorded with its answer.

    `held`: what it has reserved of budgets, as JSON values.
    """

    exchange: Exchange
    control: ControlHeaders
    result: SteeringResult
    model: str
    billed_model: str
    held: list[Mapping[str, Any]]
    spending: None = None

    def forget(self) -> None:
        """Drop the fold that stood in for the transcript, which this process has not read."""
        self.result.conversation.run.fold = None


def call_to_json(call: Pending, held: Sequence[Mapping[str, Any]], now: float) -> str:
    """What `resumed` needs; empty for a call without a conversation. `now`: the wall clock."""
    result, exchange = call.result, call.exchange
    if result is None:
        return ""
    request, timing = exchange.request, exchange.timing
    values = {
        "conversation": result.conversation.id,
        "run": result.run,
        "step": result.step,
        "state": result.state.value,
        "mode": result.mode,
        "identity": [result.resolved.label, result.resolved.source],
        "reasons": result.reasons,
        "unsteered": result.unsteered,
        "model": call.model,
        "billed_model": call.billed_model,
        "request": [request.id, request.key, request.model, request.streamed],
        "upstream": {name: getattr(exchange.upstream, name) for name in _UPSTREAM},
        "status": exchange.response.status,
        "began_at": now - timing.elapsed_s(),
        "first_byte_s": timing.first_byte_s,
        "overhead_s": timing.overhead_s,
        "control": {name: getattr(call.control, name) for name in _CONTROL},
        "tags": dict(call.control.tags),
        "held": list(held),
    }
    return json.dumps(values)


async def resumed(
    answer: AnswerRecord,
    runs: RunStore,
    loader: ConversationLoader,
    index: ConversationIndex,
    policy: Policy,
) -> ResumedCall | None:
    """The call of an answer; None when its conversation is not stored. Raises: StoreError."""
    values = json.loads(answer.call)
    name, stored = await loader.response(answer.tenant, answer.id)
    conversation = index.get(name) if stored is not None else None
    if stored is None or conversation is None:
        return None
    result = _result(conversation, stored.chain, values)
    result.logged = await _logged(runs, answer.tenant, result)
    if result.logged is not None and result.logged.content is not None:
        result.prompts = list(result.logged.content.messages)
    _stand_in(conversation, policy)
    return ResumedCall(
        exchange=_exchange(answer.tenant, values),
        control=_control(values),
        result=result,
        model=values["model"],
        billed_model=values["billed_model"],
        held=values.get("held", []),  # a version before this one kept none
    )


async def _logged(runs: RunStore, tenant: str, result: SteeringResult) -> StepRow | None:
    """The step of the call as it is in the run log: what it was scored by stays."""
    run_id, before = result.conversation.run_id(result.run), result.step - 1
    trace = await runs.get_run(run_id, tenant=tenant, after_step=before, limit=1)
    return trace.steps[0] if trace is not None and trace.steps else None


def _stand_in(conversation: Conversation, policy: Policy) -> None:
    """A fold at the newest stored step, which tells whether the answer ends the run."""
    run = conversation.run
    if run.fold is None:
        run.fold = ConversationFold(
            policy,
            base=conversation.unsaved.snapshot,
            judged=run.judged,
            answers=run.answers,
            priors=run.priors,
        )


def _result(
    conversation: Conversation, chain: ChainState, values: Mapping[str, Any]
) -> SteeringResult:
    branch, (label, source) = conversation.history.branch, values["identity"]
    resolved = Resolved(
        label=label,
        source=source,
        match=ConversationMatch(kind=MatchKind.RETRY, conversation_id=conversation.id),
        incoming=Incoming(
            hashes=extend(chain, ()), signature=branch.signature, has_tools=branch.has_tools
        ),
        conversation=conversation,
        conversation_id=conversation.id,
    )
    state = FSMState(values["state"])
    return SteeringResult(
        resolved=resolved,
        mode=values["mode"],
        conversation=conversation,
        position=RunPosition(run=values["run"], step=values["step"], state=state),
        model=values["model"],
        state_after=state,
        observed=True,
        unsteered=values["unsteered"],
        reasons=list(values["reasons"]),
        stored=True,
    )


def _exchange(tenant: str, values: Mapping[str, Any]) -> Exchange:
    name, key, model, streamed = values["request"]
    request = RequestInfo(method="POST", path="/v1/responses", id=name, id_from_client=False)
    request.tenant, request.key, request.model, request.streamed = tenant, key, model, streamed
    exchange = Exchange(request)
    for field, value in values["upstream"].items():
        setattr(exchange.upstream, field, value)
    exchange.response.status = values["status"]
    exchange.timing = Timing(
        started=time.perf_counter() - max(0.0, time.time() - values["began_at"]),
        first_byte_s=values["first_byte_s"],
        overhead_s=values["overhead_s"],
    )
    return exchange


def _control(values: Mapping[str, Any]) -> ControlHeaders:
    control = ControlHeaders({})
    for field, value in values["control"].items():
        setattr(control, field, value)
    control.tags = values["tags"]
    return control
