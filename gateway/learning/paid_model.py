"""A model that the gateway asks for itself, and what that costs: on the budgets of the tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gateway.budgets.guard import BudgetGuard, CallBody, Refused
from gateway.budgets.rules import CallSubject
from gateway.errors import BadRequest, UpstreamFailure, UpstreamUnreachable
from gateway.observability.metrics import Metrics
from gateway.stores.budgets import NOTHING, Amounts
from gateway.upstream.catalogue import ModelCatalogue
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Dispatcher, Messages, ModelRefused, OwnAnswer, ask
from gateway.wire.usage import token_usage

CLIENT = "gateway-learning"
"""Whose calls these are, for budgets that match a client."""
_REASON_CHARS = 200


class ModelServices(Protocol):
    """What of a gateway's services is needed; held while they are in use."""

    dispatcher: Dispatcher
    catalogue: ModelCatalogue
    budgets: BudgetGuard | None

    def in_use(self) -> AbstractContextManager[Any]: ...


class OverBudget(Exception):
    """A budget of the operator leaves nothing for the call; none was made."""


class NoAnswer(Exception):
    """The call gave no usable answer; `used` says what is known to have been used."""

    def __init__(self, reason: str, used: Amounts | None) -> None:
        super().__init__(reason)
        self.used = used


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidAnswer:
    """A model's text, and what it used; None where the upstream did not report it."""

    text: str
    used: Amounts | None


class PaidModel:
    """Asks models of the gateway's own deployments; calls are reserved, settled and counted."""

    def __init__(self, services: Callable[[], ModelServices], metrics: Metrics) -> None:
        self._services = services
        self._metrics = metrics

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """US dollars for so many tokens; 0 for a model without a known price."""
        usage = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
        return self._services().catalogue.cost(model, usage) or 0.0

    async def ask(
        self, model: str, messages: Messages, *, tenant: str, timeout_s: float
    ) -> PaidAnswer:
        """The model's answer. Raises: OverBudget, NoAnswer, StoreError."""
        services = self._services()
        with services.in_use():
            return await self._ask(services, model, messages, tenant, timeout_s)

    async def _ask(
        self,
        services: ModelServices,
        model: str,
        messages: Messages,
        tenant: str,
        timeout_s: float,
    ) -> PaidAnswer:
        guard, fields = services.budgets, {"model": model, "messages": messages}
        body = CallBody(fields=fields, raw=orjson.dumps(fields))
        subject, admission = CallSubject(tenant=tenant, client=CLIENT, model=model), None
        if guard is not None:
            try:
                admission = await guard.admit(subject, model, body, binding=True)
            except Refused as refused:
                raise OverBudget(refused.error.message) from refused

        async def admits(target: Target) -> bool:
            if guard is None or admission is None:
                return True
            name = services.catalogue.billed_name(model, target)
            return await guard.extend(admission, name, body, binding=True)

        used, unpriced = None, False
        try:
            async with asyncio.timeout(timeout_s):
                answer = await ask(services.dispatcher, model, messages, admits=admits)
            used, unpriced = self._used(services, model, answer)
            return PaidAnswer(text=answer.text, used=used)
        except (BadRequest, UpstreamUnreachable, ModelRefused) as error:
            used = NOTHING
            raise NoAnswer(str(error)[:_REASON_CHARS], used) from error
        except (UpstreamFailure, TimeoutError, ValueError, LookupError, TypeError) as error:
            # An answer that came too late, or in a form that nobody reads, may have to be paid.
            kind = type(error).__name__
            raise NoAnswer(f"{kind}: {error}"[:_REASON_CHARS], used) from error
        finally:
            if guard is not None and admission is not None:
                await guard.settle(admission, used, unpriced=unpriced)

    def _used(
        self, services: ModelServices, model: str, answer: OwnAnswer
    ) -> tuple[Amounts | None, bool]:
        """(what an answer used, None = not reported; whether its price is unknown)."""
        usage: Mapping[str, Any] | None = answer.usage
        tokens = token_usage(usage)
        if not usage or (tokens.input is None and tokens.output is None):
            return None, False
        cost = services.catalogue.cost(services.catalogue.billed_name(model, answer.target), usage)
        for direction, count in (("input", tokens.input), ("output", tokens.output)):
            self._metrics.tokens.labels(direction).inc(count or 0)
        if cost is None:
            self._metrics.unpriced.inc()
        else:
            self._metrics.charge(cost, None)
        used = Amounts(
            usd=cost or 0.0,
            input_tokens=tokens.input or 0,
            output_tokens=tokens.output or 0,
            calls=1,
        )
        return used, cost is None
