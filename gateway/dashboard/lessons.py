"""Pages of lessons: all by status, and one with its evidence and trial."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from gateway.api.lessons import (
    STATUSES,
    TIERS,
    LessonChange,
    change_lesson,
    detail,
    find_lesson,
)
from gateway.api.params import Flag, OneOf, TenantParameter
from gateway.api.views import distiller_view, lesson_view
from gateway.dashboard.pages import Page, Visit, redirect
from gateway.errors import BadRequest, GatewayError
from gateway.learning.actions import MAX_ADVICE_CHARS
from gateway.steering.guidance.lesson import Status
from gateway.steering.guidance.pattern import Tier
from gateway.stores.learning import LessonFilter, StoredLesson

WEEK_S = 7 * 86_400.0
MOST_SHOWN = 200
MOST_NEW = 10
_ORDER = ("active", "trial", "candidate", "quarantined", "retired")
_BUTTONS = {"approve": "trial", "activate": "active", "pause": "quarantined", "retire": "retired"}
"""What a button does: the status that the lesson gets."""


class ListParameters(TenantParameter):
    """Filter of lessons."""

    status: Annotated[str, OneOf(STATUSES)] | None = None
    tier: Annotated[str, OneOf(TIERS)] | None = None


class OneParameters(TenantParameter):
    """Note that the lesson has just been changed."""

    saved: Flag | None = None


async def show_list(visit: Visit) -> Page:
    """Lessons by status, and what was learned this week."""
    values, runtime = visit.values, visit.runtime
    wanted = LessonFilter(
        tenant=visit.tenant,
        statuses=(Status(values["status"]),) if values["status"] else (),
        tier=Tier(values["tier"]) if values["tier"] else None,
    )
    found = await runtime.learning.lessons(wanted, limit=MOST_SHOWN)
    views = [lesson_view(stored, runtime.settings) for stored in found]
    groups = [(name, [v for v in views if v["status"] == name]) for name in _ORDER]
    settings, now = runtime.settings.learning, time.time()
    return Page(
        template="lessons.html",
        values={
            "title": "Lessons",
            "groups": [(name, rows) for name, rows in groups if rows],
            "week": _this_week(found, views),
            "trials": settings.trials == "on",
            "mining": settings.mining,
            "distiller": await distiller_view(runtime.learning, settings, visit.tenant, now),
            "chosen": values,
            "statuses": STATUSES,
            "tiers": TIERS,
            "full": len(found) == MOST_SHOWN,
        },
    )


def _this_week(
    found: Sequence[StoredLesson], views: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The newest lessons of the last seven days, those that most conversations support first."""
    since = time.time() - WEEK_S
    new = [v for stored, v in zip(found, views, strict=True) if stored.created_at >= since]
    new.sort(key=lambda view: (-view["conversations"], -view["created_at"]))
    return new[:MOST_NEW]


async def show_one(visit: Visit) -> Page:
    """One lesson."""
    stored = await find_lesson(visit.runtime, visit.tenant, _id(visit))
    return await _page(visit, stored)


async def change_one(visit: Visit) -> Page:
    """Approve, pause, retire, edit or share; an error is shown above the lesson."""
    stored = await find_lesson(visit.runtime, visit.tenant, _id(visit))
    try:
        change = _read(visit.form.get("action", ""), visit.form.get("advice", "").strip())
        kept, _ = await change_lesson(visit.runtime, visit.access, stored, change)
    except GatewayError as error:
        return await _page(visit, stored, error)
    return redirect(f"/dashboard/lessons/{quote(kept)}{visit.query(saved='1')}")


def _read(action: str, advice: str) -> LessonChange:
    """The change that a form describes. Raises: BadRequest."""
    if action == "share":
        return LessonChange(share=True)
    if action == "edit":
        if not 0 < len(advice) <= MAX_ADVICE_CHARS:
            reason = f"The text needs 1 to {MAX_ADVICE_CHARS} characters"
            raise BadRequest(reason, param="advice")
        return LessonChange(advice=advice)
    if action not in _BUTTONS:
        raise BadRequest("There is no such action", param="action")
    return LessonChange(status=_BUTTONS[action])


async def _page(visit: Visit, stored: StoredLesson, error: GatewayError | None = None) -> Page:
    own = visit.access.operator or stored.pattern.tenant == visit.access.tenant
    return Page(
        template="lesson.html",
        status=error.status if error else 200,
        values={
            "title": stored.pattern.pattern_id,
            "lesson": await detail(visit.runtime, stored, visit.access),
            "editable": own,
            "error": error.message if error else None,
            "saved": bool(visit.values.get("saved")) and error is None,
        },
    )


def _id(visit: Visit) -> str:
    return str(visit.scope["path_params"]["pattern_id"])
