"""Experiments: the results of each arm, and how certain they are."""

from __future__ import annotations

from typing import Any

from gateway.api.experiments import experiment_report, experiments, shares_of
from gateway.dashboard.pages import Page, Visit
from gateway.dashboard.small_charts import daily, interval
from gateway.reporting.effects import effects_of
from gateway.reporting.experiment import STRATA
from gateway.reporting.results import Comparison
from gateway.steering.experiments import ARMS
from gateway.text import formatting


async def show_list(visit: Visit) -> Page:
    """Every experiment."""
    found = await experiments(visit.runtime, visit.tenant)
    return Page(
        template="experiments.html",
        values={
            "title": "Experiments",
            "experiments": found.experiments,
            "arms": ARMS,
            "settings": visit.runtime.settings.experiment,
        },
    )


async def show_report(visit: Visit) -> Page:
    """One experiment's report."""
    values = visit.values
    report = await experiment_report(
        visit.runtime,
        visit.scope["path_params"]["experiment_id"],
        tenant=visit.tenant,
        stratum=values["stratum"],
        shares=shares_of(values["shares"]),
    )
    return Page(
        template="experiment.html",
        values={
            "title": f"Experiment {report.experiment}",
            "report": report,
            "effects": [(c, _lines(c)) for c in report.comparisons],
            "daily": daily(report.daily, [arm.arm for arm in report.arms]),
            "days": sorted({day.date for day in report.daily}),
            "strata_names": tuple(STRATA),
        },
    )


def _lines(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "effect": effect,
            "show": formatting.points if effect.kind == "points" else formatting.change,
            "drawing": interval(effect),
        }
        for effect in effects_of(comparison)
    ]
