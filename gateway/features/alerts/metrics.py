"""Metrics of alerts."""

from gateway.observability.metrics import Metrics


class AlertMetrics:
    """Counts what is raised and sent."""

    def __init__(self, metrics: Metrics):
        self.raised = metrics.counter("alerts_total", "New alerts, by rule.", "rule")
        self.sent = metrics.counter(
            "alert_deliveries_total",
            "Attempts to send an alert, by sink and result (sent, failed, given_up).",
            "sink result",
        )
        self.in_memory = metrics.gauge(
            "alerts_waiting_in_memory", "Alerts that wait in memory because the store fails."
        )
