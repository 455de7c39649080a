"""The list of runs, and the page of one: chart, transcript, and the buttons that stop it, raise
its budgets or report its outcome."""

import hmac
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import orjson
from markupsafe import Markup
from pydantic import Field

from gateway.api import params
from gateway.api.audit import CommentBody, act_view
from gateway.api.control import MAX_REASON, ControlBody, answer, hold
from gateway.api.operations import note
from gateway.api.runs import OutcomeBody, WrongAlarmBody, keep_outcome, keep_wrong_alarm
from gateway.api.sessions import session_store
from gateway.api.views import picked, step_text, thresholds
from gateway.config.settings import named_models
from gateway.core.monitors import ALARMING, MONITORS
from gateway.errors import BadRequest, NotFound
from gateway.features.pages.pages import FragmentParameters, Page, Visit, kept, redirect
from gateway.features.pages.run_chart import RunChart
from gateway.features.pages.views import saved_views
from gateway.holds import answer_path
from gateway.hooks import given
from gateway.observability.metrics import UNSTEERED_WORDS
from gateway.steering.experiments import MODES
from gateway.stores.controls import Action, Control
from gateway.stores.filters import FILTERS, OUTCOMES, Facets, RunFilter, run_filter
from gateway.stores.learning import KINDS, READER
from gateway.stores.records import StepRow
from gateway.stores.severity import STUCK_STEPS, step_severity, streaks
from gateway.stores.totals import DERIVED, RunRecord
from gateway.stores.traces import RunTrace
from gateway.stores.under_way import LIVE_S
from gateway.text.formatting import amount
from gateway.values import FieldDict
from gateway.wire.coerce import as_json_value

_COUNTED = 1000  # sessions: of more the list says that there are more


class PeriodFilters(FragmentParameters, params.RunFilters):
    """Filter of runs."""

    every: params.Flag = False  # count all that match, where a page counts the newest ones


class RunsParameters(params.SortParameters, PeriodFilters):
    """Filter of sessions by their runs, and their order."""

    side: params.Flag = False  # instead: what clients asked for themselves, without a session


async def show_list(visit: Visit) -> Page:
    """One page of sessions by the filters of the query, each with its newest runs."""
    read = partial(_listed, visit)
    if visit.values["sort"] == "started_at":
        shown = await read()
    else:  # every run is read for such an order
        shown = await kept(visit, read, "sessions", visit.query())
    if visit.fragment:
        return Page(template="runs_table.html", values=shown)
    tags = Counter(
        f"{name}={value}"
        for row in shown["rows"]
        for run in row["session"].runs
        for name, value in run.tags.items()
    )
    filters = await filter_values(visit)
    more = {"title": "Sessions", "tags": tags, "saved": await saved_views(visit)}
    return Page(template="runs.html", values=shown | filters | more)


async def _listed(visit: Visit) -> FieldDict:
    """The table of sessions, and what is said above it."""
    runs = chosen(visit)
    values = visit.values
    store = session_store(visit.runtime)
    side = values["side"]
    page = params.page_request(values)
    # The runs that match are looked up once.
    matching = await visit.runtime.runs.newest_runs(runs)
    among: tuple[str, ...] | None = None
    if matching.every or (runs.search and page.sort == "started_at"):
        among = matching.sessions
    with params.naming("cursor"):
        found = await store.list_sessions(runs, page, side=side, among=among)
    total = len(found.sessions)
    older = None
    if among is not None and not matching.every and not found.next_cursor:
        older = matching.oldest
    most: int | None = _COUNTED
    if values["every"]:
        most = None
        among = None
    elif runs != RunFilter(tenant=runs.tenant):
        among = matching.sessions
    more = ""
    if found.next_cursor or values["cursor"] or older:
        total = await store.count_sessions(runs, side=side, among=among, most=most)
        if most and total > most:
            more = "more than"
        elif among is not None and not matching.every:
            more = "at least"
    return {
        "rows": [{**row_of(each.newest, time.time()), "session": each} for each in found.sessions],
        "total": min(total, most or total),
        "more": more,
        "older": older,
        "matching": matching,
        "next": found.next_cursor,
        "link": visit.query,
        "chosen": values,
        "several_tenants": visit.tenant is None,
    }


def chosen(visit: Visit) -> RunFilter:
    """The filter in the query."""
    return run_filter(visit.values, visit.tenant)


async def facets_of(visit: Visit) -> Facets:
    """The values that occur in the runs of the visitor's tenant."""
    return await kept(visit, partial(visit.runtime.runs.facets, tenant=visit.tenant), "facets")


