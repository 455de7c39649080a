"""`gateway runs`: the run log, the control of runs and their cost; also while a gateway runs."""

import asyncio
import json
import shutil
import sys
import time
from argparse import Namespace
from functools import partial
from typing import Any

from msgspec.structs import asdict
from rich.cells import cell_len, set_cell_size

from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, as_line, kept, print_lines, print_styled, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.holds import answer_question, known_subject
from gateway.reporting.run_exports import FORMATS, group_lines
from gateway.reporting.wrong_alarms import find_alarms
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores import filters, lists
from gateway.stores.controls import STEERING, Action, Control
from gateway.stores.records import IMPORTED, StepRow
from gateway.stores.totals import RunRecord
from gateway.text import formatting
from gateway.text.page import rendered
from gateway.text.sanitize import one_line
from gateway.values import FieldDict

_OTHER_COLUMNS = 108  # the widest that a table's columns get besides the task
_LEAST_TASK = 16
_MARK = f"[{IMPORTED}] "
_TAIL_S = 1.0
_TAIL_RUNS = 50  # newest runs that are read each time; more than can change within a second or two
_NO_STOPS = "this store keeps no stops: use the running gateway's /api"
_NO_SESSIONS = "this store cannot put runs together"
_NO_SUMS = "this store cannot sum up runs"


def add_parser(commands: Any) -> None:
    """Declare the commands."""
    does: FieldDict = {
        "steering": _steering,
        "steering off": partial(_hold, "off"),
        "steering on": _resume,
        "sessions list": _list_sessions,
        "sessions show": _show_session,
        "runs list": _list,
        "runs show": _show,
        "runs outcome": _outcome,
        "runs wrong": _wrong,
        "runs tail": _tail,
        "runs stop": partial(_hold, "stop"),
        "runs pause": partial(_hold, "pause"),
        "runs approve": partial(_answer, True),
        "runs deny": partial(_answer, False),
        "runs resume": _resume,
        "runs held": _held,
        "runs usage": _usage,
        "runs export": _export,
    }
    known = {
        "SORT_KEYS": list(lists.SORT_KEYS),
        "OUTCOMES": filters.OUTCOMES,
        "FORMATS": FORMATS,
        "of_hook": _of_hook,
        "filters": _filters(),
    }
    declare(commands, __name__, does, **known)


def _filters() -> FieldDict:
    """The options that choose runs."""
    options: FieldDict = {"--tenant": {"help": "only runs of this tenant"}}
    for name, (text, choices) in filters.FILTERS.items():
        words = f"only runs {text[0].lower()}{text[1:]}".rstrip(".").replace("`", "")
        about: FieldDict = {"help": words, "choices": choices or None}
        if choices:
            about["type"] = filters.in_words
        if filters.ANY in choices:
            about |= {"nargs": "?", "const": filters.ANY}
        options[f"--{name.replace('_', '-')}"] = about
    return options


def _chosen(args: Namespace) -> filters.RunFilter:
    given = {name: getattr(args, name) for name in filters.FILTERS}
    for name in filters.TIMES:
        try:
            given[name] = given[name] and filters.read_time(given[name])
        except ValueError as error:
            raise ConfigError(f"--{name}: {error}") from None
    return filters.run_filter(given, args.tenant)


async def _list(stores: Stores, settings: Settings, args: Namespace) -> None:
    page = lists.PageRequest(limit=args.limit, sort=args.sort)
    found = await stores.runs.list_runs(_chosen(args), page)
    if args.json:
        from gateway.api.views import run_view  # it takes longer than the rest

        for run in found.runs:
            say(as_line(run_view(run, settings)))
    elif not found.runs:
        say("no runs")
    else:
        # Ids are never cut, so that they can be copied: a narrow terminal wraps lines instead.
        stops = [len(run.stopped.words) for run in found.runs if run.stopped]
        others = _OTHER_COLUMNS + max(stops, default=0)
        cells = max(shutil.get_terminal_size().columns - others, _LEAST_TASK)
        kinds = ["dim", *[run.state for run in found.runs]]
        print_lines(zip(_runs_table(found.runs, cells), kinds, strict=True))


async def _list_sessions(stores: Stores, settings: Settings, args: Namespace) -> None:
    page = lists.PageRequest(limit=args.limit, sort=args.sort)
    store = kept(stores.sessions, _NO_SESSIONS)
    found = await store.list_sessions(_chosen(args), page)
    if args.json:
        from gateway.api.sessions import session_view

        for session in found.sessions:
            say(as_line(session_view(session, settings)))
    else:
        values = {"sessions": found.sessions}
        say(rendered(__package__, "sessions.txt", values).rstrip())


