"""Steering one request: the pure decision of `core.steer`, and what it has to wait for.

That is: logged steps of a run that are not in the request, a model's score of the newest step, and
the look-up of patterns."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
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
from gateway.conversations.decision import Decision, with_reasons
from gateway.conversations.judge import ModelJudge, judge_newest
from gateway.conversations.loading import LoggedSteps
from gateway.conversations.observe import note_messages, observe_steps, opening_prompts
from gateway.conversations.workloads import RunWorkloads
from gateway.core.edits import AppendToResult, Edit, InsertMessage
from gateway.core.fold import RunFold, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import Decided, LessonMatch, LessonQuery
from gateway.core.guidance_settings import Gates
from gateway.core.guidance_state import Place
from gateway.core.monitors.muting import without_muted
from gateway.core.pattern import Query
from gateway.core.placement import GuidanceTarget, Placed, place
from gateway.core.steer import (
    NO_ADVICE,
    NO_LIBRARY,
    Advice,
    CallFacts,
    Found,
    RunMemory,
    RunPosition,
    SteeringRules,
    conclude,
    observe,
    propose,
    repeat,
)
from gateway.dialects import SteeredRequest
from gateway.steering.identity import MatchKind
from gateway.tasks import OwnTime
from gateway.values import Fields
from gateway.wire.body_prefix import AsMappings
from gateway.wire.message_identity import tool_names
from gateway.wire.prefix_hash import PrefixHashes
from gateway.wire.upstream_errors import Kind

# Answers to a request whose form or size is wrong. Source: RFC 9110, 15.5; the 422 of servers that
# validate with pydantic.
REFUSED_STATUSES = frozenset({400, 413, 422})
# Seconds for which a place is closed: one refusal an hour is cheap, and upstreams change.
_CLOSED_S = 3600.0
_MOST_KEPT = 2_000  # clients and models are named by clients
# Asks the call's budgets for their advice.
Advise = Callable[[], Awaitable[Advice]]


class PatternLookup(Protocol):
    """Answers a plan's queries; a tier whose look-up failed is missing from the answer."""

    @property
    def gates(self) -> Gates: ...

    async def look_up_all(self, queries: Sequence[Query], tenant: str) -> Found: ...


class LessonLookup(Protocol):
    """Finds lessons for failures, and rules for a run; nothing when it cannot."""

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]: ...