async def filter_values(visit: Visit) -> FieldDict:
    """The filters, the choices that the runs give, and the chosen values."""
    facets = await facets_of(visit)
    return {"chosen": visit.values, "filters": FILTERS, "facets": facets, "monitors": MONITORS}


def row_of(run: RunRecord, now: float) -> FieldDict:
    """The row of a run, with the monitors that fired, and the other models asked."""
    totals = run.totals
    return {
        "run": run,
        "live": not (run.ended_at or run.outcome or run.stopped) and now - run.updated_at < LIVE_S,
        "severity": totals.worst_severity,
        "fired": sorted(totals.fired.items(), key=lambda item: (-item[1], item[0])),
        "models": [name for name in totals.models if name != run.model_requested],
    }


_ACCOUNTS = 20
_MOST_ACTS = 50
_TICKED = "run."
_HOLDS: Mapping[str, Action | None] = {"stop": "stop", "pause": "pause", "resume": None}


async def control(visit: Visit) -> Page:
    """Do what a button says, and show the run again."""
    run_id = str(visit.scope["path_params"]["run_id"])
    action = visit.form.get("action", "")
    form = visit.form
    if action in _HOLDS:
        subject = form.get("subject", run_id)
        await hold(visit.runtime, subject, _HOLDS[action], said=_said(visit), tenant=visit.tenant)
    elif action in ("approve", "deny"):
        subject = form.get("subject", run_id)
        await answer(
            visit.runtime, subject, action == "approve", said=_said(visit), tenant=visit.tenant
        )
    elif action in ("raise", "lift"):
        await _allow(visit, form)
    elif action in ("wrong", "right"):
        given = {"step": form.get("step", ""), "undo": action == "right"}
        body = params.read_model(WrongAlarmBody, given)
        await keep_wrong_alarm(
            visit.runtime, run_id, body, access=visit.access, tenant=visit.tenant
        )
        return redirect(f"/dashboard/runs/{quote(run_id)}?step={body.step}#step-{body.step}")
    elif action == "comment":
        params.read_model(CommentBody, {"comment": form.get("comment", "")})
        await find_trace(visit, content=False, limit=0)
    else:
        raise BadRequest(f"action: {action[:40]!r} is not known", param="action")
    return redirect(f"/dashboard/runs/{quote(run_id)}")


def _said(visit: Visit) -> ControlBody:
    reason = visit.form.get("reason", "")[:MAX_REASON]
    author = visit.form.get("author", "")[:80]
    return ControlBody(reason=reason, author=author or visit.access.author)


async def _linked(visit: Visit) -> Control:
    """The open question of a signed link. Raises: NotFound, also for a link that was used."""
    holds = visit.runtime.holds
    given = visit.scope["path_params"]
    await holds.refresh()
    held = [each for each in holds.listed() if each.subject == given["subject"]]
    question = None
    if held:
        question = held[0].question
    if question is None or held[0].action != "ask":
        raise NotFound("this question has been answered, or its time is over")
    right = answer_path(held[0], given["answer"], holds.link_key).rpartition("/")[2]
    if not hmac.compare_digest(right.encode(), given["mac"].encode()):
        raise NotFound("this link belongs to no open question")
    if time.time() >= question.until or given["answer"] not in ("yes", "no"):
        raise NotFound("this link has expired: the time for an answer is over")
    return held[0]


async def answer_by_link(visit: Visit) -> Page:
    """The question of a signed link, with one button: opening a link answers nothing."""
    asked = await _linked(visit)
    yes = visit.scope["path_params"]["answer"] == "yes"
    run = None
    done = visit.scope["method"] == "POST"
    if done:
        await answer(visit.runtime, asked.subject, yes, said=_said(visit), tenant=None)
        act = "approve" if yes else "deny"
        await note(
            visit.runtime, visit.access, "run", act=act, subject=asked.subject, said=visit.form
        )
    else:
        run = await visit.runtime.runs.get_run(asked.subject, tenant=None, content=False, limit=0)
    values = {"title": "A run waits for an answer", "asked": asked, "access": None, "yes": yes}
    return Page(template="answer.html", values=values | {"run": run and run.run, "done": done})


async def _allow(visit: Visit, form: Any) -> None:
    limits = dict[str, float]()
    lifted = form.get("action") == "lift"
    if not lifted:
        with params.naming("limit"):
            limits[form.get("metric", "")] = float(form.get("limit") or "0")
    await visit.runtime.accounting.allow(
        form.get("budget", ""), form.get("account", ""), limits=limits, lifted=lifted or None
    )


