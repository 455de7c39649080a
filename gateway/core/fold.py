"""Folding a transcript: steps -> difficulty, state and monitor readings, run by run.

The transcript is the only source: everything in a fold can be recomputed from the messages."""

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.fsm import FSMState, next_state
from gateway.core.ledger.ledger import Ledger, LedgerStep
from gateway.core.ledger.readers import ReadsLedger
from gateway.core.ledger.session import SessionLedger
from gateway.core.monitors import Readings, make_suite
from gateway.core.monitors.suite import session_alarm, severity_of
from gateway.core.policy import Policy
from gateway.core.scoring.scorer import (
    JUDGED,
    NOT_JUDGED,
    UNKNOWN,
    Judgeable,
    Judged,
    make_scorer,
)
from gateway.steering.transcript.content import asks_user, read_content
from gateway.steering.transcript.steps import Change, Draft, Step, StepReader
from gateway.values import Value
from gateway.wire.echo import OWN_ANSWER


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

    @property
    def loop_count(self) -> int:
        """Number of earlier calls with the same result, for the most repeated call of the step."""
        return max([each.count for _, each in self.observed.actions], default=1) - 1


QUIET_STEPS = 3  # steps without an alarm that end it


class RunSnapshot(Value, array_like=True):
    """The part of a run's state that is stored and survives a compacted transcript."""

    run: int = 0  # number of the run in its conversation, from 0
    state: FSMState = FSMState.INIT  # after the newest scored step
    # the newest difficulty scores: as many as a transition can depend on
    history: tuple[float, ...] = ()
    steps: int = 0  # scored steps so far


class _Windows:
    """The parts of a run that remember its newest steps: ledger, scorer, monitors."""

    __slots__ = ("_read", "_score", "alarmed_steps", "ledger", "quiet", "scorer", "suite")

    def __init__(self, policy: Policy, judged: Judged, steps: int) -> None:
        self.ledger = Ledger(steps)
        self.scorer = scorer = make_scorer(policy.difficulty)
        if isinstance(scorer, Judgeable):
            scorer.judged = judged
        self.suite = suite = make_suite(policy.monitors)
        # Asked once: `isinstance` with a class that others may join takes long.
        self._read = suite.push_read if isinstance(suite, ReadsLedger) else None
        self._score = scorer.push_read if isinstance(scorer, ReadsLedger) else None
        self.alarmed_steps = self.quiet = 0

    def observe(self, step: Step) -> tuple[float, LedgerStep]:
        """Show the step to ledger, monitors and scorer; its score, clamped to [0, 1]."""
        read = self.ledger.observe(step)
        if self._read is not None:
            self._read(read)
        else:
            self.suite.push(step)
        score = self.scorer.push(step) if self._score is None else self._score(read)
        return _clamp(score), read

    def count_alarm(self, readings: Readings) -> int:
        """Severity, 0 to 3, of the alarm after the newest step. Steps between two tries of what
        fails do not end it, as long as they are few."""
        if readings.fired:
            self.alarmed_steps += 1
            self.quiet = 0
            return severity_of(self.alarmed_steps)
        self.quiet += 1
        if self.quiet >= QUIET_STEPS:
            self.alarmed_steps = 0
        return 0

    @property
    def reason(self) -> str:
        """Reason of the newest score, in words; empty of a scorer that gives none."""
        return getattr(self.scorer, "reason", "")


class RunFold:
    """One run: scorer, state machine and monitors over its steps.

    `start`: index of the run's first message. `keep`: how many of the newest outcomes, which
    contain the texts of their steps, stay in `outcomes`; None = all. `earlier`: the steps that
    `base` summarises, oldest first; they fill the windows of monitors and scorer and are not scored
    again. `judged`: scores that a model gave, for the scorer `judge`; read with each push."""

    def __init__(
        self,
        policy: Policy,
        *,
        start: int = 0,
        base: RunSnapshot | None = None,
        keep: int | None = None,
        earlier: Sequence[Step] = (),
        judged: Judged = NOT_JUDGED,
        session: SessionLedger | None = None,
    ) -> None:
        base = base or RunSnapshot()
        self._session = session or SessionLedger()
        self._policy = policy
        self._judged = judged
        self._earlier = deque(earlier, maxlen=keep)
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
        steps = self.steps - len(self._earlier)
        return _Windows(self._policy, self._judged, max(steps, 0))

    @property
    def recent(self) -> list[Step]:
        """The newest steps of the run, oldest first: `keep` of them, wherever it was read."""
        steps = [*self._earlier, *(outcome.step for outcome in self.outcomes)]
        keep = self.outcomes.maxlen
        return steps if keep is None else steps[-keep:]

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
            severity=windows.count_alarm(readings),
            observed=observed,
        )
        self.outcomes.append(outcome)
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
        newest = tuple(self.history[-self._policy.fsm.longest_window :])
        return RunSnapshot(run=self.index, state=self.state, history=newest, steps=self.steps)


