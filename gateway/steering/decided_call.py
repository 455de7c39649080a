"""What one call is decided by: the rules, the memory of its run, where the run is, and the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from gateway.steering.acting import (
    ActionSignal,
    ActSettings,
)
from gateway.steering.advice import NO_ADVICE, Advice
from gateway.steering.experiments import RandomArm
from gateway.steering.fold import RunFold, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.settings import EtraceSettings, Gates, InjectionSettings
from gateway.steering.guidance.state import GuidanceState
from gateway.steering.lessons import (
    LessonSettings,
)
from gateway.steering.policy import Policy
from gateway.steering.routing import ModelPin, Routes, RoutingSettings, Serves
from gateway.steering.routing_policy import (
    RunChoice,
    WorkloadRates,
)
from gateway.steering.transcript.step import Step

NO_LIBRARY = Gates(e1=1.0, e2=1.0)
"""Gates of a gateway without patterns: nothing is similar enough."""


class SteeringRules(Struct, frozen=True, kw_only=True):
    """Everything that decides about a call, from one version of the settings.

    `wrap_up_at`: token count of a run from which the model is asked to wrap up; `stop_above`: risk
    from which a step counts as a strike; None = never.
    """

    policy: Policy = field(default_factory=Policy)
    routes: Routes = field(default_factory=Routes)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    acting: ActSettings = field(default_factory=ActSettings)
    wrap_up_at: int | None = None
    stop_above: float | None = None
    etraces: EtraceSettings = field(default_factory=EtraceSettings)
    injection: InjectionSettings = field(default_factory=InjectionSettings)
    lessons: LessonSettings = field(default_factory=LessonSettings)


class RunMemory(Struct, frozen=True, kw_only=True):
    """The part of a run's state that cannot be derived from its transcript.

    `tokens`: input and output of the run's calls so far, as upstreams reported them. `struck_at`:
    the step of its first strike. `choice`: of the learned policy, made when the run began.
    """

    guidance: GuidanceState = field(default_factory=GuidanceState)
    pinned_model: ModelPin | None = None
    tokens: int = 0
    struck_at: int | None = None
    choice: RunChoice | None = None

    def next_run(self) -> RunMemory:
        """The memory with which the conversation's next run begins."""
        return RunMemory(guidance=self.guidance.next_run())

    def merged(self, stored: RunMemory, *, further: RunMemory, tokens: int) -> RunMemory:
        """The memory after another gateway has stored `stored` of the same run in the meantime.

        `further`: which of the two has seen more steps. `tokens`: of the call that `stored` lacks.
        """
        struck = [at for at in (self.struck_at, stored.struck_at) if at is not None]
        return RunMemory(
            guidance=self.guidance.merged(stored.guidance),
            pinned_model=further.pinned_model,
            tokens=max(self.tokens, stored.tokens + tokens),
            struck_at=min(struck, default=None),
            # What was stored first decided the run.
            choice=stored.choice or self.choice,
        )


class RunPosition(Struct, frozen=True, kw_only=True):
    """The state of a run at the time of a decision.

    `step`: scored steps so far, 0 on the first call; `latest`: the newest of them, None when there
    is none in memory; `recent`: the newest steps, oldest first.
    """

    run: int
    step: int
    state: FSMState
    latest: StepOutcome | None = None
    recent: Sequence[Step] = ()

    @classmethod
    def of(cls, run: RunFold) -> RunPosition:
        """The position after everything that was folded."""
        latest = run.outcomes[-1] if run.outcomes else None
        return cls(run=run.index, step=run.steps, state=run.state, latest=latest, recent=run.recent)

    @property
    def signal(self) -> ActionSignal:
        """The signal for actions that depend on the run's own state and readings."""
        if self.latest is None:
            return ActionSignal(state=self.state)
        return ActionSignal(
            state=self.state,
            readings=self.latest.readings,
            severity=self.latest.severity,
            waits=self.latest.waits,
            likely_fails=self.latest.likely_fails,
        )


class CallFacts(Struct, frozen=True, kw_only=True):
    """The facts about the call that a decision depends on.

    `serves`: why a model cannot serve the request; None = every model can. `repeats_model`: the
    model of the same request when it was sent before; a retry uses it again. `gates`: the least
    similarity of a match, for the pattern library's embedder. `arm`: the control arm that the call
    belongs to. `tools`: gives the names of the tools that the request offers. `unit`: of what is
    drawn for the run, equal wherever the run is decided about. `advice`: what its budgets ask of
    it. `rates`: what is known of the run's workload; None = nothing.
    """

    requested: str
    serves: Serves | None = None
    repeats_model: str | None = None
    gates: Gates = NO_LIBRARY
    arm: RandomArm | None = None
    tools: Callable[[], Sequence[str]] = tuple
    unit: str = ""
    advice: Advice = NO_ADVICE
    rates: WorkloadRates | None = None