# Steps of a run that its chart and its table show, the first ones or those around the chosen one: a
# page of them has 1 MB.
CHART_STEPS = 1000
WINDOW_STEPS = 30  # steps whose texts are on the page at first; more are loaded on demand

_StepIndex = Annotated[int, Field(ge=0, le=2**31 - 1), params.DIGITS]


class StepParameter(params.Parameters):
    """The step that an address names."""

    step: _StepIndex  # number in the run, 0 for its first call


class RunPageParameters(FragmentParameters):
    """The step around which the transcript is shown."""

    step: _StepIndex | None = None  # None: the newest one


class StepsParameters(params.Parameters):
    """The step after which the transcript begins."""

    # number of a step; -1 = from the first call
    after: Annotated[int, Field(ge=-1, le=2**31 - 1), params.DIGITS] = -1


async def show(visit: Visit) -> Page:
    """The run's page, or only its chart."""
    chosen = visit.values["step"] or 0
    first = max(0, chosen - CHART_STEPS // 2)
    trace = await find_trace(visit, content=False, after_step=first - 1, limit=CHART_STEPS)
    chart = RunChart.of(trace, thresholds(visit.runtime.settings))
    run = trace.run
    settings = visit.runtime.settings
    values = {
        "title": f"Run {run.id}",
        "run": run,
        "row": row_of(run, time.time()),
        "chart": chart,
        "charted": CHART_STEPS,
        "monitors": MONITORS,
        "data": step_data(chart),
        "budget": settings.steering.token_budget,
        "policy_in_force": run.policy_digest == visit.runtime.services.policy_digest,
        "arms": MODES,
        "keeps_texts": settings.storage.store_content,
    }
    if visit.fragment:
        return Page(template="run_chart.html", values=values)
    wanted = visit.values["step"]
    if wanted is None:
        after = -1
    else:
        after = max(-1, min(wanted, run.totals.steps) - 3)
    values |= await _transcript(visit, after)
    values |= await acts_on(visit, run)
    return Page(template="run.html", values=values)


async def acts_on(visit: Visit, run: RunRecord) -> FieldDict:
    """The acts that a visitor may do with a run and its session, and those that were done."""
    settings = visit.runtime.settings
    verdicts = await visit.runtime.lessons.outcomes(visit.tenant, run.id)
    if run.outcome_source == DERIVED:
        source = ""
    else:
        source = f"told_{run.outcome_source}"
    fits = [v for v in verdicts if v.verdict == run.outcome and source in (v.source, "")]
    subjects = tuple(dict.fromkeys((run.id, run.conversation_id, run.session_id)))
    return {
        "run": run,
        "reads": "reader.model" in dict(named_models(settings)),
        "verdict": max(fits, key=lambda verdict: verdict.at, default=None),
        "acts": await _acts(visit, list(subjects)),
        "control": {
            "address": f"/dashboard/runs/{quote(run.id)}/control",
            "held": visit.runtime.holds.find(subjects),
            "subjects": {"run": run.id, "tree": run.session_id},
            "ended": run.ended_at is not None,
            "accounts": await visit.runtime.accounting.views_of(
                (run.id, run.session_id), _ACCOUNTS
            ),
            "operator": visit.access.operator,
            "controls": visit.access.controls,
            "amount": amount,
        },
    }


async def show_steps(visit: Visit) -> Page:
    """A part of the transcript."""
    return Page(template="run_steps.html", values=await _transcript(visit, visit.values["after"]))


async def show_text(visit: Visit) -> Page:
    """All texts of one step, as plain text."""
    trace, step = await find_step(visit)
    text = step_text(step, trace.injections)
    return Page(body=text.encode("utf-8", "replace"), media="text/plain; charset=utf-8")


async def set_outcome(visit: Visit) -> Page:
    """Store the outcome that the operator chose, of the run or of every run that is ticked."""
    outcome = visit.form.get("outcome", "")
    own = visit.scope["path_params"].get("run_id")
    if outcome not in OUTCOMES:
        raise BadRequest(f"outcome: must be one of {', '.join(OUTCOMES)}", param="outcome")
    ticked = [n.removeprefix(_TICKED) for n in visit.form if n.startswith(_TICKED)]
    for run_id in [own] if own else ticked:
        await keep_outcome(visit.runtime, run_id, OutcomeBody(outcome=outcome), access=visit.access)
    if own:
        here = f"/{quote(own)}"
    else:
        here = visit.query(cursor=None)
    return redirect(f"/dashboard/runs{here}")


async def _acts(visit: Visit, subjects: list[str]) -> list[FieldDict]:
    """The comments on a run, and what people did to it, newest first."""
    store = visit.runtime.opened.stores.changes
    if not store:
        return []
    return [act_view(each) for each in await store.find(subjects=subjects, limit=_MOST_ACTS)]


async def _transcript(visit: Visit, after: int) -> FieldDict:
    trace = await find_trace(visit, after_step=after, limit=WINDOW_STEPS)
    last = after
    if trace.steps:
        last = trace.steps[-1].step_index
    rows = await visit.runtime.lessons.outcomes(visit.tenant, trace.run.id)
    read = {row.metric: row.comment for row in rows if row.source == READER}
    project = trace.run.tags.get("project", "")
    return {
        "run": trace.run,
        "read": read,
        "kinds": KINDS,
        "cards": await _cards(visit, trace),
        "project": project,
        "muted": visit.runtime.holds.muted(trace.run.tenant, project),
        "alarming": ALARMING,
        "may_mute": visit.access.controls,
        "fire": visit.runtime.settings.monitors.fire_threshold,
        "earlier": after if after >= 0 else None,
        "later": last if last < trace.run.totals.steps else None,
        "window": WINDOW_STEPS,
        "unsteered_words": UNSTEERED_WORDS,
    }


async def _cards(visit: Visit, trace: RunTrace) -> list[FieldDict]:
    if not trace.steps:
        return []
    # The streak of a step counts the steps in a row, up to it, at which the run was stuck.
    first = trace.steps[0].step_index
    before = await find_trace(
        visit, content=False, after_step=max(-1, first - STUCK_STEPS), limit=STUCK_STEPS - 1
    )
    earlier = [step for step in before.steps if step.step_index < first]
    found = streaks([*earlier, *trace.steps])[len(earlier) :]
    notes: dict[int, Sequence[FieldDict]] = {}
    for noted in given("step_notes"):
        notes |= await noted(visit, trace)
    cards = []
    for step, stuck in zip(trace.steps, found, strict=True):
        newest = step.step_index == trace.run.totals.steps
        rows = [row for row in trace.injections if row.step_index == step.step_index]
        # All rules are one row, their ids joined by commas.
        rules = [row for row in rows if row.source == "e3"]
        ids = [name for row in rules for name in (row.pattern_id or "").split(",") if name]
        card = {
            "step": step,
            "severity": "none" if step.composite is None else step_severity(step, stuck),
            "notes": notes.get(step.step_index, ()),
            "rules": rules,
            "rule_ids": ids,
            "guidance": [row for row in rows if row not in rules],
            # A step's reply is shown as the next step's thought; the newest step has no next one.
            "shows_reply": newest and step.content is not None,
        }
        cards.append(card)
    return cards


async def find_trace(visit: Visit, **part: Any) -> RunTrace:
    """The run that the address names. Raises: NotFound."""
    run_id = visit.scope["path_params"]["run_id"]
    trace = await visit.runtime.runs.get_run(run_id, tenant=visit.tenant, **part)
    if trace is None:
        raise NotFound(f"there is no run {run_id[:80]!r}")
    return trace


async def find_step(visit: Visit) -> tuple[RunTrace, StepRow]:
    """The step that the address names, and its run. Raises: BadRequest, NotFound."""
    number = params.read_parameters(
        StepParameter, b"", {"step": visit.scope["path_params"]["step"]}
    ).step
    trace = await find_trace(visit, after_step=number - 1, limit=1)
    if not trace.steps:
        raise NotFound(f"the run has no step {number}")
    return trace, trace.steps[0]


def step_data(chart: RunChart) -> Markup:
    """The values of each step for the page's script, as JSON that cannot close its element."""
    rows = []
    for step in chart.steps:
        call = step.call
        row = {
            "step": step.step_index,
            **picked(step, "state", "difficulty", "composite", "scores", "fired"),
            "guidance": [row.source for row in chart.guidance.get(step.step_index, ())],
            "model": call and call.model_asked,
            "tokens": call and (call.input_tokens or 0) + (call.output_tokens or 0),
            "cost": call and call.cost_usd,
            "failed": call is not None and call.failed,
        }
        rows.append(row)
    text = orjson.dumps(rows, default=as_json_value).decode()
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704
