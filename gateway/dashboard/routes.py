"""The dashboard's pages, and the routes to them."""

from __future__ import annotations

from starlette.routing import Route

from gateway.api.access import Gate
from gateway.api.params import Param
from gateway.dashboard import assets, experiments, health, patterns, run, runs, session
from gateway.dashboard.pages import Handler, PageEndpoint, nowhere
from gateway.endpoints.auth import Authenticator
from gateway.runtime import Runtime


def dashboard_routes(runtime: Runtime, auth: Authenticator) -> list[Route]:
    """The routes of the dashboard."""
    gate = Gate(auth)

    def page(
        show: Handler | None,
        *params: Param,
        change: Handler | None = None,
        public: bool = False,
    ) -> PageEndpoint:
        return PageEndpoint(runtime, gate, show, change=change, params=params, public=public)

    one_run = "/dashboard/runs/{run_id}"
    return [
        Route("/dashboard", page(runs.show, *runs.PARAMS)),
        Route("/dashboard/", page(runs.show, *runs.PARAMS)),
        Route(one_run, page(run.show, *run.PARAMS, change=run.say_outcome)),
        Route(f"{one_run}/steps", page(run.show_steps, *run.STEPS_PARAMS)),
        Route(f"{one_run}/steps/{{step}}.txt", page(run.show_text)),
        Route("/dashboard/health", page(health.show, *health.PARAMS)),
        Route("/dashboard/patterns", page(patterns.show_list, *patterns.LIST_PARAMS)),
        Route(
            "/dashboard/new-pattern",
            page(patterns.show_new, *patterns.NEW_PARAMS, change=patterns.add_new),
        ),
        Route(
            "/dashboard/patterns/{pattern_id:path}",
            page(patterns.show_one, *patterns.ONE_PARAMS, change=patterns.change_one),
        ),
        Route("/dashboard/experiments", page(experiments.show_list, *experiments.LIST_PARAMS)),
        Route(
            "/dashboard/experiments/{experiment_id:path}",
            page(experiments.show_report, *experiments.REPORT_PARAMS),
        ),
        Route(
            "/dashboard/login",
            page(session.show_login, *session.PARAMS, change=session.log_in, public=True),
        ),
        Route("/dashboard/logout", page(None, change=session.log_out, public=True)),
        Route("/dashboard/static/{name}", page(assets.show, *assets.PARAMS, public=True)),
        Route("/dashboard/{rest:path}", page(nowhere)),
    ]
