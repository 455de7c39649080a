"""One call to a model: who makes it, what was decided, and what happened.

ControlHeaders   the client's orders to the gateway itself, and the tags of its run
SteeringResult   the findings and decisions, from the first moment of the request to its record
Call             both, with the facts (`gateway/exchange.py`): what is recorded of one call"""

import re
from collections.abc import Mapping

from msgspec import Struct

from gateway.budgets.guard import LeftOpen, Spending
from gateway.conversations.conversation import Conversation, RoutedCall, StepPlace, run_id
from gateway.conversations.resolve import Resolved
from gateway.core.fsm import FSMState
from gateway.core.placement import Placed
from gateway.core.steer import NO_ADVICE, Advice, Decision, RunMemory, RunPosition
from gateway.errors import BadRequest, UpstreamFailure
from gateway.exchange import Exchange
from gateway.steering.experiments import MODES
from gateway.steering.identity import Delivery, MatchKind
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import PromptMessage, StepRow
from gateway.upstream.base import RawHeaders
from gateway.upstream.deployments import Target
from gateway.values import Value
from gateway.wire.refusal import Refusal

_TAG_PREFIX = "x-gateway-tag-"
_MOST_TAGS = 16
_TAG_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_LONGEST_TAG = 120
_OUTCOMES = ("success", "failure")
STATE_HEADER = b"x-gateway-state"
_GUIDANCE_HEADER = b"x-gateway-guidance"
ActOfPerson = tuple[StepPlace, Intervention]


class ControlHeaders(Value):
    """The request headers that control the gateway itself. `experiment` and `arm`: of a
    conversation that takes part in an experiment, with its `unit`."""

    mode: str | None = None
    outcome: str | None = None
    unit: str | None = None
    tags: Mapping[str, str] = {}
    agent: str = ""
    experiment: str | None = None
    arm: str | None = None

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> "ControlHeaders":
        """The orders in a request's headers. Raises: BadRequest: a value that is not allowed;
        `param` names the header."""
        return cls(
            mode=_one_of(headers, "x-gateway-mode", MODES),
            outcome=_one_of(headers, "x-gateway-outcome", _OUTCOMES),
            unit=headers.get("x-gateway-experiment-unit"),
            tags=tags_of(headers),
            agent=headers.get("user-agent", "").split(" ")[0][:80],
        )


def _one_of(headers: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = headers.get(name)
    if value is None:
        return None
    if value not in allowed:
        raise BadRequest(f"{name} must be one of {', '.join(allowed)}", param=name)
    return value


def tags_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The tags under which a client files its run, names in lower case; long values are cut, and
    other names left out: a tag never makes a request fail. They are not forwarded."""
    found: dict[str, str] = {}
    for header, value in headers.items():
        if not header.startswith(_TAG_PREFIX):
            continue
        name = header.removeprefix(_TAG_PREFIX)
        text = value.strip()[:_LONGEST_TAG]
        if _TAG_NAME.fullmatch(name) and text.isprintable() and text and len(found) < _MOST_TAGS:
            found[name] = text
    return found


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


class Call(Struct, kw_only=True):
    """One call, from the decision about it to its record.

    `control`, `exchange` and `result`: who makes it, what happened, and what was decided; no result
    for a side request, and for one whose conversation could not be found. `model`: the one to
    request. `spending`: what is reserved of its budgets; None when none applies. `target`: the one
    that answered; `billed_model`: whose prices hold for the answer, a fallback's when that gave it.
    `completed`: the whole answer has arrived."""

    control: ControlHeaders
    exchange: Exchange
    result: SteeringResult | None = None
    model: str = ""
    spending: Spending | LeftOpen | None = None
    target: Target | None = None
    billed_model: str = ""
    completed: bool = False

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


def note_identity(exchange: Exchange, resolved: Resolved) -> None:
    """Note the conversation of a request; a side request may belong to none."""
    exchange.notes["identity"] = resolved.label
    exchange.notes["conversation"] = resolved.conversation_id
    headers = exchange.response.headers
    if named := resolved.conversation_id.encode("ascii", "replace"):
        headers.append((b"x-gateway-conversation-id", named))
    headers.append((b"x-gateway-identity", resolved.label.encode("ascii", "replace")))


def note_steering(exchange: Exchange, result: SteeringResult, arm: str | None) -> None:
    """Note the run's state and the actions on this call in headers and log line: names and numbers.
    The mode is how the request is treated; the experiment's `arm` may have another name."""
    position = result.position
    guidance = _guidance_label(result)
    headers = exchange.response.headers
    notes = exchange.notes
    state = position.state.value
    notes |= {"mode": result.mode, "step": position.step, "state": state}
    headers.append((b"x-gateway-mode", result.mode.encode()))
    headers.append((b"x-gateway-step", str(position.step).encode()))
    headers.append((STATE_HEADER, state.encode()))
    if arm is not None:
        notes["arm"] = arm
        headers.append((b"x-gateway-arm", arm.encode()))
    if (latest := position.latest) is not None:
        notes["difficulty"] = round(latest.difficulty, 4)
        notes["fired"] = latest.readings.fired
        headers.append((b"x-gateway-difficulty", b"%.4f" % latest.difficulty))
        headers.append((b"x-gateway-monitors", ",".join(latest.readings.fired).encode()))
    if guidance:
        notes["guidance"] = guidance
        if result.applies:
            headers.append((_GUIDANCE_HEADER, guidance.encode("ascii", "replace")))
    if result.reasons:
        notes["reasons"] = result.reasons


def unsteered_headers(reason: str) -> RawHeaders:
    """The header of a call that goes out without a decision."""
    return [(b"x-gateway-unsteered", reason.encode())]


def with_state(headers: RawHeaders, state: FSMState) -> RawHeaders:
    """The headers with another state of the run: its answer has changed it."""
    value = state.value.encode()
    return [(name, value if name == STATE_HEADER else old) for name, old in headers]


def without_guidance(headers: RawHeaders) -> RawHeaders:
    """The headers of a call that is sent without its guidance."""
    return [(name, value) for name, value in headers if name != _GUIDANCE_HEADER]


def _guidance_label(result: SteeringResult) -> str:
    """`tier:pattern id` of what was injected, comma separated; a monitor text has no pattern."""
    if result.decision is None or result.placed is None:
        return ""
    decided = result.decision.decided
    labels = [item.label for item in decided.items]
    return ",".join(["skip:directive", *labels] if decided.directive else labels)
