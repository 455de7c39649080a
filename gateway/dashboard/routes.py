"""The routes to the dashboard's pages."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import Route

from gateway.api.experiments import ReportOptions
from gateway.api.params import Parameters, TenantParameter
from gateway.auth.access import Gate
from gateway.auth.authenticator import Authenticator
from gateway.dashboard import (
    compare,
    experiments,
    lessons,
    now,
    over_time,
    patterns,
    raw,
    run,
    runs,
)
from gateway.dashboard.pages import (
    FileParameters,
    Handler,
    LoginParameters,
    PageEndpoint,
    log_in,
    log_out,
    show_login,
    show_static,
    unknown_page,
)
from gateway.runtime import Runtime

_RUN = "/dashboard/runs/{run_id}"


@dataclass(frozen=True, slots=True)
class _Page:
    """A page: where it is, what shows it and reads its query, what a posted form changes.

    public: seen without a session; report: the form reports something of a run, which needs no
    admin key.
    """

    path: str
    show: Handler | None = None
    params: type[Parameters] = Parameters
    change: Handler | None = None
    public: bool = False
    report: bool = False


_PAGES = (
    _Page("/dashboard", now.show, now.NowParameters),
    _Page("/dashboard/", now.show, now.NowParameters),
    _Page("/dashboard/runs", runs.show, runs.RunsParameters),
    _Page(_RUN, run.show, run.RunParameters, change=run.set_outcome, report=True),
    _Page(f"{_RUN}/control", change=run.control),
    _Page(f"{_RUN}/steps", run.show_steps, run.StepsParameters),
    _Page(f"{_RUN}/steps/{{step}}.txt", run.show_text),
    _Page(f"{_RUN}/steps/{{step}}/raw", raw.show),
    _Page(f"{_RUN}/steps/{{step}}/replay", raw.show_replay, change=raw.replay),
    _Page(f"{_RUN}/what-if", compare.show_what_if, compare.WhatIfParameters),
    _Page("/dashboard/compare", compare.show, compare.CompareParameters),
    _Page("/dashboard/time", over_time.show, over_time.TimeParameters),
    _Page("/dashboard/health", experiments.show_health, runs.PeriodFilters),
    _Page("/dashboard/patterns", patterns.show_list, patterns.ListParameters),
    _Page(
        "/dashboard/new-pattern",
        patterns.show_new,
        patterns.NewParameters,
        change=patterns.add_new,
    ),
    _Page(
        "/dashboard/patterns/{pattern_id:path}",
        patterns.show_one,
        patterns.OneParameters,
        change=patterns.change_one,
    ),
    _Page("/dashboard/lessons", lessons.show_list, lessons.ListParameters),
    _Page(
        "/dashboard/lessons/{pattern_id:path}",
        lessons.show_one,
        lessons.OneParameters,
        change=lessons.change_one,
    ),
    _Page("/dashboard/experiments", experiments.show_list, TenantParameter),
    _Page(
        "/dashboard/experiments/{experiment_id:path}",
        experiments.show_report,
        ReportOptions,
    ),
    _Page(
        "/dashboard/login",
        show_login,
        LoginParameters,
        change=log_in,
        public=True,
    ),
    _Page("/dashboard/logout", change=log_out, public=True),
    _Page("/dashboard/static/{name}", show_static, FileParameters, public=True),
    _Page("/dashboard/{rest:path}", unknown_page),
)


def dashboard_routes(runtime: Runtime, auth: Authenticator) -> list[Route]:
    """The routes of the dashboard."""
    gate = Gate(auth)
    return [
        Route(
            page.path,
            PageEndpoint(
                runtime,
                gate,
                page.show,
                change=page.change,
                params=page.params,
                public=page.public,
                report=page.report,
            ),
        )
        for page in _PAGES
    ]
