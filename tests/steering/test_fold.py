"""Folding transcripts: one run, and the runs of a conversation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import fold as fold_module
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, RunSnapshot, StepOutcome
from gateway.core.fsm import FSMSettings, FSMState
from gateway.core.scoring.heuristic import heuristic_score
from gateway.core.step import Step
from gateway.steering.guidance.situation import READER
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.steps import extract
from tests.steering.builders import (
    REFERENCE,
    acts,
    assistant,
    call,
    evaluate_reference,
    system,
    thinks,
    tool,
    user,
)

POLICY = REFERENCE
ENDLESS = replace(REFERENCE, run_boundary="never")


class Scripted:
    """A scorer that returns prepared scores."""

    def __init__(self, scores: list[float]) -> None:
        self._scores = scores

    def push(self, step: Step) -> float:
        score = self._scores.pop(0)
        if score == -99.0:
            raise RuntimeError("the scorer failed")
        return score


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Scores that the scorers of the test return, in order."""
    prepared: list[float] = []
    monkeypatch.setattr(fold_module, "make_scorer", lambda settings: Scripted(prepared))
    return prepared


def looped(count: int, text: str = "again") -> list[dict[str, Any]]:
    """A run of `count` answered calls of one tool."""
    messages: list[dict[str, Any]] = [system(), user()]
    for number in range(count):
        messages += [assistant(text, call("ls", id=f"c{number}")), tool("a.py", f"c{number}")]
    return messages


class TestRunFold:
    """Scorer, monitors and state machine over the steps of one run."""

    def test_the_first_scored_step_is_one_and_normal(self) -> None:
        """C6: before it INIT at index 0; records hold the state after scoring, so never INIT."""
        run = RunFold(POLICY, READER)
        assert (run.state, run.steps) == (FSMState.INIT, 0)
        outcome = run.push(acts("ls", thought="maybe"))
        assert (outcome.index, outcome.state, outcome.run) == (1, FSMState.NORMAL, 0)
        assert outcome.difficulty == heuristic_score("maybe")

    def test_a_step_without_text_is_scored_a_half(self) -> None:
        """Every turn is scored once, tool-only ones too; no older thought is reused."""
        run = RunFold(POLICY, READER)
        assert [run.push(step).difficulty for step in (thinks("maybe"), acts("ls"))][1] == 0.5

    def test_readings_are_those_of_the_whole_run(self) -> None:
        """The monitors see every step up to now."""
        run, steps = RunFold(POLICY, READER), [acts("ls")] * 4
        outcomes = [run.push(step) for step in steps]
        assert [o.readings for o in outcomes] == [
            evaluate_reference(steps[:n]) for n in range(1, 5)
        ]
        assert list(run.outcomes) == outcomes

    @pytest.mark.parametrize(
        ("raw", "stored"),
        [(math.nan, 0.5), (math.inf, 1.0), (-math.inf, 0.0), (1.5, 1.0), (-0.5, 0.0)],
    )
    def test_a_score_out_of_range_is_clamped(
        self, scores: list[float], raw: float, stored: float
    ) -> None:
        """No outcome and no history contains NaN or a value outside [0, 1]."""
        scores += [raw, 0.25]
        run = RunFold(POLICY, READER)
        first, second = run.push(thinks("x")), run.push(thinks("y"))
        assert (first.difficulty, second.difficulty) == (stored, 0.25)
        assert run.history == [stored, 0.25]

    def test_the_states_page_run(self, scores: list[float]) -> None:
        """Five hard steps lead to SLOW, one below 0.5 back; monitors and tokens have no effect."""
        scores += [0.7] * 5 + [0.4]
        run = RunFold(POLICY, READER)
        states = [run.push(acts("ls")).state for _ in range(6)]
        assert states == [FSMState.NORMAL] * 4 + [FSMState.SLOW, FSMState.NORMAL]

    def test_restarted_windows_forget_repeats_and_keep_the_state(self, scores: list[float]) -> None:
        """Difficulty history and state stay; monitor windows are fresh."""
        scores += [0.7] * 6
        run = RunFold(POLICY, READER)
        for _ in range(4):
            run.push(acts("ls"))
        run = RunFold(POLICY, READER, base=run.snapshot())
        outcome = run.push(acts("ls"))
        assert (outcome.index, outcome.state) == (5, FSMState.SLOW)
        assert outcome.readings == evaluate_reference([acts("ls")])

    def test_another_run_fold_continues_from_a_snapshot(self, scores: list[float]) -> None:
        """State, step count and the tail of the history that transitions can depend on."""
        scores += [0.7] * 12
        policy = replace(REFERENCE, fsm=FSMSettings(fast_window=1, slow_window=3, skip_window=2))
        run = RunFold(policy, READER, base=RunSnapshot(run=2))
        for _ in range(5):
            run.push(acts("ls"))
        snapshot = run.snapshot()
        assert snapshot == RunSnapshot(run=2, state=FSMState.SLOW, history=(0.7, 0.7, 0.7), steps=5)
        assert RunFold(policy, READER, base=snapshot).push(acts("ls")).index == 6

    def test_only_the_newest_outcomes_are_kept_when_bounded(self) -> None:
        """Outcomes contain the texts of their steps; the step count continues."""
        run = RunFold(POLICY, READER, keep=2)
        outcomes = [run.push(acts("ls")) for _ in range(5)]
        assert list(run.outcomes) == outcomes[-2:]
        assert len(run.history) == run.steps == 5


