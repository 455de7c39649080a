"""`/api/budgets`: budgets, their use and limits."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from gateway.api.operations import ApiRequest, ApiResponse, Body, Operations, like
from gateway.api.params import DIGITS, Parameters, Sent, TenantParameter, Text
from gateway.api.views import picked
from gateway.budget_interface import Amounts
from gateway.features.budgets.accounting import accounting_of
from gateway.features.budgets.accounts import Account
from gateway.features.budgets.settings import METRICS
from gateway.features.budgets.texts import account_view
from gateway.values import FieldDict

if TYPE_CHECKING:
    from gateway.runtime import Runtime

OPERATIONS = Operations()


class BudgetParameters(TenantParameter):
    """Filter of accounts."""

    budget: Text | None = None  # of the budget with this name
    limit: Annotated[int, Field(ge=1, le=1000, description="Most accounts."), DIGITS] = 200


class AccountBody(Sent):
    """One account: a budget and a subject."""

    budget: str  # the budget's name
    subject: Annotated[str, Field(max_length=400)]  # as `GET /api/budgets` names it


class RaiseBody(AccountBody):
    """New limits of one account; those that are left out stay."""

    limits: Mapping[str, float] = Field(
        description=f"Any of {', '.join(METRICS)}; each replaces that of the config."
    )


@like(Amounts)
class Spent(BaseModel):
    """Use of calls, or their expected use."""


@like(Account)
class AccountView(BaseModel):
    """One account."""

    scope: str | None  # null: the config has no such budget now
    spent: Spent  # by calls that have ended
    reserved: Spent  # estimates of calls on their way
    leased: Spent  # taken by gateways for calls to come; given back if unused
    unpriced: int  # calls whose price is unknown
    estimated: Spent  # the part of `spent` that no provider has reported, or has no known price
    limits: Mapping[str, float]  # in force; none when lifted
    used: float  # share of the limit that is spent most
    metric: str  # that limit
    step: str | None  # the highest step of the ladder reached


class AccountPage(BaseModel):
    """Accounts, last used first."""

    accounts: list[AccountView]  # last used first
    durable: bool  # false: counted in memory of this gateway, the store fails


@OPERATIONS.add("GET /api/budgets", AccountPage, "The accounts.")
async def list_budgets(request: ApiRequest[BudgetParameters]) -> ApiResponse:
    """Use of each budget by each subject, last used first."""
    chosen = picked(request.params, "budget", "limit")
    ledger = accounting_of(request.runtime).ledger
    found = await ledger.list_accounts(tenant=request.tenant, **chosen)
    views = [_view(request.runtime, account) for account in found]
    return ApiResponse({"accounts": views, "durable": ledger.durable})


_CHANGED = Body(AccountView, "The account afterwards.")


@OPERATIONS.add("POST /api/budgets/raise", _CHANGED, body=RaiseBody, errors=(404,))
async def raise_budget(request: ApiRequest[Parameters]) -> ApiResponse:
    """Set limits of one subject."""
    body = request.read(RaiseBody)
    return await _allowed(request.runtime, body, body.limits, lifted=None)


@OPERATIONS.add("POST /api/budgets/lift", _CHANGED, body=AccountBody, errors=(404,))
async def lift_budget(request: ApiRequest[Parameters]) -> ApiResponse:
    """Let one subject go without limits."""
    return await _allowed(request.runtime, request.read(AccountBody), {}, lifted=True)


async def _allowed(
    runtime: "Runtime", body: AccountBody, limits: Mapping[str, float], lifted: bool | None
) -> ApiResponse:
    accounting = accounting_of(runtime)
    changed = await accounting.allow(body.budget, body.subject, limits=limits, lifted=lifted)
    return ApiResponse(_view(runtime, changed))


@OPERATIONS.add("POST /api/budgets/reset", _CHANGED, body=AccountBody, errors=(404,))
async def reset_budget(request: ApiRequest[Parameters]) -> ApiResponse:
    """Reset one account."""
    body = request.read(AccountBody)
    runtime = request.runtime
    accounting = accounting_of(runtime)
    account = await accounting.account(body.budget, body.subject)
    store = accounting.ledger
    await store.reset(account.key, at=time.time())
    accounting.notices.forget(account.budget, account.subject)
    runtime.log.warning("budget reset", budget=account.budget, subject=account.subject)
    return ApiResponse(_view(runtime, (await store.accounts([account.key]) or [account])[0]))


def _view(runtime: "Runtime", account: Account) -> FieldDict:
    return account_view(account, accounting_of(runtime).budgets(), time.time())
