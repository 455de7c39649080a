"""Start or find a gateway, run the command behind it, and print a summary."""

import json
import os
import re
import shlex
import shutil
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from gateway.api.runs import OutcomeBody, keep_outcome
from gateway.api.views import run_view, step_views
from gateway.auth.authenticator import process_key
from gateway.auth.keys import DEFAULT_TENANT
from gateway.commands.store import reported
from gateway.errors import ConfigError, in_words
from gateway.features.budgets.accounting import accounting_of
from gateway.features.budgets.accounts import AccountKey
from gateway.features.budgets.settings import Budgets, BudgetSettings, control_of
from gateway.features.wrap import wrapped
from gateway.features.wrap.own_gateway import (
    OwnGateway,
    limit_line,
    own_gateway,
    sub_agent_budget,
    used_line,
    wrap_budget,
    wrap_settings,
)
from gateway.hooks import features
from gateway.process.running_gateways import running_gateways, state_database
from gateway.steering.transcript.user_words import title_of
from gateway.stores.controls import GATEWAY, Control
from gateway.stores.protocols import StoreError
from gateway.stores.records import IMPORTED
from gateway.stores.stopped_by import Stop
from gateway.text import formatting
from gateway.text.page import page_templates
from gateway.text.sanitize import one_line
from gateway.upstream.model_costs import age_note, default_list
from gateway.values import FieldDict, Fields, frozen
from gateway.wire.coerce import as_json_value

EXIT = "exit"  # the outcome is that of the command itself
Say = Callable[..., None]
RUNNING = "running"  # the value of `gateway` for the one that was started last


@frozen
class WrapOptions:
    """Options of `gateway wrap`."""

    command: tuple[str, ...]  # that is run, with its arguments
    config: Path | None = None  # path of the config file; None: the usual places
    mode: str | None = None  # on, shadow or off; None: as the settings say
    budget: str | None = None  # US dollars or tokens, see `limits.wrap_budget`; None: no budget
    stop_after: str | None = None  # time after which the run is stopped, see `limits.wrap_budget`
    sub_agents: int | None = None  # most calls of each sub-agent; None: any number
    outcome_from: str | None = None  # a check for the shell, or EXIT; None: no outcome is reported
    gateway: str | None = None  # address of one that runs, or RUNNING; None starts one
    as_json: bool = False  # the summary as one JSON object
    quiet: bool = False  # no lines of ours


_DONE = {
    "on": "steered",
    "shadow": "only watched, nothing is changed",
    "off": "only recorded",
}


def wrap(options: WrapOptions) -> int:
    """Run the command with a gateway before its provider; returns its exit status. Raises
    ConfigError: no command, settings that are refused, no gateway where one should be."""
    if not options.command:
        raise ConfigError("wrap: which command? For example: gateway wrap -- claude")
    if shutil.which(options.command[0]) is None and "/" not in options.command[0]:
        _say(f"wrap: {options.command[0]}: command not found")
        return wrapped.NOT_FOUND
    budget = wrap_budget(options.budget, options.stop_after)
    other = _other(options)
    try:
        with wrapped.signals_held():
            if other:
                return _by_other(options, other)
            with reported():
                named = wrapped.with_upstreams(options.command, os.environ)
                settings = wrap_settings(options.config, named, options.mode)
            added = [budget, sub_agent_budget(options.sub_agents)]
            budgets = (*settings.of(Budgets), *filter(None, added))
            settings = replace(settings, budgets=budgets)  # type: ignore[call-arg]
            with own_gateway(settings) as own:
                return _by_own(options, own, budget)
    except wrapped.CannotStart as exc:
        _say(f"wrap: {exc}")
        return exc.status


def _by_other(options: WrapOptions, url: str) -> int:
    """Run the command with the gateway that runs already at `url`; its exit status."""
    say = partial(_say, quiet=options.quiet)
    before = time.time()
    status = _run(options, url)
    traces = _read(partial(traces_of, url, before), say)

    def send(run: str, body: OutcomeBody) -> None:
        here = [each for each in running_gateways() if each.url == url and each.key]
        headers = [("x-gateway-key", each.key) for each in here]
        httpx.post(
            f"{url}/api/runs/{run}/outcome",
            json=body.model_dump(),
            headers=headers,
            timeout=_ANSWER_S,
            trust_env=False,
        ).raise_for_status()

    _report(options, status, traces, send=send)
    page = f"{url}/dashboard/runs"
    _show(options, traces, status=status, url=url, page=f"{page}/{{run}}", others=page)
    return status