class TestRuns:
    """A conversation is one or more runs."""

    MESSAGES = (
        *looped(2),
        assistant("Done."),
        user("And now this."),
        assistant("I look.", call("cat", id="d1")),
        tool("text", "d1"),
    )

    def test_a_final_answer_ends_the_run(self) -> None:
        """State END, the answer itself not scored; the user message starts a fresh run."""
        fold = ConversationFold(POLICY)
        outcomes = fold.extend(self.MESSAGES)
        assert [(o.run, o.index) for o in outcomes] == [(0, 1), (0, 2), (1, 1)]
        first, second = fold.runs
        assert (first.state, first.steps, first.start) == (FSMState.END, 2, 0)
        assert (second.state, second.index, second.start) == (FSMState.NORMAL, 1, 7)
        assert fold.current is second
        assert second.outcomes[0].readings == evaluate_reference([second.outcomes[0].step])
        assert second.history == [second.outcomes[0].difficulty]

    AFTERWARDS = (
        *looped(2),
        assistant("Done."),
        assistant(None, call("cat", id="d1")),
        tool("text", "d1"),
        assistant("One more.", call("ls", id="d2")),
        tool("a.py", "d2"),
    )

    @pytest.mark.parametrize("at_once", [True, False])
    def test_what_follows_a_delivered_answer_opens_the_next_run(self, at_once: bool) -> None:
        """Also calls without a text, which are else the rest of the message before; in whatever
        parts the transcript arrives."""
        fold = ConversationFold(POLICY, answers=[7])
        parts = [9] if at_once else [7, 9]
        found = [o for end in (*parts, 11) for o in fold.extend(self.AFTERWARDS[:end])]
        assert [(o.run, o.index) for o in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
        assert [run.state for run in fold.runs][:-1] == [FSMState.END]
        assert [len(o.step.actions) for o in found] == [1] * 4

    def test_a_user_after_a_delivered_answer_opens_one_run(self) -> None:
        """A request that nothing followed, and the user's words after all, begin the same run."""
        fold = ConversationFold(POLICY, answers=[7])
        fold.extend(self.MESSAGES[:7])
        assert [run.start for run in fold.runs] == [0, 7]
        assert [(o.run, o.index) for o in fold.extend(self.MESSAGES)] == [(1, 1)]
        again = ConversationFold(POLICY, answers=[7])
        again.extend(self.MESSAGES)
        assert [run.index for run in fold.runs] == [run.index for run in again.runs] == [0, 1]

    def test_in_a_group_the_next_speaker_goes_on(self) -> None:
        """Messages with the names of their speakers are one run, as without the places."""
        spoken = [{**m, "name": "expert"} if m["role"] == "assistant" else m for m in self.MESSAGES]
        del spoken[7]
        fold = ConversationFold(POLICY, answers=[7])
        assert [(o.run, o.index) for o in fold.extend(spoken)] == [(0, 1), (0, 2), (0, 3), (0, 4)]

    def test_without_a_boundary_everything_is_one_run(self) -> None:
        """Messages without an action are scored as steps."""
        fold = ConversationFold(ENDLESS)
        outcomes = fold.extend(self.MESSAGES)
        assert [(o.run, o.index) for o in outcomes] == [(0, 1), (0, 2), (0, 3), (0, 4)]
        assert tuple(o.step for o in outcomes) == extract(self.MESSAGES)
        assert fold.current.state is FSMState.NORMAL

    def test_a_text_between_calls_is_a_step(self) -> None:
        """An assistant message with no action is scored unless the user replies to it."""
        fold = ConversationFold(POLICY)
        outcomes = fold.extend([user(), assistant("Hm."), assistant("I look.", call()), tool()])
        assert [o.step.thought for o in outcomes] == ["Hm.", "I look."]

    def test_a_text_at_the_end_waits(self) -> None:
        """It may turn out to be a final answer; what follows decides."""
        fold = ConversationFold(POLICY)
        text = [user(), assistant("Hm.")]
        assert fold.extend(text) == []
        assert fold.current.state is FSMState.INIT
        going_on = [*text, assistant("I look.", call()), tool()]
        assert [o.step.thought for o in fold.extend(going_on)] == ["Hm.", "I look."]

    def test_a_format_complaint_does_not_end_the_run(self) -> None:
        """The step that forgot its call is scored at once."""
        fold = ConversationFold(POLICY)
        complaint = user("Your last output did not use any tool calls!")
        (outcome,) = fold.extend([user(), assistant("Hm."), complaint])
        assert outcome.step.thought == "Hm."
        assert len(fold.runs) == 1

    def test_a_run_that_is_only_a_chat(self) -> None:
        """Questions and answers alone: every answer ends a run without steps."""
        fold = ConversationFold(POLICY)
        assert fold.extend([user(), assistant("a"), user(), assistant("b"), user()]) == []
        assert [(run.state.name, run.steps) for run in fold.runs] == [
            ("END", 0),
            ("END", 0),
            ("INIT", 0),
        ]

    @pytest.mark.parametrize(
        ("reply", "final"),
        [
            (assistant("Done."), True),
            (assistant(None), True),
            (assistant("x", call()), False),
            (assistant(None, function_call={"name": "f"}), False),
            (assistant("Action: ls\nAction Input: ."), False),
            ("nonsense", True),
        ],
    )
    def test_peek_final(self, reply: Any, final: bool) -> None:
        """A reply without an action of any protocol would end the run; peeking changes nothing."""
        fold = ConversationFold(POLICY)
        fold.extend([user()])
        assert fold.peek_final(reply) is final
        assert fold.extend([user(), assistant("x", call()), tool()])[0].index == 1

    def test_no_reply_is_final_in_a_run_that_never_ends(self) -> None:
        """With boundary `never` there is nothing to end."""
        assert not ConversationFold(ENDLESS).peek_final(assistant("Done."))

    def test_peeking_knows_the_protocol_of_the_conversation(self) -> None:
        """A block of code is a call when the prompt asks for blocks."""
        prompt = system("Your response must contain exactly one ```bash block.")
        reply = assistant("```bash\nls\n```")
        asked, chat = ConversationFold(POLICY), ConversationFold(POLICY)
        asked.extend([prompt, user()])
        chat.extend([user()])
        assert not asked.peek_final(reply)
        assert chat.peek_final(reply)


class Watched(Sequence[Any]):
    """A transcript that records which of its messages are read."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = messages
        self.touched: list[Any] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        self.touched.append(index)
        return self._messages[index]


class TestIncrements:
    """Every request has the whole transcript; only the new messages are read."""

    def test_old_messages_are_not_read_again(self) -> None:
        """The cost of a call is that of its new messages."""
        messages = looped(30)
        fold = ConversationFold(POLICY)
        fold.extend(messages[:-2])
        watched = Watched(messages)
        (outcome,) = fold.extend(watched)
        assert outcome.index == 30
        assert watched.touched == [slice(60, None)]
        assert fold.consumed == 62

    def test_the_same_transcript_again_gives_no_outcome(self) -> None:
        """A retry, or a shorter transcript, changes nothing."""
        fold = ConversationFold(POLICY)
        fold.extend(looped(3))
        assert fold.extend(looped(3)) == fold.extend(looped(2)) == []
        assert fold.current.steps == 3

    def test_a_late_result_returns_its_step_again(self) -> None:
        """The step scored last is returned under its old index, and the run continues from it."""
        messages = looped(3)
        fold = ConversationFold(POLICY)
        first = fold.extend(messages[:-1])
        assert [o.index for o in first] == [1, 2, 3]
        assert first[-1].step.actions[0].observation == ""
        (again,) = fold.extend(messages)
        assert (again.index, again.step.actions[0].observation) == (3, "a.py")
        assert fold.current.steps == len(fold.current.history) == 3
        more = looped(5)
        assert [o.index for o in fold.extend(more)] == [4, 5]

    def test_the_answer_to_a_block_returns_its_step_in_a_run_that_never_ends(self) -> None:
        """A step that was scored as a text becomes a call."""
        messages = [user(), assistant("```bash\nls\n```"), user("<returncode>0</returncode>")]
        fold = ConversationFold(ENDLESS)
        assert fold.extend(messages[:2])[0].step.actions == ()
        assert fold.extend(messages)[0].step.actions[0].name == "bash"

    def test_after_an_error_the_next_call_starts_again(self, scores: list[float]) -> None:
        """A scorer that fails leaves no half-scored run behind."""
        scores += [0.1, -99.0]
        fold = ConversationFold(POLICY)
        with pytest.raises(RuntimeError, match="the scorer failed"):
            fold.extend(looped(2))
        scores += [0.1, 0.2]
        assert [(o.index, o.difficulty) for o in fold.extend(looped(2))] == [(1, 0.1), (2, 0.2)]


class TestCompaction:
    """A rewritten transcript continues with the state of the run."""

    def test_state_and_history_continue_in_the_new_transcript(self, scores: list[float]) -> None:
        """Steps after the offset are new; those before it are not scored again."""
        scores += [0.7] * 6
        fold = ConversationFold(POLICY, keep=3)
        fold.extend(looped(4))
        summary = [system(), user("Summary so far."), assistant("ok", call()), tool()]
        after = ConversationFold(POLICY, base=fold.current.snapshot(), offset=4, keep=3)
        assert after.extend(summary) == []
        (outcome,) = after.extend([*summary, assistant("on", call("ls", id="n")), tool("x", "n")])
        assert (outcome.run, outcome.index, outcome.state) == (0, 5, FSMState.SLOW)
        assert outcome.readings == evaluate_reference([outcome.step])
        assert after.current.start == 4

    def test_a_final_answer_before_the_offset_ends_nothing(self) -> None:
        """The base contains everything before the offset."""
        kept = [user(), assistant("Done."), user("Next.")]
        base = RunSnapshot(run=1, state=FSMState.SLOW, history=(0.7,), steps=9)
        fold = ConversationFold(POLICY, base=base, offset=3)
        fold.extend(kept)
        assert (len(fold.runs), fold.current.state) == (1, FSMState.SLOW)
        earlier = ConversationFold(POLICY, base=base, offset=2)
        earlier.extend(kept)
        assert [run.state for run in earlier.runs] == [FSMState.END, FSMState.INIT]
        assert earlier.current.index == 2

    def test_a_late_result_rebuilds_on_the_base(self) -> None:
        """A new fold of all messages starts from the base."""
        base = RunSnapshot(state=FSMState.FAST, history=(0.1,) * 6, steps=6)
        fold = ConversationFold(POLICY, base=base)
        messages = looped(1)
        assert [o.index for o in fold.extend(messages[:-1])] == [7]
        assert [o.index for o in fold.extend(messages)] == [7]
        assert fold.current.history[:6] == [0.1] * 6

    def test_a_base_whose_run_has_ended_begins_the_next_run(self) -> None:
        """A completed run is frozen."""
        base = RunSnapshot(run=1, state=FSMState.END, history=(0.7,), steps=9)
        fold = ConversationFold(POLICY, base=base)
        assert (fold.current.index, fold.current.state, fold.current.steps) == (2, FSMState.INIT, 0)


_REPLIES = st.sampled_from(
    [
        assistant("I look.", call("ls", id="1")),
        assistant("", call("ls", id="1"), call("cat", id="2")),
        assistant("maybe it could be wrong"),
        assistant("Action: ls\nAction Input: .\nObservation: x"),
        assistant("Action: ls\nAction Input: ."),
        assistant("```bash\nls\n```"),
        assistant(None),
    ]
)
_OTHERS = st.sampled_from(
    [
        tool("a.py", "1"),
        tool("error", "2"),
        tool("x", None),
        user("<returncode>1</returncode>"),
        user("Observation: failed"),
        user("thanks"),
        user([{"type": "tool_result", "tool_use_id": "1", "content": "x"}]),
        system("Respond with exactly one ```bash block."),
        None,
    ]
)
_TRANSCRIPTS = st.lists(st.one_of(_REPLIES, _OTHERS), max_size=24)


def latest(outcomes: list[StepOutcome]) -> dict[tuple[int, int], StepOutcome]:
    """The outcomes by run and index; a step returned again replaces its older form."""
    return {(outcome.run, outcome.index): outcome for outcome in outcomes}


@given(
    messages=_TRANSCRIPTS,
    cuts=st.sets(st.integers(0, 24)),
    policy=st.sampled_from([POLICY, ENDLESS]),
    offset=st.integers(0, 4),
    ahead=st.sampled_from([1, 2, 5, None]),
)
def test_folding_in_any_split_gives_the_same(
    messages: list[Any], cuts: set[int], policy: Policy, offset: int, ahead: int | None
) -> None:
    """Folding piece by piece, or reading ahead, equals folding at once: outcomes, runs, states,
    histories."""
    at_once = ConversationFold(policy, offset=offset)
    expected = at_once.extend(messages)
    in_parts = ConversationFold(policy, offset=offset)
    given_out: list[StepOutcome] = []
    for part in (*(messages[:cut] for cut in sorted(cuts)), messages):
        while ahead and in_parts.read_ahead(part, ahead):
            pass
        given_out += in_parts.extend(part)
    assert list(latest(given_out).values()) == expected
    for one, other in zip(at_once.runs, in_parts.runs, strict=True):
        assert (one.state, one.history, one.start, one.index, list(one.outcomes)) == (
            other.state,
            other.history,
            other.start,
            other.index,
            list(other.outcomes),
        )


@given(_TRANSCRIPTS)
def test_every_step_is_scored_once_or_was_a_final_answer(messages: list[Any]) -> None:
    """Nothing is lost: a step is scored, waits at the end, or ended its run."""
    fold = ConversationFold(POLICY)
    outcomes = fold.extend(messages)
    steps = extract(messages)
    scored = {outcome.step.index for outcome in outcomes}
    assert {outcome.step for outcome in outcomes} <= set(steps)
    unscored = [step for step in steps if step.index not in scored]
    waiting = bool(unscored) and unscored[-1].index == len(steps) - 1
    assert all(not step.actions for step in unscored)
    assert len(unscored) in (len(fold.runs) - 1, len(fold.runs) - 1 + waiting)


class TestSettledAnswer:
    """The default boundary: a reply without a call ends the run unless it asks the user."""

    def test_a_question_keeps_the_run_open(self) -> None:
        """A dialogue that waits for an answer is one task."""
        fold = ConversationFold(Policy())
        fold.extend(
            [user("help"), assistant("Which order is it?"), user("number 5"), assistant("x")]
        )
        assert len(fold.runs) == 1
        assert fold.current.steps >= 1

    def test_a_closing_reply_ends_the_run(self) -> None:
        """What comes after a settled answer is the next run, with a fresh state."""
        fold = ConversationFold(Policy())
        fold.extend([user("help"), assistant("It is done."), user("now another thing")])
        assert [run.state for run in fold.runs] == [FSMState.END, FSMState.INIT]

    def test_a_final_reply_is_recognised_before_the_user_answers(self) -> None:
        """The reply alone shows whether it ends the run."""
        fold = ConversationFold(Policy())
        fold.extend([user("help")])
        assert fold.peek_final(assistant("It is done."))
        assert not fold.peek_final(assistant("Which order is it?"))
