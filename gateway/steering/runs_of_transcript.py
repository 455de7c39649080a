"""Folding a transcript: its messages to the steps of its runs, and these through the core.

The transcript is the only source: everything in a fold can be recomputed from the messages."""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, RunSnapshot, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.ledger.session import SessionLedger
from gateway.core.scoring.scorer import NOT_JUDGED, Judged
from gateway.core.step import Step
from gateway.steering.guidance.situation import READER
from gateway.steering.transcript.asks_user import asks_user
from gateway.steering.transcript.content import read_content
from gateway.steering.transcript.steps import Draft, StepChange, StepReader
from gateway.wire.echo import OWN_ANSWER


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
    ):
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
        if draft is not None:
            return len(draft.reply.calls) + len(draft.results)
        return 0

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
        content = None
        if isinstance(reply, dict):
            content = reply.get("content")
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
        self._start = _Start(current.snapshot(), consumed, tuple(current.newest))
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
            READER,
            start=start,
            base=base,
            keep=self._keep,
            earlier=earlier,
            judged=self._judged,
            session=self._session,
        )

    def _fold(self, messages: Sequence[Any]) -> list[StepOutcome] | None:
        """The outcomes of all new steps; None when a step that was returned has changed."""
        if self.starts_over or not self._read_until(messages, None):
            return None
        if self.consumed in self._answers:
            self._close()
        if self._pending is not None and not self._waits(self._pending):
            self._scored = self._pending
            self._score()
        outcomes = self._outcomes
        self._outcomes = []
        return outcomes

    def _read_until(self, messages: Sequence[Any], end: int | None) -> bool:
        """Read the new messages before `end`, all where it is None; False when a step that was
        returned has changed."""
        for message in messages[self.consumed : end]:
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
        if change is StepChange.OPENED:
            self._score()
            self._scored = None
            if is_new:
                self._pending = self._reader.draft
        elif change is StepChange.ANSWERED:
            return self._scored is None
        elif change is StepChange.FINAL and is_new:
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
