"""Texts about budgets for clients, agents and operators. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from secrets import token_hex

from gateway.budget_interface import UNSUMMED
from gateway.errors import CAN_RAISE, NO_RETRY, STOPPED, BudgetExceeded, RateLimited
from gateway.features.budgets.accounts import STORE_AWAY, Account
from gateway.features.budgets.settings import BudgetSettings
from gateway.features.budgets.which_apply import BudgetStatus, figure, window
from gateway.stores.controls import OpenQuestion
from gateway.stores.stopped_by import RAISE_IT, as_command
from gateway.text.formatting import amount
from gateway.values import FieldDict


def used_up(found: BudgetStatus, metric: str, now: float) -> str:
    """The use of the budget that refuses a call, and when it starts again."""
    budget = found.applied.budget
    account = found.account
    limit = account.limits_of(found.applied.wanted.limits).get(metric, 0.0)
    waiting = (account.reserved + account.leased).of(metric)
    used = account.used(metric, now) - waiting
    if metric == "context":
        return f"the context of this call is larger than {figure(metric, limit)} tokens."
    if metric == "usd":
        kind = ""
    else:
        kind = f"-{metric.replace('_', '-').removesuffix('s')}"
    text = f"{figure(metric, used)} of the {figure(metric, limit)}{kind} budget is used"
    if waiting:
        text += f", {figure(metric, waiting)} more is reserved for calls on their way"
    if used < limit * (budget.stop_at or 1.0):
        text += ", and this call needs more than is left"
    again = ""
    if budget.window != "total":
        ends = datetime.fromtimestamp(window(budget.window, now)[1], UTC)
        again = f" The budget starts again at {ends:%Y-%m-%d %H:%M} UTC."
    return f"{text}.{again}"


def raise_it(found: BudgetStatus, metric: str) -> str:
    """Returns the command that doubles a limit, for the stored reason of a refusal."""
    budget = found.applied.budget
    account = found.account
    limit = account.limits_of(found.applied.wanted.limits).get(metric, 0.0)
    option = (f"--{metric.replace('_', '-')}", f"{2 * limit:.10g}")
    return RAISE_IT + as_command("budgets", "raise", budget.name, account.subject, *option)


def budget_question(found: BudgetStatus, now: float, until: float) -> tuple[str, OpenQuestion]:
    """The reason for which a person is asked about a budget, and the question: a yes raises each
    limit of the account by the budget's own."""
    budget = found.applied.budget
    current = found.account.limits_of(found.applied.wanted.limits)
    limits = {name: current.get(name, 0.0) + own for name, own in budget.limits.given().items()}
    raised = ", ".join(amount(name, to) for name, to in limits.items())
    why = used_up(found, found.metric or next(iter(limits)), now)
    if not found.refuses:
        why = why.partition(", and this call")[0].rstrip(".")
    question = OpenQuestion(
        secret=token_hex(16),
        until=until,
        budget=budget.name,
        account=found.account.subject,
        limits=limits,
    )
    return f"budget {budget.name}: {why.rstrip('.')}. A yes raises it to {raised}", question


def unpriced_error(model: str, budget: str) -> BudgetExceeded:
    """The refusal of a call to a model whose cost a budget in dollars cannot count."""
    text = (
        f"the price of the model {model[:100]!r} is unknown, and the budget {budget} counts US "
        "dollars. The person who runs the gateway can set input_cost_per_token and "
        "output_cost_per_token in the model_info of its entry in model_list, or control.unpriced."
    )
    return BudgetExceeded(STOPPED + text, headers=NO_RETRY)


def uncounted_error(route: str, budget: str) -> BudgetExceeded:
    """The refusal of a call whose use a hard budget cannot count."""
    text = f"what a call of {route[:100]} uses cannot be counted, and the budget {budget} is hard"
    return BudgetExceeded(STOPPED + text, headers=NO_RETRY)


def budget_error(found: BudgetStatus, metric: str, now: float) -> BudgetExceeded:
    """The refusal of a call, with when to try again where that is known: a window ends, and what is
    only reserved may become free."""
    budget = found.applied.budget
    account = found.account
    headers = NO_RETRY
    if metric == STORE_AWAY:
        text = f"the budget {budget.name} is hard and its store is away: no call can be counted"
        error = BudgetExceeded(STOPPED + text, headers=(("retry-after", "5"),))
        error.status = 503
        return error
    limit = account.limits_of(found.applied.wanted.limits).get(metric, 0.0) * (
        budget.stop_at or 1.0
    )
    if budget.window != "total":
        again = ("retry-after", f"{int(window(budget.window, now)[1] - now) + 1}")
        if budget.is_rate:
            return RateLimited(f"Rate limit: {used_up(found, metric, now)}", headers=(again,))
        headers = (again, *NO_RETRY)
    elif (
        metric not in UNSUMMED
        and (account.reserved + account.leased).calls
        and account.spent.of(metric) < limit
    ):
        headers = (("retry-after", "1"),)
    text = STOPPED + used_up(found, metric, now) + CAN_RAISE
    error = BudgetExceeded(text, headers=headers)
    error.go_on = raise_it(found, metric)
    return error


def budget_header(
    found: Sequence[BudgetStatus], refused: Sequence[str], *, stored: bool, unpriced: bool
) -> str:
    """Returns the value of `x-gateway-budget`: each budget at or above the first step of its
    ladder, each budget in `refused`, which would have stopped the call, and, if the call is
    `unpriced`, each budget in dollars."""
    parts = []
    for each in found:
        name = each.applied.budget.name
        reached = each.reached
        guesses = unpriced and each.applied.budget.limits.usd is not None
        if reached or guesses or name in refused:
            step = "none"
            if reached:
                step = reached[-1].name
            if name in refused:
                step = "would_stop"
            part = f"{name};used={each.share:.4g};metric={each.metric};step={step}"
            part += f";per={per}" if (per := each.applied.budget.window) != "total" else ""
            parts.append(f"{part};price=unknown" if guesses else part)
    if parts and not stored:
        parts[-1] += ";counted=in_memory"
    return ", ".join(parts)


def account_view(account: Account, budgets: Sequence[BudgetSettings], now: float) -> FieldDict:
    """An account with the limits in force, how far they are used, and the step that is reached."""
    budget = next((each for each in budgets if each.name == account.budget), None)
    if budget is not None:
        configured = budget.limits.given()
    else:
        configured = {}
    share, metric = account.share(configured, now)
    if budget is not None:
        ladder = budget.ladder
    else:
        ladder = ()
    reached = [step.name for step in ladder if share >= step.at * (1 - 1e-9)]
    return {
        "budget": account.budget,
        "subject": account.subject,
        "scope": "+".join(budget.scopes) if budget is not None else None,
        **asdict(account),
        "limits": account.limits_of(configured),
        "used": share,
        "metric": metric,
        "step": reached[-1] if reached else None,
    }
