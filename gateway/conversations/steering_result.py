"""The findings and decisions about one request, from its first moment to its record."""

from msgspec import Struct

from gateway.conversations.conversation import Conversation, RoutedCall, StepPlace, run_id
from gateway.conversations.resolve import Resolved
from gateway.core.fsm import FSMState
from gateway.core.placement import Placed
from gateway.core.steer import NO_ADVICE, Advice, Decision, RunMemory, RunPosition
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import PromptMessage, StepRow

ActOfPerson = tuple[StepPlace, Intervention]


class SteeringResult(Struct, kw_only=True):
    """The findings and decisions about one request."""

    resolved: Resolved  # the request with its conversation
    mode: str  # on, shadow or off
    conversation: Conversation  # held locked while the decision is made
    position: RunPosition  # state of the run; the expected one until `observed`
    model: str  # the one to request
    state_after: FSMState  # the position's state, or END when the answer was final
    agent: str = ""  # the client's program
    project: str = ""  # value of the run's tag `project`
    observed: bool = False  # the request's steps are scored
    unsteered: str = ""  # why no decision was made; "" when one was
    placed: Placed | None = None  # edits of the request with its guidance; None when there are none
    decision: Decision | None = None  # None when none was made
    # first user message of each run that the store does not have, by number of the run
    tasks: dict[int, str] = {}
    # new messages of this call that belong to no step; on a run's first call its opening
    prompts: list[PromptMessage] = []
    acts: list[ActOfPerson] = []  # what a person did, as the request shows it, and where
    reasons: list[str] = []  # of the decision, in words
    stored: bool = False  # the store has the call already, without its answer
    # the step as it is in the run log, when another process has scored it
    logged: StepRow | None = None
    usable: bool = False  # the answer says or calls anything; a client asks again after one without
    # the request's messages were not read, so that its answer continues no known history
    unread: bool = False
    timings_ms: dict[str, float] = {}  # milliseconds by stage
    advice: Advice = NO_ADVICE  # what the call's budgets ask of it
    # monitors whose alarms are muted for the project
    muted: frozenset[str] = frozenset()
    # the run's memory before the decision; None before there is one
    memory_before: RunMemory | None = None
    # the routed call that the run remembers; None for one that is not remembered
    kept: RoutedCall | None = None
    applies: bool = False  # the request is changed by what was decided
    # number of messages, as a negative index, of an earlier call while that one is decided about;
    # None else
    until: int | None = None

    @property
    def run_id(self) -> str:
        """The id of the run in the store."""
        return run_id(self.conversation.id, self.position.run)
