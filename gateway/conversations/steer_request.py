"""Steering one request: the pure decision of `core.steer`, and what it has to wait for.

That is: logged steps of a run that are not in the request, a model's score of the newest step, and
the look-up of patterns."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from cachetools import TTLCache
from msgspec.structs import replace

from gateway.conversations.conversation import (
    KEPT_OUTCOMES,
    MAX_UNSAVED_STEPS,
    Conversation,
    RoutedCall,
    Undecided,
)
from gateway.conversations.judge import ModelJudge, judge_newest
from gateway.conversations.observe import note_messages, observe_steps, opening_prompts
from gateway.conversations.steering_result import SteeringResult
from gateway.conversations.workloads import RunWorkloads
from gateway.core.decide import Decided, LessonMatch, LessonQuery
from gateway.core.edits import AppendToResult, Edit, InsertMessage
from gateway.core.fold import RunFold, RunSnapshot, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.guidance_settings import Gates
from gateway.core.guidance_state import Place
from gateway.core.monitors.muting import without_muted
from gateway.core.pattern import Query
from gateway.core.placement import Placed, place
from gateway.core.steer import (
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
    propose,
    repeat,
)
from gateway.core.step import Step
from gateway.core.target import GuidanceTarget
from gateway.core.two_strikes import HELD
from gateway.dialects import SteeredRequest
from gateway.steering.identity import MatchKind
from gateway.tasks import OwnTime
from gateway.values import Fields, frozen
from gateway.wire.body_prefix import AsMappings
from gateway.wire.messages import tool_names
from gateway.wire.prefix_hash import PrefixHashes
from gateway.wire.upstream_errors import Kind

REFUSED_STATUSES = frozenset({400, 413, 422})
"""Answers to a request whose form or size is wrong. Source: RFC 9110, 15.5; the 422 of servers that
validate with pydantic."""
_CLOSED_S = 3600.0
"""Seconds for which a place is closed: one refusal an hour is cheap, and upstreams change."""
_MOST_KEPT = 2_000  # clients and models are named by clients
Advise = Callable[[], Awaitable[Advice]]
"""Asks the call's budgets for their advice."""


class PatternLookup(Protocol):
    """Answers a plan's queries; a tier whose look-up failed is missing from the answer."""

    @property
    def gates(self) -> Gates: ...

    async def look_up_all(self, queries: Sequence[Query], tenant: str) -> Found: ...


class LessonLookup(Protocol):
    """Finds lessons for failures, and rules for a run; nothing when it cannot."""

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]: ...


class StepHistory(Protocol):
    """Reads the recorded steps of a run."""

    async def read(
        self, tenant: str, conversation_id: str, upto: RunSnapshot
    ) -> Sequence[Step]: ...


@frozen
class ModelTraits:
    """Properties of the models that may be asked."""

    target_of: Callable[[str], GuidanceTarget]  # how guidance may be placed in a request to a model
    # why a model cannot serve a request; None when it can
    refusal: Callable[[str, SteeredRequest], str | None]


