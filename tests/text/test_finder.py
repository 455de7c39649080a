"""The quick search before a thorough one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from gateway.steering.evidence.outcomes import without_volatile
from gateway.steering.word_lists import word_list
from gateway.text.finder import Finder
from gateway.wire.search import Expressions, use_engine

SAMPLE = Path(__file__).parents[1] / "replays" / "sample.jsonl.gz"


def _texts() -> list[str]:
    with gzip.open(SAMPLE) as lines:
        runs = [json.loads(line) for line, _ in zip(lines, range(12), strict=False)]
    return [str(message.get("content")) for run in runs for message in run["messages"]]


def test_a_plain_text_is_found_wherever_a_search_finds_it() -> None:
    """In any letters and script, next to any other character."""
    words = word_list("outcomes", "suspect_words")
    finder = Finder([], texts=words)
    for word in words:
        assert finder.finds(f"\ud800 {word}\u00a0"), word
        assert finder.finds(word.upper().lower()), word
    for text in _texts():
        lowered = text.lower()
        assert finder.finds(lowered) or not any(word in lowered for word in words)
    assert not finder.finds("all is well")
    assert not Finder(["[0-9]{3}"]).finds("12 34")


def test_answers_are_the_same_without_an_engine() -> None:
    """What an engine leaves out has nothing that a thorough search would find."""
    use_engine(Finder)
    asked = Expressions(["[0-9]"])
    assert asked.may_be_in("room 7")
    assert not asked.may_be_in("no room")
    ids = "run a81bc81b2f at 550e8400-e29b-41d4-a716-abcdefabcdef, user x" + "9" * 12
    assert without_volatile(ids) == "run # at #, user #"
