"""THE MAP: one request from its parsed body to its last byte.

    prepare   before the request goes out: gateway/conversations, gateway/steering
      resolve   which conversation it belongs to (conversations/resolve.py)
      observe   score its new steps: the run's state and monitor readings (steering/fold.py)
      propose   the model, and the queries for guidance (steering/steer.py)
      look up   the patterns that match the queries (library)
      conclude  which guidance to give
      place     where in the messages it goes
    send      to the first deployment that answers: gateway/upstream
    complete  the answer is complete: it is applied to the conversation and committed to the store
              (gateway/recorder.py); only then does the client get its last byte
    abandon   there is no complete answer: what is known of the call is committed

If anything in `prepare` fails, the request goes out unsteered. This is the only place where
steering may fail without the request failing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.conversations.resolve import ControlHeaders, Resolved
from gateway.conversations.response_headers import identity_headers, log_notes, steering_headers
from gateway.conversations.steer_request import DeadlinePassed, SteeringResult
from gateway.dialects import SteeredRequest
from gateway.dialects.base import ANSWER_ID
from gateway.errors import UpstreamFailure
from gateway.exchange import Exchange
from gateway.observability.logging import get_logger
from gateway.recorder import Recorder
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.experiments import RandomArm, assign, mode_of
from gateway.tasks import spawn
from gateway.upstream.base import LaneResponse, RawHeaders
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Delivery, UpstreamCall
from gateway.wire.request import Splice


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


class PreparedRequest:
    """A request with the decisions about it; `result` is None when it goes out unsteered."""

    def __init__(
        self,
        pipeline: Pipeline,
        services: Services,
        exchange: Exchange,
        request: SteeredRequest,
        control: ControlHeaders,
    ) -> None:
        self._pipeline = pipeline
        self._services = services
        self._request = request
        self.exchange = exchange
        self.control = control
        self.result: SteeringResult | None = None
        self.hides_usage = False
        self.completed = False
        self.target: Target | None = None
        """The target that answered."""

    @property
    def model(self) -> str:
        """The model to request."""
        result = self.result
        return result.model if result and result.applies else self._request.model

    @property
    def is_rerouted(self) -> bool:
        """Whether the request goes to another model than the client named."""
        return self.model != self._request.model

    def use_requested_model(self, reason: str) -> None:
        """Switch to the model that the client named, because the routed one gave no answer."""
        if self.result is not None:
            self._services.steerer.use_requested_model(self.result, self._request, reason)

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
            body=self._body,
            parsed=self._parsed,
            conversation=self.result.conversation.id if self.result else "",
            at=self._pipeline.response_targets.find(
                self.exchange.request.tenant, self._request.previous_response_id
            ),
            attempts=self.exchange.upstream.attempts,
        )

    async def complete(self, reply: ReplyView) -> None:
        """Record the complete answer, before the client gets its last byte."""
        self.completed = True
        self.exchange.upstream.bill(reply.usage)
        response_id = reply.pending_id or (reply.completion or {}).get(ANSWER_ID)
        if response_id and self.target is not None:
            tenant = self.exchange.request.tenant
            self._pipeline.response_targets.put(tenant, response_id, self.target)
        if reply.pending_id is not None:
            await self._pipeline.recorder.record_pending(self._services, self, reply.pending_id)
        else:
            await self._pipeline.recorder.record(self._services, self, reply.completion)

    def abandon(self, received: Callable[[], bytes]) -> None:
        """Record a call without a complete answer, in a task of the event loop.

        `received` returns the part of a stream that arrived. If it shows that the answer is made in
        the background, the call stays pending: the client may still ask for the answer.
        """
        if self.completed or self.result is None:
            return
        pending_id = None
        if self._request.in_background:
            pending_id = self._request.dialect.read_stream(received(), json.loads).pending_id
        if pending_id is not None:
            spawn(self._pipeline.recorder.record_pending(self._services, self, pending_id))
        else:
            spawn(self._pipeline.recorder.record(self._services, self, None))

    def _body(self, target: Target) -> bytes:
        request = self._request
        model = target.model or self.model
        self.exchange.upstream.model = model
        splices = request.with_model(model)
        for key, value in target.params.items():
            if key not in request.body and request.dialect.takes(key):
                splices += request.set_value(key, value)
        if self.hides_usage:
            splices += request.with_usage()
        return request.render(splices + self._guidance())

    def _guidance(self) -> list[Splice]:
        """The guidance as splices of the client's bytes; empty when it cannot be placed there."""
        if self.result is None or not self.result.applies:
            return []
        try:
            return self._request.dialect.splices(self._request, self.result.edits)
        except Exception as exc:
            self._pipeline.note_unguided(self, exc)
            return []

    def _parsed(self, target: Target) -> Mapping[str, Any]:
        self.exchange.upstream.model = target.model or self.model
        if self.result is None or not self.result.applies or not self.result.edits:
            return self._request.whole
        try:
            return self._request.dialect.edited(self._request, self.result.edits)
        except Exception as exc:
            self._pipeline.note_unguided(self, exc)
            return self._request.whole


