"""Steering one request: fold, plan, look up, decide; then what is kept of the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gateway.conversations.judge import Judging, judged
from gateway.conversations.memo import Conversation
from gateway.conversations.message_view import AsMappings
from gateway.conversations.prompts import later_prompts, opening_prompts, task_of
from gateway.conversations.recall import Recalled
from gateway.conversations.steered import Steered
from gateway.dialects import SteeredRequest
from gateway.steering.acting import ActSettings, Standing, planned_actions, routed_state, worth_it
from gateway.steering.calibration import shipped_calibration
from gateway.steering.chance import Chance, Stance
from gateway.steering.conversation import MatchKind
from gateway.steering.etrace.decide import Decided, decide
from gateway.steering.etrace.gate import Moment, Plan, note, plan
from gateway.steering.etrace.pattern import Match, Query, Tier
from gateway.steering.etrace.placement import place
from gateway.steering.etrace.settings import EtraceSettings, Gates, InjectionSettings
from gateway.steering.etrace.state import GuidanceState
from gateway.steering.etrace.target import Target
from gateway.steering.fold import Carried, ConversationFold, RunFold, StepOutcome
from gateway.steering.policy import Policy
from gateway.steering.routing import Route, Routes, RoutingSettings, Serves, choose
from gateway.steering.steps import Step
from gateway.stores.records import PromptMessage

Found = Mapping[Tier, Sequence[Match]]


class Lookup(Protocol):
    """Answers a plan's queries; a tier whose look-up failed is missing from the answer."""

    @property
    def gates(self) -> Gates: ...

    async def __call__(self, queries: Sequence[Query], tenant: str) -> Found: ...


class Past(Protocol):
    """Knows the steps of a run that are on record."""

    async def __call__(
        self, tenant: str, conversation_id: str, upto: Carried
    ) -> Sequence[Step]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringRules:
    """Everything that decides about one request, from one version of the settings."""

    policy: Policy
    routes: Routes
    routing: RoutingSettings
    acting: ActSettings
    wrap_up_at: int | None
    """Tokens of a run from which it is told to hand over what it has; None = never."""

    etraces: EtraceSettings
    injection: InjectionSettings
    target_of: Callable[[str], Target]
    serves: Callable[[str, SteeredRequest], str | None]


class DeadlinePassed(Exception):
    """Steering took longer than `steering.deadline_ms`."""