@dataclass(eq=False)
class RequestSteerer:
    """Decides about requests by one set of rules."""

    rules: SteeringRules  # the settings that decide
    # how guidance may be placed in a request to a model
    target_of: Callable[[str], GuidanceTarget]
    # why a model cannot serve a request; None when it can
    refusal: Callable[[str, SteeredRequest], str | None]
    lookup: PatternLookup | None = None  # None without a library
    history: LoggedSteps | None = None  # None: a run is known by its requests alone
    judge: ModelJudge | None = None  # None: the ledger scores every step
    lessons: LessonLookup | None = None  # None: nothing is learned
    workloads: RunWorkloads | None = None  # None: no outcomes are known
    places: RefusedPlaces = field(default_factory=lambda: RefusedPlaces())  # closed for clients

    def __post_init__(self) -> None:
        self._gates = NO_LIBRARY
        if self.lookup is not None:
            self._gates = self.lookup.gates

    async def steer(
        self,
        decision: Decision,
        request: SteeredRequest,
        now: float,
        own_time: OwnTime,
        timings: dict[str, float],
        advise: Advise | None = None,
    ) -> AsyncIterator[Decision]:
        """Decide about one request of a known conversation. Yields the decision after each step of
        making it, so that what was found before an error is kept. `advise`: asks the call's
        budgets, once its run is known. `now` in seconds of the epoch; `timings` takes the
        milliseconds of each step. Raises DeadlinePassed: no decision in time."""
        conversation = decision.conversation
        resolved = decision.resolved
        retries = resolved.match.kind is MatchKind.RETRY
        compacts = resolved.incoming.compacts
        run = conversation.run
        if compacts:
            decision = with_reasons(decision, "compaction: not advised or routed")
            yield decision
        ended = compacts and decision.position.state is FSMState.END
        if ended or resolved.match.kind is MatchKind.SUMMARY:  # it has nothing new of the run
            yield replace(decision, observed=True)
            return
        if resolved.unread:
            decision = with_reasons(decision, f"store: degraded ({resolved.unread}), not asked")
            yield decision
        async with conversation.lock:
            await self._read_earlier_steps(conversation)
            decision, newest = await self._read_transcript(decision, request, now, timings=timings)
            yield decision
            if self.judge is not None and not compacts:
                with timed(timings, "judge"):
                    judge = None
                    if decision.mode != "off" and not retries:
                        judge = self.judge
                    said = await judge_newest(judge, conversation, newest)
                judged = replace(decision, position=RunPosition.of(newest))
                decision = with_reasons(judged, *said)
                yield decision
            own_time.check()
            if decision.mode == "off" or compacts:
                yield replace(decision, model=_repeated(decision, request) or request.model)
                return
            if run.resting and not retries:  # each resting model rests for one call less
                run.resting = {model: left - 1 for model, left in run.resting.items() if left > 1}
            advice = NO_ADVICE
            if advise is not None:
                advice = await advise()
            if run.undecided:
                await self._decide_missed(
                    decision, request, advice, own_time=own_time, timings=timings
                )
            latest = decision.position.latest
            if latest is not None and not decision.muted.isdisjoint(latest.readings.fired):
                decision = with_reasons(decision, f"alarm muted for project {decision.project!r}")
                yield decision
            decision = await self._conclude(
                decision, request, advice, own_time=own_time, timings=timings
            )
            yield decision
            with timed(timings, "place"):
                decision, memory = self._place(decision, request)
            yield self._keep(decision, request, memory)
            run.undecided.clear()

    def place_earlier(self, decision: Decision, request: SteeredRequest) -> Decision:
        """Give a call that nothing was concluded for the guidance of the calls before it: the
        provider's prompt cache keeps its prefix and the advice does not fade."""
        current = decision.conversation.run
        quiet = decision.mode == "off" or decision.resolved.incoming.compacts
        # Nothing is injected, a new run begins, or there is no place for it without the messages.
        if quiet or decision.unread or decision.position.run != current.index:
            return decision
        decided = repeat(current.memory, decision.position.step)
        return replace(decision, placed=self._placed(decision, request, decided))

    async def catch_up(
        self,
        decision: Decision,
        request: SteeredRequest,
        now: float,
        timings: dict[str, float],
    ) -> Decision:
        """Score the steps of a call that was forwarded before that, for its record; if it cannot be
        done, that is at the step where the call is expected to be."""
        async with decision.conversation.lock:
            try:
                decision, _ = await self._read_transcript(decision, request, now, timings=timings)
            except Exception:
                if decision.resolved.match.kind is not MatchKind.RETRY:
                    decision.conversation.run.unscored_calls += 1
                raise
        return decision

    async def _read_earlier_steps(self, conversation: Conversation) -> None:
        """Start the fold with the logged steps of a run that are not in this request."""
        run = conversation.run
        start = conversation.run.start
        unread = run.fold is None and run.kept_fold is None
        if unread and start and start.logged_in and self.history:
            earlier = await self.history.read(conversation.tenant, start.logged_in, start.snapshot)
            run.ready_fold(self.rules.policy, earlier)

    async def _read_transcript(
        self,
        decision: Decision,
        request: SteeredRequest,
        now: float,
        timings: dict[str, float],
    ) -> tuple[Decision, RunFold]:
        """Score the new steps of a request, and note what else is new in it; its newest run."""
        with timed(timings, "observe"):
            observed = await observe_steps(decision, request, self.rules.policy, now=now)
            self._take_undecided(decision, observed.earlier, observed.outcomes)
            return await note_messages(decision, request, observed), observed.run

    async def _decide_missed(
        self,
        decision: Decision,
        request: SteeredRequest,
        advice: Advice,
        own_time: OwnTime,
        timings: dict[str, float],
    ) -> None:
        """Decide about earlier calls of the run that another gateway served, where the store does
        not say how, each with what was known when it was made: equal steps get equal guidance at
        the same places."""
        run = decision.conversation.run
        decided = run.memory.guidance.decided_step
        count = decision.resolved.incoming.hashes.state.count
        for each in run.undecided:
            if each.position.latest is not None:
                self._note(decision, [each.position.latest])
            missed = decided is None or each.position.step > max(decided, 0)
            if missed and decision.resolved.lags and 0 <= each.messages < count:
                earlier = replace(decision, position=each.position)
                earlier = await self._conclude(
                    earlier, request, advice, own_time=own_time, timings=timings
                )
                _, run.memory = self._place(earlier, request, until=each.messages - count)

    def _take_undecided(
        self, decision: Decision, earlier: RunPosition, outcomes: Sequence[StepOutcome]
    ) -> None:
        """Keep the calls whose steps a request brought until they are decided about; `earlier`: the
        position before it. Where no other gateway decides, their readings are noted at once."""
        current = decision.conversation.run
        new = [each for each in outcomes if each.run == current.index]
        resolved = decision.resolved
        if not (new and resolved.lags and decision.mode != "off") or resolved.incoming.compacts:
            self._note(decision, new)
            return
        calls = _calls_of(new, earlier, resolved.incoming.hashes)
        before = [each for each in current.undecided if each.position.step < new[0].index]
        current.undecided = [*before, *calls][-MAX_UNSAVED_STEPS:]

    def _note(self, decision: Decision, outcomes: Sequence[StepOutcome]) -> None:
        """Add the readings of these steps to the memory of the run."""
        run = decision.conversation.run
        acted_on = outcomes
        if decision.muted:
            acted_on = [self._unmuted(decision, each) for each in outcomes]
        run.memory = observe(run.memory, acted_on, run.index)

    async def _conclude(
        self,
        decision: Decision,
        request: SteeredRequest,
        advice: Advice,
        own_time: OwnTime,
        timings: dict[str, float],
    ) -> Decision:
        """Route, plan, look up, and conclude which guidance to give."""
        rules = self.rules
        conversation = decision.conversation
        current = conversation.run
        tenant = conversation.tenant

        def refusal(model: str) -> str | None:
            left = current.resting.get(model)
            if left is not None:
                return f"it refused a call, {left} more without it"
            return self.refusal(model, request)

        learned = None
        if rules.routing.policy == "learned" and self.workloads is not None:
            learned = self.workloads.learned(decision, request, refusal)
        facts = CallFacts(
            requested=request.model,
            serves=refusal,
            repeats_model=_repeated(decision, request),
            gates=self._gates,
            tools=lambda: tool_names(request.body),
            advice=advice,
            learned=learned,
        )
        unit = conversation.unit or conversation.id
        position = decision.position
        if position.latest is not None and decision.muted:
            position = replace(position, latest=self._unmuted(decision, position.latest))
        proposal = propose(rules, current.memory, position, call=facts, unit=unit)
        found: Found = {}
        if proposal.plan.queries and self.lookup is not None:
            with timed(timings, "look_up"):
                found = await self.lookup.look_up_all(proposal.plan.queries, tenant)
            own_time.check()
        lessons: Sequence[LessonMatch] = ()
        if proposal.lessons is not None and self.lessons is not None:
            with timed(timings, "look_up"):
                opening = partial(opening_prompts, request.body, request.transcript, 0)
                declared = partial(request.body.get, "tools")
                query = replace(proposal.lessons, opening=opening, declared=declared)
                lessons = await self.lessons.find(query, tenant)
            own_time.check()
        conclusion = conclude(rules, current.memory, proposal, found=found, lessons=lessons)
        return replace(
            decision,
            conclusion=conclusion,
            model=proposal.routed.model,
            reasons=decision.reasons + conclusion.reasons,
        )

    def _unmuted(self, decision: Decision, outcome: StepOutcome) -> StepOutcome:
        """The outcome to act on: nothing follows from alarms that are muted for the project."""
        weights = self.rules.policy.monitors.resolved_weights()
        readings = without_muted(outcome.readings, decision.muted, weights)
        severity = 0
        if readings.fired:
            severity = outcome.severity
        return replace(outcome, readings=readings, severity=severity)

    def use_requested_model(self, decision: Decision, request: SteeredRequest) -> Decision:
        """Switch to the requested model after the routed model refused a call, and let the
        routed one rest."""
        current = decision.conversation.run
        if self.rules.routing.rest_calls:
            current.resting[decision.model] = self.rules.routing.rest_calls
        decision = replace(decision, model=request.model)
        if decision.unsteered:
            return self.place_earlier(decision, request)
        decision, memory = self._place(decision, request)
        return self._keep(decision, request, replace(memory, pinned_model=None))

    @staticmethod
    def _keep(decision: Decision, request: SteeredRequest, memory: RunMemory) -> Decision:
        """The decision was made in time: the run remembers it."""
        current = decision.conversation.run
        before = decision.memory_before
        if before is None:
            before = current.memory
        current.memory = memory
        current.routed = RoutedCall(
            prefix_hash=decision.resolved.incoming.hashes.state.digest,
            requested=request.model,
            model=decision.model,
        )
        return replace(decision, memory_before=before, kept=current.routed)

    def _place(
        self, decision: Decision, request: SteeredRequest, until: int | None = None
    ) -> tuple[Decision, RunMemory]:
        """The decision with its guidance placed, and the memory of the run then. `until`: the
        number of messages of an earlier call that is decided about, as a negative index."""
        conclusion = decision.conclusion
        if conclusion is None:
            return decision, decision.conversation.run.memory
        placed = self._placed(decision, request, conclusion.decided, until=until)
        if placed is None:
            return decision, conclusion.memory
        if decision.applies:
            kept = placed.state
        else:
            kept = replace(placed.state, injections=())
        return replace(decision, placed=placed), replace(conclusion.memory, guidance=kept)

    def _placed(
        self,
        decision: Decision,
        request: SteeredRequest,
        decided: Decided,
        until: int | None = None,
    ) -> Placed | None:
        if not (decided.items or decided.directive or decided.state.injections):
            return None
        model = decision.model
        target = request.dialect.target(self.target_of(model), request, model)
        messages: Sequence[Any] = AsMappings(request.dialect.placeable(request))
        if until is not None:
            messages = messages[:until]
        if self.places.any:
            closed = self.places.closed(client_of(decision, request))
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


