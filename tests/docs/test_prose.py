"""The documents are read: few words, short sentences, in four books."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

import pytest

from tests.docs.test_pages import DOCS, SITE, in_menu

MOST_WORDS = 35_000
"""Words of the site, without the generated reference."""

BOOKS = [(name, value) for entry in SITE["nav"] for name, value in entry.items()]


def pages(menu: object) -> list[str]:
    """The text of each page of a book, without what is generated."""
    named = in_menu(menu if isinstance(menu, list) else [menu])
    return [(DOCS / name).read_text() for name in named if not name.startswith("reference/")]


def sentences(page: str) -> Iterator[str]:
    """Each sentence of paragraphs, items of lists and cells of tables."""
    prose = re.sub(r"^```.*?^```", "\n\n", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"^#.*$", "\n", prose, flags=re.MULTILINE))
    for block in re.split(r"\n\s*\n|^\s*(?:[*-]|\d+\.) ", prose, flags=re.MULTILINE):
        for part in re.split(r" \| |^\||\|$", block, flags=re.MULTILINE):
            yield from filter(str.strip, re.split(r"(?<=[.!?])[*\")]*\s+", part))


def test_the_site_can_be_read() -> None:
    """Its words are counted as a reader would: what has a letter or a digit."""
    text = " ".join(chain.from_iterable(pages(menu) for _, menu in BOOKS))
    assert sum(bool(re.search(r"\w", word)) for word in text.split()) <= MOST_WORDS


@pytest.mark.parametrize(("book", "menu"), BOOKS, ids=[name for name, _ in BOOKS])
def test_sentences_are_short(book: str, menu: object) -> None:
    """At most three in a hundred have over 30 words."""
    found = list(chain.from_iterable(map(sentences, pages(menu))))
    long = [sentence for sentence in found if len(sentence.split()) > 30]
    assert len(long) <= 0.03 * len(found), (book, len(long), len(found), long)
