"""Pages of the pattern library, and of the lessons that were learned: search, read, change."""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import orjson

from gateway.api import patterns
from gateway.api.params import Flag, OneOf, PageParameters, TenantParameter, Text, naming
from gateway.core.monitors import FAILURE_LABELS
from gateway.core.pattern import Tier, content
from gateway.errors import BadRequest, GatewayError
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.steering.guidance.codec import to_record
from gateway.stores.patterns import PatternFilter, StoredPattern
from gateway.values import FieldDict, Fields, Texts

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
        await patterns.remove_pattern(visit.runtime, visit.access, owner, pattern_id=_id(visit))
        return redirect("/dashboard/patterns")
    record = to_record(stored.pattern)
    try:
        record = read_form(visit.form, record["tier"])
        await patterns.change_pattern(visit.runtime, visit.access, stored, record=record)
    except GatewayError as error:
        return _form(visit, stored, record, error=error)
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
        return _form(visit, None, record, error=error)
    owner = ""
    if pattern.tenant:
        owner = f"&tenant={quote(pattern.tenant)}"
    return redirect(f"/dashboard/patterns/{quote(pattern_id)}?saved=1{owner}")


def read_form(form: Texts, tier: str) -> FieldDict:
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
    if stored is None:
        fields = dict.fromkeys(_SHAPES[record["tier"]], "")
    else:
        fields = {}
    fields |= record["fields"]
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    rest = {name: value for name, value in fields.items() if name not in texts}
    if stored is None:
        pattern = None
    else:
        pattern = stored.pattern
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
