"""One run: its steps -> difficulty, risk, state and monitor readings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.evidence.observation import (
    ObservedCalls,
    ObservedStep,
    ReadsObservations,
    RunObserver,
    Trouble,
)
from gateway.steering.fsm import FSMState, next_state
from gateway.steering.monitors import Readings, make_suite
from gateway.steering.monitors.suite import severity_of, with_alarm
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.scoring.risk import NO_OUTCOMES, RiskModel, WorkloadPrior, risk_of
from gateway.steering.scoring.scorer import NOT_JUDGED, UNKNOWN, Judgeable, Judged, make_scorer
from gateway.steering.transcript.steps import Step


class StepOutcome(Struct, frozen=True, kw_only=True):
    """The result of scoring one step.

    `index` counts the scored steps of run `run` from 1 (the first call, before any step, is 0);
    `state` is the state after this score; `difficulty` is the score, clamped to [0, 1]; `risk` is
    the probability that the run fails, in (0, 1); `risk_evidence`: the log odds of that which its
    steps alone give; `likely_fails`: these have lasted where few solved runs come; `trouble` is the
    kind of trouble of the step; `severity` of the alarm, 0 to 3; `waits`: the step only waits for
    something; `calls`: the facts of its calls, and what they repeat; `repairing`: files were edited
    since the last test that passed and the last commit.
    """

    index: int
    difficulty: float
    state: FSMState
    readings: Readings
    step: Step
    run: int = 0
    risk: float = UNKNOWN
    risk_evidence: float = 0.0
    likely_fails: bool = False
    trouble: Trouble | None = None
    severity: int = 0
    waits: bool = False
    calls: ObservedCalls = ()
    repairing: bool = False

    @property
    def failed(self) -> bool:
        """Whether a call of the step failed."""
        return any(action.failure is not None for action, _ in self.calls)

    @property
    def loop_count(self) -> int:
        """Number of earlier calls with the same result, for the most repeated call of the step."""
        return max([repeat.count for _, repeat in self.calls], default=1) - 1


class RunSnapshot(Struct, frozen=True, kw_only=True, array_like=True):
    """The part of a run's state that is stored and survives a compacted transcript.

    Monitor and scorer windows are not in it. `history` is the tail of the difficulty scores that
    transitions can depend on; `steps` counts the scored steps of the run so far.
    """

    run: int = 0
    state: FSMState = FSMState.INIT
    history: tuple[float, ...] = ()
    steps: int = 0


class RunFold:
    """One run: scorer, state machine and monitors over its steps.

    `start` is the index of the run's first message. `keep` limits how many of the newest outcomes
    stay in `outcomes`, because they contain the texts of their steps; None keeps all. `earlier`:
    the steps that `base` summarises, oldest first; they fill the windows of monitors and scorer and
    are not scored again. `judged`: scores that a model gave, for the scorer `judge`; read with each
    push. `prior`: the outcomes of the run's workload so far, for its risk.
    """

    __slots__ = (
        "_alarmed_steps",
        "_before",
        "_earlier",
        "_judged",
        "_longest_window",
        "_observed",
        "_observer",
        "_opened",
        "_policy",
        "_risk",
        "_scorer",
        "_scorer_observes",
        "_suite",
        "_suite_observes",
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
        self._longest_window = policy.fsm.longest_window
        self._judged = judged
        self._earlier = deque(earlier, maxlen=keep)
        self.index = base.run
        self.prior = prior
        self.start = start
        self.state = self._before = base.state
        self.steps = base.steps
        self.history: list[float] = list(base.history)
        self.outcomes: deque[StepOutcome] = deque(maxlen=keep)
        self.restart_windows()
        for step in earlier:
            self._observe(step)

    @property
    def recent(self) -> list[Step]:
        """The newest steps of the run, oldest first."""
        return [*self._earlier, *(outcome.step for outcome in self.outcomes)]

    def restart_windows(self) -> None:
        """Empty the windows of monitors and scorer; state and score history stay."""
        self._opened = False  # most runs begin, and many end, without a step
        self._alarmed_steps = 0

    def share(self, judged: Judged) -> None:
        """Read the scores that a model gave from here on."""
        self._judged = judged
        if self._opened and isinstance(self._scorer, Judgeable):
            self._scorer.judged = judged

    def _open_windows(self) -> None:
        self._opened = True
        self._scorer = make_scorer(self._policy.difficulty)
        if isinstance(self._scorer, Judgeable):
            self._scorer.judged = self._judged
        self._suite = make_suite(self._policy.monitors)
        # Asked once: `isinstance` with a class that others may join takes long.
        suite, scorer = self._suite, self._scorer
        self._suite_observes = suite.push_observed if isinstance(suite, ReadsObservations) else None
        self._scorer_observes = (
            scorer.push_observed if isinstance(scorer, ReadsObservations) else None
        )
        self._observer = RunObserver()
        self._risk = RiskModel(self._policy.difficulty.calibration or shipped_calibration())
        self._observed: ObservedStep

    def push(self, step: Step) -> StepOutcome:
        """Score the next step and advance the state by one transition."""
        score = self._observe(step)
        readings = self._suite.readings()
        self._alarmed_steps = self._alarmed_steps + 1 if readings.fired else 0
        difficulty = self._raised(score, readings)
        self.history.append(difficulty)
        self._before = self.state
        self.state = next_state(self.state, self.history, self._policy.fsm)
        self.steps += 1
        outcome = StepOutcome(
            index=self.steps,
            difficulty=difficulty,
            state=self.state,
            readings=readings,
            step=step,
            run=self.index,
            risk=risk_of(self._risk.log_odds, self.prior),
            risk_evidence=self._risk.log_odds,
            likely_fails=self._risk.likely,
            trouble=self._observed.trouble,
            severity=severity_of(self._alarmed_steps),
            waits=self._observed.waits,
            calls=self._observed.actions,
            repairing=self._observed.repairing,
        )
        self.outcomes.append(outcome)
        return outcome

    def _observe(self, step: Step) -> float:
        """Show the step to scorer, monitors and risk; its score, clamped to [0, 1]."""
        if not self._opened:
            self._open_windows()
        self._observed = observed = self._observer.observe(step)
        self._risk.push(observed)
        if self._suite_observes is not None:
            self._suite_observes(observed)
        else:
            self._suite.push(step)
        if self._scorer_observes is not None:
            return _clamp(self._scorer_observes(observed))
        return _clamp(self._scorer.push(step))

    def _raised(self, score: float, readings: Readings) -> float:
        exact = self._policy.difficulty.scorer == "heuristic"
        return score if exact else with_alarm(score, readings.fired)

    @property
    def score_key(self) -> str:
        """The key of the newest step among the judged scores; empty when the scorer takes none."""
        return self._scorer.key if self._opened and isinstance(self._scorer, Judgeable) else ""

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
        return RunSnapshot(
            run=self.index,
            state=self.state,
            history=tuple(self.history[-self._longest_window :]),
            steps=self.steps,
        )


def _clamp(score: float) -> float:
    """The score clamped to [0, 1]; NaN becomes the neutral score UNKNOWN."""
    return UNKNOWN if math.isnan(score) else min(max(score, 0.0), 1.0)
