"""Pages of the pattern library, and of the lessons that were learned: search, read, change."""

import time
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import orjson

from gateway.api import patterns
from gateway.api.params import Flag, OneOf, PageParameters, TenantParameter, Text, naming
from gateway.core.monitors import FAILURE_LABELS
from gateway.core.pattern import Tier, content
from gateway.errors import BadRequest, GatewayError
from gateway.features.learning import api as lessons
from gateway.features.learning.gate import MOST_CHARS
from gateway.features.learning.settings import LearningSettings, ReaderSettings
from gateway.features.learning.views import reader_view, rule_views
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.steering.guidance.codec import to_record
from gateway.steering.guidance.lessons import is_rule
from gateway.stores.patterns import PatternFilter, StoredPattern
from gateway.values import FieldDict, Fields

TIERS = tuple(tier.value for tier in Tier)
_FIELD = "field."
# The fields of a new pattern of each tier.
_SHAPES: Mapping[str, tuple[str, ...]] = {
    "e1": ("task_context_embedding_text", "observation", "recommended_action"),
    "e2": ("situation", "diagnosis", "intervention", "anti_pattern"),
    "e3": ("instruction", "meta_reasoning_prompt"),
}


class NewParameters(TenantParameter):
    """Tier of the pattern to write."""

    tier: Annotated[str, OneOf(TIERS)] | None = None  # chooses the form; None: the first tier


class ListParameters(PageParameters, NewParameters):
    """Filter of patterns."""

    failure_type: Text | None = None  # label; None = any
    text: Text | None = None  # occurs in the fields, case ignored


class OneParameters(TenantParameter):
    """Note that the pattern or lesson has just been saved."""

    saved: Flag | None = None  # shows a note


async def show_list(visit: Visit) -> Page:
    """One page of patterns."""
    values = visit.values
    wanted = PatternFilter(
        tenant=visit.tenant,
        tier=Tier(values["tier"]) if values["tier"] else None,
        failure_type=values["failure_type"],
        text=values["text"],
        learned=False,
    )
    await patterns.counted(visit.runtime)
    with naming("cursor"):
        store = patterns.library(visit.runtime).store
        limit = values["limit"]
        page = await store.list_patterns(wanted, limit=limit, cursor=values["cursor"])
    shown = {
        "title": "Patterns",
        "rows": [(stored, content(stored.pattern.fields)) for stored in page.patterns],
        "count": await store.count(),
        "next": visit.query(cursor=page.next_cursor) if page.next_cursor else None,
        "chosen": values,
        "tiers": TIERS,
        "failure_types": FAILURE_LABELS,
    }
    return Page(template="patterns.html", values=shown)


async def show_one(visit: Visit) -> Page:
    """One pattern in its form."""
    stored = await patterns.find_pattern(visit.runtime, visit.tenant, _id(visit))
    if stored.pattern.lesson is not None:
        return redirect(f"/dashboard/lessons/{quote(_id(visit))}{visit.query()}")
    return _form(visit, stored, to_record(stored.pattern))


async def change_one(visit: Visit) -> Page:
    """Save or delete one pattern; an error is shown above the form."""
    stored = await patterns.find_pattern(visit.runtime, visit.tenant, _id(visit))
    if stored.pattern.lesson is not None:
        raise BadRequest("a lesson is changed on its own page", param="pattern_id")
    owner = stored.pattern.tenant or visit.tenant
    if visit.form.get("action") == "delete":
        await patterns.remove_pattern(visit.runtime, visit.access, owner, _id(visit))
        return redirect("/dashboard/patterns")
    record = to_record(stored.pattern)
    try:
        record = read_form(visit.form, record["tier"])
        await patterns.change_pattern(visit.runtime, visit.access, stored, record)
    except GatewayError as error:
        return _form(visit, stored, record, error)
    return redirect(f"/dashboard/patterns/{quote(_id(visit))}{visit.query(saved='1')}")


async def show_new(visit: Visit) -> Page:
    """An empty form."""
    tier = visit.values["tier"] or "e3"
    return _form(visit, None, {"tier": tier, "fields": {}})


async def add_new(visit: Visit) -> Page:
    """Add a new pattern."""
    tier = visit.form.get("tier", "")
    record: FieldDict = {"tier": tier if tier in TIERS else "e3", "fields": {}}
    tenant = visit.form.get("tenant") or None
    try:
        record = read_form(visit.form, record["tier"])
        pattern = patterns.read_pattern(record, visit.access, visit.access.tenant or tenant)
        _, pattern_id = await patterns.store_pattern(visit.runtime, pattern)
    except GatewayError as error:
        return _form(visit, None, record, error)
    owner = f"&tenant={quote(pattern.tenant)}" if pattern.tenant else ""
    return redirect(f"/dashboard/patterns/{quote(pattern_id)}?saved=1{owner}")


