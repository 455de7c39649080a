"""`gateway report`: the results of an experiment, or a summary of all runs; `gateway
pilot`: a pilot declared, shown, ended and applied."""

import time
from argparse import Namespace
from typing import Any

from msgspec import structs

from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import as_line, confirmed, kept, print_styled, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.reports.experiment import report
from gateway.features.reports.pilot import pilot_change, pilot_report
from gateway.features.reports.results import effects_of
from gateway.features.reports.savings import read_savings
from gateway.features.reports.week import monday_of, read_week
from gateway.reporting.wrong_alarms import alarms_by_project
from gateway.stores.filters import RunFilter
from gateway.stores.sql.audit_log import pilot_of
from gateway.text.page import rendered


def add_report(commands: Any) -> None:
    """Declare `gateway report`."""
    declare(commands, f"{__package__}.report", {"report": _report})


def add_pilot(commands: Any) -> None:
    """Declare `gateway pilot` and its verbs."""
    verbs = ("pilot", "pilot start", "pilot stop", "pilot apply")
    parsers = declare(commands, f"{__package__}.pilot", dict.fromkeys(verbs, _pilot))
    parsers["pilot"].set_defaults(apply=None, runs=None)


async def _report(stores: Stores, settings: Settings, args: Namespace) -> None:
    store = stores.runs
    tenant = args.tenant
    shown: Any
    if args.html is not None and args.week is None:
        raise ConfigError("report: --html goes with --week")
    if args.routing:
        template = "routing.txt"
        workloads = kept(stores.workloads, "report: this store keeps no workloads")
        shown = {"workloads": await workloads.rates(tenant=tenant)}
    elif args.week is not None:
        template = "week.txt"
        shown = await read_week(stores, monday_of(args.week, time.time()), tenant)
        if args.html is not None:
            args.html.write_text(rendered(__package__, "week_page.html", shown), encoding="utf-8")
    elif args.experiment is None:
        template = "summary.txt"
        health = await store.health_summary(RunFilter(tenant=tenant))
        ledger, _ = await read_savings(stores, 0.0, time.time(), tenant=tenant)
        sums = stores.attribution
        if sums:
            paid = await sums.groups(RunFilter(tenant=tenant), "tag:paid")
        else:
            paid = ()
        wrong = await alarms_by_project(stores, tenant)
        extra = {"savings": ledger, "paid": paid, "wrong_alarms": wrong}
        shown = {**structs.asdict(health), **extra}
    else:
        runs = await store.experiment_runs(args.experiment, tenant=tenant)
        if not runs:
            known = ", ".join((await store.facets(tenant=tenant)).experiments) or "none"
            raise ConfigError(f"no run of experiment {args.experiment!r}; experiments: {known}")
        template = "experiment.txt"
        shown = report(args.experiment, runs, shares=settings.experiment.shares_of(args.experiment))
    if args.json:
        say(as_line(shown))
    elif isinstance(shown, dict):
        print_styled(__package__, template, shown)
    else:
        print_styled(__package__, template, {"found": shown, "effects_of": effects_of})


async def _pilot(stores: Stores, settings: Settings, args: Namespace) -> None:
    if settings.experiment.id:
        own = f"experiment.id ({settings.experiment.id}), which has every run"
        raise ConfigError(f"pilot: the config sets {own}; remove it first")
    store = kept(stores.changes, "pilot: this store keeps no pilots")
    now = time.time()
    known = await store.find(kind="pilot", limit=_MOST_CHANGES)
    newest = known[0] if known else None
    pilot = pilot_of(newest)
    found = None
    runs = stores.runs.experiment_runs
    if pilot is not None:
        found = pilot_report(pilot, await runs(pilot.id, tenant=None), now)
    used = {change.subject for change in known}
    changed = None
    if args.changes:
        changed = pilot_change(args, found, used, now=now)
    if changed is not None:
        if changed.draws:
            half = f"half of {changed.runs.words} that begin from now on will not be steered"
            await confirmed(args, f"{half}, until {changed.most} have an outcome.")
        if not await store.put_pilot(
            changed, newest, args.author, reason=found.line if found else ""
        ):
            raise ConfigError("pilot: somebody else has changed it just now; look again")
        found = pilot_report(changed, await runs(changed.id, tenant=None), now)
        if not args.json:
            say(f"Gateways that run follow within {settings.routing.refresh_s:g} s.")
    if args.json:
        return say(as_line(found))
    if found is None:
        return say("there is no pilot: `gateway pilot start` begins one")
    say(rendered(__package__, "pilot.txt", {"found": found}))
    if found.results.runs:
        print_styled(
            __package__, "experiment.txt", {"found": found.results, "effects_of": effects_of}
        )


_MOST_CHANGES = 1000
