"""The hand-written situations, and what a look-up makes of them.

60 texts in the voice of agents in trouble, each with the starter pattern that answers it, and 60
of agents and people at ordinary work, which none should answer; 24 instances with a paraphrase.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.core.guidance_settings import EtraceSettings
from gateway.core.pattern import Pattern, Tier, causes
from gateway.library import starter_patterns

FILE = Path(__file__).parent / "situations.jsonl"
INSTANCES = Path(__file__).parent / "instances.jsonl"
SETTINGS = EtraceSettings()
PATTERNS: tuple[Pattern, ...] = tuple(
    p for p in starter_patterns() if p.tier is Tier.E2 and not causes(p)
)
"""Failure patterns that are found by similarity; the others are found by their cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """`expected` is the pattern's id, None when no pattern should be given."""

    text: str
    expected: str | None
    failure_type: str | None


def load() -> list[Situation]:
    """All situations, in the file's order."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [Situation(**json.loads(line)) for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A stored instance's situation, and an agent's words when it is in the same one."""

    situation: str
    query: str


def load_instances() -> list[Instance]:
    """All instances, in the file's order."""
    lines = INSTANCES.read_text(encoding="utf-8").splitlines()
    return [Instance(**json.loads(line)) for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtGate:
    """What one gate does: shares of the injections that are right, of the situations that get
    the right pattern, and of the unrelated ones that get any."""

    gate: float
    precision: float
    recall: float
    false_injections: float


def scores(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Cosine similarity of each situation with each pattern."""
    return np.asarray(queries @ documents.T)


def typed(found: np.ndarray, situations: Sequence[Situation]) -> np.ndarray:
    """The same with patterns of another failure type left out, where the situation has one."""
    kept = found.copy()
    for row, situation in zip(kept, situations, strict=True):
        if situation.failure_type:
            row[[p.failure_type != situation.failure_type for p in PATTERNS]] = -1.0
    return kept


def recall_at(found: np.ndarray, situations: Sequence[Situation], k: int) -> float:
    """Share of the situations in trouble whose pattern is among the best `k`."""
    hits = [
        situation.expected in {PATTERNS[index].pattern_id for index in np.argsort(-row)[:k]}
        for row, situation in zip(found, situations, strict=True)
        if situation.expected
    ]
    return sum(hits) / len(hits)


def at_gate(found: np.ndarray, situations: Sequence[Situation], gate: float) -> AtGate:
    """The effect of `gate` on what is injected: the best match, and a second about as near."""
    right = injected = false = 0
    for row, situation in zip(found, situations, strict=True):
        first, second = np.argsort(-row)[:2]
        given = [first] if row[first] >= gate else []
        if row[second] >= max(gate, row[first] - SETTINGS.e2_margin):
            given.append(second)
        injected += len(given)
        right += sum(PATTERNS[index].pattern_id == situation.expected for index in given)
        false += bool(given) and situation.expected is None
    troubled = sum(situation.expected is not None for situation in situations)
    return AtGate(
        gate=gate,
        precision=right / injected if injected else 1.0,
        recall=right / troubled,
        false_injections=false / (len(situations) - troubled),
    )


def calibrated(found: np.ndarray, situations: Sequence[Situation], precision: float) -> AtGate:
    """The lowest gate from which on the precision holds, in steps of 0.02."""
    steps = [at_gate(found, situations, step / 50) for step in range(50)]
    holding = len(steps)
    while holding and steps[holding - 1].precision >= precision:
        holding -= 1
    return steps[min(holding, len(steps) - 1)]
