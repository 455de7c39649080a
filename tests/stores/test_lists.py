"""Queries of the run log: cursors and pages."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends import Stores
from gateway.stores import codec, totals
from gateway.stores.filters import phrases
from gateway.stores.lists import PageRequest, decode_cursor, encode_cursor
from steering_gateway_testing.store_conformance.records import START, a_step, one_run


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53), st.text())
def test_cursors_round_trip(value: float, key: str) -> None:
    """Decoding a cursor gives exactly the position it was made from."""
    assert decode_cursor(encode_cursor(value, key)) == (value, key)


@given(st.text(max_size=40))
def test_any_text_is_a_search(text: str) -> None:
    """Whatever somebody types is words and nothing that a database could read as a sign."""
    for words, _ in phrases(text):
        assert words
        assert all(word.isalnum() and len(word) <= 100 for word in words)


def test_a_search_is_words_and_phrases() -> None:
    """Words may go on, short ones and those in quotes may not; signs part the words of a path."""
    found = phrases('fix an "exact phrase" src/app.py "open')
    assert found == [
        (["fix"], True),
        (["an"], False),
        (["exact", "phrase"], False),
        (["src", "app", "py"], False),
        (["open"], True),
    ]


@given(st.text(max_size=40))
def test_any_other_text_is_refused(text: str) -> None:
    """Any text is a cursor with a number and an id, or raises ValueError."""
    with contextlib.suppress(ValueError):
        value, key = decode_cursor(text)
        assert isinstance(value, int | float)
        assert isinstance(key, str)


@pytest.mark.parametrize(
    ("field", "value"), [("limit", 0), ("limit", 1001), ("limit", -1), ("sort", "colour")]
)
def test_bad_pages_are_refused(field: str, value: Any) -> None:
    """The message starts with the field and says what it may be."""
    with pytest.raises(ValueError, match=rf"^{field}: must be"):
        PageRequest(**{field: value})


def test_any_mapping_can_be_stored() -> None:
    """Scores may come in a read-only mapping; a value that has no JSON form is refused by name."""
    step = a_step(scores=MappingProxyType({"streak": 0.5}))
    assert codec.step_of("r1", codec.step_row(step)) == step
    with pytest.raises(TypeError):
        codec.step_row(a_step(scores={"streak": object()}))


async def test_the_runs_of_an_experiment_are_read_in_parts(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run comes once, oldest first, where they are more than are read at once."""
    monkeypatch.setattr(totals, "AT_ONCE", 2)
    for number in (3, 1, 4, 0, 2):
        await stores.states.commit(one_run(number, experiment="x", started_at=START + number // 2))
    found = await stores.runs.experiment_runs("x", tenant=None)
    assert [run.id for run in found] == [f"r{number:04}" for number in range(5)]
