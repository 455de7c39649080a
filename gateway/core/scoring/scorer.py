"""Scorers: their interface, the table of them, and the choice for a run.

To add a scorer, write a class that takes `DifficultySettings` in a module of this package, with a
row in `_SCORERS`; another package has an entry point of the group `steering_gateway.scorers`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

from gateway.core.ledger.ledger import LedgerStep
from gateway.core.plugins import load_class, plugins
from gateway.core.step import Step
from gateway.values import frozen

_SCORERS = {  # class of each scorer; its module is imported when a run needs it
    "heuristic": ".heuristic:HeuristicScorer",
    "ledger": ".difficulty:LedgerScorer",
    "judge": ".judged:JudgedScorer",
}
_SCORERS |= {each.name: each.value for each in plugins("steering_gateway.scorers", _SCORERS)}

if TYPE_CHECKING:
    ScorerName = str
else:
    ScorerName = Literal[tuple(_SCORERS)]

UNKNOWN = 0.5  # Score of a step without text. Source: docs/names.md, the step score.

Judged = Mapping[str, float]  # scores that a model gave, by key; see `Judgeable.key`

# The reason of a score that a model gave.
JUDGED = "the judge's score"
NOT_JUDGED: Judged = MappingProxyType({})


@frozen
class DifficultySettings:
    """Scorer of a run."""

    # `judge` uses the scores that a model gave, and the ledger's where it gave none
    scorer: "ScorerName" = "ledger"


class Scorer(Protocol):
    """Scores the steps of one run in order; the cost of a push does not grow with the run."""

    def push(self, step: Step) -> float:
        """Difficulty of `step`, given the steps pushed before it."""
        ...


class ReadsLedger(ABC):
    """A scorer over the ledger that its run keeps. A class, not a protocol: `isinstance` with a
    protocol took 2 % of a request."""

    @abstractmethod
    def push_read(self, read: LedgerStep) -> float:
        """Difficulty of a step that the run's ledger has read, after those read before it."""


class Judgeable(ABC):
    """A scorer that uses scores given by a model: `judged` holds them."""

    judged: Judged  # scores in [0, 1] that a model gave, by the key of the step

    @property
    @abstractmethod
    def key(self) -> str:
        """Key under which the score of the newest step is looked up; empty before the first."""


def make_scorer(settings: DifficultySettings) -> Scorer | ReadsLedger:
    """A new scorer for one run; imports the module of the scorer that `settings` names."""
    scorer: Scorer | ReadsLedger = load_class(__package__, _SCORERS[settings.scorer])(settings)
    return scorer
