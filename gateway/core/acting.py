"""The signal that decides about a call, and the settings of the acts on it."""

from typing import Literal

from gateway.core.fsm import FSMState
from gateway.core.monitors import Readings
from gateway.values import Value, frozen

ActName = Literal["tell", "advise", "route", "ask", "hand_over", "end"]
DEFAULT_ACT: ActName = "route"


@frozen
class ActSettings:
    """Settings of the section `steering` that decide about a call. Raises ValueError: a value
    out of range."""

    token_budget: int | None = None  # tokens a run is expected to need, at least 1; None = unknown
    # after the budget: `wrap_up` asks the agent to hand over its work
    budget_action: Literal["none", "wrap_up"] = "none"

    def __post_init__(self) -> None:
        if self.token_budget is not None and self.token_budget < 1:
            raise ValueError(f"token_budget: must be at least 1, got {self.token_budget}")
        if self.token_budget is None and self.budget_action != "none":
            raise ValueError(f"budget_action: {self.budget_action} needs a token_budget")


class ActionSignal(Value):
    """The state and readings that decide about the actions on a call."""

    state: FSMState  # after the newest scored step
    readings: Readings | None = None  # of the newest step; None without monitors
    severity: int = 0  # of the alarm, 0 (none) to 3
    waits: bool = False  # the newest step only waits for something, such as a job
    # a failure was repeated in spite of advice, and the run has not recovered
    strikes: bool = False
