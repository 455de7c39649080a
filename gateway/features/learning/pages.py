"""Pages of the lessons that were learned: search, read, change."""

import time
from collections.abc import Mapping
from urllib.parse import quote

from msgspec.structs import replace

from gateway.api.params import Flag, TenantParameter, naming
from gateway.api.views import picked
from gateway.core.pattern import ENDED, content
from gateway.errors import BadRequest, GatewayError
from gateway.features.history.typed import TypedAgain
from gateway.features.learning import api as lessons
from gateway.features.learning.gate import MOST_CHARS
from gateway.features.learning.life_cycle import LessonActions
from gateway.features.learning.reading import read_run
from gateway.features.learning.settings import LearningSettings, ReaderSettings
from gateway.features.learning.stated_rules import rule_views
from gateway.features.learning.typed_counts import Place, read_said
from gateway.features.learning.verdicts import steps_of
from gateway.features.learning.views import lesson_detail, reader_view, visible_lesson
from gateway.features.learning.worker import learning_of
from gateway.features.pages.pages import Page, PageRoute, Visit, redirect
from gateway.steering.guidance.lessons import SAID, is_rule
from gateway.stores.learning import LessonFilter
from gateway.stores.traces import RunTrace
from gateway.tasks import off_loop
from gateway.values import FieldDict

MOST_SHOWN = 200
MOST_NOTED = 16  # failures of a run's page that are looked up
_ORDER = ("active", "trial", "candidate", "quarantined", "retired")
# The status that a lesson gets by a button.
_BUTTONS = {"approve": "trial", "activate": "active", "pause": "quarantined", "retire": "retired"}


class LessonListParameters(lessons.LessonChoice):
    """Filter of lessons."""

    typed: Flag | None = None  # list what people typed in several sessions: reads all of them
    # a call, `RUN step N`, for which a rule is chosen; None = the lessons are only shown
    mark: str | None = None


class LessonPageParameters(TenantParameter):
    """Note that the lesson has just been saved."""

    saved: Flag | None = None  # shows a note


async def show_lessons(visit: Visit) -> Page:
    """Rules that people state, by project; other lessons by status."""
    values = visit.values
    runtime = visit.runtime
    settings = runtime.settings
    wanted = lessons.lesson_filter(visit.tenant, values["status"], values["tier"])
    found = await runtime.lessons.lessons(wanted, limit=MOST_SHOWN)
    others = (each for each in found if not is_rule(each.pattern))
    views = [visible_lesson(each, visit.access) for each in others]
    # Failures of many runs must not push the rules of people off the page.
    stated = replace(wanted, key_prefix=f"{SAID}|")
    said = await runtime.lessons.lessons(stated, limit=MOST_SHOWN)
    rules = rule_views(said, await learning_of(runtime).typed(visit.tenant))
    typed: Mapping[Place, list[TypedAgain]] = {}
    if values["typed"] and visit.access.operator:
        typed = await _typed(visit)
    groups = [(name, [v for v in views if v["status"] == name]) for name in _ORDER]
    shown = {
        "title": "Lessons",
        "rules": [rule for rule in rules if rule["status"] != "retired" or values["status"]],
        "typed": typed,
        "taken": {(rule["scope"], rule["said"]) for rule in rules},
        "groups": [(name, rows) for name, rows in groups if rows],
        "trials": settings.of(LearningSettings).trials == "on",
        "reader": await reader_view(
            runtime.lessons, settings.of(ReaderSettings), visit.tenant, now=time.time()
        ),
        "chosen": values,
        "statuses": lessons.STATUSES,
        "tiers": lessons.TIERS,
        "full": len(found) == MOST_SHOWN,
    }
    return Page(template="lessons.html", values=shown)


async def _typed(visit: Visit) -> Mapping[Place, list[TypedAgain]]:
    said = await read_said(visit.runtime.lessons, visit.tenant)
    return await off_loop(said.typed)


async def take_over(visit: Visit) -> Page:
    """Make a sentence a rule as it was typed, with its author and day. Raises: BadRequest."""
    runtime = visit.runtime
    wanted = (visit.form.get("session"), visit.form.get("words"))
    for (tenant, scope, name), entries in (await _typed(visit)).items():
        for each in (sentence for entry in entries for sentence in entry.sentences):
            if (each.session.id, each.words) == wanted:
                marks = {"scope": scope, "project": name, "author": each.session.author}
                with naming("words"):
                    actions = LessonActions(runtime.lessons)
                    await actions.add(tenant, each.words, marks, at=each.at)
                learning_of(runtime).forget()
                return redirect(f"/dashboard/lessons{visit.query()}")
    raise BadRequest("No such sentence was typed", param="words")


