"""Budgets that apply to a call, and the steps of their ladders. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

from msgspec import structs

from gateway.budget_interface import Amounts, CallSubject
from gateway.config.values import duration
from gateway.core.steer import NO_ADVICE, Advice
from gateway.features.budgets.accounts import Account, AccountKey, Wanted
from gateway.features.budgets.settings import CALENDAR, BudgetSettings, LadderStep
from gateway.text.formatting import counted, money
from gateway.values import Value

_ROUNDING = 1e-9
NO_KEY = "(no key)"  # the subject of calls without a gateway key in budgets of scope `key`
NO_MODEL = "(no model)"  # the same of calls that name no model, in budgets of scope `model`


# The attribute of a call that a scope counts by; other scopes are names of its labels.
SUBJECTS = {each: each for each in ("run", "key", "tenant", "model", "client")} | {"tree": "root"}
_ENDING = {"run", "tree", "sub_agent"}  # subjects that come to an end
_BELOW_TENANT = _ENDING | {"tenant", "day"}  # these do not need its name beside their own


class Applied(Value):
    """A budget that applies to a call."""

    budget: BudgetSettings  # as configured
    wanted: Wanted  # the account that the call counts on


class BudgetStatus(Value):
    """Use of a budget that applies to a call."""

    applied: Applied  # the budget and its account
    account: Account  # as it was when the call came
    share: float  # of the most used metric, 1 = the whole limit
    metric: str  # that metric
    # it has refused a call, so that its stop is reached, and all that stands before it on the
    # ladder
    refuses: bool = False
    # calls of the usual cost that still fit, this one included; None where it never stops or nobody
    # knows
    left: int | None = None
    used: str = ""  # the use in figures, for people

    @property
    def reached(self) -> tuple[LadderStep, ...]:
        """The steps of the ladder at or below the share, lowest first."""
        return tuple(
            step
            for step in self.applied.budget.ladder
            if self.share >= step.at * (1 - 1e-9) or (self.refuses and step.do in ("stop", "ask"))
        )

    def step(self, name: str) -> LadderStep | None:
        """Returns the highest step of this kind that is reached; None if none is."""
        return next((s for s in reversed(self.reached) if s.name == name), None)


def applying(
    budgets: Sequence[BudgetSettings], call: CallSubject, now: float
) -> tuple[Applied, ...]:
    """The budgets that a call counts on, with their accounts; `now` in seconds of the epoch."""
    found = []
    for budget in budgets:
        subject = _subject(budget, call, now)
        if subject and _fits(budget, call):
            wanted = Wanted(
                key=AccountKey(budget=budget.name, subject=subject),
                tenant="" if "day" in budget.scopes else call.tenant,
                limits=budget.limits.given(),
                stop_at=budget.stop_at,
                ends=budget.window != "total" or not _ENDING.isdisjoint(budget.scopes),
                hard=budget.hard,
            )
            found.append(Applied(budget=budget, wanted=wanted))
    return tuple(found)


def _fits(budget: BudgetSettings, call: CallSubject) -> bool:
    # A hard budget of some models counts a call of an unknown one, too.
    names = ("client", "tenant", "key", *(("model",) if call.model or not budget.hard else ()))
    match = budget.match
    wanted = {"": not match.of_sub_agents}.get(call.agent.id, match.sub_agent is not False)
    if not wanted:
        return False
    if not fnmatchcase(call.agent.kind, match.kind or "*"):
        return False
    patterns = ((n, getattr(match, n)) for n in names)
    return all(p is None or fnmatchcase(getattr(call, name), p) for name, p in patterns)


def _subject(budget: BudgetSettings, call: CallSubject, now: float) -> str:
    """The account's subject, such as `acme/web@2026-W48`; empty for a call without one of the
    scopes, which does not count."""
    named = {scope: getattr(call, name) for scope, name in SUBJECTS.items()}
    named |= {**call.labels, "key": call.key or NO_KEY, "model": call.model or NO_MODEL}
    named["sub_agent"] = call.agent.id
    parts = [named.get(scope, "") for scope in budget.scopes if scope != "day"]
    if _BELOW_TENANT.isdisjoint(budget.scopes):
        parts.insert(0, call.tenant)
    if not all(parts):
        return ""
    return "@".join(filter(None, ("/".join(parts), window(budget.window, now)[0])))


def window(per: str, now: float) -> tuple[str, float]:
    """(name, end) of the window of a budget in which a time is: a day, a week from Monday, a month,
    or a time that is counted from the epoch; UTC."""
    if per == "total":
        return "", float("inf")
    if per not in CALENDAR:
        seconds = duration("per", per)
        start = int(now) // seconds * seconds
        return f"{datetime.fromtimestamp(start, UTC):%Y-%m-%dT%H:%M}", start + seconds
    day = datetime.fromtimestamp(int(now), UTC).replace(hour=0, minute=0, second=0)
    if per == "day":
        return f"{day:%Y-%m-%d}", (day + timedelta(days=1)).timestamp()
    if per == "week":
        return f"{day:%G-W%V}", (day + timedelta(days=7 - day.weekday())).timestamp()
    return f"{day:%Y-%m}", (day.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()


def standing(
    applied: Applied, account: Account, now: float, usual: Amounts | None = None
) -> BudgetStatus:
    """Use of a budget by its account, with what is left for calls that use the `usual` amounts."""
    share, metric = account.share(applied.wanted.limits, now)
    found = BudgetStatus(applied=applied, account=account, share=share, metric=metric)
    if usual is None or not metric:
        return found
    limits = account.limits_of(applied.wanted.limits)
    stop_at = applied.wanted.stop_at
    used = account.used(metric, now) - account.reserved.of(metric)
    left = [
        max(0.0, limit * (stop_at or 0.0) - account.used(name, now)) / usual.of(name)
        for name, limit in limits.items()
        if usual.of(name)
    ]
    return structs.replace(
        found,
        left=int(min(left) + _ROUNDING) if left and stop_at is not None else None,
        used=f"{figure(metric, used)} of {figure(metric, limits[metric])}"
        + ("" if metric == "usd" else f" {metric.replace('_', ' ')}"),
    )


def figure(metric: str, value: float) -> str:
    """An amount of a metric for people: `$1.80`, `12,000`."""
    if metric == "usd":
        return money(value)
    return f"{value:,.1f}".removesuffix(".0")


def _wrap_up(found: Sequence[BudgetStatus]) -> Advice:
    """Ask the agent to hand over its work: by the first budget that has reached this step, or that
    has it and lets no call after this one pass."""
    for each in found:
        budget = each.applied.budget
        left = each.left
        is_last = left is not None and left < 2 and "wrap_up" in [s.name for s in budget.ladder]
        if is_last or each.step("wrap_up") is not None:
            if left is None:
                rest = ""
            else:
                rest = f", {counted(left, 'call')} left at the usual cost"
            return Advice(wrap_up=f"budget: {budget.name}: {each.used} used{rest}")
    return NO_ADVICE


def _cheaper(found: Sequence[BudgetStatus]) -> Advice:
    """Returns the advice to use the cheaper model of the budget that is used most."""
    steps = (each.step("cheaper") for each in sorted(found, key=lambda each: -each.share))
    models = (step.cheaper for step in steps if step is not None and step.cheaper)
    return Advice(cheaper=next(models, ""))


# Each action of a ladder, with its effect on a call that may be sent. Every step that is reached is
# announced; the store refuses calls from `BudgetSettings.stop_at` on.
ACTIONS: Mapping[str, Callable[[Sequence[BudgetStatus]], Advice] | None] = {
    "warn": None,
    "wrap_up": _wrap_up,
    "cheaper": _cheaper,
    "ask": None,
    "stop": None,
}


def steers(budget: BudgetSettings) -> bool:
    """True if a step of the budget changes the request: by a text or another model."""
    return any(ACTIONS[step.name] is not None for step in budget.ladder)


def advice_of(found: Sequence[BudgetStatus]) -> Advice:
    """The effects of all steps that are reached; of two that differ, the row further up decides."""
    given = [effect(found) for effect in ACTIONS.values() if effect is not None]
    return Advice(
        wrap_up=next((each.wrap_up for each in given if each.wrap_up), ""),
        cheaper=next((each.cheaper for each in given if each.cheaper), ""),
    )


def fallback_model(applied: Sequence[Applied], refused: Sequence[AccountKey]) -> str:
    """The cheaper model of a budget that would refuse a call to the requested one; empty: none."""
    ladders = (reversed(a.budget.ladder) for a in applied if a.wanted.key in refused)
    return next((step.cheaper for ladder in ladders for step in ladder if step.cheaper), "")


BUDGET_HEADER = "x-gateway-budget"
