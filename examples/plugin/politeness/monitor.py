"""Politeness: the thoughts thank the user instead of working."""

from __future__ import annotations

from gateway.core.ledger.ledger import LedgerStep
from gateway.core.monitors import RobustSettings

WINDOW = 3


class Politeness:
    """Share of the last three thoughts that thank somebody."""

    __slots__ = ("_thanks",)

    def __init__(self, settings: RobustSettings) -> None:
        self._thanks: list[bool] = []

    def push(self, step: LedgerStep) -> None:
        """Look for thanks in the step's thought."""
        self._thanks = [*self._thanks, "thanks" in step.facts.vocabulary][-WINDOW:]

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] and its reason, which is the `{evidence}` of the text."""
        thanks = sum(self._thanks)
        return thanks / WINDOW, f"{thanks} of {WINDOW} thoughts thank" if thanks else ""
