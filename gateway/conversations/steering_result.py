"""What steering found and decided about one request, from its first moment to its record."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.conversations.conversation import Conversation, RoutedCall
from gateway.conversations.resolve import Resolved
from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.decide import Decided
from gateway.steering.guidance.edits import Edit
from gateway.steering.guidance.placement import Placed
from gateway.steering.identity import Delivery, MatchKind
from gateway.steering.steer import NO_ADVICE, Advice, Decision, RunMemory, RunPosition
from gateway.stores.records import PromptMessage, StepRow


@dataclass(slots=True, kw_only=True)
class SteeringResult:
    """What steering found and decided about one request.

    `state_after`: the position's state, or END when the answer was final. `observed`: whether the
    request's steps are scored; before that `position` is the expected one. `unsteered`: why no
    decision was made, "" when one was. `tasks`: the first user message of each run that the store
    does not have. `prompts`: new messages of this call that belong to no step; on the first call of
    a run, its opening. `stored`: whether the store has the call already, without its answer.
    `advice`: what the call's budgets ask of it. `agent`: the client's program.
    `logged`: the step as it is in the run log, when another process has scored it.
    `usable`: whether the answer says or calls anything; a client asks again after one without.
    `unread`: the request's messages were not read, so that its answer continues no known history.
    `memory_before`: the run's memory before the decision; `kept`: what the run remembers of it.
    """

    resolved: Resolved
    mode: str
    conversation: Conversation
    position: RunPosition
    model: str
    state_after: FSMState
    agent: str = ""
    observed: bool = False
    unsteered: str = ""
    placed: Placed | None = None
    decision: Decision | None = None
    tasks: dict[int, str] = field(default_factory=dict)
    prompts: list[PromptMessage] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    stored: bool = False
    logged: StepRow | None = None
    usable: bool = False
    unread: bool = False
    timings_ms: dict[str, float] = field(default_factory=dict)
    advice: Advice = NO_ADVICE
    memory_before: RunMemory | None = None
    kept: RoutedCall | None = None

    @property
    def applies(self) -> bool:
        """Whether the request is changed by what was decided."""
        return self.mode == "on"

    @property
    def decided(self) -> Decided | None:
        """The guidance of this call; None when there is none to place."""
        return self.decision.decided if self.decision and self.placed else None

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The guidance as edits of the client's messages."""
        return self.placed.edits if self.placed is not None else ()

    def note_failed(self) -> None:
        """There is no whole answer: the client may send the request again."""
        history = self.conversation.history
        history.branch = history.branch.failed(self.resolved.incoming.hashes.full)

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

    def _note_delivery(self, delivery: Delivery) -> None:
        history = self.conversation.history
        history.branch = history.branch.delivered(self.resolved.incoming.hashes.full, delivery)

    @property
    def run(self) -> int:
        """Index of the run."""
        return self.position.run

    @property
    def step(self) -> int:
        """Scored steps of the run so far; 0 on its first call."""
        return self.position.step

    @property
    def state(self) -> FSMState:
        """The run's state when the call was decided."""
        return self.position.state

    @property
    def latest(self) -> StepOutcome | None:
        """The newest scored step."""
        return self.position.latest


def unobserved(
    conversation: Conversation, resolved: Resolved, mode: str, model: str
) -> SteeringResult:
    """The result of a request before its steps are read, at the position that is expected."""
    position = _expected_position(conversation, resolved.kind)
    return SteeringResult(
        resolved=resolved,
        mode=mode,
        conversation=conversation,
        position=position,
        model=model,
        state_after=position.state,
    )


def _expected_position(conversation: Conversation, kind: MatchKind) -> RunPosition:
    """One step after the newest call that is known; a retry is at the same step again."""
    run, newest = conversation.run, conversation.snapshot()
    if newest is None:
        return RunPosition(run=run.index, step=run.unscored_calls, state=FSMState.INIT)
    if newest.state is FSMState.END:
        return RunPosition(run=newest.run + 1, step=run.unscored_calls, state=FSMState.INIT)
    ahead = 0 if kind is MatchKind.RETRY else 1
    step = newest.steps + run.unscored_calls + ahead
    return RunPosition(run=newest.run, step=step, state=newest.state)
