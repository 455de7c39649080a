"""Budgets of one call: advice before it is decided, reservation, and settlement."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex

from msgspec import Struct, convert, structs, to_builtins

from gateway.budget_interface import NOTHING, Amounts, Ask, CallBody, CallSubject, Cost, Refused
from gateway.config.control import Ending
from gateway.core.steer import NO_ADVICE, Advice
from gateway.errors import BudgetExceeded, UpstreamFailure
from gateway.exchange import Exchange
from gateway.features.budgets.accounts import (
    Account,
    Claim,
    Report,
    opened,
    refusals_of,
    waits_for_others,
)
from gateway.features.budgets.expected_use import Estimate, Estimator
from gateway.features.budgets.leases import BudgetLedger, Held
from gateway.features.budgets.settings import BudgetControl, BudgetSettings
from gateway.features.budgets.texts import (
    budget_error,
    budget_header,
    budget_question,
    raise_it,
    uncounted_error,
    unpriced_error,
    used_up,
)
from gateway.features.budgets.which_apply import (
    BUDGET_HEADER,
    Applied,
    BudgetStatus,
    advice_of,
    applying,
    fallback_model,
    standing,
    steers,
)
from gateway.observability.logging import get_logger
from gateway.upstream.token_estimates import body_tokens
from gateway.values import FieldDict, Fields
from gateway.wire.usage import token_usage

_log = get_logger("gateway.budgets")
_MOST_UNPRICED = 1000  # models, whose names are the clients'
# How long after the last end, and how often, a call that still fits looks whether others end.
_LONGEST_WAIT_S = 5.0
_WAIT_STEP_S = 0.1


class OverBudget(Refused):
    """The refusal of a budget, with its use."""

    def __init__(self, error: BudgetExceeded, ending: Ending, standing: BudgetStatus):
        super().__init__(error, ending)
        self.standing = standing


class Admission(Struct, kw_only=True):
    """A call that may be sent, with what it has reserved."""

    subject: CallSubject  # owner of the call
    applied: tuple[Applied, ...]  # the budgets that it counts on
    standings: tuple[BudgetStatus, ...]  # use of these budgets when the call came
    estimate: Estimate  # what was reserved
    held: list[Held] = []  # the claims; a fallback adds one
    # by budget, why it would have refused the call if it were in force
    would_stop: dict[str, str] = {}
    settled: bool = False  # the claims have ended

    def show(self, exchange: Exchange) -> None:
        """Put `x-gateway-budget` into the answer and the log line, once a step is reached."""
        stored = all(held.stored for held in self.held)
        refused = tuple(self.would_stop)
        unpriced = self.estimate.unpriced
        if shown := budget_header(self.standings, refused, stored=stored, unpriced=unpriced):
            exchange.response.headers.append((BUDGET_HEADER.encode(), shown.encode()))
            exchange.notes["budget"] = shown


@dataclass(eq=False)
class BudgetGuard:
    """Applies one version of the budgets to calls."""

    budgets: Sequence[BudgetSettings]  # of the config
    control: BudgetControl  # waits, and prices of what has none
    ledger: BudgetLedger  # counts
    estimator: Estimator  # learns what calls use
    cost: Cost  # US dollars by model and usage; None for a model without a price
    # gets each budget that a call counts on, before and after the call
    reached: Callable[[BudgetStatus, CallSubject], None]
    # gets the name of a budget that refuses a call
    stopped: Callable[[str], None] = lambda _: None
    # budgets of gateway keys, by tenant and name of the key
    of_keys: Mapping[tuple[str, str], Sequence[BudgetSettings]] = field(default_factory=dict)
    _unpriced: set[str] = field(default_factory=set, init=False)  # models that were logged

    async def advise(self, subject: CallSubject, body: CallBody) -> Advice:
        """The effects of the ladders on a call before it is decided. Reads the store only for
        them."""
        now = time.time()
        budgets = self._budgets(subject)
        steer = any(steers(budget) for budget in budgets)
        if steer:
            applied = applying(budgets, subject, now)
        else:
            applied = ()
        if not any(steers(each.budget) for each in applied):
            return NO_ADVICE
        accounts = await self.ledger.look([each.wanted for each in applied])
        estimate = self._estimate(subject.model, subject.root, body)
        if estimate.guessed:
            usual = Amounts(calls=body.calls)
        else:
            usual = estimate.amounts
        found = [
            standing(a, account, now, usual=usual)
            for a, account in zip(applied, accounts, strict=True)
        ]
        advice = advice_of(found)
        if not advice.cheaper:
            claim = self._claim(applied, estimate, binding=True)
            refused = [refusal.key for refusal in refusals_of(accounts, claim)]
            advice = structs.replace(advice, cheaper=fallback_model(applied, refused))
        return advice

    async def admit(
        self, subject: CallSubject, model: str, body: CallBody, *, binding: bool
    ) -> Admission | None:
        """Reserve a call to `model` on every account that it counts on; None if on none. `binding`
        False: nothing is refused, and what would have been is noted. Raises: Refused; nothing is
        reserved."""
        now = time.time()
        applied = applying(self._budgets(subject), subject, now)
        if not applied:
            return None
        estimate = self._estimate(model, subject.root, body)
        # Of pictures and sounds only those with a price for tokens are counted.
        uncounted = not body.counted or (estimate.unpriced and body.counted == "media")
        if uncounted and binding and (hard := [a for a in applied if a.budget.hard]):
            raise _refused(uncounted_error(body.route, hard[0].budget.name), hard[0])
        if estimate.unpriced:
            self._check_unpriced(applied, model, binding=binding)
        held = await self._reserve(applied, estimate, binding=binding)
        pairs = zip(applied, held.accounts, strict=True)
        standings = tuple(standing(each, account, now) for each, account in pairs)
        found = {each.account.key: each for each in standings}
        refused = bool(held.refusals and binding and held.claim.binding)
        for refusal in held.refusals if refused else ():
            found[refusal.key] = structs.replace(found[refusal.key], refuses=True)
        for each in found.values():
            self.reached(each, subject)
        if refused:
            refusal = held.refusals[0]
            worst = found[refusal.key]
            error = budget_error(worst, refusal.metric, now)
            budget = worst.applied.budget
            over = OverBudget(error, "error" if budget.is_rate else budget.stop_with, worst)
            if budget.match.of_sub_agents and not budget.is_rate:
                over.ending = "answer"
                over.reports = True
            raise over
        return Admission(
            subject=subject,
            applied=applied,
            standings=standings,
            estimate=estimate,
            held=[held],
            would_stop={
                (one := found[refusal.key]).applied.budget.name: used_up(one, refusal.metric, now)
                + raise_it(one, refusal.metric)
                for refusal in held.refusals
            },
        )

    async def reserve(
        self,
        subject: CallSubject,
        model: str,
        body: CallBody,
        exchange: Exchange,
        *,
        binding: bool,
        ask: Ask | None,
        note: Callable[[str], None],
    ) -> "Spending | None":
        seen = set[str]()
        while True:
            found = None
            try:
                admission = await self.admit(subject, model, body, binding=binding)
                if ask is not None and admission is not None:
                    found = _asking(admission.standings, seen)
                if ask is None or admission is None or found is None:
                    break
                await self.settle_held(admission.held, NOTHING, unpriced=False, estimated=False)
            except OverBudget as refused:
                found = _asking([refused.standing], seen)
                if ask is None or found is None:
                    self.stopped(refused.standing.applied.budget.name)
                    raise
            seen.add(found.applied.budget.name)
            now = time.time()
            await ask(budget_question(found, now, now + self.control.ask_wait_s))
            self.ledger.look_again(found.applied.wanted.key)  # a yes has raised its limits
        if admission is None:
            return None
        admission.show(exchange)
        for reason in admission.would_stop.values():
            note(f"budget: would stop: {reason}")
        return Spending(guard=self, admission=admission, exchange=exchange)

    def left_open(self, values: list[Fields], exchange: Exchange) -> "LeftOpen":
        held = [Held(claim=convert(each, Claim), stored=True) for each in values]
        return LeftOpen(guard=self, claims=tuple(held), exchange=exchange)

    async def _reserve(
        self, applied: Sequence[Applied], estimate: Estimate, *, binding: bool
    ) -> Held:
        """The reservation, or its refusal. While only what is reserved for other calls is in the
        way, they are waited for as long as some end; after that the call is let through, except by
        a hard budget: what was not spent refuses nothing."""
        ends_at = 0.0
        spent = list[Amounts]()
        while True:
            claim = self._claim(applied, estimate, binding=binding)
            held = await self.ledger.reserve(claim)
            accounts = {account.key: account for account in held.accounts}
            wanted = {each.wanted.key: each.wanted for each in applied}
            refusals = held.refusals
            waits = all(
                waits_for_others(accounts[r.key], wanted[r.key], claim, metric=r.metric)
                for r in refusals
            )
            if not (binding and refusals and waits):
                return held
            if spent != (spent := [each.spent for each in held.accounts]):
                ends_at = time.monotonic() + _LONGEST_WAIT_S
            if time.monotonic() >= ends_at:
                keys = [r.key for r in refusals if not accounts[r.key].leased.of(r.metric)]
                if len(keys) < len(refusals) or any(wanted[key].hard for key in keys):
                    return held
                binding = False
            await asyncio.sleep(_WAIT_STEP_S)

    async def extend(
        self, admission: Admission, model: str, body: CallBody, *, binding: bool
    ) -> bool:
        """Reserve what a call to another model costs more; False when that is too much."""
        estimate = self._estimate(model, admission.subject.root, body)
        more = estimate.amounts - sum((h.claim.estimate for h in admission.held), NOTHING)
        more = Amounts(
            usd=max(0.0, more.usd),
            input_tokens=max(0, more.input_tokens),
            output_tokens=max(0, more.output_tokens),
        )
        admission.estimate = estimate
        try:
            if estimate.unpriced:
                self._check_unpriced(admission.applied, model, binding=binding)
        except Refused:
            return False
        if more == NOTHING:
            return True
        known = structs.replace(estimate, amounts=more, guessed=False)
        held = await self.ledger.reserve(self._claim(admission.applied, known, binding=binding))
        if held.refusals and binding:
            return False
        admission.held.append(held)
        return True

    async def settle(
        self,
        admission: Admission,
        actual: Amounts | None,
        *,
        unpriced: bool = False,
        estimated: bool = False,
    ) -> None:
        """End a call, once. `actual`: what it used; None = unknown, so that its estimate counts.
        `estimated`: the provider reported no usage."""
        if admission.settled:
            return
        admission.settled = True
        if actual is None:
            actual = admission.estimate.amounts
            estimated = True
        elif not unpriced or admission.estimate.unpriced:
            self.estimator.learn(admission.estimate, actual, self.cost)
        accounts = await self.settle_held(
            admission.held, actual, unpriced=unpriced, estimated=estimated
        )
        now = time.time()
        for each, account in zip(admission.applied, accounts, strict=True):
            self.reached(standing(each, account, now), admission.subject)

    async def settle_held(
        self, held: Sequence[Held], actual: Amounts | None, *, unpriced: bool, estimated: bool
    ) -> tuple[Account, ...]:
        """End the claims of one call, as `settle` does, and return the accounts afterwards."""
        if actual is None:
            estimated = True
            actual = sum((each.claim.estimate for each in held), NOTHING)
        elif unpriced:
            actual = self._priced(actual)
        guessed = NOTHING
        if estimated:
            guessed = actual
        elif unpriced:
            guessed = Amounts(usd=actual.usd)
        used = Report(spent=actual, estimated=guessed, unpriced=int(unpriced))
        accounts = tuple[Account, ...]()
        for each in held:
            accounts = await self.ledger.settle(each, used)
            used = Report()  # the first claim has all that the call used
        return accounts

    def _budgets(self, subject: CallSubject) -> Sequence[BudgetSettings]:
        """The budgets of the config, with those of the call's key."""
        own = self.of_keys.get((subject.tenant, subject.key))
        if own:
            return (*self.budgets, *own)
        return self.budgets

    def _estimate(self, model: str, whose: str, body: CallBody) -> Estimate:
        tokens = body_tokens(body.raw)
        most = any(budget.reserve == "most" for budget in self.budgets)
        found = self.estimator.estimate(
            model,
            whose,
            body.fields,
            tokens=tokens,
            cost=self.cost,
            most=most,
            answers=body.answers,
        )
        amounts = replace(found.amounts, calls=body.calls)
        return structs.replace(found, amounts=self._priced(amounts) if found.unpriced else amounts)

    def _priced(self, used: Amounts) -> Amounts:
        """Use at an unknown price: that of another model, or so much for a million tokens."""
        control = self.control
        usage = {"prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens}
        usd = None
        if control.unpriced_model:
            usd = self.cost(control.unpriced_model, usage)
        if usd is None:
            usd = used.of("tokens") * control.unpriced_usd_per_million / 1e6
        return replace(used, usd=usd)

    def _check_unpriced(self, applied: Sequence[Applied], model: str, *, binding: bool) -> None:
        """Log once for each model how budgets in dollars count it. Raises: Refused, where
        `control.unpriced` lets no such model be called."""
        counting = [each for each in applied if each.budget.limits.usd is not None]
        how = self.control.unpriced
        if counting and how == "refuse" and binding:
            raise _refused(unpriced_error(model, counting[0].budget.name), counting[0])
        if counting and model not in self._unpriced and len(self._unpriced) < _MOST_UNPRICED:
            self._unpriced.add(model)
            (_log.info if how == "count_as" else _log.warning)(
                "the price of this model is unknown",
                model=model,
                budgets=[each.budget.name for each in counting],
                counted_as=self.control.unpriced_price,
            )

    def _claim(self, applied: Sequence[Applied], estimate: Estimate, *, binding: bool) -> Claim:
        now = time.time()
        return Claim(
            id=token_hex(8),
            at=now,
            estimate=estimate.amounts,
            accounts=tuple(each.wanted for each in applied),
            guessed=estimate.guessed,
            binding=binding,
        )


def _refused(error: BudgetExceeded, by: Applied) -> OverBudget:
    """The refusal of a call that a budget cannot count, whatever is left of it."""
    now = time.time()
    return OverBudget(error, by.budget.stop_with, standing(by, opened(by.wanted, now), now))


def _asking(standings: Sequence[BudgetStatus], asked: set[str]) -> BudgetStatus | None:
    """The first budget of a call that asks a person, and has not yet done so for this call."""
    found = (each for each in standings if each.applied.budget.name not in asked)
    return next((each for each in found if each.step("ask") is not None), None)


class Spending(Struct, kw_only=True):
    """The admission of one call, and what it used."""

    guard: BudgetGuard  # that admitted it
    admission: Admission  # with what is reserved
    exchange: Exchange  # the record of the request
    sent: bool = False  # an upstream was asked
    answered: bool = False  # an upstream gave an answer

    async def extend(self, model: str, body: CallBody, *, binding: bool) -> bool:
        """Reserve what a call to another model costs more; False when that is too much."""
        return await self.guard.extend(self.admission, model, body, binding=binding)

    def hand_over(self) -> list[FieldDict]:
        """JSON values for `left_open`. What is reserved in memory only is reserved no more."""
        admission = self.admission
        admission.held = [self.guard.ledger.handed_over(each) for each in admission.held]
        return [to_builtins(each.claim) for each in admission.held]

    async def settle(self, model: str) -> None:
        """End the reservation with what the call used, at the prices of `model`; once."""
        upstream = self.exchange.upstream
        used: Amounts | None = NOTHING
        unpriced = False
        if self.sent and upstream.usage:
            used, unpriced = amounts_of(model, upstream.usage, self.guard.cost)
        elif self.sent:
            response = self.exchange.response
            unread = (
                self.answered and response.status < 400 and response.error != UpstreamFailure.label
            )
            if unread:
                used = None
            else:
                used = Amounts(calls=1)
        estimated = upstream.usage_estimated
        await self.guard.settle(self.admission, used, unpriced=unpriced, estimated=estimated)


def amounts_of(model: str, usage: Fields, cost: Cost, *, calls: int = 1) -> tuple[Amounts, bool]:
    """(what reported `usage` comes to at the prices of `model`; whether that price is unknown)."""
    price = cost(model, usage)
    tokens = token_usage(usage)
    amounts = Amounts(
        usd=price or 0.0,
        input_tokens=tokens.input or 0,
        output_tokens=tokens.output or 0,
        calls=calls,
    )
    return amounts, price is None


class LeftOpen(Struct, kw_only=True):
    """Reservation of another process's call, until it is settled here."""

    guard: BudgetGuard  # of this process
    sent: bool = True  # an upstream was asked
    answered: bool = True  # an upstream gave an answer
    claims: tuple[Held, ...]  # the other process's
    exchange: Exchange  # the record of the request that settles it

    async def settle(self, model: str) -> None:
        """End the reservation with what the call used, at the prices of `model`."""
        upstream = self.exchange.upstream
        used = None
        unpriced = False
        if upstream.usage:
            used, unpriced = amounts_of(model, upstream.usage, self.guard.cost)
        estimated = upstream.usage_estimated
        await self.guard.settle_held(self.claims, used, unpriced=unpriced, estimated=estimated)

    async def extend(self, model: str, body: CallBody, *, binding: bool) -> bool:
        """See `gateway.budget_interface.Spending`: it was sent."""
        return True

    def hand_over(self) -> list[FieldDict]:
        return []
