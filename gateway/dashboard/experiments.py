"""Experiments: what each arm came to, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from gateway.api.experiments import experiment_report, experiments, read_shares
from gateway.api.filters import TENANT
from gateway.api.params import Param
from gateway.dashboard import figures
from gateway.dashboard.pages import Page, Visit
from gateway.dashboard.small_charts import daily, interval, reach
from gateway.reporting.amounts import Ratio
from gateway.reporting.experiment import STRATA, Comparison
from gateway.reporting.rates import Difference

LIST_PARAMS = (TENANT,)
REPORT_PARAMS = (
    TENANT,
    Param(
        name="stratum",
        description="What tells like runs from unlike.",
        choices=tuple(STRATA),
        default="profile",
    ),
    Param(name="shares", description="Shares the arms were to get."),
)
_LEAST_POINTS = 0.1
_LEAST_CHANGE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One comparison as a line of the forest plot. `good` is None where the sign is no verdict."""

    name: str
    estimate: str
    low: str
    high: str
    drawing: Markup
    sure: bool
    good: bool | None


async def show_list(visit: Visit) -> Page:
    """Every experiment."""
    found = await experiments(visit.runtime, visit.tenant)
    return Page(
        template="experiments.html",
        values={
            "title": "Experiments",
            "experiments": found.experiments,
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
        shares=read_shares(values["shares"]) if values["shares"] else None,
    )
    return Page(
        template="experiment.html",
        values={
            "title": f"Experiment {report.experiment}",
            "report": report,
            "effects": [(c, effects_of(c)) for c in report.comparisons],
            "daily": daily(report.daily, [arm.arm for arm in report.arms]),
            "days": sorted({day.date for day in report.daily}),
            "strata_names": tuple(STRATA),
        },
    )


def effects_of(comparison: Comparison) -> list[Effect]:
    """The comparison's lines: differences of success on one scale, ratios on another."""
    differences = [
        ("Success", comparison.success),
        ("Success, like with like", comparison.success_stratified),
    ]
    ratios = [
        (f"{name}, {kind}", getattr(amount, kind), name)
        for name, amount in (
            ("Cost per run", comparison.cost_usd),
            ("Tokens per run", comparison.tokens),
            ("Steps per run", comparison.steps),
        )
        if amount is not None
        for kind in ("mean", "median")
    ]
    known = [(name, found) for name, found in differences if found is not None]
    rated = [(name, found) for name, found, _ in ratios if found is not None]
    points = reach([v for _, d in known for v in (d.low, d.high)], 0.0, _LEAST_POINTS)
    changes = reach([v for _, r in rated for v in (r.low, r.high)], 1.0, _LEAST_CHANGE)
    return [
        *(_difference(name, found, points) for name, found in known),
        *(_ratio(name, found, changes) for name, found in rated),
    ]


def _difference(name: str, found: Difference, bounds: tuple[float, float]) -> Effect:
    sure = not found.low <= 0 <= found.high
    return Effect(
        name=name,
        estimate=f"{figures.points(found.estimate)} points",
        low=figures.points(found.low),
        high=figures.points(found.high),
        drawing=interval(found.low, found.estimate, found.high, bounds=bounds, none=0.0),
        sure=sure,
        good=found.estimate > 0 if sure else None,
    )


def _ratio(name: str, found: Ratio, bounds: tuple[float, float]) -> Effect:
    sure = not found.low <= 1 <= found.high
    return Effect(
        name=name,
        estimate=figures.change(found.estimate),
        low=figures.change(found.low),
        high=figures.change(found.high),
        drawing=interval(found.low, found.estimate, found.high, bounds=bounds, none=1.0),
        sure=sure,
        good=found.estimate < 1 if sure else None,
    )
