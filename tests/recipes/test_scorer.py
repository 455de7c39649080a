"""The recipe for a scorer in `docs/architecture.md`, followed in a copy of the package."""

from __future__ import annotations

import json

import pytest

from tests.recipes.conftest import ScratchCopy

TABLE = "gateway/core/scoring/scorer.py"
MODULE = "gateway/core/scoring/talkative.py"

CLASS = '''"""Scorer `talkative`: steps with long thoughts are hard."""

from __future__ import annotations

from gateway.core.scoring.scorer import DifficultySettings
from gateway.core.step import Step


class TalkativeScorer:
    """Words of the thought over ten."""

    def __init__(self, _settings: DifficultySettings) -> None:
        pass

    def push(self, step: Step) -> float:
        """Difficulty in [0, 1]."""
        return min(len(step.thought.split()) / 10, 1.0)
'''


@pytest.fixture
def with_scorer(scratch: ScratchCopy) -> ScratchCopy:
    """The copy with the scorer and a configuration that names it."""
    scratch.write(MODULE, CLASS)
    scratch.replace(
        TABLE,
        '    "judge": ".judged:JudgedScorer",\n',
        '    "judge": ".judged:JudgedScorer",\n    "talkative": ".talkative:TalkativeScorer",\n',
    )
    scratch.write("own.yaml", "difficulty: {scorer: talkative}\n")
    return scratch


@pytest.mark.slow
def test_a_scorer_is_one_module_and_one_row(with_scorer: ScratchCopy) -> None:
    """A configuration may name it, and a replay scores with it."""
    steps = [{"action": "read", "thought": "word " * count} for count in (2, 5, 40)]
    with_scorer.write("run.jsonl", json.dumps({"id": "run", "steps": steps}) + "\n")
    command = ("-m", "gateway", "replay", "--json", "--config", "own.yaml", "run.jsonl")
    replayed = json.loads(with_scorer.run(*command).stdout)["steps"]
    assert [step["difficulty"] for step in replayed] == [0.2, 0.5, 1.0]
    assert with_scorer.changed() == {MODULE, TABLE}
