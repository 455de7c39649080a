"""THE MAP: one request from its parsed body to its last byte.

    prepare   before the request goes out: gateway/conversations, gateway/steering
      resolve   which conversation it belongs to (conversations/resolve.py)
      observe   score its new steps: the run's state and monitor readings (core/fold.py)
      propose   the model, and the queries for guidance (core/steer.py)
      look up   the patterns that match the queries (library)
      conclude  which guidance to give
      place     where in the messages it goes
    admit     whether it may be sent: holds of the operator, budgets (gateway/calls/admission.py)
    send      to the first deployment that answers: gateway/upstream
    complete  the answer is complete: it is applied to the conversation and committed to the store
              (gateway/calls/recorder.py); only then does the client get its last byte
    end       no more is sent: without a complete answer, what is known of the call is committed

If anything in `prepare` fails or is late, the request goes out without a new decision: with the
guidance that was injected before, recorded like any other, and counted with its reason. This is the
only place where steering may fail without the request failing."""

import asyncio
import time
from functools import partial

from msgspec.structs import replace

from gateway.auth.keys import Terms
from gateway.calls.admission import Admissions
from gateway.calls.call import Call
from gateway.calls.headers import ControlHeaders, note_identity, note_steering
from gateway.calls.recorder import Recorder
from gateway.conversations.apply_reply import note_cut, note_failed
from gateway.conversations.conversation import Conversation
from gateway.conversations.decision import Decision
from gateway.conversations.observe import unobserved
from gateway.conversations.steer_request import REFUSED_STATUSES, unsteered
from gateway.errors import UpstreamFailure
from gateway.observability.logging import get_logger
from gateway.observability.metrics import UnsteeredReason
from gateway.observability.otel import caller
from gateway.runtime import Runtime
from gateway.steering.experiments import assign
from gateway.steering.identity import identify
from gateway.stores.controls import STEERING
from gateway.stores.protocols import StoreError
from gateway.tasks import DeadlinePassed, OwnTime
from gateway.upstream.base import LaneResponse
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import TargetAnswer, UpstreamCall, read_error
from gateway.values import Texts
from gateway.wire.headers import RawHeaders
from gateway.wire.upstream_errors import kind_of

_log = get_logger("gateway.steering")


