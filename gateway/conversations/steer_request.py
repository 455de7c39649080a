"""Steering one request: the pure decision of `steering.steer`, and what it has to wait for.

That is: logged steps of a run that are not in the request, a model's score of the newest step, and
the look-up of patterns. A long transcript is read in parts, between which other requests are
served: a history of thousands of messages is new as a whole to a gateway that was restarted without
its store, or that a client turns to in the middle of its work.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from gateway.conversations.conversation import Conversation, RoutedCall, RunStart
from gateway.conversations.judge import StepJudge, judge_newest
from gateway.conversations.records import later_prompts, opening_prompts
from gateway.conversations.steering_result import SteeringResult
from gateway.conversations.workloads import RunWorkloads
from gateway.dialects import SteeredRequest
from gateway.steering.experiments import RandomArm
from gateway.steering.fold import ConversationFold, RunFold, RunSnapshot, StepOutcome
from gateway.steering.guidance.decide import Decided
from gateway.steering.guidance.edits import AppendToResult, Edit, InsertMessage
from gateway.steering.guidance.lessons import LessonMatch, LessonQuery
from gateway.steering.guidance.pattern import Query
from gateway.steering.guidance.placement import Placed
from gateway.steering.guidance.settings import Gates
from gateway.steering.guidance.state import Place
from gateway.steering.guidance.target import GuidanceTarget
from gateway.steering.identity import MatchKind
from gateway.steering.steer import (
    NO_LIBRARY,
    Advice,
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
    repeat,
)
from gateway.steering.transcript.steps import Step
from gateway.steering.transcript.user_words import task_of
from gateway.stores.records import PromptMessage
from gateway.tasks import OwnTime
from gateway.wire.body_prefix import AsMappings
from gateway.wire.coerce import as_list
from gateway.wire.messages import tool_names

REFUSED_STATUSES = frozenset({400, 413, 422})
"""Answers to a request whose form or size is wrong. Source: RFC 9110, 15.5; the 422 of servers that
validate with pydantic."""
_MOST_KEPT = 2_000  # clients and models are named by clients
MESSAGES_AT_ONCE = 64
"""New messages that are read in one go: about 15 ms of processor time for messages of 2 kB."""
_MOST_ON_THE_LOOP = 2**20
"""Characters that are read on the loop in one go: as many take up to 50 ms."""
_CHARACTERS_OF_A_PART = 4096
"""A message, a part of its content and a call take as long as so many characters of text."""
_DEPTH = 3
"""Message, its calls or parts of content, and the function of a call."""
_MOST_CALLS = 128
"""Calls of one step that are scored on the loop: about 10 ms."""
Advise = Callable[[], Awaitable[Advice]]
"""Asks the call's budgets for their advice."""


class PatternLookup(Protocol):
    """Answers a plan's queries; a tier whose look-up failed is missing from the answer."""

    @property
    def gates(self) -> Gates: ...

    async def look_up_all(self, queries: Sequence[Query], tenant: str) -> Found: ...


class LessonLookup(Protocol):
    """Finds lessons for failures; nothing when it cannot."""

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]: ...


class StepHistory(Protocol):
    """Reads the recorded steps of a run."""

    async def read(
        self, tenant: str, conversation_id: str, upto: RunSnapshot
    ) -> Sequence[Step]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """Properties of the models that may be asked.

    `target_of`: how guidance may be placed in a request to a model. `refusal`: why a model cannot
    serve a request; None when it can.
    """

    target_of: Callable[[str], GuidanceTarget]
    refusal: Callable[[str, SteeredRequest], str | None]


