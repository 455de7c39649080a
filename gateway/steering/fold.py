"""Folding a transcript: steps -> difficulty, state and readings, run by run.

The transcript is the truth: whatever a fold holds can be made again from the messages alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.steering.asking import asks_user
from gateway.steering.content import read_content
from gateway.steering.difficulty import NOT_JUDGED, UNKNOWN, Judgeable, Judged, make_scorer
from gateway.steering.fsm import FSMState, next_state
from gateway.steering.monitors import Readings, make_suite
from gateway.steering.policy import Policy
from gateway.steering.reader import Change, Draft, StepReader
from gateway.steering.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What scoring one step gave.

    `index` counts the scored steps of run `run` from 1 (the unscored first call is 0); `state` is
    the state after this score; `difficulty` is in [0, 1] whatever the scorer gave.
    """

    index: int
    difficulty: float
    state: FSMState
    readings: Readings
    step: Step
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a run keeps when its transcript is compacted: everything but the repeat windows.

    `history` is the tail of the difficulty scores that transitions can depend on; `steps` counts
    the scored steps of the run so far.
    """

    run: int = 0
    state: FSMState = FSMState.INIT
    history: tuple[float, ...] = ()
    steps: int = 0


class RunFold:
    """One run: scorer, state machine and monitors over its steps.

    `start` is the index of the run's first message. `keep` bounds how many of the newest outcomes
    stay in `outcomes` (they hold the texts of their steps); None keeps all. `earlier`: the steps
    behind `base`, oldest first, which monitors and scorer look back at and nobody scores again.
    `judged`: scores that a model gave, for scorer `judge`; looked at with each push.
    """

    __slots__ = (
        "_before",
        "_earlier",
        "_judged",
        "_policy",
        "_scorer",
        "_suite",
        "history",
        "index",
        "outcomes",
        "start",
        "state",
        "steps",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        start: int = 0,
        base: Carried | None = None,
        keep: int | None = None,
        earlier: Sequence[Step] = (),
        judged: Judged = NOT_JUDGED,
    ) -> None:
        base = base or Carried()
        self._policy = policy
        self._judged = judged
        self._earlier = deque(earlier, maxlen=keep)
        self.index = base.run
        self.start = start
        self.state = self._before = base.state
        self.steps = base.steps
        self.history: list[float] = list(base.history)
        self.outcomes: deque[StepOutcome] = deque(maxlen=keep)
        self.restart_windows()
        for step in earlier:
            self._scorer.push(step)
            self._suite.push(step)

    @property
    def recent(self) -> list[Step]:
        """The newest steps of the run, oldest first."""
        return [*self._earlier, *(outcome.step for outcome in self.outcomes)]

    def restart_windows(self) -> None:
        """Forget what monitors and scorer remember of earlier steps; state and history stay."""
        self._scorer = make_scorer(self._policy.difficulty)
        if isinstance(self._scorer, Judgeable):
            self._scorer.judged = self._judged
        self._suite = make_suite(self._policy.monitors)

    def push(self, step: Step) -> StepOutcome:
        """Score the next step and advance the state by one transition."""
        difficulty = _clamp(self._scorer.push(step))
        self._suite.push(step)
        self.history.append(difficulty)
        self._before = self.state
        self.state = next_state(self.state, self.history, self._policy.fsm)
        self.steps += 1
        outcome = StepOutcome(
            index=self.steps,
            difficulty=difficulty,
            state=self.state,
            readings=self._suite.readings(),
            step=step,
            run=self.index,
        )
        self.outcomes.append(outcome)
        return outcome

    @property
    def score_key(self) -> str:
        """Where a judged score of the newest step belongs; empty when the scorer takes none."""
        return self._scorer.key if isinstance(self._scorer, Judgeable) else ""

    def rescore(self, score: float) -> StepOutcome:
        """The newest step with another score, and the state that follows from it.

        Raises:
            IndexError: no step has been pushed.
        """
        newest = self.outcomes.pop()
        difficulty = _clamp(score)
        self.history[-1] = difficulty
        self.state = next_state(self._before, self.history, self._policy.fsm)
        outcome = replace(newest, difficulty=difficulty, state=self.state)
        self.outcomes.append(outcome)
        return outcome

    def end(self) -> None:
        """The final answer was given: state END. Nothing is pushed after it."""
        self.state = FSMState.END

    def carry(self) -> Carried:
        """What goes on to the same run under a compacted transcript."""
        return Carried(
            run=self.index,
            state=self.state,
            history=tuple(self.history[-self._policy.fsm.longest_window :]),
            steps=self.steps,
        )


def _clamp(score: float) -> float:
    """The score in [0, 1]; NaN says nothing about the step."""
    return UNKNOWN if math.isnan(score) else min(max(score, 0.0), 1.0)


class ConversationFold:
    """The runs of one conversation, derived from its transcript alone.

    `offset` messages at the front are read (they tell how the agent writes its calls) but their
    steps are not scored: with `base` they stand for what a compaction left of the run. A base whose
    run has ended makes the next run begin. `keep`, `earlier` and `judged` as in
    `RunFold`.
    """

    __slots__ = (
        "_base",
        "_consumed",
        "_earlier",
        "_given_out",
        "_judged",
        "_keep",
        "_offset",
        "_pending",
        "_policy",
        "_reader",
        "_scored",
        "runs",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        base: Carried | None = None,
        offset: int = 0,
        keep: int | None = None,
        earlier: Sequence[Step] = (),
        judged: Judged = NOT_JUDGED,
    ) -> None:
        if base is not None and base.state is FSMState.END:
            base, earlier = Carried(run=base.run + 1), ()
        self._policy = policy
        self._earlier = earlier
        self._judged = judged
        self._base = base or Carried()
        self._offset = offset
        self._keep = keep
        self._given_out = 0
        self._restart()

    @property
    def current(self) -> RunFold:
        """The newest run."""
        return self.runs[-1]

    @property
    def consumed(self) -> int:
        """Messages read so far."""
        return self._consumed

    def extend(self, messages: Sequence[Any]) -> list[StepOutcome]:
        """Fold what is new in the whole transcript; the outcomes of the newly scored steps.

        The caller vouches that the messages read before are unchanged; they are not looked at. A
        message that completes the step scored last (a late result) brings that step back under the
        same run and index, with what follows from it; only then is everything read again. A newest
        step that calls nothing waits until it is known whether it was a final answer.

        Raises:
            Exception: what a scorer or a monitor raised; the next call then begins anew.
        """
        try:
            outcomes = self._fold(messages)
            if outcomes is None:
                outcomes = self._fold_again(messages)
        except BaseException:
            self._given_out = 0
            self._restart()
            raise
        self._given_out += len(outcomes)
        return outcomes

    def peek_final(self, reply: object) -> bool:
        """Whether this assistant message, were it the next one, would end the run.

        Judged by the message alone: it calls nothing in any protocol the conversation is known to
        speak. The caller checks that the reply is complete.
        """
        if self._endless or self._reader.would_call(reply):
            return False
        content = reply.get("content") if isinstance(reply, Mapping) else None
        return not self._asks(read_content(content).text)

    def compacted(self, offset: int) -> ConversationFold:
        """A fold of the same run over a rewritten transcript; steps from `offset` on are new."""
        return ConversationFold(
            self._policy,
            base=self.current.carry(),
            offset=offset,
            keep=self._keep,
            judged=self._judged,
        )

    def moved(self, consumed: int) -> None:
        """Go on in another transcript, whose first `consumed` messages stand for all read so far.

        Windows stay. Should everything be read again, the run begins as it stands now.
        """
        current = self.current
        self._base, self._earlier = current.carry(), tuple(current.recent)
        self._offset = self._consumed = consumed
        self._given_out = 0
        current.start = min(current.start, consumed)

    def _fold_again(self, messages: Sequence[Any]) -> list[StepOutcome]:
        """Everything from the first message; gives out the last known step again."""
        self._given_out = max(self._given_out - 1, 0)
        self._restart()
        outcomes = self._fold(messages)
        assert outcomes is not None, "a fresh fold has given nothing out that could change"
        return outcomes[self._given_out :]

    def _restart(self) -> None:
        self._reader = StepReader()
        self._consumed = 0
        # The newest step: to be scored yet, or scored and given out but still open to answers.
        self._pending: Draft | None = None
        self._scored: Draft | None = None
        self.runs = [self._run(self._base, self._offset, self._earlier)]

    def _run(self, base: Carried, start: int, earlier: Sequence[Step] = ()) -> RunFold:
        return RunFold(
            self._policy,
            start=start,
            base=base,
            keep=self._keep,
            earlier=earlier,
            judged=self._judged,
        )

    def _fold(self, messages: Sequence[Any]) -> list[StepOutcome] | None:
        """The outcomes of all new steps; None when a step that was given out has changed."""
        outcomes: list[StepOutcome] = []
        while self._consumed < len(messages):
            if not self._read(self._consumed, messages[self._consumed], outcomes):
                return None
            self._consumed += 1
        if self._pending is not None and not self._waits(self._pending):
            self._scored = self._pending
            self._score(outcomes)
        return outcomes

    def _read(self, position: int, message: object, outcomes: list[StepOutcome]) -> bool:
        change = self._reader.read(message)
        if change is Change.OPENED:
            self._score(outcomes)
            self._scored = None
            self._pending = self._reader.draft if position >= self._offset else None
        elif change is Change.ANSWERED:
            return self._scored is None
        elif change is Change.FINAL and position >= self._offset and self._ends_run():
            self._pending = None
            self.current.end()
            self.runs.append(self._run(Carried(run=self.current.index + 1), position))
        return True

    def _score(self, outcomes: list[StepOutcome]) -> None:
        if self._pending is not None:
            outcomes.append(self.current.push(self._pending.step()))
            self._pending = None

    def _waits(self, draft: Draft) -> bool:
        """Whether the newest step may yet turn out to be a final answer, which is not scored."""
        if self._endless or draft.acts or draft.user_followed:
            return False
        return not self._asks(draft.thought)

    def _ends_run(self) -> bool:
        """Whether the answer that a user message has just followed was the run's last word."""
        draft = self._reader.draft
        return not (self._endless or (draft is not None and self._asks(draft.thought)))

    def _asks(self, text: str) -> bool:
        return self._policy.run_boundary == "settled_answer" and asks_user(text)

    @property
    def _endless(self) -> bool:
        return self._policy.run_boundary == "never"
