"""THE MAP: one request from its parsed body to its last byte.

    prepare   who is it (recall), where does the run stand (observe), which model (route), what to
              say (guide): gateway/conversations, gateway/steering
    send      to the first upstream that answers: gateway/upstream
    complete  the answer is whole: settle, commit (gateway/recorder.py); only then does the client
              get its last byte
    abandon   there was no whole answer

This is the only place where steering may fail without the request failing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.conversations.asked import Asked
from gateway.conversations.recall import Recalled
from gateway.conversations.session import DeadlinePassed
from gateway.conversations.steered import Steered
from gateway.conversations.telling import identity_headers, log_notes, steering_headers
from gateway.dialects import SteeredRequest
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import Exchange
from gateway.observability.logging import get_logger
from gateway.recorder import Recorder
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.chance import Chance
from gateway.steering.experiments import assign, mode_of
from gateway.tasks import spawn
from gateway.upstream.base import LaneResponse, RawHeaders
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Call
from gateway.wire.request import Splice


class ReplyView(Protocol):
    """A finished answer, as the relay hands it over."""

    @property
    def completion(self) -> dict[str, Any] | None:
        """The answer in chat's form; None when it was not whole or could not be read."""
        ...

    @property
    def usage(self) -> dict[str, Any] | None:
        """What it took, as the upstream told; None when it did not."""
        ...

    @property
    def under_way(self) -> str | None:
        """The id of an answer that is still being made; None of a finished one."""
        ...


class Prepared:
    """A request with everything decided about it; `steered` is None when it goes out as it came."""

    def __init__(
        self,
        pipeline: Pipeline,
        services: Services,
        exchange: Exchange,
        request: SteeredRequest,
        asked: Asked,
    ) -> None:
        self._pipeline = pipeline
        self._services = services
        self._request = request
        self.exchange = exchange
        self.asked = asked
        self.steered: Steered | None = None
        self.hides_usage = False
        self.completed = False
        self.target: Target | None = None
        """Who answered."""

    @property
    def model(self) -> str:
        """The model to ask for."""
        steered = self.steered
        return steered.model if steered and steered.applies else self._request.model

    def call(self, headers: RawHeaders, query: bytes, key_headers: frozenset[bytes]) -> Call:
        """The request on its way out."""
        return Call(
            method="POST",
            path=self._request.dialect.path,
            dialect=self._request.dialect.name,
            headers=headers,
            query=query,
            key_headers=key_headers,
            body=self._body,
            parsed=self._parsed,
            at=self._pipeline.places.find(self.exchange.tenant, self._request.goes_on_from),
            attempts=self.exchange.attempts,
        )

    async def complete(self, reply: ReplyView) -> None:
        """The answer is whole, and the client has not had its last byte yet."""
        self.completed = True
        self.exchange.usage = reply.usage
        name = reply.under_way or (reply.completion or {}).get(ANSWER_ID)
        if name and self.target is not None:
            self._pipeline.places.put(self.exchange.tenant, name, self.target)
        if reply.under_way is not None:
            await self._pipeline.recorder.put_off(self._services, self, reply.under_way)
        else:
            await self._pipeline.recorder.record(self._services, self, reply.completion)

    def abandon(self, seen: Callable[[], bytes]) -> None:
        """There is no whole answer; what is known of the call is kept, without waiting for it.

        `seen` gives what came of a stream; an answer made in the background may still be asked for.
        """
        if self.completed or self.steered is None:
            return
        name = None
        if self._request.in_background:
            name = self._request.dialect.read_stream(seen(), json.loads).under_way
        if name is not None:
            spawn(self._pipeline.recorder.put_off(self._services, self, name))
        else:
            spawn(self._pipeline.recorder.record(self._services, self, None))

    def _body(self, target: Target) -> bytes:
        request = self._request
        model = target.model or self.model
        self.exchange.model_asked = model
        splices = request.with_model(model)
        for key, value in target.params.items():
            if key not in request.body and request.dialect.takes(key):
                splices += request.set_value(key, value)
        if self.hides_usage:
            splices += request.with_usage()
        return request.render(splices + self._guidance())

    def _guidance(self) -> list[Splice]:
        """The guidance as changes of the client's text; none when it cannot be put there."""
        if self.steered is None or not self.steered.applies:
            return []
        try:
            return self._request.dialect.splices(self._request, self.steered.edits)
        except Exception as exc:
            self._pipeline.unguided(self, exc)
            return []

    def _parsed(self, target: Target) -> Mapping[str, Any]:
        self.exchange.model_asked = target.model or self.model
        if self.steered is None or not self.steered.applies or not self.steered.edits:
            return self._request.whole
        try:
            return self._request.dialect.edited(self._request, self.steered.edits)
        except Exception as exc:
            self._pipeline.unguided(self, exc)
            return self._request.whole


