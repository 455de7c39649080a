"""The routes to the dashboard's pages."""

from __future__ import annotations

from starlette.routing import Route

from gateway.api.experiments import ReportOptions
from gateway.api.filters import TenantParameter
from gateway.api.params import Parameters
from gateway.auth.access import Gate
from gateway.auth.authenticator import Authenticator
from gateway.dashboard import (
    compare,
    control,
    experiments,
    health,
    lessons,
    now,
    over_time,
    patterns,
    raw,
    run,
    runs,
    session,
    what_if,
)
from gateway.dashboard.pages import (
    FileParameters,
    Handler,
    PageEndpoint,
    show_static,
    unknown_page,
)
from gateway.runtime import Runtime


def dashboard_routes(runtime: Runtime, auth: Authenticator) -> list[Route]:
    """The routes of the dashboard."""
    gate = Gate(auth)

    def page(
        show: Handler | None,
        params: type[Parameters] = Parameters,
        *,
        change: Handler | None = None,
        public: bool = False,
    ) -> PageEndpoint:
        return PageEndpoint(runtime, gate, show, change=change, params=params, public=public)

    one_run = "/dashboard/runs/{run_id}"
    return [
        Route("/dashboard", page(now.show, now.NowParameters)),
        Route("/dashboard/", page(now.show, now.NowParameters)),
        Route("/dashboard/runs", page(runs.show, runs.RunsParameters)),
        Route(one_run, page(run.show, run.RunParameters, change=run.set_outcome)),
        Route(f"{one_run}/control", page(None, change=control.change)),
        Route(f"{one_run}/steps", page(run.show_steps, run.StepsParameters)),
        Route(f"{one_run}/steps/{{step}}.txt", page(run.show_text)),
        Route(f"{one_run}/steps/{{step}}/raw", page(raw.show)),
        Route(f"{one_run}/steps/{{step}}/replay", page(raw.show_replay, change=raw.replay)),
        Route(f"{one_run}/what-if", page(what_if.show, what_if.WhatIfParameters)),
        Route("/dashboard/compare", page(compare.show, compare.CompareParameters)),
        Route("/dashboard/time", page(over_time.show, over_time.TimeParameters)),
        Route("/dashboard/health", page(health.show, runs.PeriodFilters)),
        Route("/dashboard/patterns", page(patterns.show_list, patterns.ListParameters)),
        Route(
            "/dashboard/new-pattern",
            page(patterns.show_new, patterns.NewParameters, change=patterns.add_new),
        ),
        Route(
            "/dashboard/patterns/{pattern_id:path}",
            page(patterns.show_one, patterns.OneParameters, change=patterns.change_one),
        ),
        Route("/dashboard/lessons", page(lessons.show_list, lessons.ListParameters)),
        Route(
            "/dashboard/lessons/{pattern_id:path}",
            page(lessons.show_one, lessons.OneParameters, change=lessons.change_one),
        ),
        Route("/dashboard/experiments", page(experiments.show_list, TenantParameter)),
        Route(
            "/dashboard/experiments/{experiment_id:path}",
            page(experiments.show_report, ReportOptions),
        ),
        Route(
            "/dashboard/login",
            page(session.show_login, session.LoginParameters, change=session.log_in, public=True),
        ),
        Route("/dashboard/logout", page(None, change=session.log_out, public=True)),
        Route("/dashboard/static/{name}", page(show_static, FileParameters, public=True)),
        Route("/dashboard/{rest:path}", page(unknown_page)),
    ]
