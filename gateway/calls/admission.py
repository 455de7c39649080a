"""Whether a prepared call may be sent: holds of the operator first, then budgets.

    advise    before the decision: what budgets ask of it (a text, a cheaper model)
    admit     before it is sent: stopped or paused? enough left? The estimate is reserved
    extend    before a fallback or the requested model is asked instead
    settle    when it is over: the reservation is replaced by what it used

Unlike steering this does not fail open: a budget holds in every mode but `steering.mode: shadow`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from gateway.budgets.guard import CallBody, Refused, Spending
from gateway.budgets.rules import BUDGET_HEADER, CallSubject, read_order
from gateway.budgets.texts import (
    OwnResponse,
    answer_text,
    pause_error,
    stop_error,
    strike_error,
    with_status,
)
from gateway.calls.prepared_request import PreparedRequest
from gateway.config.budgets import Ending
from gateway.conversations.conversation import Conversation, run_id
from gateway.conversations.index import ConversationIndex
from gateway.conversations.steering_result import SteeringResult
from gateway.dialects import SteeredRequest
from gateway.dialects.own_answers import is_structured
from gateway.errors import Forbidden, RunRefused
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.steer import NO_ADVICE, Advice
from gateway.stores.protocols import StoreError
from gateway.upstream.deployments import Target
from gateway.wire.echo import OWN_ANSWER

_IGNORED_ANSWERS = 2
"""After so many of the gateway's own final answers in a request's history its agent gets an error:
an agent that takes no answer for the end would call for ever."""

_log = get_logger("gateway.budgets")


class Admissions:
    """Admits calls one by one."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def advise(self, services: Services, prepared: PreparedRequest) -> Advice:
        """The advice of the budgets for a call whose conversation is known."""
        guard, result = services.budgets, prepared.result
        if guard is None or result is None or result.mode == "off":
            return NO_ADVICE
        return await guard.advise(_subject(prepared), _body(prepared.request))

    async def admit(self, services: Services, prepared: PreparedRequest) -> OwnResponse | None:
        """Let a call pass, or answer it here: the answer, when it is to be a final one.

        Raises:
            RunRefused: it may not be sent, and is answered with an error.
            Forbidden: the request orders limits without the admin key.
        """
        error: RunRefused
        try:
            await self._check_holds(services, prepared)
            self._check_strikes(prepared)
            await self._reserve(services, prepared)
        except Refused as refused:
            name = refused.standing.applied.budget.name
            self._runtime.metrics.budget_stops.labels(name).inc()
            error, ending = refused.error, refused.ending
        except RunRefused as held:
            error = held
            ending = services.settings.control.stop_with if error.code == "run_stopped" else "error"
        else:
            return None
        return self._answer(
            prepared, with_status(error, services.settings.control.stop_status), ending
        )

    async def extend(self, services: Services, prepared: PreparedRequest, model: str) -> bool:
        """Whether another model may be asked for the call instead."""
        guard, spending = services.budgets, prepared.spending
        if guard is None or spending is None:
            return True
        binding = _binds(services, prepared)
        allowed = await guard.extend(
            spending.admission, model, _body(prepared.request), binding=binding
        )
        if not allowed:
            prepared.note_reason(f"budget: not enough left to ask {model}")
        return allowed

    async def admits_target(
        self, services: Services, prepared: PreparedRequest, target: Target
    ) -> bool:
        """Whether a fallback may be asked; a price of its own is reserved first."""
        model = target.name if target.key else target.model or prepared.model
        return await self.extend(services, prepared, model)

    async def _check_holds(self, services: Services, prepared: PreparedRequest) -> None:
        holds, result = self._runtime.holds, prepared.result
        if not holds or result is None:
            return
        index, conversation, run = services.index, result.conversation, result.position.run
        alike = await _with_same_turns(services, result)

        def subjects() -> Sequence[str]:
            names = held_names(index, conversation, run, holds.runs_below)
            for other in alike:
                names += held_names(index, other, other.run.index, holds.runs_below)
            return names

        control = services.settings.control
        found = holds.find(subjects())
        if found is not None and found.action == "pause":
            prepared.exchange.notes["paused"] = found.subject
            began = time.perf_counter()
            try:
                released = await holds.released(subjects, control.pause_wait_s)
            finally:
                prepared.exchange.timing.waited_s += time.perf_counter() - began
            if not released:
                raise pause_error(found, control.pause_retry_s)
            found = holds.find(subjects())
        if found is not None:
            self._runtime.metrics.held_calls.labels(found.action).inc()
            raise (
                stop_error(found)
                if found.action == "stop"
                else pause_error(found, control.pause_retry_s)
            )

    def _check_strikes(self, prepared: PreparedRequest) -> None:
        """Stop a run at its second strike; in shadow mode its reasons say so, and nothing more."""
        result = prepared.result
        if result is None or result.decision is None or not result.applies:
            return
        if reason := result.decision.stop:
            self._runtime.metrics.held_calls.labels("strikes").inc()
            raise strike_error(result.run_id, reason)

    async def _reserve(self, services: Services, prepared: PreparedRequest) -> None:
        guard = services.budgets
        order = read_order(prepared.control.budget)
        if order is not None and not prepared.exchange.request.operator:
            raise Forbidden(f"{BUDGET_HEADER}: only with the admin key", param=BUDGET_HEADER)
        if guard is None:
            return
        subject, body = _subject(prepared), _body(prepared.request)
        if order is not None:
            await guard.allow(subject, limits=order.limits, lifted=order.lift)
        binding = _binds(services, prepared)
        admission = await guard.admit(subject, prepared.model, body, binding=binding)
        if admission is None:
            return
        prepared.spending = Spending(
            guard=guard,
            admission=admission,
            exchange=prepared.exchange,
            cost=services.catalogue.cost,
        )
        if shown := admission.header:
            prepared.exchange.response.headers.append((BUDGET_HEADER.encode(), shown.encode()))
            prepared.exchange.notes["budget"] = shown
        for reason in admission.would_stop.values():
            prepared.note_reason(f"budget: would stop: {reason}")

    def _answer(
        self, prepared: PreparedRequest, error: RunRefused, ending: Ending
    ) -> OwnResponse | None:
        prepared.note_reason(f"{error.label}: {error.message}")
        prepared.exchange.notes["refused"] = error.code
        _log.info(
            "call not sent",
            reason=error.message,
            code=error.code,
            request_id=prepared.exchange.request.id,
        )
        request = prepared.request
        ignored = request.raw.count(OWN_ANSWER.encode()) >= _IGNORED_ANSWERS
        # Whether a stream or JSON is expected is in the body.
        if ending == "error" or ignored or request.opaque or is_structured(request.body):
            raise error
        text = answer_text(error.message)
        prepared.exchange.response.error = error.label
        number = prepared.exchange.request.id.removeprefix("req-")
        content = request.dialect.own_answer(request, text, number, int(time.time()))
        return OwnResponse(content, stream=request.stream, code=error.code or "")


