"""The calibrated gates on the hand-written situations of `bench/`."""

from __future__ import annotations

import numpy as np
import pytest

from bench import situations
from gateway.core.pattern import embedding_text
from gateway.embedding.similarity_thresholds import CALIBRATED
from gateway.embedding.static import EMBEDDER_ID, StaticEmbedder

EMBEDDER = StaticEmbedder.load()
GATES = CALIBRATED[EMBEDDER_ID]
CASES = situations.load()


def embed(texts: list[str]) -> np.ndarray:
    return np.asarray(EMBEDDER.vectors(texts))


@pytest.mark.parametrize("typed", [True, False])
def test_what_passes_the_gate_is_right_nine_times_in_ten(typed: bool) -> None:
    """Tier e2, with and without the failure type: precision 0.9, unrelated texts hardly ever."""
    documents = embed([embedding_text(pattern) for pattern in situations.PATTERNS])
    found = situations.scores(embed([case.text for case in CASES]), documents)
    if typed:
        found = situations.typed(found, CASES)
    gate = GATES.e2 if typed else GATES.e2_untyped
    assert gate is not None
    at = situations.at_gate(found, CASES, gate)
    assert at.precision >= 0.9
    assert at.false_injections <= 0.05
    assert at.recall >= 0.4
    assert situations.recall_at(found, CASES, 1) >= 0.8


def test_instances_find_their_paraphrase() -> None:
    """Tier e1: recall@1 0.9, and no unrelated situation passes the gate."""
    pairs = situations.load_instances()
    documents = embed([pair.situation for pair in pairs])
    found = embed([pair.query for pair in pairs]) @ documents.T
    assert (found.argmax(axis=1) == np.arange(len(pairs))).mean() >= 0.9
    others = embed([case.text for case in CASES]) @ documents.T
    assert (others.max(axis=1) < GATES.e1).all()


def test_the_set_is_balanced() -> None:
    """60 situations in trouble, 60 unrelated, each starter pattern asked for at least once."""
    expected = [case.expected for case in CASES if case.expected]
    assert len(expected) == 60
    assert len(CASES) == 120
    assert set(expected) == {pattern.pattern_id for pattern in situations.PATTERNS}
