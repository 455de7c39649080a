"""Scorer `heuristic`: the reference formula over the text of a thought."""

import re
from math import exp

from gateway.core.scoring.scorer import UNKNOWN, DifficultySettings
from gateway.core.step import Step
from gateway.wire.coerce import lowered, word_count

# Phrase lists, weights and scales: docs/names.md, the step score.
HEDGES = (
    "maybe",
    "perhaps",
    "possibly",
    "might",
    "could",
    "not sure",
    "uncertain",
    "i think",
    "probably",
    "actually",
    "wait",
    "hmm",
    "reconsider",
)
ERROR_WORDS = (
    "error",
    "exception",
    "traceback",
    "fail",
    "failed",
    "crash",
    "bug",
    "broken",
    "issue",
    "problem",
)
HEDGE_WEIGHT = 0.30
LENGTH_WEIGHT = 0.25
ERROR_WEIGHT = 0.25
ENTITY_WEIGHT = 0.20
HEDGES_PER_WORD = 0.05
WORDS_SCALE = 500
ERRORS_SCALE = 3
ENTITIES_SCALE = 10
STEEPNESS = 6.0
MIDPOINT = 0.5

# Entities: a path of two or more segments, a quoted stretch, a dotted identifier. Each is found at
# the one character it cannot lack, with possessive quantifiers: several times faster than trying
# every letter, and linear on blobs. Only a dotted name whose first word does not end in a letter
# needs a second look.
_ENTITY = re.compile(
    r"[\\/.\"'`](?:"
    r"(?<=[\\/])[\w.\-]++(?:[\\/][\w.\-]++)++"
    r"|(?<=[\"'`])[^\"'`]{3,}+[\"'`]"
    r"|(?<=[a-z_]\.)\w++(?:\.\w++)*+"
    r"|(?<=[^\Wa-z_]\.)(\w++(?:\.\w++)*+)"
    r")"
)
_LETTER = re.compile(r"[a-z_]")
_WORD = re.compile(r"\w")


def _count_entities(text: str) -> int:
    """Up to `ENTITIES_SCALE`: more do not count."""
    found = 0
    for match in _ENTITY.finditer(text):
        found += not match[1] or _names_something(text, match)
        if found == ENTITIES_SCALE:
            break
    return found


def _names_something(text: str, dotted: re.Match[str]) -> bool:
    """True if a word before the last dot has a letter: `v2.x` is an identifier, `3.14` is not."""
    at = dotted.start() - 1
    while at >= 0 and _WORD.match(text[at]) and not _LETTER.match(text[at]):
        at -= 1
    if at >= 0 and _LETTER.match(text[at]):
        return True
    return _LETTER.search(dotted[1].rpartition(".")[0]) is not None


def heuristic_score(thought: str | None) -> float:
    """Difficulty of one thought text, in [0.047, 0.953]; empty or None gives exactly 0.5. Logistic
    function of hedging, length, error words and named entities, all found as substrings of the
    lower-cased text. Deterministic; never raises. Source: docs/names.md, the step score."""
    if not thought:
        return UNKNOWN
    text = lowered(thought)
    words = word_count(text) or 1
    hedges = sum([phrase in text for phrase in HEDGES])
    errors = sum([word in text for word in ERROR_WORDS])
    raw = (
        HEDGE_WEIGHT * min(hedges / (HEDGES_PER_WORD * words + 1), 1)
        + LENGTH_WEIGHT * min(words / WORDS_SCALE, 1)
        + ERROR_WEIGHT * min(errors / ERRORS_SCALE, 1)
        + ENTITY_WEIGHT * min(_count_entities(text) / ENTITIES_SCALE, 1)
    )
    return 1 / (1 + exp(-STEEPNESS * (raw - MIDPOINT)))


class HeuristicScorer:
    """The reference formula over the thought text; keeps no state between steps."""

    def __init__(self, _settings: DifficultySettings):
        pass

    def push(self, step: Step) -> float:
        """Difficulty of `step` in [0, 1]; see `heuristic_score`."""
        return heuristic_score(step.thought)
