"""Answers about short texts are remembered, and only so many."""

from __future__ import annotations

from gateway.core.short_cache import MAX_CHARS, MAX_TEXTS, remembered


def test_a_short_text_is_asked_about_once_until_too_many_are_known() -> None:
    """Then all are forgotten; a long text is never remembered."""
    asked = list[str]()

    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    answer = remembered(length)
    long = "x" * (MAX_CHARS + 1)
    assert [answer(text) for text in ("a", "bc", "a", long, long)] == [1, 2, 1, 65, 65]
    assert asked == ["a", "bc", long, long]
    for number in range(MAX_TEXTS - 2):
        answer(f"n{number}")
    asked.clear()
    assert (answer("a"), asked) == (1, [])
    answer("one more")
    assert (answer("a"), asked) == (1, ["one more", "a"])
    longest = "y" * MAX_CHARS
    asked.clear()
    assert (answer(longest), answer(longest), asked) == (MAX_CHARS, MAX_CHARS, [longest])
