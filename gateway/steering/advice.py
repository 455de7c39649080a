"""What budgets ask of a call that may be sent: a text that ends the work, a cheaper model."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.routing import RoutedModel, Serves


class Advice(Struct, frozen=True, kw_only=True):
    """Why the agent is to hand over its work, and the model to use; empty texts ask nothing."""

    wrap_up: str = ""
    cheaper: str = ""


NO_ADVICE = Advice()


def thrifty(
    routed: RoutedModel, advice: Advice, requested: str, serves: Serves | None
) -> RoutedModel:
    """The route, or the model that a budget asks for, where that can serve the request."""
    cheaper = advice.cheaper
    if not cheaper or cheaper == routed.model:
        return routed
    problem = serves(cheaper) if serves is not None and cheaper != requested else None
    if problem is not None:
        reason = f"budget: {cheaper} not used: {problem}"
        return replace(routed, reasons=(*routed.reasons, reason))
    reason = f"budget: {cheaper} instead of {routed.model}"
    return replace(routed, model=cheaper, reasons=(*routed.reasons, reason))
