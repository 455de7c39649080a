"""Whether a message waits for the user."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.transcript.asks_user import asks_user


@pytest.mark.parametrize(
    "text",
    [
        "Which file do you mean?",
        "\u60a8\u60f3\u8981\u54ea\u4e00\u4e2a\uff1f",
        "To go on, please provide your order number.",
        "I found two flights. Let me know which one suits you.",
        "Here is the summary.\n\nDo you want me to book it?\nThe price is 300.",
    ],
)
def test_questions_and_requests_wait_for_an_answer(text: str) -> None:
    """A question mark in any script or a request at the end hands the turn over."""
    assert asks_user(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "All tests pass now.",
        "I fixed the parser. Please feel free to reach out with anything else.",
        "Done. Let me know if something is unclear.",
        "Is it broken? It was." + " I looked into each part and mended what had to be." * 12,
    ],
)
def test_answers_and_closing_phrases_end_the_matter(text: str) -> None:
    """Statements, offers of more help, and questions answered long before ask nothing."""
    assert not asks_user(text)


@given(st.text(max_size=2000))
def test_any_text_is_read(text: str) -> None:
    """Reading never raises, and what comes before the end does not matter."""
    assert asks_user("x" * 1000 + text[-400:]) == asks_user(text[-400:]) or len(text) < 400