def _clamp(score: float) -> float:
    """The score clamped to [0, 1]; NaN becomes the neutral score UNKNOWN."""
    return UNKNOWN if math.isnan(score) else min(max(score, 0.0), 1.0)


class _Start(Struct, frozen=True):
    """The point at which a fold begins."""

    base: RunSnapshot  # the run as it was stored before the first message of this transcript
    offset: int  # messages at the beginning that are not scored again
    earlier: Sequence[Step]  # steps that led to `base`, oldest first; empty when they are not known


class ConversationFold:
    """The runs of one conversation, derived from its transcript alone.

    The first `offset` messages are read, to learn how the agent writes its calls, but their steps
    are not scored: `base` contains them, as the state of the run before a compaction. After a base
    whose run has ended the next run begins. `keep`, `earlier`, `judged`: as in `RunFold`.
    `answers`: how many messages the transcript had with each final answer that was delivered. A
    message after one that is not the user's, or a request that nothing follows, opens the next run.

    `consumed`: messages read so far. `starts_over`: after `read_ahead`, whether `extend` will fold
    from the first message again."""

    def __init__(
        self,
        policy: Policy,
        *,
        base: RunSnapshot | None = None,
        offset: int = 0,
        keep: int | None = None,
        earlier: Sequence[Step] = (),
        judged: Judged = NOT_JUDGED,
        answers: Collection[int] = (),
    ) -> None:
        if base is not None and base.state is FSMState.END:
            base = RunSnapshot(run=base.run + 1)
            earlier = ()
        self._policy = policy
        self._never_ends = policy.run_boundary == "never"
        self._judged = judged
        self._answers = answers
        self._start = _Start(base or RunSnapshot(), offset, earlier)
        self._keep = keep
        self._restart()

    @property
    def current(self) -> RunFold:
        """The newest run."""
        return self.runs[-1]

    @property
    def open_calls(self) -> int:
        """Calls and results of the newest step, as far as they are known."""
        draft = self._reader.draft
        return len(draft.reply.calls) + len(draft.results) if draft is not None else 0

    def extend(self, messages: Sequence[Any]) -> list[StepOutcome]:
        """Fold the new messages of a transcript; the outcomes of the newly scored steps.

        `messages` is the whole transcript; those read before must be unchanged. Only a message that
        completes the step scored last (a late result) causes a new fold from the first message, and
        that step is returned again under the same run and index, with its new score. A newest step
        without a call is scored only when it is known not to be a final answer.

        Raises:
            Exception: what a scorer or a monitor raised; the next call starts from the first
                message."""
        try:
            outcomes = self._fold(messages)
            if outcomes is None:
                self._restart(max(self._returned - 1, 0))
                whole = self._fold(messages)
                assert whole is not None, "a new fold has returned no outcome that could change"
                outcomes = whole[self._returned :]
        except BaseException:
            self._restart()
            raise
        self._returned += len(outcomes)
        return outcomes

    def read_ahead(self, messages: Sequence[Any], most: int) -> bool:
        """Read up to `most` new messages of a transcript before `extend`; whether there are more.
        `extend` gives the outcomes then, and has to follow. Raises as `extend` does."""
        end = min(self.consumed + most, len(messages))
        try:
            self.starts_over = not self._read_until(messages, end)
        except BaseException:
            self._restart()
            raise
        return not self.starts_over and self.consumed < len(messages)

    def peek_final(self, reply: object) -> bool:
        """Whether this assistant message, if it is complete, would end the run as the next one."""
        if self._never_ends or self._reader.would_call(reply):
            return False
        content = reply.get("content") if isinstance(reply, dict) else None
        return not self._asks(read_content(content).text)

    def share(self, judged: Judged, answers: Collection[int]) -> None:
        """Use these instead of what `__init__` got; they agree on all that was read."""
        self._judged = judged
        self._answers = answers
        self.current.share(judged)

    def continue_in(self, consumed: int) -> None:
        """Continue in another transcript, whose first `consumed` messages replace all read so far.
        If everything has to be read again, the run starts from its present state."""
        current = self.current
        self._start = _Start(current.snapshot(), consumed, tuple(current.recent))
        self.consumed = consumed
        self._returned = 0
        current.start = min(current.start, consumed)

    def _restart(self, returned: int = 0) -> None:
        self._reader = StepReader()
        self._returned = returned
        self.consumed = 0
        self._outcomes: list[StepOutcome] = []  # of what was read ahead
        self.starts_over = False  # a step that was returned has changed
        # The newest step: not scored yet, or scored and returned, but possibly without all results.
        self._pending: Draft | None = None
        self._scored: Draft | None = None
        # The final answer after which the next run began before anything followed.
        self._closed: Draft | None = None
        self._session = SessionLedger()
        self.runs = [self._run(self._start.base, self._start.offset, self._start.earlier)]

    def _run(self, base: RunSnapshot, start: int, earlier: Sequence[Step] = ()) -> RunFold:
        return RunFold(
            self._policy,
            start=start,
            base=base,
            keep=self._keep,
            earlier=earlier,
            judged=self._judged,
            session=self._session,
        )

    def _fold(self, messages: Sequence[Any]) -> list[StepOutcome] | None:
        """The outcomes of all new steps; None when a step that was returned has changed."""
        if self.starts_over or not self._read_until(messages, len(messages)):
            return None
        if self.consumed in self._answers:
            self._close()
        if self._pending is not None and not self._waits(self._pending):
            self._scored = self._pending
            self._score()
        outcomes = self._outcomes
        self._outcomes = []
        return outcomes

    def _read_until(self, messages: Sequence[Any], end: int) -> bool:
        """Read the new messages before `end`; False when a step that was returned has changed."""
        while self.consumed < end:
            message = messages[self.consumed]
            said = isinstance(message, dict) and message.get("role") == "user"
            if self.consumed in self._answers and not said:
                self._close()
            if not self._read(message):
                return False
            self.consumed += 1
        return True

    def _close(self) -> None:
        """End the run at a delivered final answer; in a group's chat the next speaker continues."""
        draft = self._pending
        if draft is None or draft.reply.named or not self._waits(draft):
            return
        draft.followed = True  # calls that come next are no part of it
        self._closed = draft
        self._begin_run()

    def _begin_run(self) -> None:
        self._pending = None
        self.current.state = FSMState.END
        if (draft := self._reader.draft) is not None:
            self._session.claim(draft.reply.thought, self.current.index, self.current.steps)
        self.runs.append(self._run(RunSnapshot(run=self.current.index + 1), self.consumed))

    def _read(self, message: object) -> bool:
        change = self._reader.read(message)
        is_new = self.consumed >= self._start.offset
        if change is Change.OPENED:
            self._score()
            self._scored = None
            self._pending = self._reader.draft if is_new else None
        elif change is Change.ANSWERED:
            return self._scored is None
        elif change is Change.FINAL and is_new:
            # The reply before this user message was the final answer of its run, unless it asked.
            draft = self._reader.draft
            asked = draft is not None and (draft is self._closed or self._asks(draft.reply.thought))
            if not (asked or self._never_ends):
                self._begin_run()
        return True

    def _score(self) -> None:
        if self._pending is not None:
            self._outcomes.append(self.current.push(self._pending.step()))
            self._pending = None

    def _waits(self, draft: Draft) -> bool:
        """Whether the newest step may still be a final answer, which is not scored."""
        open_end = not (self._never_ends or draft.acts or draft.user_followed)
        return open_end and not self._asks(draft.reply.thought)

    def _asks(self, text: str) -> bool:
        if text.startswith(OWN_ANSWER):
            return True  # the run waits for the operator: an agent that goes on is still in it
        return self._policy.run_boundary == "settled_answer" and asks_user(text)