async def _show_session(stores: Stores, settings: Settings, args: Namespace) -> None:
    store = kept(stores.sessions, _NO_SESSIONS)
    tree = kept(
        await store.session(args.session, tenant=None), f"there is no session {args.session!r}"
    )
    if args.json:
        from gateway.api.sessions import tree_view

        say(as_line(tree_view(tree, settings)))
    else:
        say(rendered(__package__, "session.txt", {"tree": tree}).rstrip())


async def _show(stores: Stores, settings: Settings, args: Namespace) -> None:
    from gateway.api.runs import run_named
    from gateway.api.views import run_view, step_text, step_views

    store = stores.runs
    if args.step is None:
        part = {}
    else:
        part = {"after_step": args.step - 1, "limit": 1}
    unknown = f"there is no run {args.run_id!r}"
    run = kept(await run_named(store, args.run_id, None), unknown)
    trace = kept(await store.get_run(run.id, tenant=None, **part), unknown)
    if args.step is not None and not trace.steps:
        raise ConfigError(f"the run {args.run_id!r} has no step {args.step}")
    if args.json:
        say(as_line({"run": run_view(trace.run, settings), "steps": step_views(trace)}))
    elif args.step is not None:
        say(step_text(trace.steps[0], trace.injections))
    else:
        monitors = dict.fromkeys(name for step in trace.steps for name in step.scores)
        print_styled(
            __package__, "run.txt", {"trace": trace, "monitors": monitors, "labels": KIND_LABELS}
        )


async def _outcome(stores: Stores, settings: Settings, args: Namespace) -> None:
    from gateway.api.runs import store_outcome

    found = await store_outcome(
        stores.runs,
        stores.learning,
        args.run_id,
        tenant=None,
        source="cli",
        masks=settings.storage.mask_secrets,
        outcome=args.outcome,
        score=args.score,
        comment=args.comment,
    )
    run = kept(found, f"there is no run {args.run_id!r}")
    answer(args, {"run_id": run.id, "outcome": args.outcome}, f"{run.id}: {args.outcome}")


def _of_hook(given: str) -> str:
    """The client's id in the JSON that its hook gets; any other id as it is given."""
    try:
        said = json.loads(given)
        return str(said.get("session_id") or said["thread-id"])
    except (ValueError, AttributeError, KeyError):
        return given


async def _tail(stores: Stores, _settings: Settings, args: Namespace) -> None:
    store = stores.runs
    seen: dict[str, int] = {}
    since = 0.0 if args.once else time.time()
    page = lists.PageRequest(limit=_TAIL_RUNS, sort="updated_at")
    wanted = filters.RunFilter(tenant=args.tenant, mode=filters.LIVE)
    while True:
        found = await store.list_runs(wanted, page)
        for run in reversed([run for run in found.runs if run.updated_at >= since]):
            after = seen.get(run.id, -1)
            trace = await store.get_run(run.id, tenant=None, content=False, after_step=after)
            for step in trace.steps if trace else ():
                if step.at >= since:
                    say(_tail_line(run, step, args.json))
                seen[run.id] = step.step_index
        if args.once:
            return
        await asyncio.sleep(_TAIL_S)


def _runs_table(runs: tuple[RunRecord, ...], task_cells: int) -> list[str]:
    """The lines of a table, its head first."""
    rows = ["run\tstarted\ttask\tmodel\tstate\tsteps\tpeak\tguid.\ttokens\tcost"]
    for run in runs:
        totals = run.totals
        task = one_line(_MARK * run.imported + run.title, task_cells)
        if cell_len(task) > task_cells:  # wide characters
            task = set_cell_size(task, task_cells - 1) + "…"
        cells = (
            run.id,
            formatting.ago(run.started_at),
            task,
            one_line(run.model_requested, 18),
            run.state,
            str(totals.steps),
            formatting.score(totals.composite_peak),
            str(totals.injections or ""),
            formatting.count(totals.tokens),
            formatting.about(formatting.money(totals.cost_usd), totals.estimated),
        )
        rows.append("\t".join(cells))
    ends = ["outcome", *[run.outcome or _without_outcome(run) for run in runs]]
    table = formatting.aligned("\n".join(rows), left=5).splitlines()
    return [f"{line}  {end}".rstrip() for line, end in zip(table, ends, strict=True)]


def _without_outcome(run: RunRecord) -> str:
    if run.stopped is not None:
        return run.stopped.words
    if run.handed_over is None:
        return ""
    return "handed over"


