"""Sentences with nearly the same words are one saying; opposites and other wishes are not."""

import pytest

from gateway.text.sentences import nearly_equal, sentences

SAME = (
    ("Commit this, push, open draft PR", "commit, push and open a draft PR"),
    ("ok lets get back to main", "ok can we get back to main?"),
    ("Never push to main.", "please never push to main"),
    ("Always run `pnpm lint` before you commit", "run pnpm lint before the commit"),
    ("提交代码之前先运行测试", "提交代码之前先运行测试。"),
    ("Bitte keine Tests überspringen!", "bitte keine Tests überspringen"),
    ("ok", "OK"),
    ("check the comment from the client", "please check the comments: check the comment client"),
)
OTHER = (
    ("Never open draft pull requests", "Open draft pull requests"),
    ("Don't commit the lock file", "Commit the lock file"),
    ("dont forget to push the branch", "forget to push the branch"),
    ("use tabs for indentation", "use spaces for indentation"),
    ("use tabs instead of spaces", "use spaces instead of tabs"),
    ("run lint before the tests", "run the tests before lint"),
    ("migrate from npm to pnpm", "migrate from pnpm to npm"),
    ("always enable debug logging in tests", "always disable debug logging in tests"),
    ("plan phase 12.3", "plan phase 12.5"),
    ("Implement 1,2 and 3.", "1 + 2"),
    ("提交代码", "不提交代码"),
    ("Tests nicht überspringen", "Tests überspringen"),
    ("commit", "commit the change of the parser and tell me the digest"),
    ("", ""),
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_sentences_with_nearly_equal_words_are_one_saying(one: str, other: str) -> None:
    """In whichever order they are compared, and in scripts without spaces, too."""
    assert nearly_equal(one, other)
    assert nearly_equal(other, one)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_opposites_and_other_wishes_are_not_joined(one: str, other: str) -> None:
    """No word that denies, no exchanged words and no other name is passed over."""
    assert not nearly_equal(one, other)
    assert not nearly_equal(other, one)


def test_a_text_is_split_into_its_sentences_and_lines() -> None:
    """A point within a number ends none."""
    text = "Run 3.11 first. Then commit!\n\n- push it\n先测试。再提交\uff01"
    assert sentences(text) == [
        "Run 3.11 first.",
        "Then commit!",
        "- push it",
        "先测试。",
        "再提交\uff01",
    ]
