"""Untrusted text is shown, and does nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.sanitize import one_line, visible, without_folders


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a window's title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bc cleared", " cleared"),
        ("\x1b]never ended, all of this", "␛]never ended, all of this"),
        ("bell \x07 and \x00 nothing", "bell ␇ and ␀ nothing"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("\u202eright to left", "<U+202E>right to left"),
        ("half a pair \ud800", "half a pair <U+D800>"),
        ("nothing\u200bseen", "nothing<U+200B>seen"),
        ("tags\U000e0041", "tags<U+E0041>"),
        ("Grüße, 你好, 👩\u200d🔧", "Grüße, 你好, 👩\u200d🔧"),
    ],
)
def test_what_acts_is_shown_instead(text: str, seen: str) -> None:
    """Escape sequences go; whatever else cannot be seen is given a picture."""
    assert visible(text) == seen


@given(st.text(st.characters(exclude_categories=[]), max_size=200))
def test_no_text_moves_a_cursor_or_turns_a_line(text: str) -> None:
    """Whatever comes in, no control character but line end and tab goes out, and it encodes."""
    seen = visible(text)
    assert not {c for c in seen if ord(c) < 32} - {"\n", "\t"}
    assert not set(seen) & set("\x7f\x9b\u202a\u202b\u202d\u202e\u2066\u2067\u2068")
    seen.encode("utf-8")


@given(st.text(max_size=300), st.integers(1, 50))
def test_one_line_is_one_line(text: str, limit: int) -> None:
    """At most so long, without a line end."""
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line
    assert "\t" not in line


def test_long_texts_are_cut_quickly() -> None:
    """Of a megabyte in one line only the start is looked at."""
    assert one_line("x" * 1_000_000, 10) == "xxxxxxxxx…"
    assert len(visible("\x1b]" + "x" * 1_000_000)) == 1_000_002


WITHOUT_FOLDERS = {
    "'/srv/state/gateway.db' is locked": "'gateway.db' is locked",
    "cannot open /gateway.db: /a/b.db-wal": "cannot open gateway.db: b.db-wal",
    "postgres://db.example/x/y is away": "postgres://db.example/x/y is away",
    "5/6 of a/b/c": "5/6 of a/b/c",
}


@pytest.mark.parametrize(("text", "shown"), WITHOUT_FOLDERS.items())
def test_folders_are_left_out(text: str, shown: str) -> None:
    """File names and addresses stay."""
    assert without_folders(text) == shown