def _tail_line(run: RunRecord, step: StepRow, as_json: bool) -> str:
    call = step.call
    if as_json:
        names = ("at", "state", "difficulty", "reason", "composite", "fired", "alarms")
        line = {"run_id": run.id, "tenant": run.tenant, "step": step.step_index}
        line |= {name: getattr(step, name) for name in names}
        line |= {name: getattr(call, name, None) for name in ("model_asked", "cost_usd")}
        return as_line(line)
    asked = one_line(getattr(call, "model_asked", ""), 24)
    return (
        f"{formatting.clock(step.at)[11:]}  {run.id}  step {step.step_index:<4} {step.state:6} "
        f"d {formatting.score(step.difficulty)} c {formatting.score(step.composite)}  {asked:24} "
        f"{', '.join(step.fired)}"
    ).rstrip()


async def _hold(action: Action, stores: Stores, _settings: Settings, args: Namespace) -> None:
    found = await known_subject(stores.runs, args.subject, None)
    subject, tenant = kept(found, f"there is no run or conversation {args.subject!r}")
    said: FieldDict = {"reason": args.reason, "author": args.author, "at": time.time()}
    control = Control(subject=subject, tenant=tenant, action=action, **said)
    await kept(stores.controls, _NO_STOPS).hold(control)
    _say_held(args, subject, action)


async def _answer(yes: bool, stores: Stores, _settings: Settings, args: Namespace) -> None:
    if not await answer_question(
        stores, args.subject, {"reason": args.reason, "author": args.author}, yes=yes
    ):
        raise ConfigError(f"no question about {args.subject!r} is open: see `gateway runs held`")
    _say_held(args, args.subject, None if yes else "stop")


async def _resume(stores: Stores, _settings: Settings, args: Namespace) -> None:
    if not await kept(stores.controls, _NO_STOPS).release(args.subject):
        raise ConfigError(f"{args.subject!r} is not held: see `gateway runs held`")
    _say_held(args, args.subject, None)


def _say_held(args: Namespace, subject: str, action: str | None) -> None:
    done = {"stop": "stopped", "pause": "paused", "off": "off", None: "may continue"}[action]
    answer(args, {"subject": subject, "action": action}, f"{subject}: {done}")


async def _wrong(stores: Stores, _settings: Settings, args: Namespace) -> None:
    controls = kept(stores.controls, _NO_STOPS)
    alarms = await find_alarms(stores.runs, args.run_id, args.step, tenant=None)
    found = kept(alarms, f"there is no such alarm in a run {args.run_id!r}")
    for control in found.holds(args.reason, args.author):
        await (controls.release(control.subject) if args.undo else controls.hold(control))
    if stores.changes is not None:
        kind, act, subject, said = found.said(wrong=not args.undo)
        await stores.changes.note(kind, act, subject, said=said, author=args.author)
    project = found.project or "(none)"
    done = "muted"
    if args.undo:
        done = "acted on again"
    answer(
        args,
        {**asdict(found), "muted": not args.undo},
        f"{', '.join(found.monitors)}: {done} in project {project}",
    )


async def _steering(stores: Stores, _settings: Settings, args: Namespace) -> None:
    listed = await kept(stores.controls, _NO_STOPS).list_controls()
    state = "on"
    if STEERING in [each.subject for each in listed]:
        state = "off"
    answer(args, {"steering": state}, f"steering is {state}; `gateway runs held` says since when")


async def _held(stores: Stores, _settings: Settings, args: Namespace) -> None:
    listed = await kept(stores.controls, _NO_STOPS).list_controls()
    if not args.json:
        return say(rendered(__package__, "held.txt", {"held": listed}).rstrip())
    for control in listed:
        say(as_line(control))


async def _usage(stores: Stores, settings: Settings, args: Namespace) -> None:
    from gateway.api.usage_and_export import sums_view
    from gateway.upstream.model_costs import age_note, use_list

    groups = await kept(stores.attribution, _NO_SUMS).groups(_chosen(args), args.by)
    if args.csv:
        _write(group_lines(args.by, groups))
    elif args.json:
        for group in groups:
            say(as_line({"value": group.value, "sums": sums_view(group.sums)}))
    else:
        use_list(settings.storage.prices_file)
        values = {"by": args.by, "groups": groups, "note": age_note()}
        say(rendered(__package__, "usage.txt", values).rstrip())


async def _export(stores: Stores, _settings: Settings, args: Namespace) -> None:
    from gateway.api.usage_and_export import exported

    content = not args.no_content and args.format != "csv"
    traces = stores.runs.export_runs(_chosen(args), content=content)
    async for lines in exported(traces, args.format):
        _write(lines)


def _write(lines: bytes) -> None:
    sys.stdout.write(lines.decode("utf-8", "replace"))
    sys.stdout.flush()
