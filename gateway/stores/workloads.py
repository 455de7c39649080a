"""What stores keep of workloads: on which model each run began, why, and how the runs ended.

A table of counts that outlives the runs: retention removes runs, and what was learned stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRun:
    """One run, when it began.

    `workload`: the key of the client, its tools and the requested model; `model`: the one that the
    run's first call went to; `at` in seconds of the epoch; `choice`: the decision of the learned
    policy as JSON values, None where the states decided.
    """

    run_id: str
    tenant: str
    workload: str
    client: str
    requested: str
    model: str
    at: float
    choice: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRate:
    """The outcomes of a workload's runs that began on one model."""

    tenant: str
    workload: str
    client: str
    requested: str
    model: str
    solved: float
    failed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRun:
    """A run that the learned policy decided.

    `outcome`: `success`, `failure` or None; `cost_usd` in US dollars, None when unknown.
    """

    run: WorkloadRun
    outcome: str | None
    cost_usd: float | None


class WorkloadStore(Protocol):
    """Runs by workload, and the counts of their outcomes. Every method may raise StoreError."""

    async def note(self, runs: Sequence[WorkloadRun]) -> None:
        """Keep where runs began; of a run that is known already nothing changes."""

    async def settle(self, *, limit: int = 1000) -> int:
        """Count the outcomes that runs have by now, and return how many were new or have changed.

        Each run counts once, with its latest outcome, whoever counts and however often: an earlier
        outcome of the same run is taken back. At most `limit` runs; call it until it returns less.
        """

    async def drop(self, *, before: float) -> None:
        """Remove the runs that began before a time and are no longer in the run log; what they
        counted stays."""

    async def rates(self, *, limit: int = 10_000) -> list[WorkloadRate]:
        """The counts, of the workloads that changed last first."""

    async def decided(
        self, *, tenant: str | None, since: float = 0.0, limit: int = 100_000
    ) -> list[DecidedRun]:
        """The newest runs that the learned policy decided since a time, newest first; `tenant` None
        means every tenant."""
