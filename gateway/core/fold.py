"""Folding a run: its steps in, the difficulty, state and readings after each of them out.

The steps are the only source: everything in a fold can be computed from them again."""

from collections import deque
from collections.abc import Callable, Sequence
from math import isnan

from msgspec.structs import replace

from gateway.core.decision_settings import Policy
from gateway.core.fsm import FSMState, next_state
from gateway.core.ledger.ledger import Ledger, LedgerStep
from gateway.core.ledger.session import SessionLedger
from gateway.core.monitors import Readings, make_suite
from gateway.core.monitors.alarms import session_alarm
from gateway.core.scoring.scorer import (
    JUDGED,
    NOT_JUDGED,
    UNKNOWN,
    Judgeable,
    Judged,
    ReadsLedger,
    make_scorer,
)
from gateway.core.situation import Reader
from gateway.core.step import Describe, Step
from gateway.values import Value


class StepOutcome(Value):
    """The result of scoring one step."""

    run: int  # number of the run in its conversation, from 0
    index: int  # scored steps of the run so far, from 1; the first call, before any step, is 0
    difficulty: float  # score in [0, 1]; 1 is hardest
    reason: str = ""  # why the score is what it is, in words; empty for scorers that give none
    state: FSMState  # after this step
    readings: Readings  # the monitors' scores after this step
    severity: int  # of the alarm, 0 (none) to 3
    observed: LedgerStep  # the step as the ledger of tries describes it

    @property
    def step(self) -> Step:
        """The step that was scored."""
        return self.observed.step


class RunSnapshot(Value, array_like=True):
    """The part of a run's state that is stored and survives a compacted transcript."""

    run: int = 0  # number of the run in its conversation, from 0
    state: FSMState = FSMState.INIT  # after the newest scored step
    # the newest difficulty scores: as many as a transition can depend on
    history: tuple[float, ...] = ()
    steps: int = 0  # scored steps so far


class _Windows:
    """The parts of a run that remember its newest steps: ledger, scorer, monitors."""

    __slots__ = ("_score", "ledger", "scorer", "suite")

    def __init__(self, policy: Policy, describe: Describe, judged: Judged, steps: int):
        self.ledger = Ledger(describe, steps)
        self.scorer = scorer = make_scorer(policy.difficulty)
        if isinstance(scorer, Judgeable):
            scorer.judged = judged
        # Asked once: `isinstance` with a class that others may join takes long.
        self._score: Callable[[LedgerStep], float] = (
            scorer.push_read
            if isinstance(scorer, ReadsLedger)
            else lambda read: scorer.push(read.step)
        )
        self.suite = make_suite(policy.monitors)

    def observe(self, step: Step) -> tuple[float, LedgerStep]:
        """Show the step to ledger, monitors and scorer; its score, clamped to [0, 1]."""
        read = self.ledger.observe(step)
        self.suite.push(read)
        return _clamp(self._score(read)), read

    @property
    def reason(self) -> str:
        """Reason of the newest score, in words; empty of a scorer that gives none."""
        return getattr(self.scorer, "reason", "")


class RunFold:
    """One run: scorer, state machine and monitors over its steps.

    `reader` reads the texts of its steps. `start`: index of the run's first message. `keep`: how
    many of the newest outcomes, which contain the texts of their steps, stay in `outcomes`; None =
    all. `earlier`: the steps that
    `base` summarises, oldest first; they fill the windows of monitors and scorer and are not scored
    again. `judged`: scores that a model gave, for the scorer `judge`; read with each push."""

    def __init__(
        self,
        policy: Policy,
        reader: Reader,
        *,
        start: int = 0,
        base: RunSnapshot | None = None,
        keep: int | None = None,
        earlier: Sequence[Step] = (),
        judged: Judged = NOT_JUDGED,
        session: SessionLedger | None = None,
    ):
        base = base or RunSnapshot()
        self._session = session or SessionLedger()
        self.reader = reader
        self._policy = policy
        self._kept_scores = policy.fsm.longest_window
        self._judged = judged
        # The newest steps, oldest first: `keep` of them, wherever they were read.
        self.newest = deque(earlier, maxlen=keep)

        self.index = base.run
        self.start = start
        self.state = self._before = base.state
        self.steps = base.steps
        self.history: list[float] = list(base.history)
        self.outcomes: deque[StepOutcome] = deque(maxlen=keep)
        # Made with the first step: most runs begin, and many end, without one.
        self._windows: _Windows | None = None
        if earlier:
            self._windows = windows = self._begin()
            for step in earlier:
                windows.observe(step)

    def _begin(self) -> _Windows:
        steps = self.steps - len(self.newest)
        return _Windows(self._policy, self.reader.describe, self._judged, steps=max(steps, 0))

    def share(self, judged: Judged) -> None:
        """Read the scores that a model gave from here on."""
        self._judged = judged
        if self._windows is not None and isinstance(self._windows.scorer, Judgeable):
            self._windows.scorer.judged = judged

    def push(self, step: Step) -> StepOutcome:
        """Score the next step and advance the state by one transition."""
        windows = self._windows
        if windows is None:
            self._windows = windows = self._begin()
        score, observed = windows.observe(step)
        readings = windows.suite.readings()
        severity = windows.suite.count_alarm(readings)
        if returned := self._session.observe(observed, self.index):
            alarms = [*readings.alarms, *map(session_alarm, returned)]
            readings = replace(readings, alarms=tuple(alarms))
        self.history.append(score)
        self._before = self.state
        self.state = next_state(self.state, self.history, self._policy.fsm)
        self.steps += 1
        outcome = StepOutcome(
            run=self.index,
            index=self.steps,
            difficulty=score,
            reason=windows.reason,
            state=self.state,
            readings=readings,
            severity=severity,
            observed=observed,
        )
        self.outcomes.append(outcome)
        self.newest.append(step)
        return outcome

    @property
    def score_key(self) -> str:
        """The key of the newest step among the judged scores; empty when the scorer takes none."""
        scorer = self._windows and self._windows.scorer
        return scorer.key if isinstance(scorer, Judgeable) else ""

    def rescore(self, score: float) -> StepOutcome:
        """Replace the newest step's score and recompute its state; the new outcome. Raises
        IndexError: no step has been pushed."""
        newest = self.outcomes.pop()
        difficulty = _clamp(score)
        self.history[-1] = difficulty
        self.state = next_state(self._before, self.history, self._policy.fsm)
        outcome = replace(newest, difficulty=difficulty, reason=JUDGED, state=self.state)
        self.outcomes.append(outcome)
        return outcome

    def snapshot(self) -> RunSnapshot:
        """The state from which the same run continues under a compacted transcript."""
        newest = tuple(self.history[-self._kept_scores :])
        return RunSnapshot(run=self.index, state=self.state, history=newest, steps=self.steps)


def _clamp(score: float) -> float:
    """The score clamped to [0, 1]; NaN becomes the neutral score UNKNOWN."""
    return UNKNOWN if isnan(score) else min(max(score, 0.0), 1.0)
