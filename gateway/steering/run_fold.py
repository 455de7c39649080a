"""One run: its steps -> difficulty, risk, state and monitor readings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.evidence.observation import ObservedStep, ReadsObservations, RunObserver
from gateway.steering.fsm import FSMState, next_state
from gateway.steering.monitors import Readings, make_suite
from gateway.steering.monitors.suite import severity_of, with_alarm
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.scoring.risk import NO_OUTCOMES, RiskModel, WorkloadPrior, risk_of
from gateway.steering.scoring.scorer import NOT_JUDGED, UNKNOWN, Judgeable, Judged, make_scorer
from gateway.steering.transcript.steps import Step


class RunRisk(Struct, frozen=True, kw_only=True):
    """Risk that a run fails: its `probability`, in (0, 1).

    `evidence`: the log odds of it that the run's steps alone give; `likely`: these have lasted
    where few solved runs come.
    """

    probability: float
    evidence: float
    likely: bool


class StepOutcome(Struct, frozen=True, kw_only=True):
    """The result of scoring one step.

    `index` counts the scored steps of run `run` from 1 (the first call, before any step, is 0);
    `difficulty` is the score, in [0, 1]; `state` and `risk` are those after it; `severity` of the
    alarm, 0 to 3.
    """

    run: int
    index: int
    difficulty: float
    state: FSMState
    readings: Readings
    risk: RunRisk
    severity: int
    observed: ObservedStep

    @property
    def step(self) -> Step:
        """The step that was scored."""
        return self.observed.step

    @property
    def failed(self) -> bool:
        """Whether a call of the step failed."""
        return any(action.failure is not None for action, _ in self.observed.actions)

    @property
    def loop_count(self) -> int:
        """Number of earlier calls with the same result, for the most repeated call of the step."""
        return max([repeat.count for _, repeat in self.observed.actions], default=1) - 1


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """The part of a run's state that is stored and survives a compacted transcript.

    Monitor and scorer windows are not in it. `history` is the tail of the difficulty scores that
    transitions can depend on; `steps` counts the scored steps of the run so far.
    """

    run: int = 0
    state: FSMState = FSMState.INIT
    history: tuple[float, ...] = ()
    steps: int = 0


class _Windows:
    """The parts of a run that remember its newest steps: scorer, monitors, risk."""

    __slots__ = ("alarmed_steps", "observer", "risk", "score", "scorer", "show", "suite")

    def __init__(self, policy: Policy, judged: Judged) -> None:
        self.scorer = scorer = make_scorer(policy.difficulty)
        if isinstance(scorer, Judgeable):
            scorer.judged = judged
        self.suite = suite = make_suite(policy.monitors)
        # Asked once: `isinstance` with a class that others may join takes long.
        self.show = suite.push_observed if isinstance(suite, ReadsObservations) else None
        self.score = scorer.push_observed if isinstance(scorer, ReadsObservations) else None
        self.observer = RunObserver()
        self.risk = RiskModel(policy.difficulty.calibration or shipped_calibration())
        self.alarmed_steps = 0

    def observe(self, step: Step) -> tuple[float, ObservedStep]:
        """Show the step to scorer, monitors and risk; its score, clamped to [0, 1]."""
        observed = self.observer.observe(step)
        self.risk.push(observed)
        if self.show is not None:
            self.show(observed)
        else:
            self.suite.push(step)
        score = self.scorer.push(step) if self.score is None else self.score(observed)
        return _clamp(score), observed


class RunFold:
    """One run: scorer, state machine and monitors over its steps.

    `start` is the index of the run's first message. `keep` limits how many of the newest outcomes
    stay in `outcomes`, because they contain the texts of their steps; None keeps all. `earlier`:
    the steps that `base` summarises, oldest first; they fill the windows of monitors and scorer and
    are not scored again. `judged`: scores that a model gave, for the scorer `judge`; read with each
    push. `prior`: the outcomes of the run's workload so far, for its risk.
    """

    __slots__ = (
        "_before",
        "_earlier",
        "_judged",
        "_policy",
        "_windows",
        "history",
        "index",
        "outcomes",
        "prior",
        "start",
        "state",
        "steps",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        start: int = 0,
        base: RunSnapshot | None = None,
        keep: int | None = None,
        earlier: Sequence[Step] = (),
        judged: Judged = NOT_JUDGED,
        prior: WorkloadPrior = NO_OUTCOMES,
    ) -> None:
        base = base or RunSnapshot()
        self._policy = policy
        self._judged = judged
        self._earlier = deque(earlier, maxlen=keep)
        self.index = base.run
        self.prior = prior
        self.start = start
        self.state = self._before = base.state
        self.steps = base.steps
        self.history: list[float] = list(base.history)
        self.outcomes: deque[StepOutcome] = deque(maxlen=keep)
        # Made with the first step: most runs begin, and many end, without one.
        self._windows: _Windows | None = None
        if earlier:
            self._windows = windows = _Windows(policy, judged)
            for step in earlier:
                windows.observe(step)

    @property
    def recent(self) -> list[Step]:
        """The newest steps of the run, oldest first."""
        return [*self._earlier, *(outcome.step for outcome in self.outcomes)]

    def restart_windows(self) -> None:
        """Empty the windows of monitors and scorer; state and score history stay."""
        self._windows = None

    def share(self, judged: Judged) -> None:
        """Read the scores that a model gave from here on."""
        self._judged = judged
        if self._windows is not None and isinstance(self._windows.scorer, Judgeable):
            self._windows.scorer.judged = judged

    def push(self, step: Step) -> StepOutcome:
        """Score the next step and advance the state by one transition."""
        windows = self._windows = self._windows or _Windows(self._policy, self._judged)
        score, observed = windows.observe(step)
        readings, risk = windows.suite.readings(), windows.risk
        windows.alarmed_steps = windows.alarmed_steps + 1 if readings.fired else 0
        difficulty = self._raised(score, readings)
        self.history.append(difficulty)
        self._before = self.state
        self.state = next_state(self.state, self.history, self._policy.fsm)
        self.steps += 1
        outcome = StepOutcome(
            run=self.index,
            index=self.steps,
            difficulty=difficulty,
            state=self.state,
            readings=readings,
            risk=RunRisk(
                probability=risk_of(risk.log_odds, self.prior),
                evidence=risk.log_odds,
                likely=risk.likely,
            ),
            severity=severity_of(windows.alarmed_steps),
            observed=observed,
        )
        self.outcomes.append(outcome)
        return outcome

    def _raised(self, score: float, readings: Readings) -> float:
        exact = self._policy.difficulty.scorer == "heuristic"
        return score if exact else with_alarm(score, readings.fired)

    @property
    def score_key(self) -> str:
        """The key of the newest step among the judged scores; empty when the scorer takes none."""
        scorer = self._windows and self._windows.scorer
        return scorer.key if isinstance(scorer, Judgeable) else ""

    def rescore(self, score: float) -> StepOutcome:
        """Replace the newest step's score and recompute its state; the new outcome.

        Raises:
            IndexError: no step has been pushed.
        """
        newest = self.outcomes.pop()
        difficulty = self._raised(_clamp(score), newest.readings)
        self.history[-1] = difficulty
        self.state = next_state(self._before, self.history, self._policy.fsm)
        outcome = replace(newest, difficulty=difficulty, state=self.state)
        self.outcomes.append(outcome)
        return outcome

    def end(self) -> None:
        """Set the state to END after the final answer; nothing is pushed afterwards."""
        self.state = FSMState.END

    def snapshot(self) -> RunSnapshot:
        """The state from which the same run continues under a compacted transcript."""
        newest = tuple(self.history[-self._policy.fsm.longest_window :])
        return RunSnapshot(run=self.index, state=self.state, history=newest, steps=self.steps)


def _clamp(score: float) -> float:
    """The score clamped to [0, 1]; NaN becomes the neutral score UNKNOWN."""
    return UNKNOWN if math.isnan(score) else min(max(score, 0.0), 1.0)
