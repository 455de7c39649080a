"""What an operator orders with the header `x-gateway-budget`: limits for a call's subjects."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.config.budgets import METRICS
from gateway.errors import BadRequest

BUDGET_HEADER = "x-gateway-budget"
_LIFT = "lift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """New limits for the accounts that a call counts on, or none any more."""

    lift: bool = False
    limits: dict[str, float] = field(default_factory=dict)


def read_order(text: str | None) -> Order | None:
    """`lift`, or limits such as `usd=5, calls=100`; None without the header.

    Raises:
        BadRequest: another text.
    """
    if text is None:
        return None
    if text.strip() == _LIFT:
        return Order(lift=True)
    limits = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        limits[_metric(name.strip())] = _limit(value)
    return Order(limits=limits)


def _metric(name: str) -> str:
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise BadRequest(
            f"{BUDGET_HEADER}: expected {_LIFT!r} or limits of {known}", param=BUDGET_HEADER
        )
    return name


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadRequest(f"{BUDGET_HEADER}: a limit is a number above 0", param=BUDGET_HEADER)
    return value