async def show_lesson(visit: Visit, error: GatewayError | None = None) -> Page:
    """One lesson."""
    stored = await lessons.find_lesson(visit.runtime, visit.tenant, _id(visit))
    typed = await learning_of(visit.runtime).typed(visit.access.tenant)
    shown = {
        "title": stored.pattern.pattern_id,
        "lesson": await lesson_detail(visit.runtime.lessons, stored, visit.access, typed=typed),
        "editable": visit.access.operator or stored.pattern.tenant == visit.access.tenant,
        "trials": visit.runtime.settings.of(LearningSettings).trials == "on",
        "error": error.message if error else None,
        "saved": bool(visit.values.get("saved")) and error is None,
    }
    return Page(template="lesson.html", values=shown, status=error.status if error else 200)


async def change_one_lesson(visit: Visit) -> Page:
    """Approve, pause, retire or edit; an error is shown above the lesson."""
    stored = await lessons.find_lesson(visit.runtime, visit.tenant, _id(visit))
    action = visit.form.get("action", "")
    advice = visit.form.get("advice", "").strip()
    try:
        if action == "edit":
            if not 0 < len(advice) <= MOST_CHARS:
                reason = f"The text needs 1 to {MOST_CHARS} characters"
                raise BadRequest(reason, param="advice")
            change = lessons.LessonChange(advice=advice)
        elif action == "mark":
            run_id, _, step = visit.form.get("call", "").rpartition(" step ")
            if not step.isdecimal():
                raise BadRequest("There is no such call", param="call")
            call = lessons.MarkedCall(run_id=run_id, step=int(step))
            change = lessons.LessonChange(mark=call)
        elif action in _BUTTONS:
            change = lessons.LessonChange(status=_BUTTONS[action])
        else:
            raise BadRequest("There is no such action", param="action")
        kept, _ = await lessons.apply_change(visit.runtime, stored, change)
    except GatewayError as error:
        return await show_lesson(visit, error)
    return redirect(f"/dashboard/lessons/{quote(kept)}{visit.query(saved='1')}")


async def forget_session(visit: Visit) -> Page:
    """Erase the session of a run."""
    run_id = str(visit.scope["path_params"]["run_id"])
    await lessons.forget_here(visit.runtime, run_id, visit.tenant)
    return redirect("/dashboard/runs")


async def step_notes(visit: Visit, trace: RunTrace) -> Mapping[int, list[FieldDict]]:
    """Notes on the failures of the steps, with what ended each in another run, by step."""
    store = visit.runtime.lessons
    tenant = trace.run.tenant
    notes: dict[int, list[FieldDict]] = {}
    calls = await off_loop(read_run, steps_of(trace))
    steps = {call.key: call.step for call in calls if call.key}  # the newest step of each failure
    for key, step in [*steps.items()][-MOST_NOTED:]:
        for stored in await store.lessons(LessonFilter(tenant=tenant, key_prefix=key)):
            evidence = await store.evidence(tenant, stored.pattern.pattern_id)
            others = [row for row in evidence if row.kind == ENDED and row.run_id != trace.run.id]
            for row in others[:1]:
                note = {
                    "template": "step_ended.html",
                    "move": content(stored.pattern.fields).move,
                    **picked(row, "run_id", "step_index", "at", "pattern_id"),
                    **picked(stored.support, "conversations", "against"),
                }
                notes.setdefault(step, []).append(note)
    return notes


def _id(visit: Visit) -> str:
    return str(visit.scope["path_params"]["pattern_id"])


PAGES = (
    PageRoute(
        "/dashboard/lessons", show_lessons, LessonListParameters, change=take_over, tab="Lessons"
    ),
    PageRoute(
        "/dashboard/lessons/{pattern_id:path}",
        show_lesson,
        LessonPageParameters,
        change=change_one_lesson,
    ),
    PageRoute("/dashboard/runs/{run_id}/forget", change=forget_session),
)
