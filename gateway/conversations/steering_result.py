"""The findings and decisions about one request, from its first moment to its record."""

from msgspec import Struct

from gateway.conversations.conversation import Conversation, RoutedCall, StepPlace, run_id
from gateway.conversations.resolve import Resolved
from gateway.core.fsm import FSMState
from gateway.core.placement import Placed
from gateway.core.steer import NO_ADVICE, Advice, Decision, RunMemory, RunPosition
from gateway.steering.identity import Delivery, MatchKind
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import PromptMessage, StepRow

ActOfPerson = tuple[StepPlace, Intervention]


class SteeringResult(Struct, kw_only=True):
    """The findings and decisions about one request.

    `state_after`: the position's state, or END when the answer was final. `agent`: the client's
    program; `project`: its tag. `observed`: the request's steps are
    scored; before that `position` is the expected one.
    `unsteered`: why no decision was made, "" when one was. `tasks`: the first user message of each
    run that the store does not have. `prompts`: new messages of this call that belong to no step;
    on the first call of a run, its opening. `acts`: what a person did, as the request shows it, and
    where. `stored`: the store has the call already, without its
    answer. `logged`: the step as it is in the run log, when another process has scored it.
    `usable`: the answer says or calls anything; a client asks again after one without. `unread`:
    the request's messages were not read, so that its answer continues no known history. `advice`:
    what the call's budgets ask of it. `memory_before`: the run's memory before the decision;
    `kept`: what the run remembers of it. `applies`: the request is changed by what was decided.
    `until`: the number of messages, as a negative index, of an earlier call while that one is
    decided about."""

    resolved: Resolved
    mode: str
    conversation: Conversation
    position: RunPosition
    model: str
    state_after: FSMState
    agent: str = ""
    project: str = ""
    observed: bool = False
    unsteered: str = ""
    placed: Placed | None = None
    decision: Decision | None = None
    tasks: dict[int, str] = {}
    prompts: list[PromptMessage] = []
    acts: list[ActOfPerson] = []
    reasons: list[str] = []
    stored: bool = False
    logged: StepRow | None = None
    usable: bool = False
    unread: bool = False
    timings_ms: dict[str, float] = {}
    advice: Advice = NO_ADVICE
    memory_before: RunMemory | None = None
    kept: RoutedCall | None = None
    applies: bool = False
    until: int | None = None

    @property
    def run_id(self) -> str:
        """The id of the run in the store."""
        return run_id(self.conversation.id, self.position.run)

    def note_failed(self) -> None:
        """There is no whole answer: the client may send the request again."""
        history = self.conversation.history
        served = self.resolved.incoming.hashes.state.digest
        history.branch = history.branch.failed(served)

    def note_sending(self) -> None:
        """The whole answer is there: until it is sent, the same request is a sample, no retry."""
        self._note_delivery(Delivery.SENDING)

    def note_delivered(self) -> None:
        """The client has the whole answer: the same request once more is a sample, no retry."""
        if self.usable:
            self._note_delivery(Delivery.DONE)

    def note_ended(self) -> None:
        """Nothing more is sent: of an answer that was not delivered, the request may come again."""
        if self.conversation.history.branch.delivery is Delivery.SENDING:
            self._note_delivery(Delivery.UNKNOWN)

    def note_cut(self) -> None:
        """The client has gone; if it did not get the whole answer, it broke it off."""
        history = self.conversation.history
        served = self.resolved.incoming.hashes.state.digest
        if history.branch.served_hash == served and history.branch.delivery is not Delivery.DONE:
            history.cut = served

    def _note_delivery(self, delivery: Delivery) -> None:
        history = self.conversation.history
        served = self.resolved.incoming.hashes.state.digest
        history.branch = history.branch.delivered(served, delivery)


def unobserved(
    conversation: Conversation, resolved: Resolved, mode: str, model: str
) -> SteeringResult:
    """The result of a request before its steps are read, at the position that is expected: one step
    after the newest call that is known; a retry is at the same step again, and a call aside at
    none: its number is negative."""
    run = conversation.run
    newest = conversation.snapshot()
    compacts = resolved.incoming.compacts
    if aside := resolved.match.kind is MatchKind.SIDE:
        number = int.from_bytes(resolved.incoming.hashes.state.digest[:4])  # drawn for this call
        state = newest.state if newest else FSMState.INIT
        position = RunPosition(run=newest.run if newest else run.index, step=~number, state=state)
    elif newest is None or (newest.state is FSMState.END and not compacts):
        index = run.index if newest is None else newest.run + 1
        position = RunPosition(run=index, step=run.unscored_calls, state=FSMState.INIT)
    else:
        ahead = not (compacts or resolved.match.kind is MatchKind.RETRY)
        step = newest.steps + run.unscored_calls + ahead
        position = RunPosition(run=newest.run, step=step, state=newest.state)
    return SteeringResult(
        resolved=resolved,
        mode=mode,
        conversation=conversation,
        position=position,
        model=model,
        state_after=position.state,
        applies=mode == "on" and not aside,
    )