class RequestSteerer:
    """Decides about requests by one set of rules."""

    def __init__(
        self,
        rules: SteeringRules,
        models: ModelTraits,
        lookup: PatternLookup | None,
        history: StepHistory | None = None,
        judge: StepJudge | None = None,
        lessons: LessonLookup | None = None,
        workloads: RunWorkloads | None = None,
        places: RefusedPlaces | None = None,
    ) -> None:
        self.rules = rules
        self._places = places or RefusedPlaces()
        self._models = models
        self._lookup = lookup
        self._history = history
        self._judge = judge
        self._lessons = lessons
        self._workloads = workloads or RunWorkloads(rules)

    async def steer(
        self,
        result: SteeringResult,
        request: SteeredRequest,
        now: float,
        own_time: OwnTime,
        arm: RandomArm | None = None,
        advise: Advise | None = None,
    ) -> None:
        """Decide about one request of a known conversation; `result` takes what is found.

        `arm`: the control arm, which decides when to act; None = the readings decide. `advise`:
        asks the call's budgets, once its run is known. `now` in seconds of the epoch.

        Raises:
            DeadlinePassed: no decision in time; the steps that were scored are kept.
        """
        conversation = result.conversation
        if result.resolved.unread:
            result.reasons.append(f"store: degraded ({result.resolved.unread}), not asked")
        async with conversation.lock:
            await self._read_earlier_steps(conversation)
            await self._observe(result, request, now)
            own_time.check()
            if result.mode == "off":
                result.model = _repeated(result, request) or request.model
                return
            if result.resolved.match.kind is not MatchKind.RETRY:
                conversation.run.count_call()
            if advise is not None:
                result.advice = await advise()
            memory = await self._decide(result, request, arm, own_time)
            self._keep(result, request, memory)

    def repeat_earlier(self, result: SteeringResult, request: SteeredRequest, reason: str) -> None:
        """Let a call without a decision have what was injected before it, and no more.

        The provider's prompt cache keeps its prefix and the advice does not fade; the run's memory
        stays as it is. `reason`: why there is no decision.
        """
        result.unsteered, result.decision, result.placed = reason, None, None
        result.reasons.append(f"unsteered: {reason}")
        result.model = _repeated(result, request) or request.model
        if not result.unread:  # there is no place for it without the messages
            self._place_earlier(result, request)

    def _place_earlier(self, result: SteeringResult, request: SteeredRequest) -> None:
        current = result.conversation.run
        if result.mode == "off" or result.position.run != current.index:
            return  # nothing is injected, or a new run begins
        decided = repeat(
            current.memory, result.position.step, server_keeps_history=request.earlier is not None
        )
        result.placed = self._placed(result, request, decided)

    async def catch_up(self, result: SteeringResult, request: SteeredRequest, now: float) -> None:
        """Score the steps of a call that was forwarded before that, for its record.

        If it cannot be done, the call is recorded at the step where it is expected to be.
        """
        if result.observed:
            return
        retries = result.resolved.match.kind is MatchKind.RETRY
        async with result.conversation.lock:
            try:
                await self._read_transcript(result, request, now)
            except Exception:
                result.conversation.run.unscored_calls += not retries
                raise

    async def _read_earlier_steps(self, conversation: Conversation) -> None:
        """Start the fold with the logged steps of a run that are not in this request."""
        run = conversation.run
        start: RunStart | None = run.start
        unread = run.fold is None and run.kept_fold is None
        if unread and start and start.logged_in and self._history:
            earlier = await self._history.read(conversation.tenant, start.logged_in, start.snapshot)
            run.ready_fold(self.rules.policy, earlier)

    async def _observe(self, result: SteeringResult, request: SteeredRequest, now: float) -> None:
        """Score what is new in the transcript, and find where the run is."""
        run = await self._read_transcript(result, request, now)
        if self._judge is not None:
            with timed(result.timings_ms, "judge"):
                asks = result.mode != "off" and result.resolved.match.kind is not MatchKind.RETRY
                judge = self._judge if asks else None
                result.reasons += await judge_newest(judge, result.conversation, run)
            result.position, result.state_after = RunPosition.of(run), run.state

    async def _read_transcript(
        self, result: SteeringResult, request: SteeredRequest, now: float
    ) -> RunFold:
        """Fold the new steps of a request, a long one in parts; its newest run."""
        conversation = result.conversation
        with timed(result.timings_ms, "observe"):
            transcript = request.transcript
            fold = conversation.run.ready_fold(
                self.rules.policy, prior=self._workloads.prior(result, request)
            )
            try:
                outcomes = await fold_transcript(fold, transcript)
                run = self._take(conversation, fold, outcomes, now)
            except BaseException:
                conversation.run.fold = None  # what is stored counts, not a fold half read
                raise
            stored = conversation.unsaved.snapshot
            fresh = [r for r in fold.runs if stored is None or r.index > stored.run]
            result.position, result.state_after = RunPosition.of(run), run.state
            result.tasks = await tasks_of(fresh, transcript)
            result.prompts = _prompts(conversation, request, run)
            result.observed = True
        return run

    def _take(
        self,
        conversation: Conversation,
        fold: ConversationFold,
        outcomes: Sequence[StepOutcome],
        now: float,
    ) -> RunFold:
        """Keep the outcomes of new steps; the newest run, with its memory up to date."""
        conversation.unsaved.add(outcomes)
        conversation.run.unscored_calls = 0
        current, run = conversation.run, fold.current
        if run.index != current.index:
            current.begin(run.index, now)
        current.memory = observe(current.memory, outcomes, run.index)
        steps = sum(each.steps for each in fold.runs)
        if steps != conversation.history.branch.steps:
            conversation.history.branch = replace(conversation.history.branch, steps=steps)
        return run

    async def _decide(
        self,
        result: SteeringResult,
        request: SteeredRequest,
        arm: RandomArm | None,
        own_time: OwnTime,
    ) -> RunMemory:
        """Route, plan, look up, decide and place; what the run remembers after it."""
        current, rules = result.conversation.run, self.rules
        proposal = propose(
            rules, current.memory, result.position, self._facts(result, request, arm)
        )
        found: Found = {}
        if proposal.plan.queries and self._lookup is not None:
            with timed(result.timings_ms, "look_up"):
                found = await self._lookup.look_up_all(
                    proposal.plan.queries, result.conversation.tenant
                )
            own_time.check()
        lessons: Sequence[LessonMatch] = ()
        if proposal.lessons is not None and self._lessons is not None:
            with timed(result.timings_ms, "look_up"):
                lessons = await self._lessons.find(proposal.lessons, result.conversation.tenant)
            own_time.check()
        result.model = proposal.model
        decision = conclude(
            rules,
            current.memory,
            proposal,
            found,
            lessons,
            server_keeps_history=request.earlier is not None,
        )
        result.reasons += decision.reasons
        result.decision = decision
        with timed(result.timings_ms, "place"):
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
        if result.unsteered:
            self._place_earlier(result, request)
            return
        memory = current.memory
        if result.decision is not None:
            memory = self._place(result, request, result.decision)
        self._keep(result, request, replace(memory, pinned_model=None))

    def send_as_written(self, result: SteeringResult) -> frozenset[Place]:
        """Take the guidance out of a call that was refused; the places where it was.

        What is new with this call is forgotten; what earlier calls got stays remembered.
        """
        placed, run = result.placed, result.conversation.run
        if placed is None:
            return frozenset()
        if result.memory_before is not None and run.routed is result.kept:
            run.memory = result.memory_before
        else:  # another call of the conversation was decided meanwhile
            guidance = run.memory.guidance
            kept = tuple(each for each in guidance.injections if each not in placed.added)
            run.memory = replace(run.memory, guidance=replace(guidance, injections=kept))
        result.placed = None
        result.reasons.append("guidance: refused by the upstream, sent as the client wrote it")
        return places_of(placed.edits)

    def close_places(
        self, result: SteeringResult, request: SteeredRequest, places: frozenset[Place]
    ) -> None:
        """Do not use these places again for this client: without them the call was accepted."""
        self._places.close(_client(result, request), places)
        result.reasons.append(f"guidance: {', '.join(sorted(places))} closed for this client")

    @staticmethod
    def _keep(result: SteeringResult, request: SteeredRequest, memory: RunMemory) -> None:
        """The decision was made in time: the run remembers it."""
        current = result.conversation.run
        if result.memory_before is None:
            result.memory_before = current.memory
        current.memory = memory
        current.routed = result.kept = RoutedCall(
            prefix_hash=result.resolved.incoming.hashes.state.digest,
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
            tools=lambda: tool_names(request.body),
            unit=result.conversation.experiment_unit,
            advice=result.advice,
            rates=self._workloads.rates(result, request),
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
        placed = self._placed(result, request, decision.decided)
        if placed is None:
            return decision.memory
        result.placed = placed
        kept = placed.state if result.applies else replace(placed.state, injections=())
        return replace(decision.memory, guidance=kept)

    def _placed(
        self, result: SteeringResult, request: SteeredRequest, decided: Decided
    ) -> Placed | None:
        closed = self._places.closed(_client(result, request))

        def target() -> GuidanceTarget:
            given = self._models.target_of(result.model)
            allowed = request.dialect.target(given, request, result.model)
            return replace(allowed, closed=closed) if closed else allowed

        placed = place(
            self.rules,
            decided,
            lambda: AsMappings(request.dialect.placeable(request)),
            target,
            marked(request.body),
        )
        return None if closed and placed is not None and not placed.edits else placed


def _client(result: SteeringResult, request: SteeredRequest) -> Client:
    tenant = result.conversation.tenant
    return Client(tenant, result.agent, request.dialect.name, result.model)


def _repeated(result: SteeringResult, request: SteeredRequest) -> str | None:
    """The model that the same call went to before, when this is a retry of it."""
    routed = result.conversation.run.routed
    if routed is None or result.resolved.match.kind is not MatchKind.RETRY:
        return None
    same = (routed.prefix_hash, routed.requested) == (
        result.resolved.incoming.hashes.state.digest,
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


def marked(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Places of cache markers besides the messages: the tools, and the request as a whole."""
    tools = [tool for tool in as_list(body.get("tools")) if isinstance(tool, dict)]
    return [*tools, {"cache_control": body.get("cache_control")}]


class Client(NamedTuple):
    """Requests of one kind: those that one program of a tenant sends to one model."""

    tenant: str
    agent: str
    dialect: str
    model: str


class RefusedPlaces:
    """The places where guidance made an upstream refuse a client's requests, by client.

    Clients send kinds of items that no documentation names yet, and upstreams check requests
    strictly. A request that was refused with guidance and accepted as the client wrote it shows
    that the guidance was at a wrong place: it is not used again for this client. Those that were
    closed longest ago are forgotten.
    """

    def __init__(self) -> None:
        self._closed: OrderedDict[Client, frozenset[Place]] = OrderedDict()

    def closed(self, client: Client) -> frozenset[Place]:
        """The places where this client's requests take no guidance."""
        if not self._closed:  # a client without a refusal pays for no look-up
            return frozenset()
        return self._closed.get(client, frozenset())

    def close(self, client: Client, places: frozenset[Place]) -> None:
        """Do not use these places again for this client."""
        self._closed[client] = self.closed(client) | places
        self._closed.move_to_end(client)
        if len(self._closed) > _MOST_KEPT:
            self._closed.popitem(last=False)


def places_of(edits: Sequence[Edit]) -> frozenset[Place]:
    """The kinds of places that edits use."""
    return frozenset(map(_place_of, edits))


def _place_of(edit: Edit) -> Place:
    if isinstance(edit, InsertMessage):
        return "message"
    return "result" if isinstance(edit, AppendToResult) else "system"


async def fold_transcript(
    fold: ConversationFold, transcript: Sequence[Any]
) -> Sequence[StepOutcome]:
    """The outcomes of the new steps of a transcript, as `ConversationFold.extend` gives them."""
    in_thread, goes_on = False, fold.consumed < len(transcript)
    while goes_on:
        new = transcript[fold.consumed : fold.consumed + MESSAGES_AT_ONCE]
        in_thread = in_thread or sum(map(_weight, new)) > _MOST_ON_THE_LOOP
        in_thread = in_thread or fold.open_calls > _MOST_CALLS
        if in_thread:
            goes_on = await asyncio.to_thread(fold.read_ahead, transcript, MESSAGES_AT_ONCE)
        else:
            goes_on = fold.read_ahead(transcript, MESSAGES_AT_ONCE)
            if goes_on:
                await asyncio.sleep(0)
    starts_over = fold.starts_over and len(transcript) > MESSAGES_AT_ONCE
    if in_thread or starts_over or fold.open_calls > _MOST_CALLS:
        return await asyncio.to_thread(fold.extend, transcript)
    return fold.extend(transcript)


async def tasks_of(runs: Sequence[RunFold], transcript: Sequence[Any]) -> dict[int, str]:
    """The user's task in each of these runs, by the index of the run."""
    tasks = {}
    for count, run in enumerate(runs, start=1):
        tasks[run.index] = task_of(transcript, run.start)
        if count % MESSAGES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return tasks


def _weight(message: object, depth: int = _DEPTH) -> int:
    """About how long a message takes to read, in characters of plain text."""
    weight = _CHARACTERS_OF_A_PART
    if not isinstance(message, dict):
        return weight
    for value in message.values():
        if isinstance(value, str):
            weight += len(value)
        elif depth > 1 and isinstance(value, dict):
            weight += _weight(value, depth - 1)
        elif depth > 1 and isinstance(value, list):
            for part in value:
                if isinstance(part, dict):
                    weight += _weight(part, depth - 1)
    return weight


class timed:
    """Adds the elapsed time to `timings`, in milliseconds, unless the block fails."""

    __slots__ = ("_begun", "_name", "_timings")

    def __init__(self, timings: dict[str, float], name: str) -> None:
        self._timings = timings
        self._name = name

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            spent_ms = (time.perf_counter() - self._begun) * 1000
            self._timings[self._name] = self._timings.get(self._name, 0.0) + spent_ms