def read_form(form: Mapping[str, str], tier: str) -> FieldDict:
    """The pattern in a form: one text per field, and the rest of the payload as JSON. Raises:
    BadRequest: the rest is not a JSON object, or the gate is not a number."""
    texts = {
        name.removeprefix(_FIELD): value.replace("\r\n", "\n").strip()
        for name, value in form.items()
        if name.startswith(_FIELD) and value.strip()
    }
    try:
        rest = orjson.loads(form.get("rest", "").strip() or "{}")
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"More fields: not JSON: {error}", param="rest") from None
    if not isinstance(rest, dict):
        raise BadRequest("More fields: must be a JSON object", param="rest")
    record: FieldDict = {"tier": tier, "fields": {**rest, **texts}}
    for name in ("failure_type", "model_family", "pattern_id"):
        if value := form.get(name, "").strip():
            record[name] = value
    if gate := form.get("gate_threshold", "").strip():
        try:
            record["gate_threshold"] = float(gate)
        except ValueError:
            raise BadRequest("Gate: not a number", param="gate_threshold") from None
    return record


def _form(
    visit: Visit,
    stored: StoredPattern | None,
    record: Fields,
    error: GatewayError | None = None,
) -> Page:
    fields = dict.fromkeys(_SHAPES[record["tier"]], "") if stored is None else {}
    fields |= record["fields"]
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    rest = {name: value for name, value in fields.items() if name not in texts}
    pattern = None if stored is None else stored.pattern
    own = visit.access.operator or (pattern is not None and pattern.tenant == visit.access.tenant)
    editable = own or (pattern is None and record["tier"] == "e1")
    shown = {
        "title": pattern.pattern_id if pattern else "New pattern",
        "stored": stored,
        "record": record,
        "texts": texts,
        "rest": orjson.dumps(rest, option=orjson.OPT_INDENT_2).decode() if rest else "",
        "error": error.message if error else None,
        "saved": bool(visit.values.get("saved")) and error is None,
        "editable": editable,
        "tiers": TIERS,
        "failure_types": FAILURE_LABELS,
        "form_tenant": visit.form.get("tenant") or visit.values.get("tenant") or "",
    }
    return Page(template="pattern.html", values=shown, status=error.status if error else 200)


def _id(visit: Visit) -> str:
    return str(visit.scope["path_params"]["pattern_id"])


MOST_SHOWN = 200
_ORDER = ("active", "trial", "candidate", "quarantined", "retired")
_BUTTONS = {"approve": "trial", "activate": "active", "pause": "quarantined", "retire": "retired"}
"""The status that a lesson gets by a button."""


class LessonListParameters(TenantParameter):
    """Filter of lessons."""

    status: Annotated[str, OneOf(lessons.STATUSES)] | None = None  # None = any
    tier: Annotated[str, OneOf(lessons.TIERS)] | None = None  # None = any


async def show_lessons(visit: Visit) -> Page:
    """Rules that people state, by project; other lessons by status."""
    values = visit.values
    runtime = visit.runtime
    settings = runtime.settings
    wanted = lessons.lesson_filter(visit.tenant, values["status"], values["tier"])
    found = await runtime.lessons.lessons(wanted, limit=MOST_SHOWN)
    others = (each for each in found if not is_rule(each.pattern))
    views = [lessons.shown(each, runtime, visit.access) for each in others]
    rules = rule_views(found)
    groups = [(name, [v for v in views if v["status"] == name]) for name in _ORDER]
    shown = {
        "title": "Lessons",
        "rules": [rule for rule in rules if rule["status"] != "retired" or values["status"]],
        "groups": [(name, rows) for name, rows in groups if rows],
        "trials": settings.of(LearningSettings).trials == "on",
        "reader": await reader_view(
            runtime.lessons, settings.of(ReaderSettings), visit.tenant, time.time()
        ),
        "chosen": values,
        "statuses": lessons.STATUSES,
        "tiers": lessons.TIERS,
        "full": len(found) == MOST_SHOWN,
    }
    return Page(template="lessons.html", values=shown)


async def show_lesson(visit: Visit, error: GatewayError | None = None) -> Page:
    """One lesson."""
    stored = await lessons.find_lesson(visit.runtime, visit.tenant, _id(visit))
    shown = {
        "title": stored.pattern.pattern_id,
        "lesson": await lessons.detail(visit.runtime, stored, visit.access),
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
        elif action in _BUTTONS:
            change = lessons.LessonChange(status=_BUTTONS[action])
        else:
            raise BadRequest("There is no such action", param="action")
        kept, _ = await lessons.apply_change(visit.runtime, stored, change)
    except GatewayError as error:
        return await show_lesson(visit, error)
    return redirect(f"/dashboard/lessons/{quote(kept)}{visit.query(saved='1')}")
