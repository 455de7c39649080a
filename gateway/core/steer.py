"""One decision, as values: this composition serves requests and replays recordings.

    observe     add newly scored steps to the memory of the run
    propose     when to act (by the readings, or in the control arm by chance), model, plan
                (the caller then does the plan's look-ups, the only part that has to wait)
    conclude    select the guidance among the patterns that were found
    place       add it to the messages, together with earlier guidance
    repeat      what is placed instead when there is no decision: earlier guidance alone

Nothing here waits, reads a clock or keeps state: equal values give an equal decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from gateway.core.acting import DEFAULT_ACT, ActionSignal, ActName, ActSettings
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import Decided, LessonMatch, LessonQuery, Lessons, decide
from gateway.core.guidance_plan import Plan, note, plan
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import FIRST_CALL, GuidanceState, Moment
from gateway.core.guidance_text import BUDGET_DIRECTIVE, HAND_OVER_TEXT
from gateway.core.monitors import FAILURE_TYPES
from gateway.core.pattern import PatternMatch, Tier
from gateway.core.routing import (
    ModelPin,
    ModelPolicy,
    RoutedModel,
    Routes,
    RoutingSettings,
    RunChoice,
    Serves,
    choose,
    routing_state,
)
from gateway.core.situation import Reader
from gateway.core.step import Step
from gateway.core.trouble import Act, Trouble, act_on
from gateway.values import Value

NO_LIBRARY = Gates(e1=1.0, e2=1.0)  # gates of a gateway without patterns: nothing is similar enough


class SteeringRules(Value):
    """The settings that decide about a call."""

    reader: Reader  # reads what the agent and its tools wrote
    policy: Policy = Policy()  # what scores a step and fires a monitor
    routes: Routes = Routes()  # models of the states
    # how a model is chosen among them
    routing: RoutingSettings = RoutingSettings()
    acting: ActSettings = ActSettings()  # token budget of a run
    # the strongest act on a failure that is repeated in spite of advice
    on_trouble: ActName = DEFAULT_ACT
    etraces: EtraceSettings = EtraceSettings()  # look-ups of patterns
    # where guidance is placed, and how long it stays
    injection: InjectionSettings = InjectionSettings()
    lessons: Lessons | None = None  # what earlier runs taught; None: nothing is given


class RunMemory(Value):
    """The part of a run's state that cannot be derived from its transcript."""

    guidance: GuidanceState = GuidanceState()  # what was injected and when
    # the model that the run is on; None while it has the requested one
    pinned_model: ModelPin | None = None
    tokens: int = 0  # input and output of the run's calls so far, as upstreams reported them
    # of the learned policy, made when the run began; None without that policy
    choice: RunChoice | None = None
    trouble: Trouble = Trouble()  # what was said and done about the run's alarms

    def next_run(self) -> RunMemory:
        """The memory with which the conversation's next run begins."""
        return RunMemory(guidance=self.guidance.next_run())

    def merged(self, stored: RunMemory, *, further: RunMemory, tokens: int) -> RunMemory:
        """The memory after another gateway has stored `stored` of the same run in the meantime.
        `further`: the one of both with more steps. `tokens`: of the call that `stored` lacks."""
        return RunMemory(
            guidance=self.guidance.merged(stored.guidance),
            pinned_model=further.pinned_model,
            tokens=max(self.tokens, stored.tokens + tokens),
            choice=stored.choice or self.choice,  # the first one decided the run
            trouble=self.trouble.merged(stored.trouble),
        )


class RunPosition(Value):
    """The state of a run at the time of a decision."""

    run: int  # number of the run in its conversation, from 0
    step: int  # scored steps so far, 0 on the first call
    state: FSMState  # after the newest scored step
    latest: StepOutcome | None = None  # the newest scored step; None when it is not in memory
    recent: Sequence[Step] = ()  # the newest steps, oldest first

    @classmethod
    def of(cls, run: RunFold) -> RunPosition:
        """The position after everything that was folded."""
        latest = run.outcomes[-1] if run.outcomes else None
        return cls(
            run=run.index, step=run.steps, state=run.state, latest=latest, recent=[*run.newest]
        )

    @property
    def signal(self) -> ActionSignal:
        """The signal for actions that depend on the run's own state and readings."""
        if self.latest is None:
            return ActionSignal(state=self.state)
        return ActionSignal(
            state=self.state,
            readings=self.latest.readings,
            severity=self.latest.severity,
            waits=self.latest.observed.waits,
        )


