"""Calls on routes that are only passed through, counted on budgets like those of the dialects."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

from gateway.budgets.guard import Admission, BudgetGuard, CallBody, Refused
from gateway.budgets.orders import BUDGET_HEADER
from gateway.budgets.rules import CallSubject
from gateway.budgets.spending import amounts_of
from gateway.budgets.texts import with_status
from gateway.endpoints.relay import readable
from gateway.exchange import Exchange
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.stores.budgets import Amounts
from gateway.upstream.base import LaneResponse, header
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall
from gateway.wire.request import ChatRequest
from gateway.wire.response_tee import ResponseWatch

# Bodies that name a model and ask it nothing, and routes that only count.
_NO_CALL: Final = re.compile(
    r"/(?:count_tokens|input_tokens|assistants(?:/[^/]+)?|fine_tuning/.+)$"
)
_ANSWERS: Final = ("/completions", "/responses", "/messages")
# A JSON string cannot contain a bare quote: these are keys.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=\{)')
_MODEL: Final = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_USAGE_BYTES: Final = 4096  # longer than any usage object
_decode: Final = json.JSONDecoder().raw_decode


async def admit(
    runtime: Runtime,
    services: Services,
    exchange: Exchange,
    call: UpstreamCall,
    raw: bytes,
    request: ChatRequest | None,
) -> CountedCall | None:
    """Reserve a call on the budgets that it counts on; None if it is no call, or counts on none.

    `request`: the body, None for one that names no model or cannot be read.

    Raises:
        BudgetExceeded: a budget has not enough left.
    """
    guard = services.budgets
    if guard is None or request is None or _NO_CALL.search(call.path):
        return None
    subject = CallSubject(
        tenant=exchange.request.tenant,
        key=exchange.request.key,
        client=_client(call),
        model=request.model,
    )
    body = CallBody(fields=request.body, raw=raw, answers=call.path.endswith(_ANSWERS))
    binding = services.settings.steering.mode != "shadow"
    try:
        admission = await guard.admit(subject, subject.model, body, binding=binding)
    except Refused as refused:
        runtime.metrics.budget_stops.labels(refused.standing.applied.budget.name).inc()
        raise with_status(refused.error, services.settings.control.stop_status) from None
    if admission is None:
        return None
    if shown := admission.header:
        exchange.response.headers.append((BUDGET_HEADER.encode(), shown.encode()))
        exchange.notes["budget"] = shown
    counted = CountedCall(guard, admission, services, exchange, body, binding=binding)
    call.headers = readable(call.headers, plain=False)
    call.admits = counted.admits
    return counted


class CountedCall:
    """A call that has reserved its estimate, until its answer says what it used."""

    def __init__(
        self,
        guard: BudgetGuard,
        admission: Admission,
        services: Services,
        exchange: Exchange,
        body: CallBody,
        *,
        binding: bool,
    ) -> None:
        self._guard = guard
        self._admission = admission
        self._services = services
        self._exchange = exchange
        self._body = body
        self._binding = binding

    async def admits(self, target: Target) -> bool:
        """Whether a fallback may be asked; a price of its own is reserved first."""
        model = target.name if target.key else target.model or self._admission.subject.model
        return await self._guard.extend(self._admission, model, self._body, binding=self._binding)

    async def answer_of(self, sending: Awaitable[LaneResponse]) -> LaneResponse:
        """The answer, which ends the reservation when it has been read."""
        try:
            response = await sending
        except BaseException:
            await self._guard.settle(self._admission, Amounts(calls=1))
            raise
        limit = int(self._services.settings.server.max_buffered_response_mb * 2**20)
        return _CountedAnswer(response, self, limit)

    async def settle(self, status: int, content: bytes) -> None:
        """End the reservation with what an answer reports, by its content as far as it was read."""
        usage = _usage_in(content)
        if usage:
            used, unpriced = amounts_of(self._model(content), usage, self._services.catalogue.cost)
            await self._guard.settle(self._admission, used, unpriced=unpriced)
        else:
            # What it used is unknown, so that its estimate counts; an error used nothing.
            await self._guard.settle(self._admission, None if status < 400 else Amounts(calls=1))

    def _model(self, content: bytes) -> str:
        """The name whose prices hold: the fallback's, if that answered."""
        asked, answered = self._admission.subject.model, self._exchange.upstream.deployment
        if not asked:
            found = _MODEL.search(content)
            return found[1].decode("utf-8", "replace") if found else ""
        own = {target.name for target in self._services.table.resolve(asked)}
        return asked if not answered or answered in {"default", *own} else answered


class _CountedAnswer:
    """`LaneResponse` that is read on its way; the reservation ends before the last byte goes out,
    where that can be held back: a stream is not delayed."""

    def __init__(self, response: LaneResponse, call: CountedCall, limit_bytes: int) -> None:
        self.status, self.headers = response.status, response.headers
        self.usage = response.usage
        self._response = response
        self._call = call
        self._watch = ResponseWatch(header(self.headers, b"content-encoding"), limit_bytes)
        self._streams = b"event-stream" in header(self.headers, b"content-type")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """See LaneResponse."""
        held = b""
        async for chunk in self._response:
            self._watch.feed(chunk)
            if self._streams:
                yield chunk
            else:
                if held:
                    yield held
                held = chunk
        await self._call.settle(self.status, self._watch.content)
        if held:
            yield held

    async def aclose(self) -> None:
        """See LaneResponse."""
        await self._call.settle(self.status, self._watch.content)
        await self._response.aclose()


def _usage_in(content: bytes) -> dict[str, Any]:
    """What an answer reports, in JSON or in the events of a stream: the latest of each count."""
    found: dict[str, Any] = {}
    for match in _USAGE.finditer(content):
        text = content[match.end() : match.end() + _USAGE_BYTES].decode("utf-8", "replace")
        try:
            usage, _ = _decode(text)
        except ValueError:
            continue
        found |= {name: value for name, value in usage.items() if value is not None}
    return found


def _client(call: UpstreamCall) -> str:
    words = header(call.headers, b"user-agent").decode("latin-1").split(" ")
    return words[0][:80]
