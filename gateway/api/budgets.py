"""`/api/budgets`: what each subject has used, and an operator's changes to its limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.filters import TenantParameter, described
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import DIGITS, Parameters, Text
from gateway.budgets.texts import account_view
from gateway.config.budgets import METRICS
from gateway.errors import BadRequest, NotFound
from gateway.runtime import Runtime
from gateway.stores.budgets import Account, AccountKey


class BudgetParameters(TenantParameter):
    """Which accounts."""

    budget: Annotated[Text | None, described("Of the budget with this name.")] = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Most accounts."), DIGITS] = 200


class AccountBody(BaseModel):
    """Which account."""

    model_config = ConfigDict(extra="forbid")
    budget: Annotated[str, Field(description="The budget's name.")]
    subject: Annotated[str, Field(description="As `GET /api/budgets` names it.", max_length=400)]


class RaiseBody(AccountBody):
    """New limits of one account; those that are left out stay."""

    limits: Annotated[
        Mapping[str, float],
        Field(description=f"Any of {', '.join(METRICS)}; each replaces that of the config."),
    ]


class Spent(BaseModel):
    """What calls used, or are expected to use."""

    usd: float
    input_tokens: int
    output_tokens: int
    calls: int


class AccountView(BaseModel):
    """One account."""

    budget: str
    subject: str
    scope: Annotated[str | None, Field(description="Null: the config has no such budget now.")]
    tenant: str
    spent: Spent
    reserved: Annotated[Spent, Field(description="Estimates of calls on their way.")]
    unpriced: Annotated[int, Field(description="Calls whose price is unknown.")]
    estimated: Annotated[
        Spent,
        Field(
            description="The part of `spent` that no provider has reported, or has no known price."
        ),
    ]
    started_at: float
    updated_at: float
    limits: Annotated[Mapping[str, float], Field(description="In force; none when lifted.")]
    lifted: bool
    used: Annotated[float, Field(description="Share of the limit that is spent most.")]
    metric: Annotated[str, Field(description="That limit.")]
    step: Annotated[str | None, Field(description="The highest step of the ladder reached.")]


class AccountPage(BaseModel):
    """Accounts, last used first."""

    accounts: list[AccountView]
    durable: Annotated[
        bool, Field(description="False: counted in memory of this gateway, the store fails.")
    ]


async def list_budgets(request: ApiRequest[BudgetParameters]) -> ApiResponse:
    """The accounts of the tenant, those of every budget or of one."""
    params, runtime = request.params, request.runtime
    ledger = runtime.accounting.ledger
    store = ledger.store if ledger.durable else ledger.memory
    found = await store.list_accounts(
        budget=params.budget, tenant=request.tenant, limit=params.limit
    )
    views = [_view(runtime, account) for account in found]
    return ApiResponse(payload={"accounts": views, "durable": ledger.durable})


async def raise_limits(request: ApiRequest[Parameters]) -> ApiResponse:
    """Set limits of one account."""
    body = request.read(RaiseBody)
    if unknown := set(body.limits) - set(METRICS):
        raise BadRequest(
            f"limits: {min(unknown)!r} is not one of {', '.join(METRICS)}", param="limits"
        )
    if not body.limits or not all(0 < value < float("inf") for value in body.limits.values()):
        raise BadRequest("limits: each must be a number above 0", param="limits")
    account = await _known(request, body)
    limits = {**account.limits, **body.limits}
    return await _allow(request, account.key, limits=limits, lifted=account.lifted)


async def lift_limits(request: ApiRequest[Parameters]) -> ApiResponse:
    """Let one account go without limits."""
    account = await _known(request, request.read(AccountBody))
    return await _allow(request, account.key, limits=account.limits, lifted=True)


async def reset_account(request: ApiRequest[Parameters]) -> ApiResponse:
    """Reset one account: nothing used, the limits of the config."""
    account = await _known(request, request.read(AccountBody))
    runtime = request.runtime
    await runtime.accounting.ledger.store.reset(account.key, at=time.time())
    runtime.accounting.notices.forget(account.budget, account.subject)
    runtime.log.warning("budget reset", budget=account.budget, subject=account.subject)
    return ApiResponse(payload=_view(runtime, await _read(runtime, account.key) or account))


async def _allow(
    request: ApiRequest[Parameters],
    key: AccountKey,
    *,
    limits: Mapping[str, float],
    lifted: bool,
) -> ApiResponse:
    runtime = request.runtime
    store = runtime.accounting.ledger.store
    account = await store.allow(key, at=time.time(), limits=limits, lifted=lifted)
    runtime.accounting.notices.forget(key.budget, key.subject)
    runtime.log.warning(
        "budget limits changed", budget=key.budget, subject=key.subject, lifted=lifted
    )
    return ApiResponse(payload=_view(runtime, account))


async def _known(request: ApiRequest[Parameters], body: AccountBody) -> Account:
    """The account that is to be changed. Raises: NotFound."""
    key = AccountKey(budget=body.budget, subject=body.subject)
    account = await _read(request.runtime, key)
    if account is None:
        raise NotFound(f"the budget has no account {body.subject[:80]!r}", param="subject")
    return account


async def _read(runtime: Runtime, key: AccountKey) -> Account | None:
    found = await runtime.accounting.ledger.store.accounts([key])
    return found[0] if found else None


def _view(runtime: Runtime, account: Account) -> dict[str, Any]:
    return account_view(account, runtime.settings.all_budgets(), time.time())


def _change(name: str, verb: str, summary: str, handler: Any, body: type[BaseModel]) -> Any:
    return Operation(
        name=name,
        method="POST",
        path=f"/api/budgets/{verb}",
        summary=summary,
        handler=handler,
        params=Parameters,
        body=Content(body),
        responses={200: Content(AccountView, "The account afterwards.")},
        errors=(400, 403, 404, 413),
    )


OPERATIONS = (
    Operation(
        name="listBudgets",
        method="GET",
        path="/api/budgets",
        summary="What each subject of each budget has used, last used first.",
        handler=list_budgets,
        params=BudgetParameters,
        responses={200: Content(AccountPage, "The accounts.")},
        errors=(400, 403),
    ),
    _change("raiseBudget", "raise", "Set limits of one subject.", raise_limits, RaiseBody),
    _change("liftBudget", "lift", "Let one subject go without limits.", lift_limits, AccountBody),
    _change("resetBudget", "reset", "Reset one account.", reset_account, AccountBody),
)