class RequestSteerer:
    """Decides about requests by one set of rules."""

    def __init__(
        self,
        rules: SteeringRules,
        models: ModelTraits,
        lookup: PatternLookup | None,
        history: StepHistory | None = None,
        judge: ModelJudge | None = None,
        lessons: LessonLookup | None = None,
        workloads: RunWorkloads | None = None,
        places: RefusedPlaces | None = None,
    ) -> None:
        self.rules = rules
        self.places = places or RefusedPlaces()
        self._models = models
        self._lookup = lookup
        if lookup:
            self._gates = lookup.gates
        else:
            self._gates = NO_LIBRARY
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
        advise: Advise | None = None,
    ) -> None:
        """Decide about one request of a known conversation; `result` takes what is found. `advise`:
        asks the call's budgets, once its run is known. `now` in seconds of the epoch. Raises
        DeadlinePassed: no decision in time; the steps that were scored are kept."""
        conversation = result.conversation
        resolved = result.resolved
        retries = resolved.match.kind is MatchKind.RETRY
        compacts = resolved.incoming.compacts
        run = conversation.run
        if compacts:
            result.reasons.append("compaction: not advised or routed")
        ended = compacts and result.position.state is FSMState.END
        if ended or resolved.match.kind is MatchKind.SUMMARY:  # it has nothing new of the run
            result.observed = True
            return
        if resolved.unread:
            result.reasons.append(f"store: degraded ({resolved.unread}), not asked")
        async with conversation.lock:
            await self._read_earlier_steps(conversation)
            newest = await self._read_transcript(result, request, now)
            if self._judge is not None and not compacts:
                with timed(result.timings_ms, "judge"):
                    judge = None
                    if result.mode != "off" and not retries:
                        judge = self._judge
                    result.reasons += await judge_newest(judge, conversation, newest)
                result.position = RunPosition.of(newest)
                result.state_after = newest.state
            own_time.check()
            if result.mode == "off" or compacts:
                result.model = _repeated(result, request) or request.model
                return
            if not retries:  # each resting model rests for one call less
                run.resting = {model: left - 1 for model, left in run.resting.items() if left > 1}
            if advise is not None:
                result.advice = await advise()
            if run.undecided:
                await self._decide_missed(result, request, own_time=own_time)
            memory = await self._decide(result, request, own_time=own_time)
            self._keep(result, request, memory)
            run.undecided.clear()

    def repeat_earlier(self, result: SteeringResult, request: SteeredRequest, reason: str) -> None:
        """Let a call without a decision, for this `reason`, have what was injected before it: the
        provider's prompt cache keeps its prefix and the advice does not fade."""
        result.unsteered = reason
        result.decision = None
        result.placed = None
        result.reasons.append(f"unsteered: {reason}")
        result.model = _repeated(result, request) or request.model
        if not result.unread:  # there is no place for it without the messages
            self._place_earlier(result, request)

    def _place_earlier(self, result: SteeringResult, request: SteeredRequest) -> None:
        current = result.conversation.run
        quiet = result.mode == "off" or result.resolved.incoming.compacts
        if quiet or result.position.run != current.index:
            return  # nothing is injected, or a new run begins
        decided = repeat(current.memory, result.position.step)
        result.placed = self._placed(result, request, decided)

    async def catch_up(self, result: SteeringResult, request: SteeredRequest, now: float) -> None:
        """Score the steps of a call that was forwarded before that, for its record; if it cannot be
        done, that is at the step where the call is expected to be."""
        if result.observed:
            return
        async with result.conversation.lock:
            try:
                await self._read_transcript(result, request, now)
            except Exception:
                if result.resolved.match.kind is not MatchKind.RETRY:
                    result.conversation.run.unscored_calls += 1
                raise

    async def _read_earlier_steps(self, conversation: Conversation) -> None:
        """Start the fold with the logged steps of a run that are not in this request."""
        run = conversation.run
        start = conversation.run.start
        unread = run.fold is None and run.kept_fold is None
        if unread and start and start.logged_in and self._history:
            earlier = await self._history.read(conversation.tenant, start.logged_in, start.snapshot)
            run.ready_fold(self.rules.policy, earlier)

    async def _read_transcript(
        self, result: SteeringResult, request: SteeredRequest, now: float
    ) -> RunFold:
        """Score the new steps of a request, and note what else is new in it; its newest run."""
        with timed(result.timings_ms, "observe"):
            observed = await observe_steps(result, request, self.rules.policy, now=now)
            self._take_undecided(result, observed.earlier, observed.outcomes)
            result.position = RunPosition.of(observed.run)
            result.state_after = observed.run.state
            await note_messages(result, request, observed)
        return observed.run

    async def _decide_missed(
        self,
        result: SteeringResult,
        request: SteeredRequest,
        own_time: OwnTime,
    ) -> None:
        """Decide about earlier calls of the run that another gateway served, where the store does
        not say how, each with what was known when it was made: equal steps get equal guidance at
        the same places."""
        newest = result.position
        run = result.conversation.run
        decided = run.memory.guidance.decided_step
        count = result.resolved.incoming.hashes.state.count
        reasons = list(result.reasons)
        try:
            for each in run.undecided:
                if each.position.latest is not None:
                    self._note(result, [each.position.latest])
                missed = decided is None or each.position.step > max(decided, 0)
                if missed and result.resolved.lags and 0 <= each.messages < count:
                    result.position = each.position
                    result.until = each.messages - count
                    run.memory = await self._decide(result, request, own_time=own_time)
        finally:
            result.position = newest
            result.reasons = reasons
            result.placed = result.until = None

    def _take_undecided(
        self, result: SteeringResult, earlier: RunPosition, outcomes: Sequence[StepOutcome]
    ) -> None:
        """Keep the calls whose steps a request brought until they are decided about; `earlier`: the
        position before it. Where no other gateway decides, their readings are noted at once."""
        current = result.conversation.run
        new = [each for each in outcomes if each.run == current.index]
        resolved = result.resolved
        if not (new and resolved.lags and result.mode != "off") or resolved.incoming.compacts:
            self._note(result, new)
            return
        calls = _calls_of(new, earlier, resolved.incoming.hashes)
        before = [each for each in current.undecided if each.position.step < new[0].index]
        current.undecided = [*before, *calls][-MAX_UNSAVED_STEPS:]

    def _note(self, result: SteeringResult, outcomes: Sequence[StepOutcome]) -> None:
        """Add the readings of these steps to the memory of the run."""
        run = result.conversation.run
        acted_on = outcomes
        if result.muted:
            acted_on = [self._unmuted(result, each) for each in outcomes]
        run.memory = observe(run.memory, acted_on, run.index)

    async def _decide(
        self,
        result: SteeringResult,
        request: SteeredRequest,
        own_time: OwnTime,
    ) -> RunMemory:
        """Route, plan, look up, decide and place; what the run remembers after it."""
        rules = self.rules
        conversation = result.conversation
        current = conversation.run
        tenant = conversation.tenant
        timings = result.timings_ms

        def refusal(model: str) -> str | None:
            left = current.resting.get(model)
            if left is not None:
                return f"it refused a call, {left} more without it"
            return self._models.refusal(model, request)

        learned = None
        if rules.routing.policy == "learned":
            learned = self._workloads.learned(result, request, refusal)
        facts = CallFacts(
            requested=request.model,
            serves=refusal,
            repeats_model=_repeated(result, request),
            gates=self._gates,
            tools=lambda: tool_names(request.body),
            advice=result.advice,
            learned=learned,
        )
        unit = conversation.unit or conversation.id
        position = result.position
        if position.latest is not None and result.muted:
            acted_on = self._unmuted(result, position.latest)
            if acted_on.readings.fired != position.latest.readings.fired:
                result.reasons.append(f"alarm muted for project {result.project!r}")
            position = replace(position, latest=acted_on)
        proposal = propose(rules, current.memory, position, call=facts, unit=unit)
        found: Found = {}
        if proposal.plan.queries and self._lookup is not None:
            with timed(timings, "look_up"):
                found = await self._lookup.look_up_all(proposal.plan.queries, tenant)
            own_time.check()
        lessons: Sequence[LessonMatch] = ()
        if proposal.lessons is not None and self._lessons is not None:
            with timed(timings, "look_up"):
                opening = partial(opening_prompts, request.body, request.transcript, 0)
                query = replace(proposal.lessons, opening=opening)
                lessons = await self._lessons.find(query, tenant)
            own_time.check()
        result.model = proposal.routed.model
        result.decision = decision = conclude(
            rules, current.memory, proposal, found=found, lessons=lessons
        )
        result.reasons += decision.reasons
        with timed(timings, "place"):
            return self._place(result, request, decision)

    def _unmuted(self, result: SteeringResult, outcome: StepOutcome) -> StepOutcome:
        """The outcome to act on: nothing follows from alarms that are muted for the project."""
        weights = self.rules.policy.monitors.resolved_weights()
        readings = without_muted(outcome.readings, result.muted, weights)
        severity = 0
        if readings.fired:
            severity = outcome.severity
        return replace(outcome, readings=readings, severity=severity)

    def use_requested_model(
        self, result: SteeringResult, request: SteeredRequest, reason: str
    ) -> None:
        """Switch to the requested model after the routed model refused a call, and let the
        routed one rest."""
        current = result.conversation.run
        refused = result.model
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
        """Take the guidance out of a call that was refused; the places where it was. What is new
        with this call is forgotten; what earlier calls got stays remembered."""
        placed = result.placed
        if placed is None:
            return frozenset()
        self._take_back(result, placed)
        result.placed = None
        result.reasons.append("guidance: refused by the upstream, sent as the client wrote it")
        return frozenset(map(_place_of, placed.edits))

    def not_sent(self, result: SteeringResult) -> None:
        """Note that the call was refused: nothing that was decided for it was given. That it ended
        the run, or asked about it, stays remembered."""
        held = result.decision is not None and result.decision.proposal.act.name in HELD
        if result.placed is not None and not held:
            self._take_back(result, result.placed)
        result.placed = None
        result.applies = False

    @staticmethod
    def _take_back(result: SteeringResult, placed: Placed) -> None:
        run = result.conversation.run
        if result.memory_before is not None and run.routed is result.kept:
            run.memory = result.memory_before
        else:  # another call of the conversation was decided meanwhile
            guidance = run.memory.guidance
            kept = tuple(each for each in guidance.injections if each not in placed.added)
            run.memory = replace(run.memory, guidance=replace(guidance, injections=kept))

    def close_places(
        self, result: SteeringResult, request: SteeredRequest, places: frozenset[Place], kind: Kind
    ) -> bool:
        """Whether these places are not used for this client for a while: with guidance there a call
        was refused, for a reason of this `kind`, and without it accepted."""
        closes = self.places.refused(_client(result, request), places, kind)
        if closes:
            result.reasons.append(f"guidance: {', '.join(sorted(places))} closed for this client")
        return closes

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

    def _place(
        self, result: SteeringResult, request: SteeredRequest, decision: Decision
    ) -> RunMemory:
        placed = self._placed(result, request, decision.decided)
        if placed is None:
            return decision.memory
        result.placed = placed
        if result.applies:
            kept = placed.state
        else:
            kept = replace(placed.state, injections=())
        return replace(decision.memory, guidance=kept)

    def _placed(
        self, result: SteeringResult, request: SteeredRequest, decided: Decided
    ) -> Placed | None:
        if not (decided.items or decided.directive or decided.state.injections):
            return None
        dialect = request.dialect
        model = result.model
        target = dialect.target(self._models.target_of(model), request, model)
        messages: Sequence[Any] = AsMappings(dialect.placeable(request))
        if result.until is not None:
            messages = messages[: result.until]
        if self.places.any:
            closed = self.places.closed(_client(result, request))
            target = replace(target, closed=closed)
        placed = place(
            messages,
            decided,
            target=target,
            settings=self.rules.injection,
            tools=marked(request.body),
            begun=request.earlier is not None,
        )
        if placed.edits or not target.closed:
            return placed
        return None


