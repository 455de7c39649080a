"""Small values and a run driver for the tests of guidance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.acting import ActionSignal
from gateway.core.edits import apply
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import Decided, decide
from gateway.core.guidance_plan import Plan, note, plan
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import GuidanceState, Moment
from gateway.core.monitors import FAILURE_TYPES, MONITORS, Readings
from gateway.core.pattern import Pattern, PatternMatch, Query, Tier, with_id
from gateway.core.placement import GuidanceTarget, Placed, place
from gateway.core.step import Action, Step
from gateway.steering.guidance.situation import READER

OPENAI = GuidanceTarget(late_system=True)
ANTHROPIC = GuidanceTarget(breakpoints=True)
UNKNOWN = GuidanceTarget()
GATES = Gates(e1=0.5, e2=0.5)

SYSTEM: dict[str, Any] = {"role": "system", "content": "You are an agent."}
USER: dict[str, Any] = {"role": "user", "content": "Fix the bug."}


def e1(text: str = "retry with the cache cleared", **more: Any) -> Pattern:
    fields = {
        "task_context_embedding_text": "the build fails after an upgrade",
        "observation": "rebuilding changed nothing",
        "recommended_action": text,
    }
    return with_id(Pattern(tier=Tier.E1, fields=fields, **more))


def e2(text: str = "look at the failing value", **more: Any) -> Pattern:
    fields = {
        "trigger_state": {"trajectory_description": "the same test fails three times"},
        "diagnosis": "the cause is elsewhere",
        "intervention": text,
        "anti_pattern": "editing the same line again",
    }
    return with_id(Pattern(tier=Tier.E2, fields=fields, **more))


def e3(text: str = "Read the error first. Never guess.", **more: Any) -> Pattern:
    return with_id(Pattern(tier=Tier.E3, fields={"instruction": text}, **more))


def match(pattern: Pattern, similarity: float = 0.9) -> PatternMatch:
    return PatternMatch(pattern=pattern, similarity=similarity)


def readings(
    *fired: str, composite: float | None = None, failure_type: str | None = None
) -> Readings:
    """Readings in which the monitors named have fired; the failure type is the first one's."""
    first = FAILURE_TYPES[fired[0]] if fired else None
    scores = dict.fromkeys(MONITORS, 0.0) | dict.fromkeys(fired, 1.0)
    return Readings(
        scores=scores,
        composite=0.35 * len(fired) if composite is None else composite,
        fired=fired,
        failure_type=failure_type or first,
        evidence={name: f"{name} saw it {len(fired) + 2} times" for name in fired},
    )


def a_step(index: int, thought: str = "I run the test once more", command: str = "make") -> Step:
    return Step(index=index, thought=thought, actions=(Action(name="bash", arguments=command),))


def turn(index: int) -> list[dict[str, Any]]:
    """What a client's history grows by in one step: a call and its answer."""
    call = {"id": f"c{index}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{index}", "content": f"result {index}"},
    ]


Lookup = Callable[[Query], Sequence[PatternMatch] | None]


@dataclass
class Call:
    """One driven call: what was planned, decided and sent."""

    moment: Moment
    plan: Plan
    decided: Decided
    placed: Placed
    before: GuidanceState
    messages: list[dict[str, Any]]
    sent: list[dict[str, Any]]


@dataclass
class Run:
    """A run driven call by call, as the pipeline does it."""

    target: GuidanceTarget = OPENAI
    etraces: EtraceSettings = field(default_factory=EtraceSettings)
    injection: InjectionSettings = field(default_factory=InjectionSettings)
    lookup: Lookup = lambda query: ()
    model: str = "gpt-4o"
    command: str = "make"
    messages: list[dict[str, Any]] = field(default_factory=lambda: [dict(SYSTEM), dict(USER)])
    state: GuidanceState = field(default_factory=GuidanceState)
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def first(self) -> Call:
        return self.call(
            Moment(
                step=None,
                signal=ActionSignal(state=FSMState.INIT),
                model=self.model,
                tools=("bash",),
            )
        )

    def step(self, state: FSMState = FSMState.NORMAL, seen: Readings | None = None) -> Call:
        """One more step of the agent, and the call that follows it."""
        index = len(self.steps)
        self.steps.append(a_step(index, command=self.command))
        self.messages += turn(index)
        seen = readings() if seen is None else seen
        self.state = note(self.state, index, seen)
        return self.call(
            Moment(
                step=index,
                signal=ActionSignal(state=state, readings=seen),
                reader=READER,
                recent=self.steps[-5:],
                model=self.model,
                tools=("bash",),
            )
        )

    def call(self, moment: Moment) -> Call:
        """Decide and place; the new state is kept."""
        done = self.preview(moment, self.state)
        self.state = done.placed.state
        self.calls.append(done)
        return done

    def preview(self, moment: Moment, state: GuidanceState) -> Call:
        """What a call from `state` would be."""
        planned = plan(state, moment, self.etraces, self.injection, GATES)
        found: Mapping[Tier, Sequence[PatternMatch]] = {
            query.tier: answer
            for query in planned.queries
            if (answer := self.lookup(query)) is not None
        }
        decided = decide(state, planned, found, self.injection)
        placed = place(self.messages, decided, target=self.target, settings=self.injection)
        return Call(
            moment=moment,
            plan=planned,
            decided=decided,
            placed=placed,
            before=state,
            messages=list(self.messages),
            sent=apply(self.messages, placed.edits),
        )
