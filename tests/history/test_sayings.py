"""What a person had to say again: what is joined, what is left out, and when it was said."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.history.sayings import Group, Saying, is_correction, repeated, sayings_of
from gateway.history.session import HumanKind, Session
from gateway.learning.corrections import is_output, wish_of

DONE = "Done. All tests pass, the change is ready."
DAY = 86_400.0


def saying(
    text: str,
    session: str,
    *,
    at: float | None = None,
    event: HumanKind = "reject",
    project: str = "/src/shop",
    before: str = DONE,
) -> Saying:
    """One thing said, by default in a rejection, which is a correction in nearly any words."""
    return Saying(text=text, session=session, project=project, at=at, event=event, before=before)


def test_the_same_rule_in_other_words_is_one_group() -> None:
    """Its times, sessions and dates, and the shortest wording; the order given is no matter."""
    sayings = [
        saying("rebase from main first", "one", at=1 * DAY),
        saying(
            "please pull from origin before you push, we have merge conflicts", "two", at=3 * DAY
        ),
        saying("merge the latest main first", "two", at=2 * DAY),
    ]
    for order in itertools.permutations(sayings):
        assert repeated(order) == [
            Group(
                text="rebase from main first",
                rule="Bring the branch up to date with its base first.",
                project="/src/shop",
                times=3,
                sessions=2,
            )
        ]


def test_equal_words_are_one_group_without_a_rule() -> None:
    """Sayings that no rule knows are joined where their words are nearly the same."""
    sayings = [
        saying("no, the invoice totals belong in the ledger module", "one"),
        saying("again: the invoice totals belong in the ledger module!", "two"),
        saying("no, the customer names belong in the address book", "three"),
    ]
    [group] = repeated(sayings)
    assert (group.rule, group.times) == ("", 2)
    assert group.text == "no, the invoice totals belong in the ledger module"


def test_what_was_said_once_is_not_shown() -> None:
    """Twice in one session is one dispute; two projects have rules of their own."""
    again = "no, do not commit that"
    assert not repeated([saying(again, "one", at=1.0), saying(again, "one", at=2.0)])
    assert not repeated([saying(again, "one"), saying(again, "two", project="/src/other")])
    assert repeated([saying(again, "one"), saying(again, "two")])
    assert not repeated([saying(again, "one"), saying(again, "two")], least=3)


def test_a_continued_session_repeats_nothing() -> None:
    """Its file begins with a copy of the earlier one: the same words at the same time."""
    again = "no, do not commit that"
    assert not repeated([saying(again, "one", at=5.0), saying(again, "two", at=5.0)])
    long = "no, the total of the invoice has to be rounded after the discount was taken off"
    assert not repeated([saying(long, "one"), saying(long, "two")])


@pytest.mark.parametrize(
    "text",
    [
        "Implement the following plan:\n\nAdd tests for the cart.",
        "https://ci.example.com/runs/17 https://ci.example.com/runs/18",
        "--- FAIL: TestCart (0.01s)\n    cart_test.go:17: want 3, got 4",
        "2026-02-08 21:51:50.720 |DEBUG| hook=stop component=hooks session_id=28c304f6",
        "```\ndef total(cart): return sum(cart)\n```",
        "",
    ],
)
def test_plans_and_pasted_output_are_nobodys_words(text: str) -> None:
    """They do not count, however often they come."""
    assert not is_correction(saying(text, "one"))
    assert not repeated([saying(text, "one", at=1.0), saying(text, "two", at=2.0)])


def test_consent_is_no_correction() -> None:
    """Orders that come again and again are not what had to be said."""
    texts = ["commit and push", "yes", "thanks, create a draft PR please"]
    sayings = [
        saying(text, f"{n}", event="message", at=float(n)) for n in range(3) for text in texts
    ]
    assert not repeated(sayings)


def test_words_of_a_person_are_not_output() -> None:
    """A few names of code among them do not matter."""
    assert not is_output("the `total()` in cart.py:17 ignores the discount, see https://x.example")
    assert is_output("cart.py:17 cart.py:18 E501 x=1 y=2")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("there is already a helper for this in the utils module", "Reuse"),
        ("That looks duplicated.", "Reuse"),
        ("you didn't add any tests", "Cover"),
        ("no, don't push", "Do not commit"),
        ("let's cut a branch first", "Work on a branch"),
        ("lint and tests fail", "Run the checks"),
        ("I did not ask for a refactoring", "Do only"),
        ("wait, let's talk about this", "Wait"),
        ("remove the dead code", "Leave no unused"),
        ("the colour should be blue", ""),
        ("we have tests for the cart", ""),
    ],
)
def test_rules_are_known_by_their_words(text: str, rule: str) -> None:
    """Each of these wishes by one wording, and a wish that is none of them."""
    found = wish_of(text)
    assert found.startswith(rule) if rule else not found


def test_secrets_are_masked() -> None:
    """In the wording that is shown and in all others."""
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    groups = repeated([saying(f"don't commit {key}", "one"), saying(f"do not push {key}", "two")])
    assert groups
    assert all(key not in each.text for each in groups)


def test_a_session_gives_what_was_said_after_what() -> None:
    """The agent's last words before each, the stop before a message, and the words of a
    rejection; a worktree belongs to its project."""
    session = Session(id="s", agent="a", project="/src/shop/.worktrees/2")
    session.messages = [
        {"role": "user", "content": "add a cart"},
        {"role": "assistant", "content": "I will add it."},
        {"role": "user", "content": "[Request interrupted by user]"},
        {"role": "user", "content": "no, stop"},
        {"role": "assistant", "content": "Stopped. What next?"},
        {"role": "user", "content": "the total is wrong"},
    ]
    for kind, position, text in (
        ("message", 0, "add a cart"),
        ("interrupt", 2, ""),
        ("message", 3, "no, stop"),
        ("message", 5, "the total is wrong"),
    ):
        session.did(kind, text, float(position), back=len(session.messages) - position)  # type: ignore[arg-type]
    first, second, third = sayings_of(session)
    assert (first.before, first.at) == ("", 0.0)
    assert (second.event, second.before) == ("interrupt", "I will add it.")
    assert (third.event, third.before) == ("message", "Stopped. What next?")
    assert {each.project for each in (first, second, third)} == {"/src/shop"}


@given(
    st.lists(
        st.builds(
            Saying,
            text=st.text(),
            session=st.sampled_from("ab"),
            at=st.none() | st.floats(allow_nan=False),
            event=st.sampled_from(("message", "interrupt", "reject")),
        ),
        max_size=6,
    )
)
def test_any_texts_can_be_grouped(sayings: list[Saying]) -> None:
    """None raises, and the same texts give the same groups."""
    groups = repeated(sayings)
    assert groups == repeated(sayings)
    assert all(group.times >= group.sessions >= 2 for group in groups)