class Pipeline:
    """Prepares requests and sends them; `recorder` records what they become."""

    def __init__(self, runtime: Runtime):
        self._admissions = Admissions(runtime)
        self.recorder = Recorder(runtime)
        self._runtime = runtime

    async def prepare(self, call: Call, headers: RawHeaders, terms: Terms | None = None) -> None:
        """Make every decision about a request before it goes out; `terms`: of its key. Raises:
        BadRequest: a header for the gateway has a value that is not allowed."""
        services = call.services
        named = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers}
        control = ControlHeaders.read(named)
        if terms is not None:
            control = replace(control, tags=terms.tagged(control.tags))
        if "chatgpt-account-id" in named or "sk-ant-oat" in named.get("authorization", ""):
            control = replace(control, tags={**control.tags, "paid": "subscription"})
        call.control = control
        call.keeps_sent = self._runtime.raw_calls is not None
        steering = services.settings.steering
        own_time = OwnTime(steering.deadline_ms / 1000)
        turns = services.turns
        if call.request.large:
            turns = services.large_turns
        try:
            async with turns.turn(own_time):
                work = self._steer(call, named, own_time)
                await own_time.run(work, steering.max_wait_ms / 1000)
        except asyncio.CancelledError:
            if call.decision is not None:
                note_failed(call.decision)  # the client has gone: no answer will come
                note_cut(call.decision)
            raise
        except Exception as exc:
            self._note_unsteered(call, exc)
        if call.request.large:  # room was found for the values of its new messages alone
            getattr(call.request.messages, "parsed", {}).clear()
        if call.decision is not None:
            call.timings_ms["own"] = own_time.spent_s * 1000
            call.hides_usage = _adds_usage(call, call.decision)
        call.decided()
        if earlier := call.request.previous_response_id:
            if services.table.names:
                await self.recorder.answers.learn(services, call.tenant, earlier)
            call.stored_at = self._runtime.stored_answers.targets.find(call.tenant, earlier)

    async def send(self, call: Call, sending: UpstreamCall) -> LaneResponse:
        """The upstream's answer, with its headers read and its body not read yet. Raises:
        UpstreamFailure: no deployment answered. RunRefused: the call may not be sent."""
        exchange = call.exchange
        upstream = exchange.upstream
        own = await self._admissions.admit(call)
        if own is not None:
            return own
        if exchange.response.begun:  # its head has promised no compression
            sending.headers = [h for h in sending.headers if h[0].lower() != b"accept-encoding"]
        spending = call.spending
        if spending is not None:
            spending.sent = True

            async def admits(target: Target) -> bool:
                # A fallback has a price of its own, which is reserved first.
                if target.key:
                    model = target.name
                else:
                    model = target.model or call.delivery.model
                return await self._admissions.extend(call, model)

            sending.admits = admits
        started = time.perf_counter()
        try:
            delivery = await self._ask(call, sending)
        finally:
            exchange.timing.waited_s += time.perf_counter() - started
            exchange.response.headers += [
                (b"x-gateway-model", upstream.model.encode("ascii", "backslashreplace")),
                (b"x-gateway-attempts", str(len(sending.attempts)).encode()),
            ]
        exchange.timing.first_byte_s = time.perf_counter() - exchange.timing.started
        target = call.target = delivery.target
        if spending is not None:
            spending.answered = True
        if sending.dry is not None and target.api_key is not None and delivery.status < 400:
            call.dry = sending.dry
            call.note_reason(f"limit: the client's login rests, asked {target.name}")
        upstream.lane = target.lane
        upstream.deployment = target.name
        upstream.provider = target.seat or target.provider
        return delivery.response

    async def _ask(self, call: Call, sending: UpstreamCall) -> TargetAnswer:
        """The answer to the request; one that is refused with our changes in it is sent once more
        as the client wrote it."""
        try:
            delivery = await self._ask_models(call, sending)
        except UpstreamFailure as exc:
            if exc.status not in REFUSED_STATUSES or not call.is_changed:
                raise
            status = exc.status
            kind = kind_of({"": exc.message, "code": exc.code})
        else:
            if delivery.kind is None:
                return delivery
            status = delivery.status
            kind = delivery.kind
            await delivery.response.aclose()
        _log.warning(
            "changed request refused, sent as the client wrote it",
            status=status,
            kind=kind,
            request_id=call.exchange.request.id,
        )
        places = call.send_as_written()
        delivery = await self._deliver(call, sending)
        closes = delivery.status < 400 and call.close_places(places, kind)
        scope = "place" if closes else "request"
        self._runtime.metrics.refused_changes.labels(kind, scope).inc()
        return delivery

    async def _ask_models(self, call: Call, sending: UpstreamCall) -> TargetAnswer:
        """The routed model's answer; if that refuses or fails, the requested model's."""
        request = call.request
        model = call.delivery.model
        reason = ""
        try:
            delivery = await self._deliver(call, sending)
        except UpstreamFailure as exc:
            if model == request.model or not await self._admissions.extend(call, request.model):
                raise
            reason = exc.label
        else:
            # A redirect is no answer of a model, either.
            if delivery.status < 300 or model == request.model:
                return delivery
            if not await self._admissions.extend(call, request.model):
                return delivery
            reason = f"status {delivery.status}"
            await delivery.response.aclose()
        _log.warning(
            "routed model refused, asking the requested one",
            model=model,
            reason=reason,
            request_id=call.exchange.request.id,
        )
        call.use_requested_model(reason)
        return await self._deliver(call, sending)

    async def _deliver(self, call: Call, sending: UpstreamCall) -> TargetAnswer:
        """The answer of the model to request; a target that refuses to report the usage of a
        stream is asked again without that."""
        services = call.services
        while True:
            model = call.delivery.model
            # The requested model is what a routed one that fails is tried again with.
            once = model != call.request.model
            delivery = await services.dispatcher.send(sending, model, once=once)
            if delivery.status not in REFUSED_STATUSES or not call.is_changed:
                return delivery
            kind, names_usage = await read_error(delivery.response)
            if not (names_usage and call.asked_usage):
                return replace(delivery, kind=kind)
            await delivery.response.aclose()
            model = call.exchange.upstream.model
            services.usage_refusals[delivery.target.api_base.text, model] = True
            _log.info("target refuses stream_options", target=delivery.target.name, model=model)

    async def _steer(
        self,
        call: Call,
        headers: Texts,
        own_time: OwnTime,
    ) -> None:
        services = call.services
        request = call.request
        if self._runtime.telemetry is not None:
            identity = identify(headers, request.body, services.resolver.settings)
            call.exchange.texts = caller(request.body, identity, call.exchange.request.key)
        exchange = call.exchange
        asked = exchange.request
        resolver = services.resolver
        now = time.time()
        conversation = None
        beside = ""
        if not (request.unread or request.dialect.is_side_request(request)):
            resolved, conversation = await resolver.resolve(request, headers, asked.tenant, now=now)
            beside = resolved.match.conversation_id or ""
        # One call more of its run: a request aside touches nothing else.
        aside = conversation is None
        if conversation is None:
            resolved, conversation = await resolver.resolve_unread(
                request, headers, asked.tenant, key=asked.key, now=now, beside=beside
            )
        mode = self._mode(call, conversation)
        note_identity(exchange, resolved, conversation.id)
        control = call.control
        project = control.tags.get("project", "")
        decision = call.decision = replace(
            unobserved(resolved, conversation, mode, model=request.model),
            agent=control.agent,
            project=project,
            muted=self._runtime.holds.muted(call.tenant, project),
            unread=aside,
            observed=aside,
        )
        if request.unread:
            conversation.run.unscored_calls += 1
            if request.opaque:
                raise _Unread("encoding", "the body is compressed in a way that cannot be read")
            raise _Unread("size", f"a body of {len(request.raw) / 2**20:.1f} MiB cannot be read")
        if aside:
            return
        advise = None
        if services.budgets is not None:
            advise = partial(self._admissions.advise, call)
        steps = services.steerer.steer(
            decision, request, now, own_time=own_time, timings=call.timings_ms, advise=advise
        )
        async for decision in steps:
            call.decision = decision
        note_steering(exchange, decision, control.arm)

    def _mode(self, call: Call, conversation: Conversation) -> str:
        """The mode of the request; one of an experiment or a pilot is assigned to its arm."""
        control = call.control
        services = call.services
        workloads = self._runtime.opened.workloads
        if control.unit:
            conversation.unit = control.unit
        if self._runtime.holds.find((STEERING,)):
            if "off" in (control.mode, services.settings.steering.mode):
                return "off"
            return "shadow"
        if control.mode:
            return control.mode
        experiment = services.settings.experiment
        settings = services.settings.steering
        pilot = None
        if workloads is not None:
            pilot = workloads.pilot
        if not experiment.id and pilot is None:
            return settings.mode
        unit = conversation.unit or conversation.id
        arm = None
        name = experiment.id
        if name:
            mode = arm = assign(experiment, unit)
        elif pilot is not None:
            about = (conversation.tenant, control.agent, control.tags.get("project", ""))
            unit = conversation.root_id  # a client that names units would choose its arm
            arm, mode = pilot.treatment(about, unit, conversation.created_at)
            name = pilot.id
        if arm is not None:
            call.control = replace(control, experiment=name, unit=unit, arm=arm)
        return mode or settings.mode

    def _note_unsteered(self, call: Call, error: Exception) -> None:
        """Count and log a call that goes out without a decision."""
        reason = _reason(error)
        limit = _LIMITS.get(reason)
        if limit:
            kind = "deadline"
        else:
            kind = type(error).__name__
        self._runtime.metrics.steering_failures.labels(kind).inc()
        self._runtime.unsteered.count(reason, recorded=call.decision is not None)
        _log.warning(
            "request forwarded unsteered",
            kind=kind,
            reason=f"steering passed its {limit}" if limit else str(error),
            request_id=call.exchange.request.id,
        )
        call.exchange.notes["unsteered"] = reason
        call.exchange.response.headers.append((b"x-gateway-unsteered", reason.encode()))
        if call.decision is not None:
            call.decision = unsteered(call.decision, call.request, reason)
            try:
                call.decision = call.services.steerer.place_earlier(call.decision, call.request)
            except Exception as exc:
                call.note_unguided(exc)


class _Unread(Exception):
    """The body was not read."""

    def __init__(self, reason: UnsteeredReason, message: str):
        super().__init__(message)
        self.reason = reason


_LIMITS = {"deadline": "deadline", "timeout": "longest wait"}


def _reason(error: Exception) -> UnsteeredReason:
    """Why a call goes out unsteered: one of a closed set."""
    match error:
        case DeadlinePassed():
            return "deadline"
        case TimeoutError():
            return "timeout"
        case StoreError():
            return "store"
        case _Unread(reason=reason):
            return reason
        case _:
            return "error"


def _adds_usage(call: Call, decision: Decision) -> bool:
    request = call.request
    services = call.services
    wanted = services.settings.steering.stream_usage
    if not request.stream or request.wants_usage or wanted == "never" or decision.mode != "on":
        return False
    return wanted == "always" or bool(services.settings.experiment.id or services.budgets)
