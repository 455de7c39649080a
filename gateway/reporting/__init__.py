"""What an experiment shows, in numbers that withstand a sceptic."""

from gateway.reporting.experiment import ExperimentReport, report

__all__ = ["ExperimentReport", "report"]
