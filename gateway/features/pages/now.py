"""The first page: the runs under way, worst first, and what is spent on them."""

import time
from collections.abc import Sequence
from functools import reduce

from gateway.features.pages.pages import Page, Visit, base_url, redirect
from gateway.features.pages.runs import RunsParameters, row_of
from gateway.hooks import given
from gateway.stores.filters import ANY, LIVE, RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.severity import SEVERITIES
from gateway.stores.totals import plus
from gateway.stores.under_way import LIVE_RUNS, LIVE_S, LONGEST_S, LiveQuery, LiveRun
from gateway.stores.usage import UsagePoint, UsageQuery, bucket_start
from gateway.text.formatting import amount
from gateway.values import FieldDict

SPENT_S = 600.0  # over how long the rate of spending is measured, in seconds
_FINISHED = 6
_ACCOUNTS = 200
_BUDGETS = 6
_STOPS = 5
_SHOWN = 20  # runs under way, the worst first; the others are a number and a link
_DAY_S = 86_400.0


class NowParameters(RunsParameters):
    """The tenant; links to the list of runs, once the first page, are redirected to it."""


async def show(visit: Visit) -> Page:
    """The page, or the part of it that changes."""
    if any(name not in ("tenant", "fragment") for name in visit.given):
        return redirect(f"/dashboard/runs{visit.query()}")
    now = time.time()
    store = visit.runtime.runs
    tenant = visit.tenant
    found = await store.live_runs(LiveQuery.at(now, tenant=tenant, spent_s=SPENT_S))
    # By severity, then by how long they are stuck, then by what they cost.
    live = sorted([one for one in found if not one.run.stopped], key=_worst, reverse=True)
    begun = bucket_start(now, "day")
    points = await store.usage(UsageQuery(since=begun, until=begun + _DAY_S, tenant=tenant))
    recent = PageRequest(limit=LIVE_RUNS, sort="updated_at")
    wanted = RunFilter(tenant=tenant, mode=LIVE, stopped=ANY, since=now - LONGEST_S)
    stops = (await store.list_runs(wanted, recent)).runs
    stopped = [run for run in stops if run.stopped and run.stopped.at >= now - _DAY_S]
    stopped.sort(
        key=lambda r: (r.stopped.action == "ask", r.stopped.at) if r.stopped else (), reverse=True
    )
    shown = {run.id for run in (*(one.run for one in live), *stopped)}
    page = PageRequest(limit=_FINISHED + len(shown), sort="updated_at")
    newest = await store.list_runs(RunFilter(tenant=tenant, mode=LIVE), page)
    parts = [part for read in given("now_part") if (part := await read(visit, shown))]
    values: FieldDict = {
        "title": "Now",
        "live_runs": live,
        "shown_runs": _SHOWN,
        "under_way": f"{len(live)}+" if len(found) == LIVE_RUNS else str(len(live)),
        "stopped": stopped,
        "shown_stops": _STOPS,
        "counts": {name: sum(run.severity == name for run in live) for name in SEVERITIES},
        "spending": _spending(found),
        "today": points[0] if points else UsagePoint(start=begun),
        "finished": [row_of(r, now) for r in newest.runs if r.id not in shown][:_FINISHED],
        "parts": [part for part in parts if not part.wide],
        "wide_parts": [part for part in parts if part.wide],
        **await _budgets(visit, live[:_SHOWN]),
        "dry_seats": not tenant and visit.runtime.services.dispatcher.dry.shown(now),
        "now": now,
        "live_min": int(LIVE_S // 60),
        "spent_min": int(SPENT_S // 60),
        "per_hour": 3600 / SPENT_S,
        "base_url": base_url(visit),
    }
    return Page(template="now_body.html" if visit.fragment else "now.html", values=values)


def _worst(one: LiveRun) -> tuple[int, int, float]:
    return SEVERITIES.index(one.severity), one.stuck_steps, one.run.totals.cost_usd or 0.0


def _spending(live: Sequence[LiveRun]) -> dict[str, float | None]:
    """Cost of active runs: in the last `SPENT_S` seconds, and in all, with the part that is
    estimated. None where no price is known."""
    return {
        "recent_usd": reduce(plus, (one.spent_usd for one in live), None),
        "total_usd": reduce(plus, (one.run.totals.cost_usd for one in live), None),
        "total_estimated": sum(one.run.totals.estimated.get("cost_usd", 0.0) for one in live),
    }


async def _budgets(visit: Visit, live: Sequence[LiveRun]) -> FieldDict:
    """Budget usage: the most used budget of each active run, and the budgets shared by several
    runs."""
    views = await visit.runtime.accounting.views(visit.tenant, _ACCOUNTS)
    views.sort(key=lambda view: -view["used"])
    of_subject: dict[str, FieldDict] = {}
    for view in views:
        of_subject.setdefault(view["subject"], view)
    shared = [v for v in views if v["scope"] not in ("run", "tree", None) and v["limits"]]
    used = {}
    for run in (one.run for one in live):
        names = (run.id, run.conversation_id)
        if found := [of_subject[name] for name in names if name in of_subject]:
            used[run.id] = max(found, key=lambda view: view["used"])
    return {"budgets": shared[:_BUDGETS], "used": used, "amount": amount}
