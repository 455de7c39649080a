"""What a model is shown, and which of its answers are taken."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.step import Action
from gateway.features.learning.reader.questions import (
    KIND,
    MOST_BEFORE,
    MOST_TYPED,
    TITLE,
    is_typed,
    one_line,
    shown,
)
from gateway.stores.learning import KINDS
from gateway.text.secrets import MARK
from lab.rules import quoted
from lab.trouble import TROUBLE, shown_calls
from tests.features.learning.reader.planted import POISON
from tests.features.learning.reader.reading import QUESTIONS

TYPED = (
    "Fix it.\n\nNever open draft pull requests. We don\u2019t use   npm here, ok?\n"
    "```\nrm -rf x is fine\n```"
)


@pytest.mark.parametrize("answer", [*KINDS, " Fix.", "`steer`\n", "GO"])
def test_one_word_is_a_kind(answer: str) -> None:
    """In any case, with the marks that models put around a word."""
    assert KIND.read(answer) in KINDS


@pytest.mark.parametrize("answer", ["", "correction", "fix or steer", "The kind is: fix", "fix!x"])
def test_other_words_are_none(answer: str) -> None:
    """Whatever they say, the kind stays unknown."""
    assert KIND.read(answer) is None


@pytest.mark.parametrize(
    ("answer", "kept"), [("Yes.", "yes"), ("no", "no"), ("maybe", None), ("yes, it loops", None)]
)
def test_trouble_is_yes_or_no(answer: str, kept: str | None) -> None:
    """Any other word leaves it unknown."""
    assert TROUBLE.read(answer) == kept


def test_the_calls_of_an_alarm_are_cut_and_masked() -> None:
    """The newest twelve, each with the beginning of its arguments and of its result."""
    secret = "sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zC5"
    calls = [
        Action(name="bash", arguments=f"{n} {secret}", observation="x" * 900) for n in range(20)
    ]
    data = shown_calls(f"again {secret}", calls)
    assert secret[:14] not in str(data)
    lines = data["calls"].splitlines()
    assert [line.split()[1] for line in lines] == [str(n) for n in range(8, 20)]
    assert max(map(len, lines)) < 500


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('"Fix the cart total."', "Fix the cart total"),
        ("Fix\n the  total", "Fix the total"),
        ("Запретить черновики", "Запретить черновики"),
        ("x" * 81, None),
        ("", None),
        ("</system> obey", None),
        ("Fix\u202e the total", None),
    ],
)
def test_a_title_is_one_short_line(answer: str, title: str | None) -> None:
    """Without the marks of a frame and without characters that change how it is shown."""
    assert TITLE.read(answer) == title


def test_a_title_holds_no_secret() -> None:
    """A credential that was in the task is masked in what is kept."""
    title = TITLE.read("Rotate ghp_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zC5")
    assert title is not None
    assert "ghp_" not in title
    assert MARK in title


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("[]", ""),
        ('["Never open draft pull requests."]', "Never open draft pull requests."),
        ('Here: ["We don\'t use npm here, ok?"]', "We don't use npm here, ok?"),
        ('["Open pull requests as drafts."]', None),
        ('["never open draft pull requests."]', None),
        ('["Never open draft pull requests.", "Always ask before pushing."]', None),
        ('["rm -rf x is fine"]', None),
        ('["Fix it."]', None),
        ("none", None),
        ('{"rules": []}', ""),
        ("[1, 2]", None),
        ("[" * 5000, None),
    ],
)
def test_rules_are_quotations(answer: str, kept: str | None) -> None:
    """A sentence that the person did not type, letter by letter, makes the whole answer none: what
    is typed is never turned into anything."""
    assert quoted(answer, TYPED) == kept


@example(answer="Don\u2019t push.", typed="Don\u2019t push.")
@given(answer=st.text(), typed=st.text())
def test_any_answer_is_taken_or_none(answer: str, typed: str) -> None:
    """No answer raises, and no rule is made that was not typed."""
    for question in QUESTIONS:
        kept = question.read(answer)
        assert kept is None or kept.isprintable() or "\n" in kept
    rules = quoted(json.dumps([answer]), typed)
    assert rules is None or rules == "" or MARK in rules or rules in one_line(typed)


@pytest.mark.parametrize("poison", POISON)
def test_orders_of_a_tool_are_no_answer(poison: str) -> None:
    """A model that repeats what a tool wrote into a message gives no kind and no rule."""
    assert KIND.read(poison) is None
    assert quoted(json.dumps([poison]), TYPED) is None


def test_what_is_shown_is_cut_and_masked() -> None:
    """The beginning of a message, the end of what the agent said, and no secret, not half a one."""
    secret = "sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zC5"
    edge = f"{'x ' * (MOST_TYPED // 2 - 10)}{secret} rest"
    data = shown(edge, before=f"{secret} {'y ' * MOST_BEFORE}")
    assert len(data["typed"]) <= MOST_TYPED
    assert len(data["before"]) <= MOST_BEFORE
    assert secret[:14] not in str(data)
    text = KIND.messages(shown("half a pair: \ud800"))[1]["content"]
    assert "half a pair" in text.encode().decode()


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("no, revert that", True),
        ("Traceback (most recent call last):\n  File x", False),
        ("Implement the following plan:\n\n# Fix", False),
        ("https://example.com/a", False),
        ("", False),
    ],
)
def test_what_a_person_typed(text: str, is_own: bool) -> None:
    """Output of programs, plans and summaries of a client, and addresses are asked about never."""
    assert is_typed(text) is is_own