def _calls_of(
    scored: Sequence[StepOutcome], earlier: RunPosition, hashes: PrefixHashes
) -> list[Undecided]:
    """The calls that were made after these steps of one run, the first call of all included; each
    as it was when it was made. `earlier`: the position before the steps."""
    run = scored[0].run
    if earlier.run == run:
        steps = list(earlier.recent)
    else:
        steps = []
    if (again := earlier.step + 1 - scored[0].index) > 0:
        del steps[-again:]  # a late result: they were scored once more
    positions = []
    if scored[0].index == 1:
        positions.append(RunPosition(run=run, step=0, state=FSMState.INIT))
    for each in scored:
        steps.append(each.step)
        position = RunPosition(
            run=run,
            step=each.index,
            state=each.state,
            latest=each,
            recent=steps[-KEPT_OUTCOMES:],
        )
        positions.append(position)
    turns = hashes.turns
    calls = []
    for position in positions:
        # Its request had the messages before the answer to it.
        answer = turns[-1] + 1 - (scored[-1].index - position.step)
        place = bisect_left(turns, answer) - 1
        known = place >= 0
        calls.append(Undecided(position=position, messages=hashes.start + place if known else -1))
    return calls


def _client(result: SteeringResult, request: SteeredRequest) -> Client:
    tenant = result.conversation.tenant
    return Client(tenant, result.agent, request.dialect.name, model=result.model)