def _by_own(options: WrapOptions, own: OwnGateway, budget: BudgetSettings | None) -> int:
    """Run the command with a gateway of its own; its exit status."""
    say = partial(_say, quiet=options.quiet)
    before = time.time()
    runtime = own.server.runtime
    ledger = accounting_of(runtime).ledger
    if budget is not None:  # which `gateway budgets list` shows
        key = AccountKey(budget=budget.name, subject=DEFAULT_TENANT)
        limits = budget.limits.given()
        own.call(ledger.allow(key, at=before, limits=limits, lifted=False))
        if not options.as_json:
            say(limit_line(budget, control_of(own.settings)))
    if sys.stderr.isatty():  # where a log would keep it, nobody gets it
        say(f"to stop or raise it from another terminal, its admin key: {process_key()}")
        if not options.quiet:
            own.server.asked = _ask
    prices = getattr(default_list(), "about", {})
    if "file" in prices and not options.as_json:
        say(one_line("prices of {date}, from the list in {file}".format(**prices), 300))
    status = _run(options, own.url, done=f"is {_done_by(own)}; see it at")
    traces = _read(partial(_own_traces, own), say)
    _report(options, status, traces, send=lambda *said: own.call(keep_outcome(runtime, *said)))
    # Commands that show a run and list all, also later while other gateways run.
    config = ""
    if options.config:
        config = f" --config {shlex.quote(str(options.config))}"
    path = own.settings.storage.path
    others = f"gateway runs list{config}"
    if path == str(state_database()):
        others = f"GATEWAY_STORAGE__PATH={shlex.quote(path)} {others}"
    page = f"gateway dashboard{config} {{run}}"
    _show(options, traces, status=status, url=own.url, page=page, others=others)
    if options.as_json:
        return status
    lines = [_pilot_line(own, traces)]
    if traces:
        lines.insert(0, age_note())
    if budget is not None:
        lines += _read(partial(_limit_lines, own, budget, traces), say)
    acts = partial(_act_lines, own, budget.name if budget else "", traces, since=before)
    lines += _read(acts, say)
    for line in filter(None, lines):
        say(line, first=False)
    return status


def _done_by(own: OwnGateway) -> str:
    """Returns the deeds of the gateway for the requests of the command, in words."""
    done = _DONE[own.settings.steering.mode]
    workloads = own.server.runtime.opened.workloads
    if workloads is None or (pilot := workloads.pilot) is None:
        return done
    if pilot.draws:
        return f"steered or only watched, by the coin of {pilot.id} for {pilot.runs.words}"
    applied = pilot.treatment(("", "", ""), "", time.time())[1]
    return next((said for name, said in _DONE.items() if name == applied), done)


def _show(
    options: WrapOptions, traces: "Sequence[Trace]", *, status: int, url: str, **how: str
) -> None:
    """Print the summary, or as one line of JSON the exit status, sums, and each run with the
    guidance it got; `how`: as `_lines` takes it."""
    if options.as_json:
        said = {
            "exit_status": status,
            "gateway": url,
            "runs": [{**trace["run"], "guidance": list(_guidance(trace))} for trace in traces],
            **_sums([trace["run"]["totals"] for trace in traces]),
        }
        sys.stderr.write(orjson.dumps(said).decode() + "\n")
        return
    how["program"] = options.command[0]
    how["reads"] = (wrapped.client_of(options.command) or wrapped.WrappedClient()).reads
    for number, line in enumerate(_lines(traces, **how)):
        _say(line, first=number == 0, quiet=options.quiet)


def _ask(asked: Control) -> None:
    """Show at the terminal what a person is asked. A program that reads single keys has drawn the
    screen: then it is a notification of the terminal (OSC 9), which leaves that as it is."""
    why = one_line(asked.reason, _WHY_CHARS)
    text = f"{why}: gateway runs approve {asked.subject}, or deny, from another terminal"
    if termios.tcgetattr(sys.stderr)[3] & termios.ICANON:
        _say(text)
    else:
        sys.stderr.write(f"\x1b]9;gateway: {text}\x07")
        sys.stderr.flush()


