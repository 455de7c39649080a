"""Metrics of budgets."""

from gateway.observability.metrics import Metrics


class BudgetMetrics:
    """Counts steps of ladders, and calls that are not sent."""

    def __init__(self, metrics: Metrics):
        self.steps = metrics.counter(
            "budget_steps_total",
            "Steps of budgets' ladders reached, by budget and step (warn, wrap_up, cheaper, stop).",
            "budget step",
        )
        self.stops = metrics.counter(
            "budget_stops_total",
            "Calls not sent because a budget is used up, by budget.",
            "budget",
        )