def _repeated(result: SteeringResult, request: SteeredRequest) -> str | None:
    """The model that the same call went to before, when this is a retry of it."""
    routed = result.conversation.run.routed
    resolved = result.resolved
    if routed is None or resolved.match.kind is not MatchKind.RETRY:
        return None
    asked = resolved.incoming.hashes.state.digest, request.model
    if (routed.prefix_hash, routed.requested) == asked:
        return routed.model
    return None


def marked(body: Fields) -> list[Fields]:
    """Places of cache markers besides the messages: the tools, and the request as a whole."""
    tools = body.get("tools")
    if isinstance(tools, list):
        listed = [t for t in tools if isinstance(t, dict)]
    else:
        listed = []
    return [*listed, {"cache_control": body.get("cache_control")}]


class Client(NamedTuple):
    """Requests of one kind: those that one program of a tenant sends to one model."""

    tenant: str  # of the gateway key
    agent: str  # the client's program
    dialect: str  # API that it speaks, by name
    model: str  # that it names


class RefusedPlaces:
    """The places where guidance made an upstream refuse a client's requests, by client. Clients
    send kinds of items that no documentation names yet, and upstreams check requests strictly. A
    request that was refused for its form with guidance, and accepted as the client wrote it, shows
    that the guidance was at a wrong place; one that says nothing of its reason does so the second
    time. What is too long, or not allowed, says nothing about places. A place opens again by
    itself, and the clients asked for longest ago are forgotten."""

    def __init__(self) -> None:
        # The time at which a place opens again; 0.0: one refusal of an unknown kind has come.
        self._until = TTLCache[tuple[Client, Place], float](
            _MOST_KEPT, _CLOSED_S, timer=lambda: time.time()
        )

    @property
    def any(self) -> bool:
        """Whether any place is closed: clients without a refusal pay for no look-up."""
        return bool(self._until)

    def closed(self, client: Client) -> frozenset[Place]:
        """The places where this client's requests take no guidance now."""
        return frozenset([place for known, place, _ in self.listed() if known == client])

    def listed(self) -> list[tuple[Client, Place, float]]:
        """The places that are closed now, and until when."""
        return [(*key, until) for key, until in self._until.items() if until]

    def refused(self, client: Client, places: frozenset[Place], kind: Kind) -> bool:
        """Note a refusal; whether it closes the places for a while."""
        keys = [(client, place) for place in places]
        if kind not in ("shape", "unknown") or not keys:
            return False
        closes = kind == "shape" or all(key in self._until for key in keys)
        self._until.update(dict.fromkeys(keys, time.time() + _CLOSED_S if closes else 0.0))
        return closes


def _place_of(edit: Edit) -> Place:
    if isinstance(edit, InsertMessage):
        return "message"
    if isinstance(edit, AppendToResult):
        return "result"
    return "system"


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