def forget(decision: Decision, placed: Placed) -> frozenset[Place]:
    """Forget the guidance that is new with a call, which is not given; the places of all of it."""
    run = decision.conversation.run
    if decision.memory_before is not None and run.routed is decision.kept:
        run.memory = decision.memory_before
    else:  # another call of the conversation was decided meanwhile
        guidance = run.memory.guidance
        kept = tuple(each for each in guidance.injections if each not in placed.added)
        run.memory = replace(run.memory, guidance=replace(guidance, injections=kept))
    return frozenset(map(_place_of, placed.edits))


def unsteered(decision: Decision, request: SteeredRequest, reason: str) -> Decision:
    """The decision about a call for which nothing was concluded, for this `reason`."""
    plain = replace(
        decision,
        unsteered=reason,
        conclusion=None,
        placed=None,
        model=_repeated(decision, request) or request.model,
    )
    return with_reasons(plain, f"unsteered: {reason}")


def client_of(decision: Decision, request: SteeredRequest) -> Client:
    """The client of a request, for which places are closed."""
    tenant = decision.conversation.tenant
    return Client(tenant, decision.agent, request.dialect.name, model=decision.model)


def _repeated(decision: Decision, request: SteeredRequest) -> str | None:
    """The model that the same call went to before, when this is a retry of it."""
    routed = decision.conversation.run.routed
    if routed is None or decision.resolved.match.kind is not MatchKind.RETRY:
        return None
    asked = decision.resolved.incoming.hashes.state.digest, request.model
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

    def __init__(self, timings: dict[str, float], name: str):
        self._timings = timings
        self._name = name

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            spent_ms = (time.perf_counter() - self._begun) * 1000
            self._timings[self._name] = self._timings.get(self._name, 0.0) + spent_ms
