"""Calls that are passed on unread: reserved, and settled with the usage that their answers name."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

from gateway.budget_interface import Amounts, CallBody, CallSubject
from gateway.buffered_bytes import Share
from gateway.calls.own_response import with_status
from gateway.exchange import Exchange
from gateway.features.budgets.guard import Admission, BudgetGuard, OverBudget, amounts_of
from gateway.features.budgets.routes import counted_how
from gateway.services import Services
from gateway.upstream.base import LaneResponse
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall
from gateway.values import FieldDict
from gateway.wire.headers import header, readable
from gateway.wire.response_tee import ResponseWatch

# A JSON string cannot contain a bare quote: these are keys.
_USAGE = re.compile(rb'"usage(?:Metadata)?"\s*:\s*(?=\{)')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_USAGE_BYTES = 4096  # longer than any usage object
_decode = json.JSONDecoder().raw_decode


@dataclass(slots=True)
class CountedCall:
    """A call that has reserved its estimate, until its answer says what it used."""

    guard: BudgetGuard  # the budgets
    admission: Admission  # what was reserved
    services: Services  # of the config that was in force when the request came
    exchange: Exchange  # the record of the request
    body: CallBody  # as the client wrote it
    binding: bool  # a budget may refuse the call

    async def admits(self, target: Target) -> bool:
        """Whether a fallback may be asked; a price of its own is reserved first."""
        if target.key:
            model = target.name
        else:
            model = target.model or self.admission.subject.model
        return await self.guard.extend(self.admission, model, self.body, binding=self.binding)

    async def answer_of(self, sending: Awaitable[LaneResponse], share: Share) -> LaneResponse:
        """The answer, which ends the reservation when it has been read. `share`: the room that the
        request has; the answer is held beside it."""
        try:
            response = await sending
        except BaseException:
            await self.count()
            raise
        limit = int(self.services.settings.server.max_buffered_response_mb * 2**20)
        answer = _CountedAnswer(response, self, limit)
        answer.watch.allowance.holds = share.beside()
        return answer

    async def count(self) -> None:
        """End the reservation as one call of unknown use."""
        await self.guard.settle(self.admission, Amounts(calls=1))

    async def settle(self, status: int, content: bytes) -> None:
        """End the reservation with what an answer reports, by its content as far as it was read."""
        usage = _usage_in(content)
        used, unpriced = amounts_of(self._model(content), usage, self.services.catalogue.cost)
        if used.of("tokens"):
            await self.guard.settle(self.admission, used, unpriced=unpriced)
        else:
            # What it used is unknown, so that its estimate counts; an error used nothing.
            await self.guard.settle(self.admission, None if status < 400 else Amounts(calls=1))

    def _model(self, content: bytes) -> str:
        """The name whose prices hold: the fallback's, if that answered."""
        asked = self.admission.subject.model
        answered = self.exchange.upstream.deployment
        if not asked:
            found = _MODEL.search(content)
            if found:
                return found[1].decode("utf-8", "replace")
            return ""
        own = {target.name for target in self.services.table.resolve(asked)}
        if not answered or answered in {"default", *own}:
            return asked
        return answered


class _CountedAnswer:
    """`LaneResponse` that is read on its way; the reservation ends before the last byte goes out,
    where that can be held back: a stream is not delayed."""

    def __init__(self, response: LaneResponse, call: CountedCall, limit_bytes: int):
        self.status = response.status
        self.headers = response.headers
        self.usage = response.usage
        self._response = response
        self._call = call
        self.watch = ResponseWatch(header(self.headers, b"content-encoding"), limit_bytes)
        self._streams = b"event-stream" in header(self.headers, b"content-type")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = b""
        async for chunk in self._response:
            self.watch.feed(chunk)
            if self._streams:
                yield chunk
            else:
                if held:
                    yield held
                held = chunk
        await self._call.settle(self.status, self.watch.content)
        if held:
            yield held

    async def aclose(self) -> None:
        await self._call.settle(self.status, self.watch.content)
        await self._response.aclose()


def _usage_in(content: bytes) -> FieldDict:
    """The usage in an answer, JSON or the events of a stream: the latest of each count."""
    found: FieldDict = {}
    for match in _USAGE.finditer(content):
        text = content[match.end() : match.end() + _USAGE_BYTES].decode("utf-8", "replace")
        try:
            usage, _ = _decode(text)
        except ValueError:
            continue
        found |= {name: value for name, value in usage.items() if value is not None}
    return found


class FullGuard(BudgetGuard):
    """The guard, also for calls that are passed on."""

    counted_how = staticmethod(counted_how)

    async def pass_on(
        self, services: Services, exchange: Exchange, call: UpstreamCall, body: CallBody
    ) -> CountedCall | None:
        if body.counted == "free":
            return None
        client = header(call.headers, b"user-agent").decode("latin-1").split(" ")[0][:80]
        asked = exchange.request
        subject = CallSubject(
            tenant=asked.tenant,
            key=asked.key,
            client=client,
            model=asked.model,
            labels=asked.labels,
        )
        binding = services.settings.steering.mode != "shadow"
        try:
            admission = await self.admit(subject, subject.model, body, binding=binding)
        except OverBudget as refused:
            self.stopped(refused.standing.applied.budget.name)
            raise with_status(refused.error, services.settings.control.stop_status) from None
        if admission is None:
            return None
        admission.show(exchange)
        counted = CountedCall(
            self, admission, services, exchange=exchange, body=body, binding=binding
        )
        call.headers = readable(call.headers, plain=False)
        call.admits = counted.admits
        return counted
