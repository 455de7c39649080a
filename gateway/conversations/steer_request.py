"""Steering one request: the pure decision of `steering.steer`, and what it has to wait for.

That is: logged steps of a run that are not in the request, a model's score of the newest step, and
the look-up of patterns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gateway.conversations.conversation import Conversation, RoutedCall, RunStart
from gateway.conversations.judge import StepJudge, judge_newest
from gateway.conversations.prompts import later_prompts, opening_prompts, task_of
from gateway.conversations.resolve import Resolved
from gateway.dialects import SteeredRequest
from gateway.steering.experiments import RandomArm
from gateway.steering.fold import ConversationFold, RunFold, RunSnapshot, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.decide import Decided
from gateway.steering.guidance.edits import Edit
from gateway.steering.guidance.pattern import Query
from gateway.steering.guidance.placement import Placed
from gateway.steering.guidance.settings import Gates
from gateway.steering.guidance.target import GuidanceTarget
from gateway.steering.identity import MatchKind
from gateway.steering.steer import (
    NO_LIBRARY,
    CallFacts,
    Decision,
    Found,
    RunMemory,
    RunPosition,
    SteeringRules,
    conclude,
    observe,
    place,
    propose,
)
from gateway.steering.transcript.steps import Step
from gateway.stores.records import PromptMessage
from gateway.wire.coerce import as_list
from gateway.wire.views import AsMappings


class PatternLookup(Protocol):
    """Answers a plan's queries; a tier whose look-up failed is missing from the answer."""

    @property
    def gates(self) -> Gates: ...

    async def look_up_all(self, queries: Sequence[Query], tenant: str) -> Found: ...


class StepHistory(Protocol):
    """Reads the recorded steps of a run."""

    async def read(
        self, tenant: str, conversation_id: str, upto: RunSnapshot
    ) -> Sequence[Step]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """What is known of the models that may be asked.

    `target_of`: how guidance may be placed in a request to a model. `refusal`: why a model cannot
    serve a request; None when it can.
    """

    target_of: Callable[[str], GuidanceTarget]
    refusal: Callable[[str, SteeredRequest], str | None]


class DeadlinePassed(Exception):
    """Steering took longer than `steering.deadline_ms`."""


@dataclass(slots=True, kw_only=True)
class SteeringResult:
    """What steering found and decided about one request.

    `state_after`: the position's state, or END when the answer was final. `tasks`: the first user
    message of each run that the store does not have. `prompts`: new messages of this call that
    belong to no step; on the first call of a run, its opening. `stored`: whether the store has the
    call already, without its answer.
    """

    resolved: Resolved
    mode: str
    conversation: Conversation
    position: RunPosition
    model: str
    state_after: FSMState
    placed: Placed | None = None
    decision: Decision | None = None
    tasks: dict[int, str] = field(default_factory=dict)
    prompts: list[PromptMessage] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    stored: bool = False
    timings_ms: dict[str, float] = field(default_factory=dict)

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


