"""Notices of the steps that a budget reaches: each once, as an event, a log line and a count."""

from cachetools import FIFOCache

from gateway.budget_interface import CallSubject
from gateway.features.budgets.metrics import BudgetMetrics
from gateway.features.budgets.which_apply import BudgetStatus
from gateway.observability.live_events import EventHub
from gateway.observability.logging import get_logger
from gateway.stores.controls import GATEWAY
from gateway.stores.sql.audit_log import ChangeStore
from gateway.tasks import spawn

_REMEMBERED = 10_000
_log = get_logger("gateway.budgets")
_LOGGED = ("budget", "scope", "subject", "step", "used", "metric")


class BudgetNotices:
    """Makes one live event, log line and count of each step that is reached, and for a stop an
    entry of the audit log. Each gateway remembers its own notices only."""

    def __init__(self, events: EventHub, metrics: BudgetMetrics, changes: ChangeStore | None):
        self._changes = changes
        self._events = events
        self._metrics = metrics
        self._published: FIFOCache[tuple[str, str, float], None] = FIFOCache(_REMEMBERED)

    def reached(self, found: BudgetStatus, call: CallSubject) -> None:
        """Announce the steps that this budget, which is no rate, has reached for the first time."""
        budget = found.applied.budget
        account = found.account
        if budget.is_rate:
            return
        for step in found.reached:
            known = (budget.name, account.subject, step.at)
            if known in self._published:
                continue
            self._published[known] = None
            self._metrics.steps.labels(budget.name, step.name).inc()
            event = {
                "type": "budget",
                "tenant": call.tenant,
                "budget": budget.name,
                "scope": "+".join(budget.scopes),
                "subject": account.subject,
                "run_id": call.run or None,
                "step": step.name,
                "at": step.at,
                "used": found.share,
                "metric": found.metric,
            }
            _log.warning("budget step reached", **{k: event[k] for k in _LOGGED})
            self._events.publish(event)
            if step.name == "stop" and self._changes is not None:
                said = {name: event[name] for name in ("budget", "run_id", "metric", "used")}
                subject = account.subject
                spawn(self._changes.note("budget", "stop", subject, said=said, author=GATEWAY))

    def forget(self, budget: str, subject: str) -> None:
        """Announce this subject's steps again: it was raised, lifted or reset."""
        for known in [key for key in self._published if key[:2] == (budget, subject)]:
            del self._published[known]
