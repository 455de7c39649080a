"""`--budget` and `--stop-after`: one budget for everything that the command asks for."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

from gateway.config.budgets import BudgetLimits, BudgetSettings, ControlSettings, LadderStep
from gateway.errors import ConfigError
from gateway.stores.budgets import NOTHING, Account
from gateway.text import formatting

_MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0}
_AFTER = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|calls?|)")

# The agent is warned, asked to hand over its work, and then gets one last answer that says why: an
# error would make it try again.
_LADDER = (
    LadderStep(at=0.8, do="warn"),
    LadderStep(at=0.9, do="wrap_up"),
    LadderStep(at=1.0, do="stop"),
)


def wrap_budget(budget: str | None, stop_after: str | None) -> BudgetSettings | None:
    """The budget of one wrapped command; None without a limit.

    budget: US dollars. stop_after: `30m`, `2h`, `90s`, or a number of calls. Its name is drawn, so
    that nothing of another command counts on it.

    Raises:
        ConfigError: a limit cannot be read.
    """
    limits: dict[str, float | int] = {}
    if budget is not None:
        limits["usd"] = _dollars(budget)
    if stop_after is not None:
        found = _AFTER.fullmatch(stop_after.strip().lower())
        if found is None or float(found[1]) <= 0:
            raise ConfigError(f"wrap: --stop-after: 30m, 2h, 90s or 50 calls, not {stop_after!r}")
        if found[2] in _MINUTES:
            limits["minutes"] = float(found[1]) * _MINUTES[found[2]]
        else:
            limits["calls"] = max(1, round(float(found[1])))
    if not limits:
        return None
    return BudgetSettings(
        name=f"wrap-{secrets.token_hex(4)}",
        scope="tenant",
        limits=BudgetLimits(**limits),  # type: ignore[arg-type]
        ladder=_LADDER,
        stop_with="answer",
    )


def _dollars(text: str) -> float:
    try:
        value = float(text.strip().removeprefix("$"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"wrap: --budget: dollars such as 2.00, not {text!r}")
    return value


def limit_line(budget: BudgetSettings, control: ControlSettings) -> str:
    """What is said at the start: the limit, and what a model counts as whose price is unknown."""
    limits = budget.limits.given()
    price = formatting.money(control.unpriced_usd_per_million)
    guessed = f"; a model of unknown price counts as {price} for a million tokens"
    return f"budget: {_amounts(limits)}{guessed if 'usd' in limits else ''}"


def used_line(
    budget: BudgetSettings, accounts: tuple[Account, ...], now: float, *, stopped: bool = False
) -> str:
    """How much of the budget was used, and whether it `stopped` calls of the command."""
    account = next(iter(accounts), None)
    limits = budget.limits.given()
    if account is None:
        return f"budget: nothing of {_amounts(limits)} used"
    spent = replace(account, reserved=NOTHING)
    used = {metric: spent.used(metric, now) for metric in limits}
    share, _ = account.share(limits, now)
    parts = ", ".join(
        f"{_amount(m, used[m])} of {_amount(m, limit)}" for m, limit in limits.items()
    )
    waiting = [(m, account.reserved.of(m)) for m in limits if m != "minutes"]
    reserved = ", ".join(_amount(m, value) for m, value in waiting if value)
    kept = f"; {reserved} reserved for calls on their way" if reserved else ""
    unpriced = (
        f"; the price of {formatting.counted(account.unpriced, 'call')} is guessed"
        if account.unpriced and "usd" in limits
        else ""
    )
    up = "used up" if share >= 1 else "not enough left"
    ended = f"; {up}, further calls were not sent" if stopped or share >= 1 else ""
    return f"budget: {parts}{ended}{kept}{unpriced}"


def _amounts(limits: dict[str, float]) -> str:
    return ", ".join(_amount(metric, limit) for metric, limit in limits.items())


def _amount(metric: str, value: float) -> str:
    if metric == "usd":
        return formatting.money(value)
    if metric == "minutes":
        return formatting.seconds(60 * value)
    return formatting.counted(round(value), "call")
