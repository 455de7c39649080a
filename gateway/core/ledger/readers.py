"""The interface of what reads the ledger: scorers and suites of monitors."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from gateway.core.ledger.ledger import Ledger, LedgerStep
from gateway.steering.transcript.steps import Step

R = TypeVar("R")


class ReadsLedger(ABC, Generic[R]):
    """A scorer or suite over the ledger, which a run keeps once for all of them. A class, not a
    protocol: `isinstance` with a protocol took 2 % of a request."""

    __slots__ = ()

    @property
    @abstractmethod
    def ledger(self) -> Ledger:
        """Its own ledger, for steps that no run's ledger has read."""

    def push(self, step: Step) -> R:
        """Read the next step with a ledger of its own."""
        return self.push_read(self.ledger.observe(step))

    @abstractmethod
    def push_read(self, read: LedgerStep) -> R:
        """The same, of a step that the run's ledger has read."""