async def _with_same_turns(services: Services, result: SteeringResult) -> list[Conversation]:
    """Other conversations of the tenant whose history, with at least one turn of the agent, is in
    this request, or which it follows after a compaction: a new id does not lift a hold.

    A request without a turn of the agent is a new run, even if the task is the same.
    """
    incoming, conversation = result.resolved.incoming, result.conversation
    hashes = incoming.hashes
    turned = [
        (covered, digest)
        for covered, digest in hashes.candidates
        if covered < hashes.start or hashes.turns[covered - hashes.start]
    ]
    if not turned:
        return []
    with contextlib.suppress(StoreError):  # then what is known here holds
        await services.loader.load_prefix_hashes(conversation.tenant, incoming)
    names = {name for _, digest in turned for name in services.index.known_under(digest)}
    names.update(services.index.windows(conversation.tenant, incoming, ()))
    found = map(services.index.get, sorted(names - {conversation.id}))
    return [other for other in found if other is not None]


def held_names(
    index: ConversationIndex,
    conversation: Conversation,
    run: int,
    held_runs: Callable[[str], Sequence[str]],
) -> list[str]:
    """The subjects that a hold on a call may name: its run, its conversation, and those above it.

    A hold on a run above holds while that is its conversation's newest run.
    """
    names = [run_id(conversation.id, run), conversation.id]
    for above in reversed(conversation.ancestors):
        names.append(above)
        known = index.get(above)
        if known is not None:
            names.append(run_id(above, known.run.index))
        else:
            names += held_runs(above)
    return names


def _binds(services: Services, prepared: PreparedRequest) -> bool:
    """Whether budgets are in force: not in shadow mode, which a client alone cannot choose."""
    if services.settings.steering.mode == "shadow":
        return False
    return not (prepared.control.mode == "shadow" and prepared.exchange.request.operator)


def _subject(prepared: PreparedRequest) -> CallSubject:
    asked, result = prepared.exchange.request, prepared.result
    conversation = result.conversation if result is not None else None
    return CallSubject(
        tenant=asked.tenant,
        key=asked.key,
        client=prepared.control.agent,
        model=prepared.request.model,
        run=conversation.run_id(result.position.run) if conversation is not None and result else "",
        root=conversation.root_id if conversation is not None else "",
    )


def _body(request: SteeredRequest) -> CallBody:
    return CallBody(fields=request.body, raw=request.raw)
