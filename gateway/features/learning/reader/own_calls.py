"""Calls of the gateway's own to its deployments: reserved on the budgets of the tenant that they
are made for, settled, and counted as a cost of the gateway and of no run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from gateway.budget_interface import NOTHING, Amounts, CallBody, CallSubject, Refused
from gateway.errors import BadRequest, UpstreamFailure, UpstreamUnreachable
from gateway.observability.metrics import Metrics
from gateway.services import UpstreamServices
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Messages, ModelRefused, OwnAnswer, ask
from gateway.wire.usage import token_usage

CLIENT = "gateway-reader"  # the client of these calls, for budgets that match a client
_REASON_CHARS = 200


class NoAnswer(Exception):
    """The call gave no usable answer; `used` says what is known to have been used."""

    def __init__(self, reason: str, used: Amounts | None):
        super().__init__(reason)
        self.used = used


class OverBudget(NoAnswer):
    """A budget of the operator leaves nothing for the call; none was made."""


@dataclass(eq=False)
class PaidModel:
    """Asks models of the gateway's own deployments; calls are reserved, settled and counted."""

    services: Callable[[], UpstreamServices]  # gives those in force
    metrics: Metrics  # calls and tokens

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """Returns the US dollars for these numbers of tokens; 0 for a model without a known
        price."""
        usage = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
        return self.services().catalogue.cost(model, usage) or 0.0

    async def ask(
        self, model: str, messages: Messages, *, tenant: str, timeout_s: float
    ) -> tuple[str, Amounts | None]:
        """The model's text, and what it used, None where the upstream did not report it. Raises:
        OverBudget, NoAnswer, StoreError."""
        services = self.services()
        with services.in_use():
            guard = services.budgets
            fields = {"model": model, "messages": messages}
            body = CallBody(fields=fields, raw=orjson.dumps(fields))
            subject = CallSubject(tenant=tenant, client=CLIENT, model=model)
            admission = None
            if guard is not None:
                try:
                    admission = await guard.admit(subject, model, body, binding=True)
                except Refused as refused:
                    raise OverBudget(refused.error.message, NOTHING) from refused

            async def admits(target: Target) -> bool:
                if guard is None or admission is None:
                    return True
                name = services.catalogue.billed_name(model, target)
                return await guard.extend(admission, name, body, binding=True)

            used = None
            unpriced = False
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await ask(services.dispatcher, model, messages, admits=admits)
                used, unpriced = self._used(services, model, answer)
                return answer.text, used
            except (BadRequest, UpstreamUnreachable, ModelRefused) as error:
                used = NOTHING
                raise NoAnswer(str(error)[:_REASON_CHARS], used) from error
            except (UpstreamFailure, TimeoutError, ValueError, LookupError, TypeError) as error:
                # An answer that came too late, or in a form that nobody reads, may have to be paid.
                reason = f"{type(error).__name__}: {error}"
                raise NoAnswer(reason[:_REASON_CHARS], used) from error
            finally:
                if guard is not None and admission is not None:
                    await guard.settle(admission, used, unpriced=unpriced)

    def _used(
        self, services: UpstreamServices, model: str, answer: OwnAnswer
    ) -> tuple[Amounts | None, bool]:
        """(what an answer used, None = not reported; whether its price is unknown)."""
        tokens = token_usage(answer.usage)
        catalogue = services.catalogue
        if not answer.usage or (tokens.input is None and tokens.output is None):
            return None, False
        spent = (tokens.input or 0, tokens.output or 0)
        cost = catalogue.cost(catalogue.billed_name(model, answer.target), answer.usage)
        for direction, count in zip(("input", "output"), spent, strict=True):
            self.metrics.tokens.labels(direction).inc(count)
        if cost is None:
            self.metrics.unpriced.inc()
        else:
            self.metrics.charge(cost, None)
        used = Amounts(usd=cost or 0.0, input_tokens=spent[0], output_tokens=spent[1], calls=1)
        return used, cost is None