class Advice(Value):
    """Wishes of the budgets that a call counts on."""

    wrap_up: str = ""  # reason to ask for a hand-over; "" for none
    cheaper: str = ""  # name of a cheaper model to use; "" for none


NO_ADVICE = Advice()


class CallFacts(Value):
    """The facts about the call that a decision depends on."""

    requested: str  # the model that the client named
    serves: Serves | None = None  # why a model cannot serve the request; None = every model can
    # the model of the same request when it was sent before; a retry uses it again
    repeats_model: str | None = None
    gates: Gates = NO_LIBRARY  # least similarity of a match, for the pattern library's embedder
    # gives the names of the tools that the request offers
    tools: Callable[[], Sequence[str]] = tuple
    advice: Advice = NO_ADVICE  # of the budgets that the call counts on
    learned: ModelPolicy | None = None  # the learned policy; None = the states choose the model


# Answers to a plan's look-ups; a tier whose look-up failed has no entry.
Found = Mapping[Tier, Sequence[PatternMatch]]


class Proposal(Value):
    """The model to request, and the look-ups that the decision on guidance needs."""

    signal: ActionSignal  # the run's
    routed: RoutedModel  # the model, and why
    plan: Plan  # patterns to look up, and the monitor text that is due
    lessons: LessonQuery | None = None  # what to look up among the lessons; None for nothing
    act: Act = Act()  # on trouble that goes on in spite of advice
    trouble: Trouble = Trouble()  # the memory of the trouble after this call
    choice: RunChoice | None = None  # of the learned policy; None without it
    reasons: tuple[str, ...] = ()  # what was decided and why, for the record


class Conclusion(Value):
    """The actions on a call."""

    proposal: Proposal  # the model, and what was looked up
    decided: Decided  # the guidance
    memory: RunMemory  # the run's, after this call

    @property
    def model(self) -> str:
        """The model to request."""
        return self.proposal.routed.model

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the decision, for the log and the run's page."""
        return self.proposal.reasons + self.decided.reasons


def observe(memory: RunMemory, outcomes: Sequence[StepOutcome], run: int) -> RunMemory:
    """The run's memory after these steps were scored; steps of other runs are left out."""
    guidance = memory.guidance
    for outcome in outcomes:
        if outcome.run == run:
            guidance = note(guidance, outcome.index, outcome.readings)
    return memory if guidance is memory.guidance else replace(memory, guidance=guidance)


def propose(
    rules: SteeringRules, memory: RunMemory, position: RunPosition, call: CallFacts, unit: str = ""
) -> Proposal:
    """The route of a call, and the plan of its guidance. `unit`: of the draws for the run, equal
    wherever the run is decided about."""
    signal = position.signal
    act, trouble = _on_trouble(rules, memory, position, call=call)
    struck = replace(signal, strikes=trouble.routed is not None)
    routed, choice = _routed(rules, memory, position, signal=struck, call=call)
    planned, reasons = _plan(rules, memory, position, signal=signal, model=routed.model, call=call)
    planned = _planned_with(act, planned)
    lessons = None
    if rules.lessons is not None and not planned.hand_over:
        newest = position.latest.observed if position.latest else None
        lessons = rules.lessons.query(memory.guidance, newest, position.step)
        lessons = lessons and replace(lessons, unit=f"{unit}.{position.run}")
    return Proposal(
        signal=signal,
        routed=routed,
        plan=planned,
        lessons=lessons,
        act=act,
        trouble=trouble,
        choice=choice,
        reasons=(*act.reasons, *routed.reasons, *reasons),
    )


def conclude(
    rules: SteeringRules,
    memory: RunMemory,
    proposal: Proposal,
    found: Found,
    lessons: Sequence[LessonMatch] = (),
) -> Conclusion:
    """The decision, given the results of the look-ups."""
    decided = decide(memory.guidance, proposal.plan, found, injection=rules.injection)
    if proposal.lessons is not None and rules.lessons is not None:
        decided = rules.lessons.added(
            decided, lessons, query=proposal.lessons, injection=rules.injection
        )
    after = replace(
        memory,
        guidance=decided.state,
        pinned_model=proposal.routed.pin,
        choice=proposal.choice,
        trouble=_after_texts(proposal, decided),
    )
    return Conclusion(proposal=proposal, decided=decided, memory=after)


def repeat(memory: RunMemory, step: int) -> Decided:
    """Guidance of a call without a decision: earlier guidance again. `step`: scored steps of the
    run."""
    return Decided(step=step or FIRST_CALL, state=memory.guidance)