class Steering:
    """Decides about requests by one set of rules."""

    def __init__(
        self,
        rules: SteeringRules,
        lookup: Lookup | None,
        past: Past | None = None,
        judge: Judging | None = None,
        *,
        deadline_s: float,
    ) -> None:
        self.rules = rules
        self._lookup = lookup
        self._past = past
        self._judge = judge
        self._deadline_s = deadline_s

    async def __call__(
        self,
        recalled: Recalled,
        request: SteeredRequest,
        mode: str,
        started: float,
        now: float,
        chance: Chance | None = None,
    ) -> Steered:
        """The decision about one request of a known conversation.

        `chance` decides when to act, None = the readings do. `started` is on the monotonic clock of
        `time.perf_counter`, `now` in seconds of the epoch.

        Raises:
            DeadlinePassed: no decision in time; what was folded so far is kept.
        """
        conversation = recalled.conversation
        if conversation is None:
            raise ValueError("a side request is not steered")
        try:
            async with conversation.lock:
                if conversation.fold is None and conversation.base is not None:
                    await self._go_on(conversation, conversation.base)
                steered = await self._observe(recalled, conversation, request, mode, now)
                self._stand(steered, chance)
                return await self._steer(steered, request, started)
        except BaseException:
            # The call goes out all the same, and nobody will tell what became of it.
            served = recalled.incoming.heads.full
            conversation.branch = conversation.branch.failed(served)
            raise

    async def _steer(self, steered: Steered, request: SteeredRequest, started: float) -> Steered:
        self._check(started)
        self._route(steered, request)
        if steered.mode != "off":
            await self._guide(steered, steered.conversation, request)
            self._check(started)
        return steered

    async def _go_on(self, conversation: Conversation, base: Carried) -> None:
        """Take up a run whose steps this request does not bring, with what came before."""
        if self._past is not None and conversation.base_of:
            earlier = await self._past(conversation.tenant, conversation.base_of, base)
            conversation.ready_fold(self.rules.policy, earlier)

    def _check(self, started: float) -> None:
        if time.perf_counter() - started > self._deadline_s:
            raise DeadlinePassed

    async def _observe(
        self,
        recalled: Recalled,
        conversation: Conversation,
        request: SteeredRequest,
        mode: str,
        now: float,
    ) -> Steered:
        """Score what is new in the transcript and find where the run stands."""
        begun = time.perf_counter()
        fold = conversation.ready_fold(self.rules.policy)
        transcript = request.transcript
        outcomes = fold.extend(transcript)
        run = fold.current
        self._learn(conversation, outcomes, run, now)
        waits = time.perf_counter()
        asks = mode != "off" and recalled.kind is not MatchKind.RETRY
        reasons = await judged(self._judge if asks else None, conversation, run)
        waited = time.perf_counter() - waits
        steps = _total_steps(fold)
        if steps != conversation.branch.steps:
            conversation.branch = replace(conversation.branch, steps=steps)
        latest = run.outcomes[-1] if run.outcomes else None
        standing = Standing(state=run.state, readings=latest.readings if latest else None)
        return Steered(
            recalled=recalled,
            mode=mode,
            conversation=conversation,
            run=run.index,
            state=run.state,
            step=run.steps,
            latest=latest,
            stance=Stance(routing=standing, guidance=standing),
            model=request.model,
            state_after=run.state,
            tasks={r.index: task_of(transcript, r.start) for r in _new_runs(conversation, fold)},
            prompts=_prompts(conversation, request, run),
            reasons=reasons,
            timings_ms={
                "observe": (time.perf_counter() - begun - waited) * 1000,
                **({"judge": waited * 1000} if self._judge else {}),
            },
        )

    def _learn(
        self,
        conversation: Conversation,
        outcomes: Sequence[StepOutcome],
        run: RunFold,
        now: float,
    ) -> None:
        """Take newly scored steps into the conversation, and those of its newest run into the gates
        of its guidance."""
        conversation.learn(outcomes)
        if run.index != conversation.run:
            conversation.begin_run(run.index, now)
        lookback = self.rules.etraces.e1_lookback_steps
        for outcome in outcomes:
            if outcome.run == run.index:
                conversation.guidance = note(
                    conversation.guidance, outcome.index, outcome.readings, lookback
                )

    def _stand(self, steered: Steered, chance: Chance | None) -> None:
        """Let chance, where the arm is its own, say whether to act."""
        if chance is None:
            return
        weights = self.rules.policy.monitors.resolved_weights()
        steered.stance = chance.stance(steered.step, steered.stance.routing, weights)
        steered.reasons += steered.stance.reasons

    def _route(self, steered: Steered, request: SteeredRequest) -> None:
        conversation = steered.conversation
        head = steered.recalled.incoming.heads.full
        again = conversation.decided
        retried = steered.recalled.kind is MatchKind.RETRY
        if retried and again and again[:2] == (head, request.model):
            steered.model = again[2]
            return
        if steered.mode == "off":
            return
        route = self._choose(steered, request)
        steered.model, conversation.held = route.model, route.held
        steered.reasons += route.reasons
        conversation.decided = (head, request.model, route.model)

    def _choose(self, steered: Steered, request: SteeredRequest) -> Route:
        serves: Serves = lambda model: self.rules.serves(model, request)  # noqa: E731
        standing, routes = steered.stance.routing, self.rules.routes
        state = standing.state
        if routes.models(request.model):
            state, reason = routed_state(state, partial(self._worth, standing))
            steered.reasons += [reason] if reason else []
        return choose(
            state,
            request.model,
            steered.step,
            routes=routes,
            settings=self.rules.routing,
            held=steered.conversation.held,
            serves=serves,
        )

    async def _guide(
        self, steered: Steered, conversation: Conversation, request: SteeredRequest
    ) -> None:
        """Plan the guidance of this call, look patterns up when the plan asks, and place it."""
        begun = time.perf_counter()
        planned = self._plan(steered, conversation.guidance)
        found: Found = {}
        if planned.queries and self._lookup is not None:
            found = await self._lookup(planned.queries, conversation.tenant)
        looked_up = time.perf_counter()
        rules = self.rules
        decided = decide(conversation.guidance, planned, found, rules.injection)
        steered.reasons += decided.reasons
        if request.earlier is not None:
            decided = _without_kept(decided)
        needed = decided.items or decided.directive or decided.state.injections
        if not needed:
            conversation.guidance = decided.state
            return
        placed = place(
            AsMappings(request.dialect.placeable(request)),
            decided,
            target=request.dialect.target(rules.target_of(steered.model), request, steered.model),
            settings=rules.injection,
            tools=_tools(request.body),
        )
        kept = placed.state if steered.applies else replace(placed.state, injections=())
        conversation.guidance = kept
        steered.decided, steered.placed, steered.edits = decided, placed, placed.edits
        steered.timings_ms["look_up"] = (looked_up - begun) * 1000
        steered.timings_ms["place"] = (time.perf_counter() - looked_up) * 1000

    def _plan(self, steered: Steered, guidance: GuidanceState) -> Plan:
        standing = steered.stance.guidance
        run = steered.conversation.ready_fold(self.rules.policy).current
        moment = Moment(
            step=steered.step or None,
            state=standing.state,
            readings=standing.readings,
            recent=run.recent,
            model=steered.model,
            at_risk=standing.at_risk,
        )
        gates = self._lookup.gates if self._lookup else Gates(e1=1.0, e2=1.0)
        planned = plan(guidance, moment, self.rules.etraces, self.rules.injection, gates)
        planned = planned_actions(planned, partial(self._worth, standing))
        return replace(planned, directive=True) if self._spent(steered) else planned

    def _spent(self, steered: Steered) -> bool:
        """Whether the run has used up its tokens, and is to be told."""
        limit = self.rules.wrap_up_at
        if limit is None or steered.conversation.run_tokens < limit:
            return False
        steered.reasons.append("budget: token_budget used up")
        return True

    def _worth(self, standing: Standing, action: str) -> bool:
        rules = self.rules
        calibration = rules.policy.difficulty.calibration or shipped_calibration()
        return worth_it(action, standing.state, standing.readings, calibration, rules.acting)


def _without_kept(decided: Decided) -> Decided:
    """Without the earlier blocks between messages: the server has kept them with the history."""
    kept = tuple(
        block
        for block in decided.state.injections
        if block.place == "system" or block.step >= decided.step
    )
    return replace(decided, state=replace(decided.state, injections=kept))


def _new_runs(conversation: Conversation, fold: ConversationFold) -> list[RunFold]:
    last = conversation.last
    return [run for run in fold.runs if last is None or run.index > last.run]


def _prompts(
    conversation: Conversation, request: SteeredRequest, run: RunFold
) -> list[PromptMessage]:
    transcript, last = request.transcript, conversation.last
    latest = run.outcomes[-1].step if run.outcomes else None
    if not run.steps:
        return opening_prompts(request.body, transcript, run.start)
    later = later_prompts(transcript, latest)
    if last is not None and last.run >= run.index:
        return later
    # The run began before the gateway saw it.
    return opening_prompts(request.body, transcript, run.start) + later


def _total_steps(fold: ConversationFold) -> int:
    return sum(run.steps for run in fold.runs)


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tools = body.get("tools")
    return [t for t in tools if isinstance(t, Mapping)] if isinstance(tools, list) else []
