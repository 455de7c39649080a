"""Runs that are compared as one: what each of them came to, made once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Literal

from gateway.reporting.amounts import Spent
from gateway.reporting.rates import Sample
from gateway.stores.experiments import ExperimentRun

Kind = Literal["cost_usd", "tokens", "steps"]


class Group:
    """Runs of one arm, of all or of a stratum or day."""

    def __init__(self, runs: Sequence[ExperimentRun]) -> None:
        self.runs = runs
        judged = [run for run in runs if run.outcome is not None]
        self.sample = Sample(outcomes=[(run.unit, run.outcome == "success") for run in judged])
        self._spent: dict[Kind, Spent] = {}

    def spent(self, kind: Kind) -> Spent:
        """What each run spent, of those for which it is known."""
        found = self._spent.get(kind)
        if found is None:
            known = map(attrgetter("unit", kind), self.runs)
            found = Spent(runs=[pair for pair in known if pair[1] is not None])
            self._spent[kind] = found
        return found

    def estimated(self, part: str) -> float:
        """How many `calls` or `tokens`, or how much of `cost_usd`, of the runs are estimated."""
        return sum([run.estimated.get(part, 0) for run in self.runs if run.estimated])