def thrifty(
    routed: RoutedModel, advice: Advice, requested: str, serves: Serves | None
) -> RoutedModel:
    """Returns the cheaper model that a budget asks for, if it can serve the request; else the
    route unchanged."""
    cheaper = advice.cheaper
    if not cheaper or cheaper == routed.model:
        return routed
    problem = serves(cheaper) if serves is not None and cheaper != requested else None
    why = f"instead of {routed.model}" if problem is None else f"not used: {problem}"
    model = cheaper if problem is None else routed.model
    return replace(routed, model=model, reasons=(*routed.reasons, f"budget: {cheaper} {why}"))


def _on_trouble(
    rules: SteeringRules, memory: RunMemory, position: RunPosition, call: CallFacts
) -> tuple[Act, Trouble]:
    """The act on the newest step, and what the run remembers of its trouble then."""
    before = memory.trouble
    step = position.step
    latest = position.latest
    strikes = before.strikes(latest.readings.alarms if latest is not None else (), step)
    act = Act()
    if strikes:
        routes = "SLOW" in rules.routes.models(call.requested)
        asked = any(HAND_OVER_TEXT in each.text for each in memory.guidance.injections)
        act = act_on(strikes, rules.on_trouble, routes=routes, hands_over=not asked)
    return act, before.after(act, step, memory.guidance.fired_step)


def _planned_with(act: Act, planned: Plan) -> Plan:
    """The plan of a call, given the act on it: a hand-over takes the place of all other guidance,
    and after `tell` the agent hears no more of it."""
    if act.name == "hand_over":
        return replace(planned, hand_over=HAND_OVER_TEXT, queries=(), directive="")
    if act.name == "tell":
        return replace(planned, monitor=None)
    return planned


def _after_texts(proposal: Proposal, decided: Decided) -> Trouble:
    """The memory of a run's trouble after the texts of a call: which alarms one was about."""
    readings = proposal.signal.readings
    failures = {item.failure_type for item in decided.items if item.source == "monitor"}
    alarms = readings.alarms if readings is not None else ()
    said = [each for each in alarms if FAILURE_TYPES.get(each.monitor) in failures]
    return proposal.trouble.after_text(said, decided.step) if said else proposal.trouble


def _routed(
    rules: SteeringRules,
    memory: RunMemory,
    position: RunPosition,
    signal: ActionSignal,
    call: CallFacts,
) -> tuple[RoutedModel, RunChoice | None]:
    """Returns the model of a call, and the learned policy's choice for its run (None without
    that policy)."""
    requested = call.requested
    choice = memory.choice
    if call.repeats_model is not None:
        return RoutedModel(model=call.repeats_model, pin=memory.pinned_model), choice
    state = signal.state
    reason = ""
    if models := rules.routes.models(requested):
        # Without a model for SLOW an alarm keeps the model of the run's state.
        severity = rules.routing.escalate_at_severity if "SLOW" in models else 0
        state, reason = routing_state(signal, severity)
    routed = choose(
        state,
        requested,
        position.step,
        routes=rules.routes,
        settings=rules.routing,
        pinned=memory.pinned_model,
        serves=call.serves,
    )
    if reason:
        routed = replace(routed, reasons=(reason, *routed.reasons))
    if call.learned is not None:
        routed, choice = call.learned.decide(
            choice, routed, memory.pinned_model, step=position.step, state=state
        )
    return thrifty(routed, call.advice, requested, serves=call.serves), choice


def _plan(
    rules: SteeringRules,
    memory: RunMemory,
    position: RunPosition,
    signal: ActionSignal,
    model: str,
    call: CallFacts,
) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a call's guidance, and reasons."""
    moment = Moment(
        step=position.step or None,
        signal=signal,
        recent=position.recent,
        reader=rules.reader,
        model=model,
        observed=position.latest.observed if position.latest else None,
        tools=() if memory.guidance.e3_done else call.tools(),
    )
    # The suite `reference` fires on more than steps show.
    every_alarm = rules.policy.monitors.suite == "reference"
    given = (rules.etraces, rules.injection, call.gates)
    planned = plan(memory.guidance, moment, *given, every_alarm=every_alarm)
    most = rules.acting.token_budget if rules.acting.budget_action == "wrap_up" else None
    spent = most is not None and memory.tokens >= most
    why = call.advice.wrap_up or ("budget: token_budget used up" if spent else "")
    if not why:
        return planned, ()
    if not planned.directive:
        text = BUDGET_DIRECTIVE.format(used=why.removeprefix("budget: "))
        planned = replace(planned, directive=text)
    return planned, (why,)
