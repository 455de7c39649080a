"""Scores that a model gave: read from its answer, and found again for the same transcript."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold
from gateway.core.scoring.judged import question, read_score
from gateway.core.scoring.scorer import DifficultySettings
from gateway.core.step import Step
from gateway.steering.guidance.situation import READER
from gateway.steering.runs_of_transcript import ConversationFold

JUDGED = Policy(difficulty=DifficultySettings(scorer="judge"))
LEDGER = Policy()


def transcript(count: int, last: str = "ok") -> list[dict[str, Any]]:
    """A run of `count` steps, the newest with the result `last`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair it."}]
    for n in range(count):
        call = {"id": f"c{n}", "type": "function"}
        call["function"] = {"name": "bash", "arguments": f'{{"command": "make {n % 3}"}}'}  # type: ignore[assignment]
        messages.append({"role": "assistant", "content": f"Try {n}.", "tool_calls": [call]})
        result = last if n == count - 1 else "ok"
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": result})
    return messages


def judge(fold: ConversationFold, judged: dict[str, float], score: float | None) -> None:
    """Apply a model's score to the newest step, as the gateway does."""
    if score is not None:
        judged[fold.current.score_key] = score
        fold.current.rescore(score)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        *[("0.7", 0.7), (" .25\n", 0.25), ("1", 1.0), ("Score: 0.4.", 0.4), ("**0.9**", 0.9)],
        *[('{"score": 0.3}', 0.3), ("-0.5", -0.5), ("7", 7.0), ("+0.1", 0.1), ("0.", 0.0)],
        *[("", None), ("nan", None), ("7/10", None), ("0.2 to 0.4", None), ("hard", None)],
        *[("I would say 0.4", None), ("0.4, because it loops", None), ("1e400", None)],
    ],
)
def test_an_answer_is_one_number_or_none(answer: str, score: float | None) -> None:
    """Text around the number may be decoration, never another statement."""
    assert read_score(answer) == score


@given(st.text(max_size=60))
def test_any_answer_can_be_read(answer: str) -> None:
    """Any text gives a finite number or None."""
    score = read_score(answer)
    assert score is None or abs(score) < float("inf")


@given(st.lists(st.none() | st.floats(-0.5, 1.5), min_size=1, max_size=14), st.data())
def test_a_transcript_folded_again_has_the_judged_scores(
    scores: list[float | None], data: st.DataObject
) -> None:
    """Scores kept by their keys give the same scores, states and readings in one fold."""
    judged: dict[str, float] = {}
    fold = ConversationFold(JUDGED, judged=judged)
    for count, score in enumerate(scores, 1):
        fold.extend(transcript(count))
        judge(fold, judged, score)
    again = ConversationFold(JUDGED, judged=judged)
    outcomes = again.extend(transcript(len(scores)))
    assert list(fold.current.outcomes) == outcomes
    assert fold.current.history == again.current.history
    assert fold.current.state is again.current.state
    assert all(0.0 <= score <= 1.0 for score in again.current.history)
    plain = ConversationFold(LEDGER).extend(transcript(len(scores)))
    for score, outcome, own in zip(scores, outcomes, plain, strict=True):
        assert outcome.readings == own.readings
        assert score is not None or outcome.difficulty == own.difficulty


def test_a_score_belongs_to_its_history() -> None:
    """A different step has the ledger's score, and so have all steps after it."""
    judged: dict[str, float] = {}
    fold = ConversationFold(JUDGED, judged=judged)
    for count in range(1, 6):
        fold.extend(transcript(count))
        judge(fold, judged, 0.99)
    other = [*transcript(4, last="changed"), *transcript(5)[-2:]]
    forked = ConversationFold(JUDGED, judged=judged)
    forked.extend(other)
    plain = ConversationFold(LEDGER)
    plain.extend(other)
    assert forked.current.history[:3] == [0.99] * 3
    assert forked.current.history[3:] == plain.current.history[3:]


def test_five_hard_scores_are_slow() -> None:
    """A state follows from judged scores as from any others, the newest one included."""
    run = RunFold(JUDGED, READER)
    states = []
    for n in range(6):
        run.push(Step(index=n, thought=f"Reading file {n}."))
        states.append(run.rescore(0.9).state.value)
    assert states == [*["NORMAL"] * 4, *["SLOW"] * 2]


def test_other_scorers_take_no_score() -> None:
    """The other scorers have no key for a judged score."""
    run = RunFold(LEDGER, READER)
    run.push(Step(index=0, thought="-"))
    assert run.score_key == ""


def test_empty_steps_give_no_question() -> None:
    """Without any text there is no question for the judge."""
    assert question([]) == question([Step(index=0)]) == ""
    assert "Try it." in question([Step(index=0, thought="Try it.")])
