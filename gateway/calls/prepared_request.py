"""One request between its preparation and its record: sends it, and notes how it ended."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import orjson

from gateway.calls.recorder import Recorder
from gateway.conversations.answer_headers import GUIDANCE_HEADER, STATE_HEADER
from gateway.conversations.call import Call
from gateway.conversations.steering_result import SteeringResult
from gateway.core.fsm import FSMState
from gateway.core.guidance_state import Place
from gateway.dialects import SteeredRequest
from gateway.dialects.base import ANSWER_ID
from gateway.exchange import UpstreamReply
from gateway.observability.logging import get_logger
from gateway.observability.otel import call_texts
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.stores.exchanges import RawCall
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import OpenConnection, UpstreamCall
from gateway.upstream.retries import AT_OTHER_TARGET, ROUTER_KEYS
from gateway.upstream.seats import Seat
from gateway.upstream.tokens import estimated_usage
from gateway.values import FieldDict, Fields
from gateway.wire.echo import EchoFilter
from gateway.wire.headers import RawHeaders, readable, replaced, without
from gateway.wire.refusal import Kind, status_of
from gateway.wire.request import Splice

# Longest wait for the other calls of a conversation before an unsteered one is recorded.
_CATCH_UP_S = 10.0
_log = get_logger("gateway.steering")


@dataclass(eq=False)
class PreparedRequest:
    """Sends a call as it was decided, and notes in it what happened."""

    runtime: Runtime  # what lives as long as the process
    recorder: Recorder  # commits the call
    services: Services  # of the config that was in force when the request came
    request: SteeredRequest  # as the client wrote it
    call: Call  # the decision, and what happened
    # whether the usage of the stream is wanted, which the client did not ask for
    hides_usage: bool = field(default=False, init=False)

    # whether the target was asked for it, so that its chunk is taken out of the answer
    asked_usage: bool = field(default=False, init=False)

    # the WebSocket that it came over: its answers can be continued there, stored or not
    connection: OpenConnection | None = field(default=None, init=False)

    # body of the latest attempt; bytes in the native lane
    _sent: bytes | Fields = field(default=b"", init=False)

    def decided(self) -> None:
        """Note the model to request, once the decision is made or has changed."""
        result = self.call.result
        asked = result.model if result is not None and result.applies else self.request.model
        self.call.model = asked or self.call.exchange.request.model

    def use_requested_model(self, reason: str) -> None:
        """Switch to the model that the client named, because the routed one gave no answer."""
        if (result := self.call.result) is not None:
            self.services.steerer.use_requested_model(result, self.request, reason)
            self.decided()

    @property
    def is_changed(self) -> bool:
        """Whether anything but the model's name differs from what the client wrote."""
        return self.asked_usage or self._guided() is not None

    def _guided(self) -> SteeringResult | None:
        """The decision, if it adds guidance to the request."""
        result = self.call.result
        if result is None or not result.applies or result.placed is None:
            return None
        return result if result.placed.edits else None

    def send_as_written(self) -> frozenset[Place]:
        """Take every change out of the request, which was refused with them; where guidance was."""
        self.hides_usage = False
        if self.call.result is None:
            return frozenset()
        exchange = self.call.exchange
        exchange.response.headers = without(exchange.response.headers, (GUIDANCE_HEADER,))
        exchange.notes.pop("guidance", None)
        return self.services.steerer.send_as_written(self.call.result)

    def close_places(self, places: frozenset[Place], kind: Kind) -> bool:
        """Whether these places are used for no request of this client for a while: a request was
        refused with guidance there, for a reason of this kind, and accepted without."""
        steerer = self.services.steerer
        result = self.call.result
        return result is not None and steerer.close_places(result, self.request, places, kind)

    def echo(self) -> EchoFilter | None:
        """Filter that removes injected guidance from an answer that repeats its request; None if
        nothing was injected."""
        result = self._guided()
        dialect = self.request.dialect
        if not dialect.repeats_instructions or result is None or result.placed is None:
            return None
        try:
            return dialect.echo(self.request, result.placed.edits)
        except Exception as exc:
            self._note_unguided(exc)
            return None

    def upstream_call(
        self,
        headers: RawHeaders,
        query: bytes,
        key_headers: frozenset[bytes],
        seat: Seat | None = None,
    ) -> UpstreamCall:
        """The request as it is sent to the upstream."""
        request = self.request
        exchange = self.call.exchange
        result = self.call.result
        if self.hides_usage or (result is not None and result.applies):
            headers = readable(headers, plain=self.hides_usage or self.echo() is not None)
        named = request.previous_response_id
        targets = self.runtime.stored_answers.targets
        return UpstreamCall(
            method="POST",
            path=request.dialect.path if seat is None else seat.path,
            path_at=None if seat is None else partial(self._path, seat),
            seat=seat,
            dialect=request.dialect,
            headers=headers,
            query=query,
            key_headers=key_headers,
            opaque=request.opaque,
            body=self._body,
            parsed=self._parsed,
            conversation=result.conversation.id if result else "",
            at=targets.find(exchange.request.tenant, named) if named else None,
            attempts=exchange.upstream.attempts,
        )

    async def complete(self, reply: UpstreamReply) -> None:
        """Record the complete answer, before the client gets its last byte. That goes on when the
        client leaves meanwhile: the answer was made, and is paid for."""
        failure = reply.failure
        target = self.call.target
        if target is not None:
            failed = failure is not None and status_of(failure) in AT_OTHER_TARGET
            self.services.dispatcher.note_end(target, failed=failed)
        if failure is not None:  # `end` records it like a refusal with a status
            self.call.note_failure(failure)
            return
        self.call.completed = True
        await asyncio.shield(self.runtime.unfinished.start(self._complete(reply)))

    async def _complete(self, reply: UpstreamReply) -> None:
        result = self.call.result
        exchange = self.call.exchange
        completion = reply.completion
        if result is not None:
            result.note_sending()
        if reply.unread is not None:  # the gateway does not know what was answered
            exchange.notes["unread"] = reply.unread
            self.runtime.metrics.unread.labels(reply.unread).inc()
            self.call.note_reason(f"answer not read: {reply.unread}")
        self._bill(reply.usage, completion)
        settings = self.services.settings
        if self.runtime.telemetry is not None and settings.otel.content:
            mask = settings.storage.mask_secrets
            history = self.request.own_messages
            exchange.texts |= call_texts(history, completion, settings.otel, mask=mask)
        if self.connection is not None and completion is not None:
            completion[ANSWER_ID] = self.connection.answer_id
        response_id = reply.pending_id or (completion or {}).get(ANSWER_ID)
        target = self.call.target
        if isinstance(response_id, str) and response_id and target is not None:
            self._keep_place(response_id)
            if reply.pending_id is None:
                tenant = exchange.request.tenant
                await self.recorder.answers.keep(self.services, tenant, response_id, target)
        if reply.pending_id is None and self.call.spending is not None:
            await self.call.settle()
        await self._record(completion, reply.pending_id)
        if result is not None and result.state_after is FSMState.END:
            # A stream's head is sent by now; a whole answer still says that it ended the run.
            headers = exchange.response.headers
            exchange.response.headers = replaced(headers, STATE_HEADER, FSMState.END.value.encode())
            exchange.notes["state"] = FSMState.END.value

    def _keep_place(self, response_id: str) -> None:
        """Whoever asks for a stored answer later is sent to where it is stored, and does not see
        the guidance in the instructions that it repeats."""
        known = self.runtime.stored_answers
        tenant = self.call.exchange.request.tenant
        if self.call.target is not None:
            known.targets.put(tenant, response_id, self.call.target)
        if (echo := self.echo()) is not None:
            known.echoes.put(tenant, response_id, echo)

    def note_delivered(self) -> None:
        """The client has been sent the whole answer."""
        if self.call.completed and self.call.result is not None:
            self.call.result.note_delivered()

    def _bill(self, usage: FieldDict | None, reply: Fields | None) -> None:
        """Note the usage: as it was reported, else estimated from the texts; and whose prices hold:
        the answer names the model of a request that could not be read."""
        call = self.call
        request = self.request
        upstream = call.exchange.upstream
        if request.opaque and isinstance(named := (reply or {}).get("model"), str):
            call.exchange.request.model = upstream.model = named
            self.decided()
        call.billed_model = call.model
        target = call.target
        if target is not None and (target.key or target.model):  # not the default upstream
            call.billed_model = self.services.catalogue.billed_name(call.model, target)
        upstream.bill(usage, reply)
        if upstream.tokens.input is None and upstream.tokens.output is None and reply:
            estimate = estimated_usage(request.raw, reply)
            if estimate is not None:
                upstream.bill(estimate, estimated=True)

    def end(self, received: Callable[[], bytes]) -> None:
        """No more is sent. Record a call without a complete answer, in a task of the event loop.
        `received` returns the part of a stream that arrived. Its tokens are estimates: what was
        reported before the end is not all. If it shows that the answer is made in the background,
        the call stays pending: the client may still ask for the answer."""
        result = self.call.result
        request = self.request
        if result is not None and self.call.exchange.response.client_gone:
            result.note_cut()
        if self.call.completed:
            if result is not None:
                result.note_ended()
            return
        read = request.dialect.read_stream(received(), orjson.loads)
        self._bill(read.usage, read.completion or read.partial)
        upstream = self.call.exchange.upstream
        upstream.usage_estimated = upstream.usage is not None
        pending_id = read.pending_id if request.dialect.in_background(request) else None
        if pending_id is not None:
            self._keep_place(pending_id)
        elif self.call.spending is not None:
            self.runtime.unfinished.start(self.call.settle())
        if result is None:
            return
        if pending_id is None:
            # At once: a client that gave up may send the request again before this is recorded.
            result.note_failed()
        self.runtime.unfinished.start(self._record(None, pending_id))

    async def _record(self, completion: FieldDict | None, pending_id: str | None) -> None:
        """Commit the call. A call whose answer is still being made in the background is noted as
        such at once."""
        recorder = self.recorder
        services = self.services
        if pending_id is not None:
            await recorder.answers.commit(services, self.call, pending_id, ready=self._catch_up)
            return
        await self._catch_up()
        await recorder.record(services, self.call, completion)

    async def _catch_up(self) -> None:
        """Score the steps of a call that went out before that was done, for its record."""
        result = self.call.result
        if result is None or result.observed:
            return
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await self.services.steerer.catch_up(result, self.request, time.time())
        except Exception as exc:
            _log.warning(
                "steps of an unsteered call not scored",
                kind=type(exc).__name__,
                request_id=self.call.exchange.request.id,
            )

    def _path(self, seat: Seat, target: Target) -> str:
        """The path at a target, for a client of a seat."""
        if self.request.addressed is not None:
            model = target.model or self.call.model
            if not target.seat or model != self.request.model:
                return self.request.addressed.at(model, seat=bool(target.seat))
            return seat.path  # byte for byte
        return seat.path if target.seat else self.request.dialect.path

    def _body(self, target: Target) -> bytes:
        """The client's bytes with the model, what the deployment sets, and the guidance, if that
        can be placed there."""
        request = self.request
        result = self._guided()
        model = target.model or self.call.model
        self.call.exchange.upstream.model = model
        splices: list[Splice] = [] if model == request.model else request.with_model(model)
        for key, value in target.params.items():
            if key not in request.body and request.dialect.takes(key):
                splices += request.set_value(key, value)
        refusals = self.services.usage_refusals
        self.asked_usage = self.hides_usage and (str(target.api_base), model) not in refusals
        if self.asked_usage:
            splices += request.with_usage()
        if result is not None and result.placed is not None:
            try:
                splices += request.dialect.splices(request, result.placed.edits)
            except Exception as exc:
                self._note_unguided(exc)
        body = request.render(splices)
        if target.key and not request.body.keys().isdisjoint(ROUTER_KEYS):
            body = self._without_fallbacks(body)
        if self.runtime.raw_calls is not None:
            self._sent = body
        return body

    def _without_fallbacks(self, body: bytes) -> bytes:
        """Take fallbacks that the client names out of what a deployment gets, and say so. The
        default upstream is the client's own, and may be a proxy that knows them."""
        fields = json.loads(body)
        named = ",".join(key for key in ROUTER_KEYS if fields.pop(key, None) is not None)
        headers = self.call.exchange.response.headers
        if (header := (b"x-gateway-dropped-params", named.encode())) not in headers:
            headers.append(header)
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def _parsed(self, target: Target) -> Fields:
        """The request as JSON, with its guidance; LiteLLM's lane learns the usage by itself."""
        model = self.call.exchange.upstream.model = target.model or self.call.model
        self.asked_usage = False
        body: Fields | None = None
        if (result := self._guided()) is not None and result.placed is not None:
            try:
                body = self.request.dialect.edited(self.request, result.placed.edits)
            except Exception as exc:
                self._note_unguided(exc)
        if body is None:
            body = self.request.whole
            if self.request.addressed is not None:
                body = self.request.dialect.edited(self.request, ())
        if self.runtime.raw_calls is not None:
            self._sent = {**body, "model": model}
        return body

    def keep_raw(self, received: Callable[[], bytes]) -> None:
        """Keep the call as it was sent and received, if that is switched on, in a task of the event
        loop."""
        result = self.call.result
        keeper = self.runtime.raw_calls
        sent = self._sent
        if result is None or keeper is None or not sent:
            return
        storage = self.runtime.settings.storage
        call = RawCall(
            tenant=self.call.exchange.request.tenant,
            run_id=result.run_id,
            step_index=result.position.step,
            at=time.time(),
            dialect=self.request.dialect.name,
            request=sent if isinstance(sent, bytes) else orjson.dumps(sent, default=str),
            response=self.request.dialect.plain(received(), orjson.loads),
        )
        limits = (int(storage.raw_max_kb * 2**10), int(storage.raw_mb * 2**20))
        self.runtime.unfinished.start(keeper.keep(call, max_bytes=limits[0], most_bytes=limits[1]))

    def forward_unsteered(self, reason: str) -> None:
        """Go on without a decision, with the guidance that was injected before."""
        exchange = self.call.exchange
        exchange.notes["unsteered"] = reason
        exchange.response.headers.append((b"x-gateway-unsteered", reason.encode()))
        if self.call.result is not None:
            try:
                self.services.steerer.repeat_earlier(self.call.result, self.request, reason)
            except Exception as exc:
                self._note_unguided(exc)

    def _note_unguided(self, error: Exception) -> None:
        """Count and log a request that goes out without its guidance: it could not be added."""
        self.runtime.metrics.steering_failures.labels(type(error).__name__).inc()
        _log.error(
            "request forwarded without its guidance",
            kind=type(error).__name__,
            reason=str(error),
            request_id=self.call.exchange.request.id,
        )
