"""Start or find a gateway, run the command behind it, and print a summary."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from gateway.api.views import run_view, step_views
from gateway.config import Mode
from gateway.errors import ConfigError
from gateway.process.running import running_gateways, state_database
from gateway.wire.coerce import as_json_value
from gateway.wrap import command, summary
from gateway.wrap.own_gateway import (
    OwnGateway,
    limit_line,
    own_gateway,
    used_line,
    wrap_budget,
    wrap_settings,
)
from gateway.wrap.summary import gateway_at, traces_of

RUNNING = "running"  # the value of `gateway` for the one that was started last


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapOptions:
    """Options of `gateway wrap`. `gateway`: the address of one that runs, or RUNNING; None starts
    one. `mode`: on, shadow or off; None: as the settings say. `budget`, `stop_after`: see
    `limits.wrap_budget`. `as_json`: the summary as one JSON object. `quiet`: no lines of ours."""

    command: tuple[str, ...]
    config: Path | None = None
    mode: str | None = None
    budget: str | None = None
    stop_after: str | None = None
    gateway: str | None = None
    as_json: bool = False
    quiet: bool = False


_DONE: dict[Mode, str] = {
    "on": "steered",
    "shadow": "only watched, nothing is changed",
    "off": "only recorded",
}


def wrap(options: WrapOptions) -> int:
    """Run the command with a gateway before its provider; returns its exit status. Raises
    ConfigError: no command, settings that are refused, no gateway where one should be."""
    if not options.command:
        raise ConfigError("wrap: which command? For example: gateway wrap -- claude")
    say = _silent if options.quiet else _say
    if shutil.which(options.command[0]) is None and "/" not in options.command[0]:
        _say(f"wrap: {options.command[0]}: command not found")
        return command.NOT_FOUND
    budget = wrap_budget(options.budget, options.stop_after)
    other = _other(options)
    with ExitStack() as stack:
        stack.enter_context(command.signals_held())
        own: OwnGateway | None = None
        if other:
            url, read = other, partial(traces_of, other, time.time())
            page, others = f"{url}/dashboard/runs/{{run}}", f"{url}/dashboard/runs"
        else:
            settings = wrap_settings(options.config, os.environ, options.mode)
            if budget is not None:
                settings = replace(settings, budgets=(*settings.budgets, budget))
            own = stack.enter_context(own_gateway(settings))
            url, read = own.url, partial(_own_traces, own)
            # Commands that show a run and list all, also later while other gateways run.
            config = f" --config {shlex.quote(str(options.config))}" if options.config else ""
            page, path = f"gateway dashboard{config} {{run}}", settings.storage.path
            others = f"gateway runs list{config}"
            if path == str(state_database()):
                others = f"GATEWAY_STORAGE__PATH={shlex.quote(path)} {others}"
        mode = own.settings.steering.mode if own is not None else None
        if budget is not None and own is not None and not options.as_json:
            say(limit_line(budget, own.settings.control))
        status = _run(options, url, say if not options.as_json else _silent, mode)
        traces = _read(read, say)
        if options.as_json:
            line = orjson.dumps(summary.as_json(traces, status=status, url=url)).decode()
            sys.stderr.write(line + "\n")
        else:
            for number, line in enumerate(summary.lines(traces, page=page, others=others)):
                say(line, first=number == 0)
            if budget is not None and own is not None:
                stops = [stop for trace in traces if (stop := trace["run"].get("stopped"))]
                stopped = any(stop["by"] == "budget" for stop in stops)
                store = own.server.runtime.accounting.ledger.store
                found = own.call(store.list_accounts(budget=budget.name))
                say(used_line(budget, found, time.time(), stopped=stopped), first=False)
        return status


def _run(options: WrapOptions, url: str, say: Callable[..., None], mode: Mode | None) -> int:
    """mode: that of an own gateway; None = the mode of one that runs already."""
    prepared = command.prepared(options.command, os.environ, url)
    if prepared.note:
        say(f"this client reads no variable: {prepared.note}")
    if mode is None:
        say(f"{options.command[0]} goes through the gateway that runs at {url}/dashboard")
    else:
        say(f"{options.command[0]} is {_DONE[mode]}; see it at {url}/dashboard")
    try:
        return command.run(prepared.command, prepared.environment)
    except command.CannotStart as exc:
        _say(f"wrap: {exc}")
        return exc.status


def _other(options: WrapOptions) -> str:
    """The address of a gateway that runs and is to be used: the named one, or the one that the
    variables name; empty for none."""
    if options.gateway == RUNNING:
        found = next(filter(None, (gateway_at(each.url) for each in running_gateways())), "")
        if not found:
            raise ConfigError("wrap: no gateway runs; without --gateway one is started")
    elif options.gateway is not None:
        found = gateway_at(options.gateway)
        if not found:
            raise ConfigError(f"wrap: no gateway answers at {options.gateway}")
    else:
        named = (os.environ.get(name) for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"))
        known = {each.url for each in running_gateways()}
        bases = [base.rstrip("/").removesuffix("/v1") for base in named if base]
        found = next(filter(None, (gateway_at(base) for base in bases if base in known)), "")
    given = {"--mode": options.mode, "--budget": options.budget, "--stop-after": options.stop_after}
    if found and any(given.values()):
        names = ", ".join(name for name, value in given.items() if value)
        raise ConfigError(
            f"wrap: {names}: only for a gateway that is started here; {found} has its own"
        )
    return found


def _own_traces(own: OwnGateway) -> list[summary.Trace]:
    runtime = own.server.runtime
    found = []
    for run_id in own.run_ids():
        trace = own.call(runtime.runs.get_run(run_id, tenant=None, content=False))
        if trace is not None:
            view = {"run": run_view(trace.run, runtime.settings), "steps": step_views(trace)}
            found.append(json.loads(orjson.dumps(view, default=as_json_value)))
    return found


def _read(read: Callable[[], list[summary.Trace]], say: Callable[..., None]) -> list[Any]:
    """The runs; the command's exit status counts, whatever happens to its summary."""
    try:
        return read()
    except Exception as exc:
        say(f"no summary: {exc}")
        return []


def _say(text: str, *, first: bool = True) -> None:
    sys.stderr.write(f"gateway: {text}\n" if first else f"{text}\n")
    sys.stderr.flush()


def _silent(_text: str, *, first: bool = True) -> None:
    """Say nothing."""
