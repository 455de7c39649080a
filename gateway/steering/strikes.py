"""Two strikes: when a run that is likely to fail is asked to deliver, and when it is stopped.

A strike is a step at which a monitor fires while the run's risk is at or above
`steering.stop_above`. The first one asks the agent to hand over its work; one that comes
`REACTION_STEPS` steps later or after that stops the run.
"""

from __future__ import annotations

from msgspec import Struct

from gateway.steering.fold import StepOutcome

REACTION_STEPS = 2
"""Steps that an agent gets to follow the request: the one that answers it, and one to finish."""


class Strike(Struct, frozen=True, kw_only=True):
    """The strikes of a run at one call.

    `first`: the step of the first one, None for none so far. `reason`: why the newest step is one,
    empty when it is none. `stops`: whether it is the one that stops the run.
    """

    first: int | None = None
    reason: str = ""
    stops: bool = False


NO_STRIKE = Strike()


def strike(first: int | None, latest: StepOutcome | None, above: float | None) -> Strike:
    """The strikes after the newest step; `first`: of the run so far. `above` None: never any."""
    if above is None or latest is None or not latest.readings.fired or latest.risk < above:
        return Strike(first=first)
    stops = first is not None and latest.index >= first + REACTION_STEPS
    fired = ", ".join(latest.readings.fired)
    which = "second" if stops else "first"
    reason = f"stop: {which} strike, risk {latest.risk:.2f}, fired {fired}"
    return Strike(first=latest.index if first is None else first, reason=reason, stops=stops)
