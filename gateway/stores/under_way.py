"""The runs under way: a query and its rows."""

from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.severity import Severity, step_severity
from gateway.stores.totals import RunRecord
from gateway.values import Texts, Value, frozen

# Greatest age of the newest call of a run under way, in seconds: a tool may run for minutes.
LIVE_S = 900.0
LIVE_RUNS = 200  # most runs that are listed as under way
# Runs that began earlier than this are not looked for, which keeps the query short.
LONGEST_S = 7 * 86_400.0


class LiveQuery(Value):
    """Query of the runs under way."""

    since: float  # epoch seconds: a call at or after
    begun: float  # epoch seconds: begun at or after
    spent_since: float  # epoch seconds from which their costs are summed
    tenant: str | None = None  # owner of the runs; None = all
    limit: int = LIVE_RUNS  # most runs, the newest first

    @classmethod
    def at(cls, now: float, *, tenant: str | None = None, spent_s: float = 600.0) -> "LiveQuery":
        """Runs under way at `now`, and what they cost in the last `spent_s` seconds."""
        return cls(
            since=now - LIVE_S, begun=now - LONGEST_S, spent_since=now - spent_s, tenant=tenant
        )


@frozen
class LiveRun:
    """One run under way."""

    run: RunRecord  # description and totals
    newest: StepRow | None = None  # its newest scored step, without texts; None before there is one
    stuck_steps: int = 0  # steps in a row with an alarm, see `streaks`
    # the newest piece, universal rules left out; None without any
    guidance: InjectionRow | None = None
    spent_usd: float | None = None  # US dollars since `spent_since`; None: no known price
    recent_calls: int = 0  # calls since `spent_since`

    @property
    def severity(self) -> Severity:
        """The severity now."""
        if self.newest is None:
            return "low"
        return step_severity(self.newest, self.stuck_steps)

    @property
    def reasons(self) -> Texts:
        """The evidence of each monitor that fires now, by its name."""
        if self.newest is None:
            return {}
        return {name: self.newest.evidence.get(name, "") for name in self.newest.fired}
