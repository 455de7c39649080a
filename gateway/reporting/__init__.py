"""What an experiment shows, in numbers that withstand a sceptic."""

from gateway.reporting.experiment import report
from gateway.reporting.results import ExperimentReport

__all__ = ["ExperimentReport", "report"]
