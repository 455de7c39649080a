"""One call: who makes it, the facts of it, and what was decided. It is what is recorded."""

from msgspec import Struct

from gateway.budgets.guard import LeftOpen, Spending
from gateway.conversations.control_headers import ControlHeaders
from gateway.conversations.steering_result import SteeringResult
from gateway.errors import UpstreamFailure
from gateway.exchange import Exchange
from gateway.upstream.deployments import Target
from gateway.wire.refusal import Refusal


class Call(Struct, kw_only=True):
    """One call, from the decision about it to its record."""

    control: ControlHeaders  # orders in the request's headers
    exchange: Exchange  # what happened
    # what was decided; None for a side request, and for one whose conversation could not be found
    result: SteeringResult | None = None
    model: str = ""  # the one to request
    # what is reserved of its budgets; None when none applies
    spending: Spending | LeftOpen | None = None
    target: Target | None = None  # the one that answered; None before that
    billed_model: str = ""  # name whose prices hold for the answer: a fallback's when that gave it
    completed: bool = False  # the whole answer has arrived

    def note_reason(self, reason: str) -> None:
        """Add to the reasons that are recorded with the call."""
        if self.result is not None:
            self.result.reasons.append(reason)

    def note_failure(self, failure: Refusal) -> None:
        """The upstream reported an error under a status of success."""
        said = failure.get("code") or failure.get("type")
        self.note_reason(f"the upstream reported an error in its answer: {said}")
        self.exchange.response.error = UpstreamFailure.label
        if self.result is not None:
            self.result.note_failed()

    async def settle(self) -> None:
        """End the call's reservation with what it used."""
        if self.spending is not None:
            await self.spending.settle(self.billed_model)