class RequestSteerer:
    """Decides about requests by one set of rules."""

    def __init__(
        self,
        rules: SteeringRules,
        models: ModelTraits,
        lookup: PatternLookup | None,
        history: StepHistory | None = None,
        judge: StepJudge | None = None,
        *,
        deadline_s: float,
    ) -> None:
        self.rules = rules
        self._models = models
        self._lookup = lookup
        self._history = history
        self._judge = judge
        self._deadline_s = deadline_s

    async def steer(
        self,
        resolved: Resolved,
        request: SteeredRequest,
        mode: str,
        started: float,
        now: float,
        arm: RandomArm | None = None,
    ) -> SteeringResult:
        """The decision about one request of a known conversation.

        `arm`: the control arm, which decides when to act; None = the readings decide. `started` is
        on the monotonic clock of `time.perf_counter`, `now` in seconds of the epoch.

        Raises:
            DeadlinePassed: no decision in time; the steps that were scored are kept.
        """
        conversation = resolved.conversation
        if conversation is None:
            raise ValueError("a side request is not steered")
        try:
            async with conversation.lock:
                await self._read_earlier_steps(conversation)
                result = await self._observe(resolved, conversation, request, mode, now)
                self._check(started)
                if mode == "off":
                    result.model = _repeated(result, request) or request.model
                else:
                    if resolved.kind is not MatchKind.RETRY:
                        conversation.run.count_call()
                    memory = await self._decide(result, request, arm)
                    self._check(started)
                    self._keep(result, request, memory)
                return result
        except BaseException:
            # The request goes out unsteered, and its answer will not be reported here.
            branch, served = conversation.history.branch, resolved.incoming.hashes.full
            conversation.history.branch = branch.failed(served)
            raise

    def _check(self, started: float) -> None:
        if time.perf_counter() - started > self._deadline_s:
            raise DeadlinePassed

    async def _read_earlier_steps(self, conversation: Conversation) -> None:
        """Start the fold with the logged steps of a run that are not in this request."""
        start: RunStart | None = conversation.run.start
        if conversation.run.fold is None and start and start.logged_in and self._history:
            earlier = await self._history.read(conversation.tenant, start.logged_in, start.snapshot)
            conversation.run.ready_fold(self.rules.policy, earlier)

    async def _observe(
        self,
        resolved: Resolved,
        conversation: Conversation,
        request: SteeredRequest,
        mode: str,
        now: float,
    ) -> SteeringResult:
        """Score what is new in the transcript, and find where the run is."""
        timings: dict[str, float] = {}
        with _timed(timings, "observe"):
            transcript = request.transcript
            fold = conversation.run.ready_fold(self.rules.policy)
            run = self._score(conversation, fold, transcript, now)
        reasons: list[str] = []
        if self._judge is not None:
            with _timed(timings, "judge"):
                asks = mode != "off" and resolved.kind is not MatchKind.RETRY
                reasons = await judge_newest(self._judge if asks else None, conversation, run)
        with _timed(timings, "observe"):
            stored = conversation.unsaved.snapshot
            fresh = [r for r in fold.runs if stored is None or r.index > stored.run]
            return SteeringResult(
                resolved=resolved,
                mode=mode,
                conversation=conversation,
                position=RunPosition.of(run),
                model=request.model,
                state_after=run.state,
                tasks={r.index: task_of(transcript, r.start) for r in fresh},
                prompts=_prompts(conversation, request, run),
                reasons=reasons,
                timings_ms=timings,
            )

    def _score(
        self,
        conversation: Conversation,
        fold: ConversationFold,
        transcript: Sequence[Any],
        now: float,
    ) -> RunFold:
        """Fold the new steps; the newest run, with its memory up to date."""
        outcomes = fold.extend(transcript)
        conversation.unsaved.add(outcomes)
        current, run = conversation.run, fold.current
        if run.index != current.index:
            current.begin(run.index, now)
        current.memory = observe(current.memory, outcomes, run.index)
        steps = sum(each.steps for each in fold.runs)
        if steps != conversation.history.branch.steps:
            conversation.history.branch = replace(conversation.history.branch, steps=steps)
        return run

    async def _decide(
        self, result: SteeringResult, request: SteeredRequest, arm: RandomArm | None
    ) -> RunMemory:
        """Route, plan, look up, decide and place; what the run remembers after it."""
        current, rules = result.conversation.run, self.rules
        proposal = propose(
            rules, current.memory, result.position, self._facts(result, request, arm)
        )
        result.model = proposal.model
        found: Found = {}
        if proposal.plan.queries and self._lookup is not None:
            with _timed(result.timings_ms, "look_up"):
                found = await self._lookup.look_up_all(
                    proposal.plan.queries, result.conversation.tenant
                )
        decision = conclude(
            rules,
            current.memory,
            proposal,
            found,
            server_keeps_history=request.earlier is not None,
        )
        result.reasons += decision.reasons
        result.decision = decision
        with _timed(result.timings_ms, "place"):
            return self._place(result, request, decision)

    def use_requested_model(
        self, result: SteeringResult, request: SteeredRequest, reason: str
    ) -> None:
        """Use the requested model after the routed one refused a call and let that one rest."""
        current, refused = result.conversation.run, result.model
        result.model = request.model
        result.reasons.append(f"routing: {refused} refused: {reason}")
        if self.rules.routing.rest_calls:
            current.resting[refused] = self.rules.routing.rest_calls
        memory = current.memory
        if result.decision is not None:
            memory = self._place(result, request, result.decision)
        self._keep(result, request, replace(memory, pinned_model=None))

    @staticmethod
    def _keep(result: SteeringResult, request: SteeredRequest, memory: RunMemory) -> None:
        """The decision was made in time: the run remembers it."""
        current = result.conversation.run
        current.memory = memory
        current.routed = RoutedCall(
            prefix_hash=result.resolved.incoming.hashes.full,
            requested=request.model,
            model=result.model,
        )

    def _facts(
        self, result: SteeringResult, request: SteeredRequest, arm: RandomArm | None
    ) -> CallFacts:
        return CallFacts(
            requested=request.model,
            serves=lambda model: self._refusal(result, request, model),
            repeats_model=_repeated(result, request),
            gates=self._lookup.gates if self._lookup else NO_LIBRARY,
            arm=arm,
        )

    def _refusal(self, result: SteeringResult, request: SteeredRequest, model: str) -> str | None:
        """Why a model is not used: it rests, or cannot serve the request; None when it can."""
        left = result.conversation.run.resting.get(model)
        if left is not None:
            return f"it refused a call, {left} more without it"
        return self._models.refusal(model, request)

    def _place(
        self, result: SteeringResult, request: SteeredRequest, decision: Decision
    ) -> RunMemory:
        dialect, model = request.dialect, result.model
        placed = place(
            self.rules,
            decision.decided,
            lambda: AsMappings(dialect.placeable(request)),
            lambda: dialect.target(self._models.target_of(model), request, model),
            _tools(request.body),
        )
        if placed is None:
            return decision.memory
        result.placed = placed
        kept = placed.state if result.applies else replace(placed.state, injections=())
        return replace(decision.memory, guidance=kept)


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    """Add the elapsed time to `timings`, in milliseconds."""
    begun = time.perf_counter()
    yield
    timings[name] = timings.get(name, 0.0) + (time.perf_counter() - begun) * 1000


def _repeated(result: SteeringResult, request: SteeredRequest) -> str | None:
    """The model that the same call went to before, when this is a retry of it."""
    routed = result.conversation.run.routed
    if routed is None or result.resolved.kind is not MatchKind.RETRY:
        return None
    same = (routed.prefix_hash, routed.requested) == (
        result.resolved.incoming.hashes.full,
        request.model,
    )
    return routed.model if same else None


def _prompts(
    conversation: Conversation, request: SteeredRequest, run: RunFold
) -> list[PromptMessage]:
    transcript, stored = request.transcript, conversation.unsaved.snapshot
    latest = run.outcomes[-1].step if run.outcomes else None
    if not run.steps:
        return opening_prompts(request.body, transcript, run.start)
    later = later_prompts(transcript, latest)
    if stored is not None and stored.run >= run.index:
        return later
    # The run began before the gateway saw it.
    return opening_prompts(request.body, transcript, run.start) + later


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [tool for tool in as_list(body.get("tools")) if isinstance(tool, Mapping)]
