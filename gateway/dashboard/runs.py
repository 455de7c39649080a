"""The list of runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any

from gateway.api import params
from gateway.dashboard.charts import peak, stacked
from gateway.dashboard.pages import FragmentParameters, Page, Visit
from gateway.steering.experiments import ARMS
from gateway.steering.fsm import FSMState
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.queries import LIVE_S, OUTCOMES, UNFINISHED, RunFilter
from gateway.stores.totals import RunRecord, run_severity

STATES = tuple(state.value for state in FSMState)
PERIODS: Mapping[str, float] = {"hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}
_COLUMNS = (
    *(("started_at", "Started"), ("steps", "Steps"), ("peak", "Peak")),
    *(("tokens", "Tokens"), ("cost", "Cost")),
)


class PeriodFilters(FragmentParameters, params.RunFilters):
    """Filter of runs; `period` counts back from now and replaces `since`."""

    period: Annotated[str, params.OneOf(tuple(PERIODS))] | None = None


class RunsParameters(params.SortParameters, PeriodFilters):
    """Filter of runs, and their order."""


async def show(visit: Visit) -> Page:
    """One page of runs by the filters of the query."""
    runs, values = chosen(visit), visit.values
    store, now, page = visit.runtime.runs, time.time(), params.page_request(visit.values)
    with params.naming("cursor"):
        found, total = await asyncio.gather(store.list_runs(runs, page), store.count_runs(runs))
    sort, order, sorts = values["sort"], values["order"], {}
    for key, label in _COLUMNS:
        turned = "asc" if sort == key and order == "desc" else "desc"
        now_sorted = {"desc": "descending", "asc": "ascending"}[order] if sort == key else "none"
        link = visit.query(sort=key, order=turned, cursor=None)
        sorts[key] = {"label": label, "link": link, "now": now_sorted}
    shown: dict[str, Any] = {
        "rows": [row_of(run, now) for run in found.runs],
        "total": total,
        "next": visit.query(cursor=found.next_cursor) if found.next_cursor else None,
        "sorts": sorts,
        "several_tenants": visit.tenant is None,
        "first_page": values["cursor"] is None,
    }
    if visit.fragment:
        return Page(template="runs_table.html", values=shown)
    return Page(
        template="runs.html", values={"title": "Runs", **shown, **await filter_values(visit)}
    )


def chosen(visit: Visit) -> RunFilter:
    """The filter in the query; `period` counts back from now."""
    values = dict(visit.values)
    if period := values.get("period"):
        values["since"] = time.time() - PERIODS[period]
    return params.run_filter(values, visit.tenant)


async def filter_values(visit: Visit) -> dict[str, Any]:
    """The options of each filter, and the chosen ones."""
    facets = await visit.runtime.runs.facets(tenant=visit.tenant)
    return {
        "chosen": visit.values,
        "options": {
            "agent": facets.agents,
            "model": facets.models,
            "state": STATES,
            "failure_type": facets.failure_types,
            "intervention": tuple(KIND_LABELS),
            "experiment": facets.experiments,
            "arm": ARMS,
            "outcome": (*OUTCOMES, UNFINISHED),
            "mode": params.RUN_MODES,
            "period": tuple(PERIODS),
        },
    }


def row_of(run: RunRecord, now: float) -> dict[str, Any]:
    """The row of a run, with its drawings, the monitors that fired, and the other models asked."""
    totals, severity = run.totals, run_severity(run.totals)
    return {
        "run": run,
        "live": not (run.ended_at or run.outcome or run.stopped) and now - run.updated_at < LIVE_S,
        "states": stacked(totals.states, STATES, "state"),
        "peak": peak(totals.composite_peak, severity),
        "severity": severity,
        "fired": sorted(totals.fired.items(), key=lambda item: (-item[1], item[0])),
        "models": [name for name in totals.models if name != run.model_requested],
    }
