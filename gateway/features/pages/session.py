"""The page of a session: its cost, where its time and money went, and which sub-agent it was."""

from operator import attrgetter
from urllib.parse import quote

from gateway.api.sessions import session_store
from gateway.api.steering_bill import steering_bill
from gateway.api.views import thresholds
from gateway.core.monitors import MONITORS
from gateway.errors import NotFound
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.features.pages.run_chart import RunChart
from gateway.features.pages.runs import acts_on
from gateway.features.pages.session_lanes import lanes_of
from gateway.stores.sessions import MOST_CALLS, Session
from gateway.tasks import off_loop
from gateway.values import FieldDict

_MOST_LANES = 12  # that are drawn: the main agent's and those of the dearest others
_CHART_STEPS = 400  # of the difficulty chart, the newest: with more, bars have less than two pixels


async def show(visit: Visit) -> Page:
    """The page of a session; the id of one of its sub-agents leads to it."""
    store = session_store(visit.runtime)
    wanted = visit.scope["path_params"]["session_id"]
    tree = await store.session(wanted, tenant=visit.tenant)
    if tree is None:
        raise NotFound(f"there is no session {wanted[:80]!r}")
    session = tree.session
    if session.id != wanted:
        return redirect(f"/dashboard/sessions/{quote(session.id)}")
    calls = await store.calls(session)
    # 300 sub-agents beside thousands of calls take half a second; agents are answered meanwhile.
    lanes = await off_loop(lanes_of, tree.members, calls.steps)
    dearest = sorted(lanes[1:], key=attrgetter("spent"), reverse=True)
    values: FieldDict = {
        "title": session.title,
        "path": "/dashboard/runs",  # the page of the navigation that it belongs to
        "session": session,
        "lanes": lanes[:1] + dearest[: _MOST_LANES - 1],
        "dearest": dearest,
        "calls": calls.steps,
        "limit": MOST_CALLS,
        "bill": await off_loop(steering_bill, calls, visit.runtime),
        **await _difficulty(visit, session),
    }
    newest = max(lanes[0].member.runs or session.runs, key=attrgetter("started_at"))
    values |= await acts_on(visit, newest)
    return Page(template="session.html", values=values)


async def _difficulty(visit: Visit, session: Session) -> FieldDict:
    """The newest steps of the worst run, for its chart."""
    worst = max(session.runs, key=attrgetter("totals.composite_peak", "started_at"))
    trace = await visit.runtime.runs.get_run(
        worst.id,
        tenant=visit.tenant,
        content=False,
        after_step=worst.totals.steps - _CHART_STEPS,
    )
    chart = trace and RunChart.of(trace, thresholds(visit.runtime.settings))
    return {"trace": trace, "chart": chart, "monitors": MONITORS}
