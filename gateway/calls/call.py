"""One call: the request as it came, who serves it, what was decided, and what happened.

It is the one value that the stages of `gateway/pipeline.py` hand on. Each adds one frozen value:
`decision` (with the resolved conversation), `delivery` (what leaves and what is given), `outcome`
(the answer and its cost). What the gateway sends is made here, too: the client's bytes with the
model, the guidance and what a deployment sets."""

import json
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gateway.budget_interface import Spending
from gateway.calls.headers import GUIDANCE_HEADER, ControlHeaders
from gateway.conversations.apply_reply import AppliedReply, note_delivered, note_failed
from gateway.conversations.decision import Decision, Delivery
from gateway.conversations.steer_request import client_of, forget
from gateway.core.edits import Edit
from gateway.core.guidance_state import Place
from gateway.core.trouble import HELD
from gateway.dialects import SteeredRequest
from gateway.errors import UpstreamFailure
from gateway.exchange import Exchange
from gateway.observability.logging import get_logger
from gateway.services import Services
from gateway.stores.records import StepRow
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import OpenConnection, UpstreamCall
from gateway.upstream.dry_seats import DrySeat
from gateway.upstream.retries import ROUTER_KEYS
from gateway.upstream.seats import Seat
from gateway.values import FieldDict, Fields, T, Value
from gateway.wire.echo import EchoFilter
from gateway.wire.headers import RawHeaders, readable, without
from gateway.wire.request import Splice
from gateway.wire.upstream_errors import Kind, Refusal
from gateway.wire.usage import Loss

_log = get_logger("gateway.steering")


class Outcome(Value):
    """The end of a call: its answer, and what it cost."""

    # in the form of a chat completion; None when nothing could be read
    completion: Fields | None
    # (reply, finish reason) of each choice in `completion`, see `apply_reply`
    choices: Sequence[tuple[FieldDict, str | None]]
    applied: AppliedReply  # what the answer was to its conversation
    # US dollars at the prices of the model that answered; None where it has none, or its usage is
    # unknown
    cost_usd: float | None
    # the same tokens at the price of the model that the client asked for
    cost_unsteered_usd: float | None
    # whether the price is that of a relative, because no list has the model
    price_estimated: bool
    answered: bool  # False for a call whose answer is still being made
    loss: Loss  # input that was paid again


