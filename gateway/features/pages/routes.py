"""The routes to the dashboard's pages."""

from itertools import chain

from starlette.routing import Route

from gateway.api.audit import AuditParameters
from gateway.api.params import TenantParameter
from gateway.auth.access import Gate
from gateway.auth.authenticator import Authenticator
from gateway.features.pages import (
    health,
    login,
    now,
    over_time,
    pages,
    patterns,
    raw,
    runs,
    session,
    views,
)
from gateway.features.pages.pages import PageEndpoint, PageRoute
from gateway.hooks import given
from gateway.runtime import Runtime

_RUN = "/dashboard/runs/{run_id}"

PAGES = (
    PageRoute("/dashboard", now.show, now.NowParameters, tab="Now"),
    PageRoute("/dashboard/", now.show, now.NowParameters),
    PageRoute(
        "/dashboard/runs",
        runs.show_list,
        runs.RunsParameters,
        change=runs.set_outcome,
        report=True,
        tab="Sessions",
    ),
    PageRoute("/dashboard/views", params=TenantParameter, change=views.change),
    PageRoute(_RUN, runs.show, runs.RunPageParameters, change=runs.set_outcome, report=True),
    PageRoute(f"{_RUN}/control", change=runs.control),
    PageRoute(f"{_RUN}/steps", runs.show_steps, runs.StepsParameters),
    PageRoute(f"{_RUN}/steps/{{step}}.txt", runs.show_text),
    PageRoute(f"{_RUN}/steps/{{step}}/raw", raw.show, raw.StepPageParameters, change=raw.try_it),
    PageRoute("/dashboard/sessions/{session_id}", session.show),
    PageRoute("/dashboard/time", over_time.show_time, over_time.TimeParameters, tab="Over time"),
    PageRoute("/dashboard/audit", health.show_audit, AuditParameters, tab="Audit", control=True),
    PageRoute("/dashboard/health", health.show_health, runs.PeriodFilters, tab="Health"),
    PageRoute("/dashboard/patterns", patterns.show_list, patterns.ListParameters, tab="Patterns"),
    PageRoute("/dashboard/patterns/{pattern_id:path}", patterns.show_one, TenantParameter),
    PageRoute(
        "/dashboard/login",
        login.show_login,
        login.LoginParameters,
        change=login.log_in,
        public=True,
    ),
    PageRoute(
        "/dashboard/answer/{subject}/{answer}/{mac}",
        runs.answer_by_link,
        change=runs.answer_by_link,
        public=True,
    ),
    PageRoute("/dashboard/logout", change=login.log_out, public=True),
    PageRoute("/dashboard/static/{name}", pages.show_static, pages.FileParameters, public=True),
)
_UNKNOWN = PageRoute("/dashboard/{rest:path}", pages.unknown_page)


def dashboard_routes(runtime: Runtime, auth: Authenticator) -> list[Route]:
    """The routes of the dashboard."""
    gate = Gate(auth)
    found = (*chain.from_iterable(given("pages")), _UNKNOWN)
    return [Route(page.path, PageEndpoint(runtime, gate, page)) for page in found]
