"""The operator's buttons on a run's page: stop, pause, resume, raise and lift its budgets.

A page shows them with `{% include "run_control.html" %}` and the values of `control_values`.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from gateway.api.control import MAX_REASON, hold, release
from gateway.budgets.texts import account_view, amount
from gateway.config.budgets import METRICS
from gateway.dashboard.pages import Page, Visit, redirect
from gateway.errors import BadRequest, NotFound
from gateway.stores.budgets import AccountKey
from gateway.stores.protocols import StoreError
from gateway.stores.totals import RunRecord

_ACCOUNTS = 20
_HOLDS = ("stop", "pause", "resume")


async def control_values(visit: Visit, run: RunRecord) -> dict[str, Any]:
    """What the buttons of a run's page need: what holds it, and its budgets."""
    root = await _root(visit, run)
    subjects = tuple(dict.fromkeys((run.id, run.conversation_id, root)))
    return {
        "address": f"/dashboard/runs/{quote(run.id)}/control",
        "held": visit.runtime.holds.find(subjects),
        "subjects": {"run": run.id, "tree": root},
        "ended": run.ended_at is not None,
        "accounts": await _accounts(visit, (run.id, root)),
        "operator": visit.access.operator,
        "amount": amount,
    }


async def change(visit: Visit) -> Page:
    """Do what a button says, and show the run again."""
    run_id = str(visit.scope["path_params"]["run_id"])
    action, form = visit.form.get("action", ""), visit.form
    if action in _HOLDS:
        await _hold(visit, action, form.get("subject", run_id), form.get("reason", ""))
    elif action in ("raise", "lift"):
        await _allow(visit, form)
    else:
        raise BadRequest(f"action: {action[:40]!r} is not known", param="action")
    return redirect(f"/dashboard/runs/{quote(run_id)}")


async def _hold(visit: Visit, action: str, subject: str, reason: str) -> None:
    if action == "resume":
        await release(visit.runtime, subject, visit.tenant)
    elif action == "pause":
        await hold(visit.runtime, subject, "pause", reason[:MAX_REASON], visit.tenant)
    else:
        await hold(visit.runtime, subject, "stop", reason[:MAX_REASON], visit.tenant)


async def _allow(visit: Visit, form: Any) -> None:
    accounting = visit.runtime.accounting
    key = AccountKey(budget=form.get("budget", ""), subject=form.get("account", ""))
    found = await accounting.ledger.store.accounts([key])
    if not found:
        raise NotFound(f"the budget has no account {key.subject[:80]!r}")
    limits, lifted = dict(found[0].limits), form.get("action") == "lift"
    if not lifted:
        limits[_metric(form)] = _limit(form)
    await accounting.ledger.store.allow(key, at=time.time(), limits=limits, lifted=lifted)
    accounting.notices.forget(key.budget, key.subject)


def _metric(form: Any) -> str:
    metric = form.get("metric", "")
    if metric not in METRICS:
        raise BadRequest(f"metric: one of {', '.join(METRICS)}", param="metric")
    return str(metric)


def _limit(form: Any) -> float:
    try:
        value = float(form.get("limit", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadRequest("limit: must be a number above 0", param="limit")
    return value


async def _root(visit: Visit, run: RunRecord) -> str:
    """The first conversation of the run's tree; its own while the store cannot be asked."""
    try:
        record = await visit.runtime.store.load(run.tenant, run.conversation_id)
    except StoreError:
        record = None
    return record.root_id if record is not None and record.root_id else run.conversation_id


async def _accounts(visit: Visit, subjects: tuple[str, ...]) -> list[dict[str, Any]]:
    settings, ledger = visit.runtime.settings, visit.runtime.accounting.ledger
    keys = [
        AccountKey(budget=budget.name, subject=subject)
        for budget in settings.all_budgets()
        for subject in subjects
        if budget.scope in ("run", "tree")
    ][:_ACCOUNTS]
    if not keys:
        return []
    store = ledger.store if ledger.durable else ledger.memory
    found = await store.accounts(keys)
    return [account_view(each, settings.all_budgets(), time.time()) for each in found]
