"""The decision about one request, and what leaves for it: the values that steering hands on."""

from collections.abc import Mapping

from msgspec.structs import replace

from gateway.conversations.conversation import Conversation, RoutedCall, StepPlace, run_id
from gateway.conversations.resolve import Resolved
from gateway.core.edits import Edit
from gateway.core.placement import Placed
from gateway.core.steer import Conclusion, RunMemory, RunPosition
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import PromptMessage
from gateway.values import Value

ActOfPerson = tuple[StepPlace, Intervention]


class Decision(Value):
    """The findings and decisions about one request; each step of steering makes the next one."""

    resolved: Resolved  # the request with its conversation
    conversation: Conversation  # held locked while the decision is made
    mode: str  # on, shadow or off
    position: RunPosition  # state of the run; the expected one until `observed`
    model: str  # the one to request
    applies: bool = False  # the request is changed by what was decided
    agent: str = ""  # the client's program
    project: str = ""  # value of the run's tag `project`
    # monitors whose alarms are muted for the project
    muted: frozenset[str] = frozenset()
    observed: bool = False  # the request's steps are scored
    # the request's messages were not read, so that its answer continues no known history
    unread: bool = False
    unsteered: str = ""  # why nothing was concluded; "" when it was
    placed: Placed | None = None  # edits of the request with its guidance; None when there are none
    conclusion: Conclusion | None = None  # the model, and which guidance; None when there is none
    # first user message of each run that the store does not have, by number of the run
    tasks: Mapping[int, str] = {}
    # new messages of this call that belong to no step; on a run's first call its opening
    prompts: tuple[PromptMessage, ...] = ()
    # what a person did, as the request shows it, and where
    acts: tuple[ActOfPerson, ...] = ()
    reasons: tuple[str, ...] = ()  # of the decision, in words
    # the run's memory before the decision; None before there is one
    memory_before: RunMemory | None = None
    # the routed call that the run remembers; None for one that is not remembered
    kept: RoutedCall | None = None

    @property
    def run_id(self) -> str:
        """The id of the run in the store."""
        return run_id(self.conversation.id, self.position.run)


def with_reasons(decision: Decision, *reasons: str) -> Decision:
    """The decision with further reasons."""
    return replace(decision, reasons=decision.reasons + reasons)


class Delivery(Value):
    """The model that is asked for one request, and the guidance that is given with it."""

    model: str = ""  # to request; "" before it is decided
    placed: Placed | None = None  # its guidance, given or only recorded; None for none
    edits: tuple[Edit, ...] = ()  # that add it to the request; none when it is only recorded
    reasons: tuple[str, ...] = ()  # what has come of the decision, in words