class Pipeline:
    """Prepares requests and sends them; `recorder` records their results."""

    def __init__(self, runtime: Runtime) -> None:
        self.recorder = Recorder(runtime)
        self.response_targets = runtime.response_targets
        self._runtime = runtime
        self._log = get_logger("gateway.steering")

    async def prepare(
        self,
        services: Services,
        exchange: Exchange,
        request: SteeredRequest,
        headers: RawHeaders,
    ) -> PreparedRequest:
        """Make every decision about a request before it goes out.

        Raises:
            BadRequest: a header for the gateway has a value that is not allowed.
        """
        named = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers}
        prepared = PreparedRequest(self, services, exchange, request, ControlHeaders(named))
        deadline_s = services.settings.steering.deadline_ms / 1000
        started = time.perf_counter()
        try:
            async with asyncio.timeout(deadline_s):
                await self._steer(services, prepared, request, named, started)
        except (TimeoutError, DeadlinePassed):
            self._note_unsteered(prepared, "deadline", "steering passed its deadline")
        except Exception as exc:
            self._note_unsteered(prepared, type(exc).__name__, str(exc))
        if prepared.result is not None:
            prepared.hides_usage = _adds_usage(services, prepared.result, request)
        return prepared

    async def send(
        self, services: Services, exchange: Exchange, prepared: PreparedRequest, call: UpstreamCall
    ) -> LaneResponse:
        """The upstream's answer, with its headers read and its body not read yet.

        Raises:
            UpstreamFailure: no deployment answered.
        """
        started = time.perf_counter()
        try:
            delivery = await self._ask(services, prepared, call)
        finally:
            exchange.timing.waited_s += time.perf_counter() - started
            exchange.response.headers += [
                (b"x-gateway-model", exchange.upstream.model.encode("ascii", "backslashreplace")),
                (b"x-gateway-attempts", str(len(call.attempts)).encode()),
            ]
        exchange.timing.first_byte_s = time.perf_counter() - exchange.timing.started
        target = prepared.target = delivery.target
        exchange.upstream.lane, exchange.upstream.deployment = target.lane, target.name
        exchange.upstream.provider = target.provider
        return delivery.response

    async def _ask(
        self, services: Services, prepared: PreparedRequest, call: UpstreamCall
    ) -> Delivery:
        """The routed model's answer; if that refuses or fails, the requested model's."""
        model = prepared.model
        try:
            delivery = await services.dispatcher.send(call, model)
        except UpstreamFailure as exc:
            if not prepared.is_rerouted:
                raise
            reason = exc.label
        else:
            if delivery.response.status < 400 or not prepared.is_rerouted:
                return delivery
            reason = f"status {delivery.response.status}"
            await delivery.response.aclose()
        self._log.warning(
            "routed model refused, asking the requested one",
            model=model,
            reason=reason,
            request_id=prepared.exchange.request.id,
        )
        prepared.use_requested_model(reason)
        return await services.dispatcher.send(call, prepared.model)

    async def _steer(
        self,
        services: Services,
        prepared: PreparedRequest,
        request: SteeredRequest,
        headers: Mapping[str, str],
        started: float,
    ) -> None:
        if request.dialect.is_side_request(request):
            return
        exchange, now = prepared.exchange, time.time()
        resolved = await services.resolver.resolve(request, headers, exchange.request.tenant, now)
        exchange.notes["identity"] = resolved.label
        exchange.notes["conversation"] = resolved.conversation_id
        if resolved.conversation is None:
            exchange.response.headers += identity_headers(resolved)
            return
        mode = self._mode(services, prepared.control, resolved)
        arm = _random_arm(services, prepared.control)
        result = await services.steerer.steer(resolved, request, mode, started, now, arm)
        prepared.result = result
        name = prepared.control.arm
        exchange.response.headers += [*identity_headers(resolved), *steering_headers(result, name)]
        exchange.notes |= log_notes(result, name)

    def _mode(self, services: Services, control: ControlHeaders, resolved: Resolved) -> str:
        if control.mode:
            return control.mode
        experiment = services.settings.experiment
        if experiment.id:
            control.experiment = experiment.id
            control.unit = control.unit or resolved.conversation_id
            control.arm = assign(experiment, control.unit)
            return mode_of(control.arm)
        return services.settings.steering.mode

    def _note_unsteered(self, prepared: PreparedRequest, kind: str, reason: str) -> None:
        prepared.result = None
        self._runtime.metrics.steering_failures.labels(kind).inc()
        self._log.warning(
            "request forwarded unsteered",
            kind=kind,
            reason=reason,
            request_id=prepared.exchange.request.id,
        )

    def note_unguided(self, prepared: PreparedRequest, error: Exception) -> None:
        """Count and log a request that goes out without its guidance: it could not be added."""
        self._runtime.metrics.steering_failures.labels(type(error).__name__).inc()
        self._log.error(
            "request forwarded without its guidance",
            kind=type(error).__name__,
            reason=str(error),
            request_id=prepared.exchange.request.id,
        )


def _random_arm(services: Services, control: ControlHeaders) -> RandomArm | None:
    """The random draws of the control arm; None in any other arm."""
    if control.arm != "random" or control.unit is None:
        return None
    experiment = services.settings.experiment
    return RandomArm(
        experiment=experiment.id,
        unit=control.unit,
        routing_share=experiment.random_routing_share,
        guidance_share=experiment.random_guidance_share,
    )


def _adds_usage(services: Services, result: SteeringResult, request: SteeredRequest) -> bool:
    wanted = services.settings.steering.stream_usage
    if not request.stream or request.wants_usage or wanted == "never" or not result.applies:
        return False
    needed = services.settings.experiment.id or services.settings.steering.token_budget
    return wanted == "always" or bool(needed)