class Call(Struct, kw_only=True, eq=False):
    """One call, from its request to its record."""

    request: SteeredRequest  # as the client wrote it
    services: Services  # of the config that was in force when the request came
    tenant: str  # of the gateway key
    exchange: Exchange  # the facts for log line, metrics and headers
    control: ControlHeaders = ControlHeaders()  # orders in the request's headers
    # what was decided; None for a request whose conversation could not be found
    decision: Decision | None = None
    delivery: Delivery = Delivery()  # what leaves for it, and with which guidance
    # milliseconds by step of steering
    timings_ms: dict[str, float] = {}
    # whether the usage of the stream is wanted, which the client did not ask for
    hides_usage: bool = False
    # the target that stores the answer which the request continues; None where none is known
    stored_at: Target | None = None
    # the WebSocket that it came over: its answers can be continued there, stored or not
    connection: OpenConnection | None = None
    # the login whose limit holds, so that another target has answered
    dry: DrySeat | None = None
    # what is reserved of its budgets; None when none applies
    spending: Spending | None = None
    # whether the target was asked for the usage, so that its chunk is taken out of the answer
    asked_usage: bool = False
    keeps_sent: bool = False  # `sent` is wanted, for `storage.raw_mb`
    sent: bytes | Fields = b""  # body of the latest attempt; bytes in the native lane
    target: Target | None = None  # the one that answered; None before that
    billed_model: str = ""  # name whose prices hold for the answer: a fallback's when that gave it
    completed: bool = False  # the whole answer has arrived
    outcome: Outcome | None = None  # what is recorded of its end; None before that
    stored: bool = False  # the store has it already, without its answer
    # its step as it is in the run log, when another process has scored it
    logged: StepRow | None = None

    def decided(self) -> None:
        """Note what leaves, once the decision is made or has changed."""
        decision = self.decision
        model = self.request.model
        placed = None
        edits: tuple[Edit, ...] = ()
        if decision is not None:
            placed = decision.placed
            if decision.applies:
                model = decision.model
                edits = placed.edits if placed is not None else ()
        model = model or self.exchange.request.model
        self.delivery = replace(self.delivery, model=model, placed=placed, edits=edits)

    def use_requested_model(self, reason: str) -> None:
        """Switch to the model that the client named, because the routed one gave no answer."""
        if self.decision is not None:
            self.note_reason(f"routing: {self.decision.model} refused: {reason}")
            self.decision = self.services.steerer.use_requested_model(self.decision, self.request)
            self.decided()

    def note_reason(self, reason: str) -> None:
        """Add to the reasons that are recorded with the call."""
        self.delivery = replace(self.delivery, reasons=(*self.delivery.reasons, reason))
        self.exchange.notes.get("reasons", []).append(reason)

    def note_failure(self, failure: Refusal) -> None:
        """The upstream reported an error under a status of success."""
        said = failure.get("code") or failure.get("type")
        self.note_reason(f"the upstream reported an error in its answer: {said}")
        self.exchange.response.error = UpstreamFailure.label
        if self.decision is not None:
            note_failed(self.decision)

    def note_unguided(self, error: Exception) -> None:
        """Count and log a request that goes out without its guidance: it could not be added."""
        self.services.metrics.steering_failures.labels(type(error).__name__).inc()
        _log.error(
            "request forwarded without its guidance",
            kind=type(error).__name__,
            reason=str(error),
            request_id=self.exchange.request.id,
        )

    def note_delivered(self) -> None:
        """The client has been sent the whole answer."""
        if self.decision is not None and self.outcome is not None:
            note_delivered(self.decision, self.outcome.applied)

    async def settle(self) -> None:
        """End the call's reservation with what it used."""
        if self.spending is not None:
            await self.spending.settle(self.billed_model)

    @property
    def is_changed(self) -> bool:
        """Whether anything but the model's name differs from what the client wrote."""
        return self.asked_usage or bool(self.delivery.edits)

    def send_as_written(self) -> frozenset[Place]:
        """Take every change out of the request, which was refused with them; where guidance was."""
        self.hides_usage = False
        placed = self.delivery.placed
        if self.decision is None or placed is None:
            return frozenset()
        self.note_reason("guidance: refused by the upstream, sent as the client wrote it")
        self.forget_guidance()
        return forget(self.decision, placed)

    def not_sent(self) -> None:
        """Note that the call was refused here: nothing that was decided for it is given. That it
        ended the run, or asked about it, stays remembered."""
        decision = self.decision
        if decision is None:
            return
        placed = self.delivery.placed
        held = decision.conclusion is not None and decision.conclusion.proposal.act.name in HELD
        if placed is not None and not held:
            forget(decision, placed)
        self.forget_guidance()
        self.decision = replace(decision, applies=False)

    def forget_guidance(self) -> None:
        """Take the guidance out of the delivery, the answer's headers and the log line."""
        self.delivery = replace(self.delivery, placed=None, edits=())
        response = self.exchange.response
        response.headers = without(response.headers, (GUIDANCE_HEADER,))
        self.exchange.notes.pop("guidance", None)

    def close_places(self, places: frozenset[Place], kind: Kind) -> bool:
        """Whether these places are used for no request of this client for a while: a request was
        refused with guidance there, for a reason of this kind, and accepted without."""
        decision = self.decision
        closed = self.services.steerer.places
        if decision is None or not closed.refused(client_of(decision, self.request), places, kind):
            return False
        self.note_reason(f"guidance: {', '.join(sorted(places))} closed for this client")
        return True

    def echo(self) -> EchoFilter | None:
        """Filter that removes injected guidance from an answer that repeats its request; None if
        nothing was injected."""
        dialect = self.request.dialect
        if not dialect.repeats_instructions:
            return None
        return self._guided(dialect.echo)

    def _guided(self, add: Callable[[SteeredRequest, Sequence[Edit]], T]) -> T | None:
        """The result of `add` with the guidance; None without any, or if it cannot be added."""
        if not self.delivery.edits:
            return None
        try:
            return add(self.request, self.delivery.edits)
        except Exception as exc:
            self.note_unguided(exc)
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
        asked = request.addressed
        decision = self.decision
        if self.hides_usage or (decision is not None and decision.applies):
            headers = readable(headers, plain=self.hides_usage or self.echo() is not None)
        return UpstreamCall(
            method="POST",
            path=request.dialect.path if seat is None else seat.path,
            path_at=None if seat is None else partial(self._path, seat),
            seat=seat,
            dialect=request.dialect,
            headers=headers,
            query=query,
            key_headers=key_headers,
            # A cloud's form that is not translated is its own host's.
            opaque=request.opaque
            or (asked is not None and None in (asked.elsewhere, request.dialect.litellm)),
            enveloped=asked is not None and asked.enveloped,
            body=self._body,
            parsed=self._parsed,
            conversation=decision.conversation.id if decision else "",
            at=self.stored_at,
            attempts=self.exchange.upstream.attempts,
        )

    def _path(self, seat: Seat, target: Target) -> str:
        """The path at a target, for a client of a seat."""
        if self.request.addressed is not None:
            model = target.model or self.delivery.model
            if not target.seat or model != self.request.model:
                return self.request.addressed.at(model, seat=bool(target.seat))
            return seat.path  # byte for byte
        if target.seat:
            return seat.path
        return self.request.dialect.path

    def _body(self, target: Target) -> bytes:
        """The client's bytes with the model, what the deployment sets, and the guidance, if that
        can be placed there."""
        request = self.request
        model = target.model or self.delivery.model
        self.exchange.upstream.model = model
        splices: list[Splice] = [] if model == request.model else request.with_model(model)
        for key, value in target.params.items():
            if key not in request.body and request.dialect.takes(key):
                splices += request.set_value(key, value)
        refusals = self.services.usage_refusals
        self.asked_usage = self.hides_usage and (target.api_base.text, model) not in refusals
        if self.asked_usage:
            splices += request.with_usage()
        splices += self._guided(request.dialect.splices) or ()
        body = request.render(splices)
        foreign = ROUTER_KEYS + request.dialect.foreign
        if target.key and not request.body.keys().isdisjoint(foreign):
            body = self._without(foreign, body)
        if self.keeps_sent:
            self.sent = body
        if request.addressed is not None and target.seat:
            return request.addressed.packed(body, model)
        return body

    def _without(self, foreign: tuple[str, ...], body: bytes) -> bytes:
        """Take members, such as fallbacks that the client names, out of what a deployment gets, and
        say so. The default upstream is the client's own, and may be a proxy that knows them."""
        fields = json.loads(body)
        named = ",".join(key for key in foreign if fields.pop(key, None) is not None)
        headers = self.exchange.response.headers
        if (header := (b"x-gateway-dropped-params", named.encode())) not in headers:
            headers.append(header)
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def _parsed(self, target: Target) -> Fields:
        """The request as JSON, with its guidance; LiteLLM's lane learns the usage by itself."""
        request = self.request
        model = self.exchange.upstream.model = target.model or self.delivery.model
        self.asked_usage = False
        body = self._guided(request.dialect.edited)
        if body is None:
            body = request.whole
            if request.addressed is not None:
                body = request.dialect.edited(request, ())
        if self.keeps_sent:
            self.sent = {**body, "model": model}
        return body
