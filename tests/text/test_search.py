"""The quick search before a thorough one."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from gateway.steering.evidence import outcomes
from gateway.steering.evidence.outcomes import without_volatile
from gateway.steering.word_lists import word_list
from gateway.text.search import Expressions

SAMPLE = Path(__file__).parents[1] / "replays" / "sample.jsonl.gz"


def _texts() -> list[str]:
    with gzip.open(SAMPLE) as lines:
        runs = [json.loads(line) for line, _ in zip(lines, range(12), strict=False)]
    return [str(message.get("content")) for run in runs for message in run["messages"]]


def test_a_plain_text_is_found_wherever_a_search_finds_it() -> None:
    """In any letters and script, next to any other character."""
    words = word_list("outcomes", "suspect_words")
    asked = Expressions(texts=words)
    for word in words:
        assert asked.may_be_in(f"\ud800 {word}\u00a0"), word
        assert asked.may_be_in(word.upper().lower()), word
    for text in _texts():
        lowered = text.lower()
        assert asked.may_be_in(lowered) or not any(word in lowered for word in words)
    assert not asked.may_be_in("all is well")
    assert not Expressions(["[0-9]{3}"]).may_be_in("12 34")


def test_answers_are_the_same_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the quick search leaves out has nothing that a thorough search would find."""
    ids = "run a81bc81b2f at 550e8400-e29b-41d4-a716-abcdefabcdef, user x" + "9" * 12
    assert without_volatile(ids) == "run # at #, user #"
    monkeypatch.setitem(sys.modules, "pydantic_core", None)
    assert Expressions(["[0-9]"]).may_be_in("no room")
    monkeypatch.setattr(outcomes, "_IDS", Expressions())
    assert without_volatile(ids) == "run # at #, user #"
