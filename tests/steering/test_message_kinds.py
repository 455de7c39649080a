"""The kind of a person's message: clear cases, the texts of clients, and any text at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step import Action, Step
from gateway.steering.transcript.message_kinds import (
    KINDS,
    KindModel,
    accepted,
    agent_words,
    features_of,
    is_plan,
    kind_chances,
    shipped_kinds,
)

DONE = "All tests pass. The endpoint now returns 404 for unknown users."
OFFER = "I can add the retry as well. Would you like me to proceed?"

WRONG = [
    ("the build is still failing, you broke the parser", "message", DONE),
    ("this doesn't work, I still get the error when the file is missing", "message", DONE),
    ("no, revert that, it is wrong", "interrupt", "[Edit {}]"),
    ("don't commit this", "reject", '[Bash {"command": "git commit -m x"}]'),
    ("rebase on main first", "reject", '[Bash {"command": "git push"}]'),
    ("The cache is never cleared, so stale users are returned after an update.", "message", DONE),
]
RIGHT = [
    ("yes", "message", OFFER),
    ("yes please, go ahead", "message", OFFER),
    ("commit this and push", "message", DONE),
    ("thanks, looks good", "message", DONE),
]


@pytest.mark.parametrize(("text", "event", "before"), WRONG)
def test_criticism_accepts_nothing(text: str, event: str, before: str) -> None:
    """What is wrong, missing or not wanted, after an answer, a stop and a rejection."""
    assert accepted(kind_chances(text, event=event, before=before)) < 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "event", "before"), RIGHT)
def test_consent_and_the_next_task_accept(text: str, event: str, before: str) -> None:
    """Going on, thanks and choices."""
    assert accepted(kind_chances(text, event=event, before=before)) > 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("yes, go on", "go"),
        ("how does the session store work?", "ask"),
        ("it fails: the test run shows an error", "fix"),
    ],
)
def test_the_most_probable_kind(text: str, kind: str) -> None:
    """Kinds with plain forms are named."""
    chances = kind_chances(text, before=OFFER)
    assert max(chances, key=lambda each: chances[each]) == kind


def test_an_act_says_more_than_its_words() -> None:
    """The same words accept less where a call was rejected."""
    text = "use the other branch"
    assert accepted(kind_chances(text, event="reject")) < accepted(kind_chances(text))


def test_a_plan_is_a_task() -> None:
    """The texts that a client puts into the message, also after an interruption."""
    text = "Implement the following plan:\n\n# Fix the wrong totals\n\nThe sum is broken."
    assert is_plan(text)
    assert kind_chances(text, event="interrupt")["new"] == 1
    assert not is_plan("implement the plan")


def test_what_the_agent_did_last() -> None:
    """The end of its text and its last call, cut to what the model reads."""
    step = Step(
        index=0,
        thought="word " * 500 + "\n the end.",
        actions=(Action(name="Read"), Action(name="Bash", arguments='{"command": "ls"}')),
    )
    words = agent_words(step)
    assert words.endswith('the end. [Bash {"command": "ls"}]')
    assert len(words) < 600
    assert agent_words(Step(index=0)) == ""
    assert "before calls" in features_of("stop", before=words)


def test_only_the_beginning_of_a_long_message_is_read() -> None:
    """Pasted megabytes cost what a paragraph costs, and change nothing."""
    head = "this is wrong, " * 40
    assert features_of(head + "x" * 10_000_000) == features_of(head)


def test_unknown_features_count_nothing() -> None:
    """A model reads what it has weights for."""
    model = KindModel(bias=(0.0,) * len(KINDS), weights={})
    assert list(model.chances({"has wrong": 1.0}).values()) == pytest.approx([1 / 7] * 7)
    assert all(len(each) == len(KINDS) for each in shipped_kinds().weights.values())


@given(
    text=st.text(),
    before=st.text(),
    event=st.sampled_from(("message", "interrupt", "reject")),
)
def test_any_text_has_a_kind(text: str, before: str, event: str) -> None:
    """Probabilities of all kinds that sum to one, the same at each call."""
    chances = kind_chances(text, event=event, before=before)  # type: ignore[arg-type]
    assert tuple(chances) == KINDS
    assert sum(chances.values()) == pytest.approx(1)
    assert all(0 <= chance <= 1 for chance in chances.values())
    assert chances == kind_chances(text, event=event, before=before)  # type: ignore[arg-type]
