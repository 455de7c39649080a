"""The monitor `hedge` over the ledger: thoughts that lose their certainty, or are taken back."""

from __future__ import annotations

import pytest

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold
from gateway.steering.guidance.situation import READER
from steering_gateway_testing.planting import step

SURE = "I run the suite now and read what it prints."
UNSURE = "Maybe it is perhaps the cache, probably I am not sure."
TAKEN_BACK = "That did not work, my guess was wrong."


def hedge(thoughts: list[str], *, fails: bool = True) -> tuple[float, str]:
    """Score and evidence after these thoughts; the calls of their steps bring news or fail."""
    fold = RunFold(Policy(), READER)
    for number, thought in enumerate(thoughts):
        result = "Error: the table is taken" if fails else f"text {number} of it"
        readings = fold.push(step("reserve", {"at": number}, result, thought)).readings
    return readings.scores["hedge"], readings.evidence.get("hedge", "")


def test_four_unsure_thoughts_after_four_sure_ones_fire() -> None:
    """Their density of hedging words against that of the run before."""
    score, evidence = hedge([SURE] * 4 + [UNSURE] * 4)
    assert score == 1.0
    assert evidence == "hedging 65.5 times as dense as before"


@pytest.mark.parametrize(
    "thoughts",
    [
        pytest.param([SURE] * 8, id="sure"),
        pytest.param([SURE] * 3 + [UNSURE] * 4, id="too few before"),
        pytest.param([SURE] * 6 + [UNSURE] * 2, id="too few unsure"),
    ],
)
def test_without_a_trend_nothing_is_said(thoughts: list[str]) -> None:
    """The score is the share of a rise, and nothing has risen."""
    assert hedge(thoughts) == (0.0, "")


def test_a_run_that_was_never_sure_does_not_fire() -> None:
    """Its newest thoughts are little denser than those before them."""
    assert 0.0 < hedge([UNSURE] * 12)[0] < 0.2


@pytest.mark.parametrize("thoughts", [[SURE] * 4 + [UNSURE] * 4, [TAKEN_BACK] * 4])
def test_doubts_over_steps_that_bring_news_do_not_count(thoughts: list[str]) -> None:
    """Whoever inquires may be unsure, and may find a guess wrong."""
    assert hedge(thoughts, fails=False) == (0.0, "")


@pytest.mark.parametrize(
    ("thoughts", "score", "evidence"),
    [
        ([SURE, TAKEN_BACK], 0.3, "1 retractions in the last 2 thoughts"),
        ([SURE, TAKEN_BACK, SURE, TAKEN_BACK], 0.7, "2 retractions in the last 4 thoughts"),
        ([TAKEN_BACK, *[SURE] * 7, TAKEN_BACK], 0.3, "1 retractions in the last 8 thoughts"),
        ([TAKEN_BACK, *[SURE] * 8], 0.0, ""),
    ],
)
def test_the_second_retraction_of_eight_thoughts_fires(
    thoughts: list[str], score: float, evidence: str
) -> None:
    """A single one is a healthy correction of oneself."""
    assert hedge(thoughts) == (score, evidence)


def test_the_larger_of_trend_and_retractions_is_the_reading() -> None:
    """The trend is named where both are there and it is larger."""
    assert hedge([SURE] * 4 + [f"{TAKEN_BACK} {UNSURE}"] * 4)[1].startswith("hedging")


def test_thoughts_of_two_words_are_not_read() -> None:
    """They have no density to speak of."""
    assert hedge([SURE] * 4 + ["Maybe perhaps."] * 4) == (0.0, "")