def _run(
    options: WrapOptions, url: str, done: str = "goes through the gateway that runs at"
) -> int:
    """done: with the command's requests, in words before the address. Raises CannotStart."""
    say = partial(_say, quiet=options.quiet or options.as_json)
    prepared = wrapped.prepared(options.command, os.environ, url)
    if prepared.note:
        say(f"by hand: {prepared.note}")
    say(f"{options.command[0]} {done} {url}/dashboard")
    return wrapped.run(prepared.command, prepared.environment)


def _report(
    options: WrapOptions,
    status: int,
    traces: list[Any],
    send: Callable[[str, OutcomeBody], object],
) -> None:
    """Report the outcome of the main agent's run, if it is asked for: success where the check ends
    with 0. That run is the last to be continued, also behind those of its sub-agents."""
    check = options.outcome_from
    if check is None or not traces:
        return
    run = max((trace["run"] for trace in traces), key=lambda run: run["updated_at"])
    try:
        if check != EXIT:
            named = os.environ | {"GATEWAY_RUN": run["id"]}
            status = wrapped.run(("sh", "-c", f"{{ {check}\n}} >&2"), named)
        comment = f"{'the command' if check == EXIT else check[:1000]} ended with {status}"
        body = OutcomeBody(outcome="failure" if status else "success", comment=comment)
        send(run["id"], body)
        run["outcome"] = body.outcome
    except Exception as exc:  # the command's exit status counts
        _say(f"no outcome: {exc}", quiet=options.quiet)


def _other(options: WrapOptions) -> str:
    """Returns the address of the running gateway to use: the one that an option names, else the
    one that the environment names; "" for none."""
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
    limits = ("mode", "budget", "stop_after", "sub_agents")
    given = [f"--{each.replace('_', '-')}" for each in limits if getattr(options, each)]
    if found and given:
        raise ConfigError(
            f"wrap: {', '.join(given)}: only for a gateway that is started here; {found} has "
            "its own"
        )
    return found


def _limit_lines(
    own: OwnGateway, budget: BudgetSettings, traces: "Sequence[Trace]"
) -> Iterator[str]:
    """The use of the budget, a line for each account."""
    ledger = accounting_of(own.server.runtime).ledger
    stops = [stop for trace in traces if (stop := trace["run"].get("stopped"))]
    stopped = any(stop["by"] == "budget" for stop in stops)
    for account in own.call(ledger.list_accounts(budget=budget.name)):
        yield used_line(account, budget, time.time(), stopped=stopped)


def _act_lines(
    own: OwnGateway, budget: str, traces: "Sequence[Trace]", since: float
) -> Iterator[str]:
    """Every act of a person on the budget, and on what the runs asked, with its author."""
    changes = own.server.runtime.opened.stores.changes
    if changes is None:
        return
    runs = [trace["run"]["id"] for trace in traces]
    acts = own.call(changes.find(kind="run", since=since, subjects=runs))
    if budget:
        acts += own.call(changes.find(kind="budget", since=since, text=budget))
    for act in sorted(acts, key=lambda each: each.at):
        if act.author != GATEWAY:
            yield f"{act.kind}: {act.author or 'somebody'}: {act.body}  {act.reason}".rstrip()


def _pilot_line(own: OwnGateway, traces: "Sequence[Trace]") -> str:
    """The state of the pilot that the runs take part in; empty for none."""
    if "reports" not in features():
        return ""
    from gateway.features.reports.pilot import current_pilot

    found = None
    with suppress(StoreError, TimeoutError):  # the command's exit status counts
        found = own.call(current_pilot(own.server.runtime, None))
    runs = [t["run"] for t in traces if found and t["run"]["experiment"] == found.pilot.id]
    if found is None or not runs:
        return ""
    drawn = ", ".join("steered" if run["arm"] == "on" else "watched" for run in runs[:MOST_RUNS])
    return f"pilot: {drawn}; {found.line}"


def _own_traces(own: OwnGateway) -> "list[Trace]":
    runtime = own.server.runtime
    found = []
    for run_id in own.run_ids():
        trace = own.call(runtime.runs.get_run(run_id, tenant=None, content=False))
        if trace is not None:
            view = {"run": run_view(trace.run, runtime.settings), "steps": step_views(trace)}
            found.append(json.loads(orjson.dumps(view, default=as_json_value)))
    return found


def _read(read: "Callable[[], Iterable[Any]]", say: Say) -> list[Any]:
    """A part of the summary; the command's exit status counts, whatever happens to it."""
    try:
        return list(read())
    except Exception as exc:
        say(f"no summary: {exc}")
        return []


