"""Runs under way: where each stands now, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.severity import Severity, step_severity
from gateway.stores.totals import RunRecord

LIVE_S = 900.0
"""A run counts as under way while its newest call is at most this old, in seconds: a tool may run
for minutes between two calls."""

LIVE_RUNS = 200
"""Most runs that are listed as under way."""

LONGEST_S = 7 * 86_400.0
"""Runs that began earlier than this are not looked for, which keeps the query short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQuery:
    """Which runs are wanted: of `tenant` (None: all), with a call at or after `since`, begun at or
    after `begun`; their costs are summed from `spent_since` on. Times in seconds of the epoch."""

    since: float
    begun: float
    spent_since: float
    tenant: str | None = None
    limit: int = LIVE_RUNS

    @classmethod
    def at(cls, now: float, *, tenant: str | None = None, spent_s: float = 600.0) -> LiveQuery:
        """Runs under way at `now`, and what they cost in the last `spent_s` seconds."""
        return cls(
            since=now - LIVE_S, begun=now - LONGEST_S, spent_since=now - spent_s, tenant=tenant
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """One run under way.

    `newest`: its newest scored step, without texts; None before the first. `stuck_steps`: the
    newest steps in a row at each of which a monitor fired, that of the run's length left out.
    `guidance`: the newest piece, universal rules left out. `spent_usd` and `recent_calls`: since
    `spent_since`; None where no price is known.
    """

    run: RunRecord
    newest: StepRow | None = None
    stuck_steps: int = 0
    guidance: InjectionRow | None = None
    spent_usd: float | None = None
    recent_calls: int = 0

    @property
    def severity(self) -> Severity:
        """Where it stands now."""
        return "low" if self.newest is None else step_severity(self.newest, self.stuck_steps)

    @property
    def reasons(self) -> Mapping[str, str]:
        """What each monitor says that fires now, by its name."""
        if self.newest is None:
            return {}
        return {name: self.newest.evidence.get(name, "") for name in self.newest.fired}