class Pipeline:
    """Prepares requests and sends them; what became of them is its recorder's."""

    def __init__(self, runtime: Runtime) -> None:
        self.recorder = Recorder(runtime)
        self.places = runtime.places
        self._runtime = runtime
        self._log = get_logger("gateway.steering")

    async def prepare(
        self,
        services: Services,
        exchange: Exchange,
        request: SteeredRequest,
        headers: RawHeaders,
    ) -> Prepared:
        """Everything that is decided before the request goes out.

        Raises:
            BadRequest: a header meant for the gateway has a value without meaning.
        """
        named = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers}
        prepared = Prepared(self, services, exchange, request, Asked(named))
        deadline_s = services.settings.steering.deadline_ms / 1000
        started = time.perf_counter()
        try:
            async with asyncio.timeout(deadline_s):
                await self._steer(services, prepared, request, named, started)
        except (TimeoutError, DeadlinePassed):
            self._unsteered(prepared, "deadline", "steering passed its deadline")
        except Exception as exc:
            self._unsteered(prepared, type(exc).__name__, str(exc))
        if prepared.steered is not None:
            prepared.hides_usage = _adds_usage(services, prepared.steered, request)
        return prepared

    async def send(
        self, services: Services, exchange: Exchange, prepared: Prepared, call: Call
    ) -> LaneResponse:
        """The upstream's answer, its headers read and its body still to come.

        Raises:
            UpstreamFailure: no answer.
        """
        started = time.perf_counter()
        try:
            delivery = await services.dispatcher.send(call, prepared.model)
        finally:
            exchange.waited_s += time.perf_counter() - started
            exchange.headers += [
                (b"x-gateway-model", exchange.model_asked.encode("ascii", "backslashreplace")),
                (b"x-gateway-attempts", str(len(call.attempts)).encode()),
            ]
        exchange.first_byte_s = time.perf_counter() - exchange.started
        target = prepared.target = delivery.target
        exchange.lane, exchange.deployment = target.lane, target.name
        exchange.provider = target.provider
        return delivery.response

    async def _steer(
        self,
        services: Services,
        prepared: Prepared,
        request: SteeredRequest,
        headers: Mapping[str, str],
        started: float,
    ) -> None:
        if request.dialect.is_aside(request):
            return
        exchange, now = prepared.exchange, time.time()
        recalled = await services.recall(request, headers, exchange.tenant, now)
        exchange.notes["identity"] = recalled.label
        exchange.notes["conversation"] = recalled.conversation_id
        if recalled.conversation is None:
            exchange.headers += identity_headers(recalled)
            return
        mode = self._mode(services, prepared.asked, recalled)
        chance = _chance(services, prepared.asked)
        steered = await services.steering(recalled, request, mode, started, now, chance)
        prepared.steered = steered
        arm = prepared.asked.arm
        exchange.headers += [*identity_headers(recalled), *steering_headers(steered, arm)]
        exchange.notes |= log_notes(steered, arm)

    def _mode(self, services: Services, asked: Asked, recalled: Recalled) -> str:
        if asked.mode:
            return asked.mode
        experiment = services.settings.experiment
        if experiment.id:
            asked.experiment = experiment.id
            asked.unit = asked.unit or recalled.conversation_id
            asked.arm = assign(experiment, asked.unit)
            return mode_of(asked.arm)
        return services.settings.steering.mode

    def _unsteered(self, prepared: Prepared, kind: str, reason: str) -> None:
        prepared.steered = None
        self._runtime.metrics.steering_failures.labels(kind).inc()
        self._log.warning(
            "request forwarded unsteered",
            kind=kind,
            reason=reason,
            request_id=prepared.exchange.request_id,
        )

    def unguided(self, prepared: Prepared, error: Exception) -> None:
        """Note that decided guidance could not be put into a request, which goes out without."""
        self._runtime.metrics.steering_failures.labels(type(error).__name__).inc()
        self._log.error(
            "request forwarded without its guidance",
            kind=type(error).__name__,
            reason=str(error),
            request_id=prepared.exchange.request_id,
        )


def _chance(services: Services, asked: Asked) -> Chance | None:
    """What decides when to act in the control arm; None in any other."""
    if asked.arm != "random" or asked.unit is None:
        return None
    experiment = services.settings.experiment
    return Chance(
        experiment=experiment.id,
        unit=asked.unit,
        routing_share=experiment.random_routing_share,
        guidance_share=experiment.random_guidance_share,
    )


def _adds_usage(services: Services, steered: Steered, request: SteeredRequest) -> bool:
    wanted = services.settings.steering.stream_usage
    if not request.stream or request.wants_usage or wanted == "never" or not steered.applies:
        return False
    needed = services.settings.experiment.id or services.settings.steering.token_budget
    return wanted == "always" or bool(needed)