def _say(text: str, *, first: bool = True, quiet: bool = False) -> None:
    if not quiet:
        sys.stderr.write(f"gateway: {text}\n" if first else f"{text}\n")
        sys.stderr.flush()


# The summary of a wrapped command: its runs, read from the gateway, as a few lines of text.

Trace = Fields  # one run as `GET /api/runs/{id}` gives it: `run` and `steps`
MOST_RUNS = 20  # that are shown one by one; all are counted
_COUNTS = ("steps", "calls", "errors", "input_tokens", "cached_tokens", "output_tokens")

_WHY_CHARS = 300


def _lines(traces: Sequence[Trace], **how: str) -> list[str]:
    """The summary, at most 80 characters a line where ids allow it. page: how one run is shown,
    with `{run}` in place of its id; others: how all are listed; program: the command, and what it
    `reads` to find its provider."""
    totals = [trace["run"]["totals"] for trace in traces]
    sums = _sums(totals)
    sums["estimated"] = any(each["estimated"] for each in totals)
    sums["unsteered"] = sum(sum(each["unsteered"].values()) for each in totals)
    template = page_templates(Path(__file__).with_name("templates")).get_template("wrap.txt")
    text = template.render(
        traces=[{**trace, "guidance": list(_guidance(trace))} for trace in traces],
        sums=sums,
        most_runs=MOST_RUNS,
        **how,
        title_of=title_of,
        stop_words=lambda stop: Stop(**stop).words,
    )
    # The names of the limits of a command are drawn, and nobody has chosen them.
    return re.sub(r"\bbudget (wrap|sub-agents)-[0-9a-f]+", "its limit", text).splitlines()


def _sums(totals: Sequence[Fields]) -> FieldDict:
    """Sums over the runs. What no run knows is None, and so is the share of the reported input
    that the provider's cache had, without input."""
    found = {name: sum(each[name] for each in totals) for name in _COUNTS}
    found |= dict.fromkeys(("cost_usd", "saved_usd", "cached_share"))
    for name in ("cost_usd", "saved_usd"):
        if known := [each[name] for each in totals if each[name] is not None]:
            found[name] = sum(known)
    if tokens := found["input_tokens"]:
        found["cached_share"] = found["cached_tokens"] / tokens
    return found


def _guidance(trace: Trace) -> Iterator[FieldDict]:
    for step in trace["steps"]:
        for row in step["guidance"]:
            rules = row["source"] == "e3"  # one text with many rules
            name = f"{row['source']} {row['failure_type'] or row['pattern_id'] or 'directive'}"
            if rules:
                number = len((row["pattern_id"] or "").split(","))
                name = formatting.counted(number, "universal rule")
            about = {"step": step["step_index"], "rules": rules, "name": name}
            yield about | {"text": row["text"], "applied": row["applied"]}


_ANSWER_S = 10.0
_MOST_RUNS = 100


def traces_of(url: str, since: float) -> list[Trace]:
    """Every run of the gateway at `url` with a call after `since` (seconds since 1970), oldest
    first. Raises ConfigError: the control plane is closed, or does not answer."""
    try:
        with httpx.Client(base_url=url, timeout=_ANSWER_S, trust_env=False) as client:
            page: dict[str, str | int] = {"sort": "updated_at", "limit": _MOST_RUNS}
            answer = client.get("/api/runs", params=page)
            if answer.status_code in (401, 403):
                raise ConfigError("the gateway's control plane needs a key")
            found = (run for run in _answered(answer)["runs"] if run["mode"] != IMPORTED)
            runs = [run for run in found if run["updated_at"] >= since]
            one = {"content": "false"}
            traces = [client.get(f"/api/runs/{run['id']}", params=one) for run in runs]
    except httpx.HTTPError as exc:
        raise ConfigError(f"{url} does not answer: {in_words(exc)}") from exc
    return [_answered(answer) for answer in reversed(traces)]


def gateway_at(url: str) -> str:
    """The address of a gateway, given with or without `/v1`; empty when there is no gateway."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        answer = httpx.get(f"{root}/healthz", timeout=_ANSWER_S, trust_env=False)
        known = answer.status_code == 200 and set(answer.json()) == {"status", "version"}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError):
        return ""
    if known:
        return root
    return ""


def _answered(answer: httpx.Response) -> FieldDict:
    if answer.status_code != 200:
        raise ConfigError(f"{answer.url} answers {answer.status_code}")
    found: FieldDict = answer.json()
    return found
