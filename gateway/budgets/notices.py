"""Tells the operator, once for each subject, when a step of a budget's ladder is reached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.budgets.rules import BudgetStatus, CallSubject
from gateway.observability.live_events import Event, EventHub
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics

_REMEMBERED = 10_000
_log = get_logger("gateway.budgets")


class BudgetNotices:
    """Makes one live event, log line and count of each step that is reached.

    `listeners` get each event, also when nobody follows the live events. A gateway remembers its
    own notices only: two gateways may both announce the same step.
    """

    def __init__(self, events: EventHub, metrics: Metrics) -> None:
        self.listeners: list[Callable[[Event], None]] = []
        self._events = events
        self._metrics = metrics
        self._published: OrderedDict[tuple[str, str, float], None] = OrderedDict()

    def reached(self, found: BudgetStatus, call: CallSubject) -> None:
        """Tell of the steps that this standing has reached for the first time."""
        budget, account = found.applied.budget, found.account
        for step in found.reached:
            known = (budget.name, account.subject, step.at)
            if known in self._published:
                continue
            self._published[known] = None
            if len(self._published) > _REMEMBERED:
                self._published.popitem(last=False)
            self._metrics.budget_steps.labels(budget.name, step.name).inc()
            event: Event = {
                "type": "budget",
                "tenant": call.tenant,
                "budget": budget.name,
                "scope": budget.scope,
                "subject": account.subject,
                "run_id": call.run or None,
                "step": step.name,
                "at": step.at,
                "used": found.share,
                "metric": found.metric,
            }
            _log.warning("budget step reached", **{k: event[k] for k in _LOGGED})
            self._events.publish(event)
            for listener in self.listeners:
                listener(event)

    def forget(self, budget: str, subject: str) -> None:
        """Tell of this subject's steps again: it was raised, lifted or reset."""
        for known in [key for key in self._published if key[:2] == (budget, subject)]:
            del self._published[known]


_LOGGED = ("budget", "scope", "subject", "step", "used", "metric")
