"""What became of one request: the conversation it is of, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.conversations.memo import Conversation
from gateway.conversations.recall import Recalled
from gateway.steering.chance import Stance
from gateway.steering.etrace.decide import Decided
from gateway.steering.etrace.edits import Edit
from gateway.steering.etrace.placement import Placed
from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState
from gateway.stores.records import PromptMessage


@dataclass(slots=True)
class Steered:
    """What steering found and decided about one request."""

    recalled: Recalled
    mode: str
    conversation: Conversation
    run: int
    state: FSMState
    step: int
    """Scored steps of the run so far; 0 on its first call."""

    latest: StepOutcome | None
    stance: Stance
    """What the actions on this call are decided by."""

    model: str
    state_after: FSMState
    """As `state`, or END when the answer was final."""

    tasks: dict[int, str] = field(default_factory=dict)
    """The user's words that began a run, for each run that the store does not have yet."""

    prompts: list[PromptMessage] = field(default_factory=list)
    """Messages new to this call that belong to no step; a run's opening on its first call."""

    edits: tuple[Edit, ...] = ()
    placed: Placed | None = None
    decided: Decided | None = None
    reasons: list[str] = field(default_factory=list)
    recorded: bool = False
    """Whether the store has it already, without the answer."""

    timings_ms: dict[str, float] = field(default_factory=dict)

    @property
    def applies(self) -> bool:
        """Whether the request is changed by what was decided."""
        return self.mode == "on"
