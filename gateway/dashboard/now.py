"""The first page: the runs under way, worst first, and what is spent on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce
from typing import Any

from gateway.budgets.texts import account_view, amount
from gateway.dashboard.pages import Page, Visit, redirect
from gateway.dashboard.runs import RunsParameters, row_of
from gateway.stores.budgets import Account
from gateway.stores.queries import LIVE, LIVE_S, LiveQuery, LiveRun, PageRequest, RunFilter
from gateway.stores.totals import SEVERITIES, plus
from gateway.stores.usage import Tree, UsagePoint, UsageQuery, bucket_start

SPENT_S = 600.0  # over how long the rate of spending is measured, in seconds
_FINISHED, _ACCOUNTS, _BUDGETS, _ALERTS = 6, 200, 6, 5
_WITH_TREES = 40  # runs, the worst first, shown with what their tree costs: each may be a query
_DAY_S = 86_400.0


class NowParameters(RunsParameters):
    """The tenant; links to the list of runs, once the first page, are redirected to it."""


async def show(visit: Visit) -> Page:
    """The page, or the part of it that changes."""
    if any(name not in ("tenant", "fragment") for name in visit.given):
        return redirect(f"/dashboard/runs{visit.query()}")
    now = time.time()
    store, tenant = visit.runtime.runs, visit.tenant
    found = await store.live_runs(LiveQuery.at(now, tenant=tenant, spent_s=SPENT_S))
    # By severity, then by how long they are stuck, then by what they cost.
    live = sorted(found, key=_worst, reverse=True)
    begun = bucket_start(now, "day")
    today = await store.usage(UsageQuery(since=begun, until=begun + _DAY_S, tenant=tenant))
    shown = {live_run.run.id for live_run in live}
    page = PageRequest(limit=_FINISHED + len(shown), sort="updated_at")
    newest = await store.list_runs(RunFilter(tenant=tenant, mode=LIVE), page)
    values: dict[str, Any] = {
        "title": "Now",
        "live_runs": live,
        "stopped": sum(one.run.stopped is not None for one in live),
        "counts": {name: sum(run.severity == name for run in live) for name in SEVERITIES},
        "spending": _spending(live, today),
        "today": today[0] if today else UsagePoint(start=begun),
        "finished": [row_of(r, now) for r in newest.runs if r.id not in shown][:_FINISHED],
        "alerts": [
            stored
            for stored in await visit.runtime.opened.stores.alerts.list_alerts(
                tenant=tenant, limit=10 * _ALERTS
            )
            if now - stored.seen_at < _DAY_S and stored.alert.facts.get("run_id") not in shown
        ][:_ALERTS],
        "sinks": len(visit.runtime.settings.alerts.sinks),
        **await _budgets(visit, live, now),
        "trees": await _trees(visit, live[:_WITH_TREES]),
        "now": now,
        "live_min": int(LIVE_S // 60),
        "spent_min": int(SPENT_S // 60),
        "per_hour": 3600 / SPENT_S,
        "base_url": base_url(visit),
    }
    return Page(template="now_body.html" if visit.fragment else "now.html", values=values)


def _worst(one: LiveRun) -> tuple[int, int, float]:
    return SEVERITIES.index(one.severity), one.stuck_steps, one.run.totals.cost_usd or 0.0


def _spending(live: Sequence[LiveRun], today: Sequence[UsagePoint]) -> dict[str, float | None]:
    """Cost of active runs: in the last `SPENT_S` seconds, as an hourly rate, and in all, with the
    part that is estimated; and of all calls today. None where no price is known."""
    recent = reduce(plus, (one.spent_usd for one in live), None)
    return {
        "recent_usd": recent,
        "hourly_usd": None if recent is None else recent * 3600 / SPENT_S,
        "total_usd": reduce(plus, (one.run.totals.cost_usd for one in live), None),
        "total_estimated": sum(one.run.totals.estimated.get("cost_usd", 0.0) for one in live),
        "today_usd": reduce(plus, (point.cost_usd for point in today), None),
    }


async def _budgets(visit: Visit, live: Sequence[LiveRun], now: float) -> dict[str, Any]:
    """Budget usage: the most used budget of each active run, and the budgets shared by several
    runs."""
    ledger, budgets = visit.runtime.accounting.ledger, visit.runtime.settings.all_budgets()
    accounts: Sequence[Account] = ()
    if budgets:
        accounts = await ledger.counted.list_accounts(tenant=visit.tenant, limit=_ACCOUNTS)
    views = [account_view(account, budgets, now) for account in accounts]
    views.sort(key=lambda view: -view["used"])
    of_subject: dict[str, dict[str, Any]] = {}
    for view in views:
        of_subject.setdefault(view["subject"], view)
    shared = [v for v in views if v["scope"] not in ("run", "tree", None) and v["limits"]]
    used = {}
    for run in (one.run for one in live):
        found = [of_subject.get(name) for name in (run.id, run.conversation_id)]
        if known := [view for view in found if view]:
            used[run.id] = max(known, key=lambda view: view["used"])
    return {"budgets": shared[:_BUDGETS], "used": used, "amount": amount}


async def _trees(visit: Visit, live: Sequence[LiveRun]) -> dict[str, Tree]:
    """The trees of runs whose conversation has sub-agents, or is one, by the run's id."""
    of_conversation: dict[str, Tree | None] = {}
    for one in live:
        conversation = one.run.conversation_id
        if conversation not in of_conversation:
            tree = await tree_of(visit, conversation)
            of_conversation[conversation] = tree
            of_conversation |= {node.id: tree for node in tree.nodes} if tree else {}
    found = ((one.run.id, of_conversation[one.run.conversation_id]) for one in live)
    return {run_id: tree for run_id, tree in found if tree is not None}


async def tree_of(visit: Visit, conversation_id: str) -> Tree | None:
    """The tree of a conversation; None for one without relatives."""
    store = visit.runtime.opened.stores.attribution
    tree = None if store is None else await store.tree(conversation_id, tenant=visit.tenant)
    return tree if tree is not None and len(tree.nodes) > 1 else None


def base_url(visit: Visit) -> str:
    """The address by which the browser reached the gateway, without `/v1`."""
    headers = dict(visit.scope["headers"])
    secure = visit.scope.get("scheme") == "https" or headers.get(b"x-forwarded-proto") == b"https"
    host = headers.get(b"host", b"127.0.0.1:8080").decode("latin-1")
    return f"{'https' if secure else 'http'}://{host}"
