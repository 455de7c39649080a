"""One request between its preparation and its record: what is sent, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from gateway.budgets.guard import Spending
from gateway.calls.background import PendingCall
from gateway.calls.recorder import Recorder
from gateway.conversations.steering_result import (
    ControlHeaders,
    SteeringResult,
    unsteered_headers,
    with_state,
    without_guidance,
)
from gateway.dialects import SteeredRequest
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import Exchange
from gateway.observability.logging import get_logger
from gateway.observability.otel import call_texts
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.state import Place
from gateway.stores.exchanges import RawCall
from gateway.upstream.base import RawHeaders
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall
from gateway.upstream.prices import estimated_usage
from gateway.wire.echo import EchoFilter
from gateway.wire.request import Splice

_CATCH_UP_S = 10.0
"""Longest wait for the other calls of a conversation before an unsteered one is recorded."""

_log = get_logger("gateway.steering")


class ReplyView(Protocol):
    """A finished answer, as the relay reports it."""

    @property
    def completion(self) -> dict[str, Any] | None:
        """The answer in the form of a chat completion; None when it is incomplete or unreadable."""
        ...

    @property
    def usage(self) -> dict[str, Any] | None:
        """The token usage that the upstream reported; None when it reported none."""
        ...

    @property
    def pending_id(self) -> str | None:
        """The id of an answer that is still being made; None for a finished one."""
        ...

    @property
    def unread(self) -> str | None:
        """Why the answer was not read, from a closed set; None for one that was."""
        ...


class PreparedRequest:
    """A request with the decisions about it.

    `result` is None for a side request, and for one whose conversation could not be found.
    """

    def __init__(
        self,
        runtime: Runtime,
        recorder: Recorder,
        services: Services,
        exchange: Exchange,
        request: SteeredRequest,
        control: ControlHeaders,
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._services = services
        self._request = request
        self.exchange = exchange
        self.control = control
        self.result: SteeringResult | None = None
        self.hides_usage = False
        """Whether the usage of the stream is wanted, which the client did not ask for."""

        self.asked_usage = False
        """Whether the target was asked for it, so that its chunk is taken out of the answer."""

        self.keeps_sent = False
        """Whether the request is kept as it was sent."""

        self._sent: bytes | Mapping[str, Any] = b""
        self.completed = False
        self.target: Target | None = None
        """The target that answered."""

        self.spending: Spending | None = None
        """What the call has reserved of its budgets; None when none applies."""

    @property
    def request(self) -> SteeredRequest:
        """The client's request."""
        return self._request

    @property
    def billed_model(self) -> str:
        """The name whose prices hold for the answer: the fallback's, when that gave it."""
        return self._services.catalogue.billed_name(self.model, self.target)

    def note_reason(self, reason: str) -> None:
        """Add to the reasons that are recorded with the call."""
        if self.result is not None:
            self.result.reasons.append(reason)

    async def settle(self) -> None:
        """End the call's reservation with what it used."""
        if self.spending is not None:
            await self.spending.settle(self.billed_model)

    @property
    def model(self) -> str:
        """The model to request; of a body that cannot be read the one that has answered."""
        result = self.result
        asked = result.model if result and result.applies else self._request.model
        return asked or self.exchange.request.model

    @property
    def is_rerouted(self) -> bool:
        """Whether the request goes to another model than the client named."""
        return self.model != self._request.model

    def use_requested_model(self, reason: str) -> None:
        """Switch to the model that the client named, because the routed one gave no answer."""
        if self.result is not None:
            self._services.steerer.use_requested_model(self.result, self._request, reason)

    @property
    def is_changed(self) -> bool:
        """Whether anything but the model's name differs from what the client wrote."""
        guided = self.result is not None and self.result.applies and bool(self.result.edits)
        return guided or self.asked_usage

    def send_as_written(self) -> frozenset[Place]:
        """Take every change out of the request, which was refused with them; where guidance was."""
        self.hides_usage = False
        if self.result is None:
            return frozenset()
        response = self.exchange.response
        response.headers = without_guidance(response.headers)
        self.exchange.notes.pop("guidance", None)
        return self._services.steerer.send_as_written(self.result)

    def close_places(self, places: frozenset[Place]) -> None:
        """Use these places for no later request of this client: the request was accepted without
        guidance there."""
        if self.result is not None and places:
            self._services.steerer.close_places(self.result, self._request, places)

    @property
    def echo(self) -> EchoFilter | None:
        """Filter that removes injected guidance from an answer that repeats its request; None if
        nothing was injected."""
        if self.result is None or not self.result.applies or not self.result.edits:
            return None
        try:
            return self._request.dialect.echo(self._request, self.result.edits)
        except Exception as exc:
            self._note_unguided(exc)
            return None

    def call(
        self, headers: RawHeaders, query: bytes, key_headers: frozenset[bytes]
    ) -> UpstreamCall:
        """The request as it is sent to the upstream."""
        return UpstreamCall(
            method="POST",
            path=self._request.dialect.path,
            dialect=self._request.dialect,
            headers=headers,
            query=query,
            key_headers=key_headers,
            opaque=self._request.opaque,
            body=self._body,
            parsed=self._parsed,
            conversation=self.result.conversation.id if self.result else "",
            at=self._runtime.stored_answers.targets.find(
                self.exchange.request.tenant, self._request.previous_response_id
            ),
            attempts=self.exchange.upstream.attempts,
        )

    async def complete(self, reply: ReplyView) -> None:
        """Record the complete answer, before the client gets its last byte. That goes on when the
        client leaves meanwhile: the answer was made, and is paid for."""
        self.completed = True
        await asyncio.shield(self._runtime.unfinished.start(self._complete(reply)))

    async def _complete(self, reply: ReplyView) -> None:
        if self.result is not None:
            self.result.note_sending()
        if reply.unread is not None:
            self._note_unread(reply.unread)
        self._note_model(reply.completion)
        self._bill(reply.usage, reply.completion)
        self._note_texts(reply.completion)
        response_id = reply.pending_id or (reply.completion or {}).get(ANSWER_ID)
        if isinstance(response_id, str) and response_id and self.target is not None:
            self._keep_place(response_id)
            if reply.pending_id is None:
                tenant = self.exchange.request.tenant
                await self._recorder.answers.keep(self._services, tenant, response_id, self.target)
        if reply.pending_id is None:
            await self.settle()
        await self._record(reply.completion, reply.pending_id)
        if self.result is not None and self.result.state_after is FSMState.END:
            # A stream's head is sent by now; a whole answer still says that it ended the run.
            response = self.exchange.response
            response.headers = with_state(response.headers, FSMState.END)
            self.exchange.notes["state"] = FSMState.END.value

    def _keep_place(self, response_id: str) -> None:
        """Whoever asks for a stored answer later is sent to where it is stored, and does not see
        the guidance in the instructions that it repeats."""
        if self.target is not None:
            tenant = self.exchange.request.tenant
            self._runtime.stored_answers.targets.put(tenant, response_id, self.target)
        if (echo := self.echo) is not None:
            self._runtime.stored_answers.echoes.put(self.exchange.request.tenant, response_id, echo)

    def _note_texts(self, completion: Mapping[str, Any] | None) -> None:
        """Note the call's texts for its span, where the operator asks for that."""
        settings = self._services.settings
        if self._runtime.telemetry is None or not settings.otel.content:
            return
        mask = settings.storage.mask_secrets
        history = self._request.own_messages
        self.exchange.texts = call_texts(history, completion, settings.otel, mask=mask)

    def note_delivered(self) -> None:
        """The client has been sent the whole answer."""
        if self.completed and self.result is not None:
            self.result.note_delivered()

    def _note_unread(self, reason: str) -> None:
        """Note in log, metrics and record that the gateway does not know what was answered."""
        self.exchange.notes["unread"] = reason
        self._runtime.metrics.unread.labels(reason).inc()
        if self.result is not None:
            self.result.reasons.append(f"answer not read: {reason}")

    def _note_model(self, reply: Mapping[str, Any] | None) -> None:
        """The answer names the model of a request that could not be read."""
        if self._request.opaque and isinstance(named := (reply or {}).get("model"), str):
            self.exchange.request.model = self.exchange.upstream.model = named

    def _bill(self, usage: dict[str, Any] | None, reply: Mapping[str, Any] | None) -> None:
        """Note the usage: as it was reported, else estimated from the texts."""
        upstream = self.exchange.upstream
        upstream.bill(usage)
        if upstream.tokens.input is None and upstream.tokens.output is None and reply:
            estimate = estimated_usage(self._request.raw, reply)
            if estimate is not None:
                upstream.bill(estimate, estimated=True)

    def end(self, received: Callable[[], bytes]) -> None:
        """No more is sent. Record a call without a complete answer, in a task of the event loop.

        `received` returns the part of a stream that arrived. Its tokens are estimates: what was
        reported before the end is not all. If it shows that the answer is made in the background,
        the call stays pending: the client may still ask for the answer.
        """
        if self.completed:
            if self.result is not None:
                self.result.note_ended()
            return
        read = self._request.dialect.read_stream(received(), orjson.loads)
        self._note_model(read.completion or read.partial)
        self._bill(read.usage, read.completion or read.partial)
        self.exchange.upstream.usage_estimated = self.exchange.upstream.usage is not None
        in_background = self._request.dialect.in_background(self._request)
        pending_id = read.pending_id if in_background else None
        if pending_id is not None:
            self._keep_place(pending_id)
        if self.spending is not None and pending_id is None:
            self._runtime.unfinished.start(self.settle())
        if self.result is None:
            return
        if pending_id is None:
            # At once: a client that gave up may send the request again before this is recorded.
            self.result.note_failed()
        self._runtime.unfinished.start(self._record(None, pending_id))

    async def _record(self, completion: dict[str, Any] | None, pending_id: str | None) -> None:
        """Commit the call; one whose answer is still being made is known as such at once."""
        if pending_id is not None:
            call = PendingCall(
                exchange=self.exchange,
                control=self.control,
                result=self.result,
                spending=self.spending,
                model=self.model,
                billed_model=self.billed_model,
            )
            await self._recorder.answers.commit(
                self._services, call, pending_id, self.target, ready=self._catch_up
            )
            return
        await self._catch_up()
        await self._recorder.record(self._services, self, completion)

    async def _catch_up(self) -> None:
        """Score the steps of a call that went out before that was done, for its record."""
        if self.result is None or self.result.observed:
            return
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await self._services.steerer.catch_up(self.result, self._request, time.time())
        except Exception as exc:
            _log.warning(
                "steps of an unsteered call not scored",
                kind=type(exc).__name__,
                request_id=self.exchange.request.id,
            )

    def _body(self, target: Target) -> bytes:
        request = self._request
        model = target.model or self.model
        self.exchange.upstream.model = model
        splices = request.with_model(model)
        for key, value in target.params.items():
            if key not in request.body and request.dialect.takes(key):
                splices += request.set_value(key, value)
        refusals = self._services.usage_refusals
        self.asked_usage = self.hides_usage and not refusals.includes(target, model)
        if self.asked_usage:
            splices += request.with_usage()
        body = request.render(splices + self._guidance())
        if self.keeps_sent:
            self._sent = body
        return body

    def _guidance(self) -> list[Splice]:
        """The guidance as splices of the client's bytes; empty when it cannot be placed there."""
        if self.result is None or not self.result.applies:
            return []
        try:
            return self._request.dialect.splices(self._request, self.result.edits)
        except Exception as exc:
            self._note_unguided(exc)
            return []

    def _parsed(self, target: Target) -> Mapping[str, Any]:
        self.exchange.upstream.model = target.model or self.model
        self.asked_usage = False  # LiteLLM's lane learns it by itself
        body = self._edited()
        if self.keeps_sent:
            self._sent = {**body, "model": self.exchange.upstream.model}
        return body

    def _edited(self) -> Mapping[str, Any]:
        """The request as JSON, with its guidance."""
        if self.result is None or not self.result.applies or not self.result.edits:
            return self._request.whole
        try:
            return self._request.dialect.edited(self._request, self.result.edits)
        except Exception as exc:
            self._note_unguided(exc)
            return self._request.whole

    def keep_raw(self, received: bytes) -> None:
        """Keep the call as it was sent and received, in a task of the event loop."""
        result, keeper, sent = self.result, self._runtime.opened.raw_calls, self._sent
        if result is None or keeper is None or not sent:
            return
        storage = self._runtime.settings.storage
        body = sent if isinstance(sent, bytes) else orjson.dumps(sent, default=str)
        call = RawCall(
            tenant=self.exchange.request.tenant,
            run_id=result.run_id,
            step_index=result.position.step,
            at=time.time(),
            dialect=self._request.dialect.name,
            request=body,
            response=received,
        )
        limits = (int(storage.raw_max_kb * 2**10), int(storage.raw_mb * 2**20))
        self._runtime.unfinished.start(keeper.keep(call, max_bytes=limits[0], most_bytes=limits[1]))

    def forward_unsteered(self, reason: str) -> None:
        """Go on without a decision, with the guidance that was injected before."""
        self.exchange.notes["unsteered"] = reason
        self.exchange.response.headers += unsteered_headers(reason)
        if self.result is not None:
            try:
                self._services.steerer.repeat_earlier(self.result, self._request, reason)
            except Exception as exc:
                self._note_unguided(exc)

    def _note_unguided(self, error: Exception) -> None:
        """Count and log a request that goes out without its guidance: it could not be added."""
        self._runtime.metrics.steering_failures.labels(type(error).__name__).inc()
        _log.error(
            "request forwarded without its guidance",
            kind=type(error).__name__,
            reason=str(error),
            request_id=self.exchange.request.id,
        )
