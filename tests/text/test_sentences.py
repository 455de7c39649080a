"""Sentences with nearly the same words are one saying; opposites and other wishes are not."""

import pytest

from gateway.text.sentences import nearly_equal, says_the_same, sentences

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
    """A point within a number or behind an abbreviation ends none."""
    text = "Run 3.11 first, e.g. with uv. Then commit!\n\n- push it\n先测试。再提交\uff01"
    assert sentences(text) == [
        "Run 3.11 first, e.g. with uv.",
        "Then commit!",
        "- push it",
        "先测试。",
        "再提交\uff01",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("Never open draft PRs.", "never open draft PRs"),
        ("Never open draft pull requests.", "and again no draft PR please"),
        ("Never open draft PRs.", "never open draft PRs, i review real ones."),
        ("Always run the linter before you commit.", "can you run linter before you commit!"),
        ("Do not push to main.", "you should not push to main, please"),
        ("Use pnpm, not npm.", "no, use pnpm, not npm"),
        ("Bitte nie auf main pushen.", "bitte nie auf main pushen!"),
        ("不要推送到主分支。", "不要推送到主分支"),
    ],
)
def test_a_line_may_leave_out_what_says_nothing(line: str, sentence: str) -> None:
    """Greetings, articles, another way to forbid, an abbreviation, and a reason."""
    assert says_the_same(line, sentence)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("Open draft PRs.", "never open draft PRs"),
        ("Use npm, not pnpm.", "use pnpm, not npm"),
        ("Don't run tests.", "no need to run tests"),
        ("Never run the tests.", "you never run the tests"),
        ("Never push.", "never push to main"),
        ("Don't run tests.", "don't always run tests"),
        ("Don't always open draft PRs.", "never open draft PRs"),
        ("Commit before you run the tests.", "run the tests before you commit"),
        ("Use port 4000.", "use port 3000"),
        ("Push to main.", "push to main, i mean dev"),
        ("Push to main.", "push to main, we do it only once"),
        ("Push.", "push, but never force"),
        ("Never open draft PRs, we push to main.", "never open draft PRs"),
        ("Close PRs.", "open PRs"),
        ("提交代码", "不提交代码"),
    ],
)
def test_a_line_that_says_something_else_is_known(line: str, sentence: str) -> None:
    """A lost or added denial, condition, order, number, name or reason."""
    assert not says_the_same(line, sentence)


@pytest.mark.parametrize(
    "one", sorted({words for pair in (*SAME, *OTHER) for words in pair if words})
)
def test_no_sentence_says_the_same_as_its_denial(one: str) -> None:
    """Whatever stands before it, and in either direction."""
    for denied in (f"never {one}", f"don't {one}", f"{one}, but not {one}", f"no {one}"):
        assert not says_the_same(one, denied)
        assert not says_the_same(denied, one)
