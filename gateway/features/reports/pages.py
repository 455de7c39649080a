"""Pages of experiments, of the pilot and of a week, and the savings on the page Now."""

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from gateway.api.params import TenantParameter, Text, naming
from gateway.features.pages.pages import COUNTING, Page, PageRoute, Visit, counted, kept
from gateway.features.reports.api import (
    experiment_report,
    experiments,
)
from gateway.features.reports.pilot import current_pilot
from gateway.features.reports.results import ExperimentReport, effects_of
from gateway.features.reports.savings import Saving, read_savings
from gateway.features.reports.week import monday_of, read_week
from gateway.steering.experiments import MODES
from gateway.stores.filters import RunFilter
from gateway.stores.usage import BUCKET_S


async def show_list(visit: Visit) -> Page:
    """Every experiment."""
    read = partial(experiments, visit.runtime, visit.tenant)
    settings = visit.runtime.settings.experiment
    shown = {
        "title": "Experiments",
        "experiments": await kept(visit, read, "experiments", settings.id),
        "arms": MODES,
        "settings": settings,
        "pilot": await current_pilot(visit.runtime, visit.tenant),
    }
    return Page(template="experiments.html", values=shown)


async def show_report(visit: Visit) -> Page:
    """One experiment's report."""
    experiment = visit.scope["path_params"]["experiment_id"]
    read = partial(experiment_report, visit.runtime, experiment, visit.tenant)
    runs = RunFilter(tenant=visit.tenant, experiment=experiment)
    found = await counted(visit, runs, read, runs)
    return _results(found) if found else COUNTING


async def show_pilot(visit: Visit) -> Page:
    """The newest pilot, with the results of the runs in which steering acted."""
    found = await current_pilot(visit.runtime, visit.tenant)
    if found is None:
        return await show_list(visit)
    return _results(found.results, pilot=found)


def _results(report: ExperimentReport, **more: Any) -> Page:
    shown = {
        "title": f"Experiment {report.experiment}",
        "report": report,
        "effects_of": effects_of,
        **more,
    }
    return Page(template="experiment.html", values=shown)


class WeekParameters(TenantParameter):
    """A day of the week."""

    date: Text | None = None  # any day of the week, as YYYY-MM-DD; None: this week


async def show_week(visit: Visit) -> Page:
    """One week, by default the last whole one."""
    with naming("date"):
        monday = monday_of(visit.values["date"], time.time())
    read = partial(read_week, visit.runtime.opened.stores, monday, visit.tenant)
    runs = RunFilter(tenant=visit.tenant, since=monday - BUCKET_S["week"])
    found = await counted(visit, runs, read, runs)
    return Page(template="week.html", values=found) if found else COUNTING


@dataclass(frozen=True, slots=True)
class SavingsPart:
    """The ledger of the last week."""

    template: ClassVar = "now_savings.html"
    wide: ClassVar = True
    rows: Sequence[Saving]  # as the ledger orders them; empty while they are counted


async def now_part(visit: Visit, _shown: Set[str]) -> SavingsPart:
    """The part of the page Now."""
    now = time.time()
    stores = visit.runtime.opened.stores
    since = now - BUCKET_S["week"]
    runs = RunFilter(tenant=visit.tenant, since=since).summed

    async def read() -> SavingsPart:
        found, _ = await read_savings(stores, since, now, tenant=visit.tenant)
        return SavingsPart(found)

    return await counted(visit, runs, read, "savings") or SavingsPart(())


PAGES = (
    PageRoute("/dashboard/week", show_week, WeekParameters),
    PageRoute("/dashboard/pilot", show_pilot, TenantParameter),
    PageRoute("/dashboard/experiments", show_list, TenantParameter, tab="Experiments"),
    PageRoute("/dashboard/experiments/{experiment_id:path}", show_report, TenantParameter),
)
