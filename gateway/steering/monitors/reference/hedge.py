"""Hedge: the thoughts retract something, or grow less certain."""

from __future__ import annotations

import re

from gateway.steering.monitors.reference.suite import CallText
from gateway.steering.monitors.settings import MonitorSettings
from gateway.steering.scoring.heuristic import HEDGES, HEDGES_PER_WORD
from gateway.wire.coerce import lowered, word_count

PHRASES = (*HEDGES, "let me think", "on second thought")
# One pattern per first word, each beginning with plain letters: a search for those is many times
# faster than for one pattern with alternatives.
_RETRACTIONS = tuple(
    re.compile(rf"{word}(?<!\w{word}){rest}\b")
    for word, rest in (
        *((noun, r"\s+is\s+(?:not|actually)") for noun in ("bug", "issue", "problem", "fix")),
        ("i", r"\s+was\s+wrong"),
        ("never", r"\s*mind"),
        ("disregard", r"\s+(?:that|my\s+last)"),
    )
)
# A shorter run has no halves worth comparing.
MIN_THOUGHTS = 4
HEALTHY_RATIO, RATIO_SPAN = 2.0, 3.0


class Hedge:
    """Hedging phrases per word, late against early; after a retraction the score stays 1.

    Source: reference section 4.6."""

    __slots__ = ("_hedges", "_retraction", "_words")

    def __init__(self, _settings: MonitorSettings) -> None:
        # Sums after each thought, from which both halves follow without going back.
        self._hedges = [0]
        self._words = [0]
        self._retraction = ""

    def push(self, call: CallText) -> None:
        """Count the phrases of a thought."""
        if not (thought := call.thought):
            return
        lower = lowered(thought)
        self._hedges.append(self._hedges[-1] + sum([lower.count(p) for p in PHRASES]))
        self._words.append(self._words[-1] + word_count(thought))
        if not self._retraction:
            self._retraction = retraction(lower)

    def reading(self) -> tuple[float, str]:
        """1 after a retraction; hedges per word in a short run; else the late over the early."""
        if self._retraction:
            return 1.0, f"retraction: {' '.join(self._retraction.split())}"
        hedges, words = self._hedges, self._words
        half = (len(hedges) - 1) // 2
        early = hedges[half] / max(words[half], 1)
        late = (hedges[-1] - hedges[half]) / max(words[-1] - words[half], 1)
        if len(hedges) - 1 < MIN_THOUGHTS:
            score = min(hedges[-1] / (HEDGES_PER_WORD * words[-1] + 1), 1.0)
        elif not early:
            score = min(late / HEDGES_PER_WORD, 1.0)
        else:
            ratio = late / early
            score = 0.0 if ratio <= HEALTHY_RATIO else min((ratio - 1) / RATIO_SPAN, 1.0)
        return score, f"{hedges[-1]} hedges in {words[-1]} words" if score else ""


def retraction(lower: str) -> str:
    """A retracting phrase in a lower-cased text, or nothing. Source: reference section 4."""
    found = (pattern.search(lower) for pattern in _RETRACTIONS)
    return next((each.group() for each in found if each), "")
