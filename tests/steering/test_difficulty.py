"""The heuristic difficulty score and the choice of scorer."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.scoring.heuristic import ERROR_WORDS, HEDGES, HeuristicScorer, heuristic_score
from gateway.core.scoring.scorer import DifficultySettings, ScorerName, make_scorer
from tests.steering.builders import acts, thinks

SAMPLES = [
    ("", 0.5),
    (" ", 0.047562),
    ("ok", 0.047562),
    ("Reading the config file.", 0.047971),
    ("maybe", 0.217089),
    ("Maybe it could be wrong.", 0.234154),
    ("await the lock", 0.193757),
    ("failed", 0.119518),
    ("error error error", 0.076492),
    ("see src/app/main.py", 0.053454),
    ("a.b", 0.053302),
    ("x/y", 0.047562),
    (" ".join(["word"] * 100), 0.062973),
    (" ".join(["word"] * 500), 0.182426),
    (" ".join(["word"] * 900), 0.182426),
    ("maybe the error fails because of a bug, wait", 0.581029),
    ("maybe the error fails because of a bug in app.main, wait", 0.611352),
]

# The alternation in its plain form: path, dotted identifier, quoted stretch.
PLAIN_ENTITY = re.compile(
    r"(?:[a-z]:)?(?:[\\/][\w.\-]+){2,}|[a-z_]\w*(?:\.\w+)+|[\"'`][^\"'`]{3,}[\"'`]"
)


def direct_score(thought: str | None) -> float:
    """The formula again, in its plain and slow form."""
    if not thought:
        return 0.5
    low = thought.lower()
    w = max(len(low.split()), 1)
    h = len([phrase for phrase in HEDGES if phrase in low])
    e = len([word for word in ERROR_WORDS if word in low])
    n = len(PLAIN_ENTITY.findall(low))
    raw = (
        0.30 * min(h / (0.05 * w + 1), 1)
        + 0.25 * min(w / 500, 1)
        + 0.25 * min(e / 3, 1)
        + 0.20 * min(n / 10, 1)
    )
    return 1 / (1 + math.exp(-6 * (raw - 0.5)))


@pytest.mark.parametrize(("thought", "score"), SAMPLES)
def test_sample_values(thought: str, score: float) -> None:
    """The sample table of docs/names.md, the step score, to its six decimals."""
    assert round(heuristic_score(thought), 6) == score


def test_no_text_scores_exactly_a_half() -> None:
    """Rule 1: empty or None is 0.5; white space is not empty."""
    assert heuristic_score("") == heuristic_score(None) == 0.5
    assert heuristic_score("\n") < 0.5


def test_the_word_lists_have_thirteen_and_ten_entries() -> None:
    """Rules 3 and 5 name the lists; "failed" also hits "fail"."""
    assert len(HEDGES) == 13
    assert len(ERROR_WORDS) == 10
    assert heuristic_score("failed") > heuristic_score("fails")


def test_each_entry_counts_once_and_inside_words() -> None:
    """Substrings count: "await" contains "wait"; repetition adds only length."""
    assert heuristic_score("await x") == heuristic_score("wait x")
    assert heuristic_score("error error") < heuristic_score("error exception")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("app.main v2.x 1a.b _.x", 4),
        ("3.14 1.2.3 end. of", 0),
        ("1.a.b 2.x", 1),
        (r"/a/b.c c:\dir\file /single", 2),
        ("'abc' \"ab\" `quoted.name`", 2),
    ],
)
def test_entities_are_paths_dotted_identifiers_and_quoted_stretches(text: str, count: int) -> None:
    """Rule 6; a dotted number does not count, a quoted stretch has at least three characters."""
    assert len(PLAIN_ENTITY.findall(text)) == count
    assert heuristic_score(text) == direct_score(text)


def test_hard_needs_hedges_and_errors_together() -> None:
    """Neutral text of any length stays easy; a short text with both is hard (above 0.6)."""
    assert heuristic_score("word " * 5000) < 0.2
    assert heuristic_score("maybe the error fails because of a bug in app.main, wait") > 0.6


_WORDS = st.sampled_from(
    [*HEDGES, *ERROR_WORDS, "src/app/main.py", r"c:\dir\file", "v2.0", "3.14", "app.main", "1a.b"]
)
_BITS = st.text(alphabet="ab1._-/\\:'\"` c:é\n²K", max_size=40)


@given(st.lists(st.one_of(_WORDS, _BITS), max_size=20).map(" ".join))
def test_the_fast_form_equals_the_formula(thought: str) -> None:
    """The search by required characters finds the same entities as the plain alternation."""
    assert heuristic_score(thought) == direct_score(thought)


@given(st.text())
def test_any_text_scores_within_the_range(thought: str) -> None:
    """Deterministic, never raises, within [0.047, 0.953] or exactly 0.5."""
    score = heuristic_score(thought)
    assert 0.0474 < score < 0.9526
    assert heuristic_score(thought) == score


def test_the_heuristic_scorer_reads_the_thought_alone() -> None:
    """No observation, no action, no history: equal thoughts have equal scores."""
    scorer = make_scorer(DifficultySettings(scorer="heuristic"))
    assert isinstance(scorer, HeuristicScorer)
    with_error = acts("bash", thought="maybe", observation="Traceback: error")
    assert scorer.push(with_error) == scorer.push(thinks("maybe")) == heuristic_score("maybe")


LOADED = """
import sys
from gateway.core.scoring.scorer import DifficultySettings, ScorerName, make_scorer

make_scorer(DifficultySettings(scorer=sys.argv[1]))
print(*[name for name in sys.modules if name.startswith("gateway.core.scoring.")])
"""


@pytest.mark.parametrize(
    ("scorer", "modules"),
    [
        ("heuristic", {"heuristic"}),
        ("ledger", {"difficulty"}),
        ("judge", {"judged", "difficulty"}),
    ],
)
def test_only_the_scorer_in_use_is_imported(scorer: str, modules: set[str]) -> None:
    """The others, and the ledger behind them, are not read."""
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, scorer], capture_output=True, text=True, check=True
    )
    loaded = {name.rpartition(".")[2] for name in ended.stdout.split()}
    assert loaded == {"scorer", *modules}


@pytest.mark.parametrize("scorer", get_args(ScorerName))
def test_each_run_has_its_own_scorer(scorer: ScorerName) -> None:
    """Two runs share no scorer state."""
    settings = DifficultySettings(scorer=scorer)
    assert make_scorer(settings) is not make_scorer(settings)
