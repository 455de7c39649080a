"""`/api/patterns`: the pattern library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from gateway.api.filters import CURSOR, LIMIT, TENANT
from gateway.api.library import (
    add_pattern,
    change_pattern,
    counted,
    find_pattern,
    library,
    read_pattern,
    remove_pattern,
    tell,
)
from gateway.api.operations import Answer, Call, Operation, Reply
from gateway.api.params import Param
from gateway.api.schema import Schema, page_of
from gateway.api.views import PATTERN, pattern_view
from gateway.embedding.base import EmbeddingError
from gateway.errors import BadRequest, Forbidden
from gateway.keys import DEFAULT_TENANT
from gateway.steering.etrace.codec import to_record
from gateway.steering.etrace.pattern import Tier
from gateway.stores.patterns import Added, PatternFilter

JSONL = "application/x-ndjson"

PATTERN_ID = Param(name="pattern_id", description="The pattern's id.", in_path=True)
_TIER = Param(name="tier", description="Of this tier.", choices=tuple(t.value for t in Tier))
_FILTERS = (
    TENANT,
    _TIER,
    Param(name="failure_type", description="For this failure type."),
    Param(name="model_family", description="For this model family."),
)
_TEXT = Param(name="text", description="Whose payload holds this text, case ignored.")

_BODY: Schema = {
    "type": "object",
    "properties": {
        "pattern_id": {"type": "string", "maxLength": 128},
        "tier": {"enum": ["e1", "e2", "e3"]},
        "failure_type": {"type": ["string", "null"]},
        "model_family": {"type": ["string", "null"], "maxLength": 128},
        "gate_threshold": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "source_trace_id": {"type": ["string", "null"], "maxLength": 128},
        "fields": {"type": "object", "minProperties": 1},
    },
    "required": ["tier", "fields"],
}


async def list_patterns(call: Call) -> Reply:
    """One page of the patterns the caller may see."""
    await counted(call.runtime)
    try:
        page = await library(call.runtime).store.list_patterns(
            _filter(call), limit=call.values["limit"], cursor=call.values["cursor"]
        )
    except ValueError as error:
        raise BadRequest(str(error), param="cursor") from None
    views = [pattern_view(stored) for stored in page.patterns]
    return Reply(payload={"patterns": views, "next_cursor": page.next_cursor})


async def get_pattern(call: Call) -> Reply:
    """One pattern."""
    stored = await find_pattern(call.runtime, call.tenant, call.values["pattern_id"])
    return Reply(payload=pattern_view(stored))


async def post_pattern(call: Call) -> Reply:
    """Add a pattern."""
    pattern = read_pattern(call.json_object(), call.access, call.values["tenant"])
    added, pattern_id = await add_pattern(call.runtime, pattern)
    return Reply(
        status=201 if added is Added.ADDED else 200,
        payload={"result": added.value, "pattern_id": pattern_id},
    )


async def put_pattern(call: Call) -> Reply:
    """Replace a pattern's content."""
    stored = await find_pattern(call.runtime, call.tenant, call.values["pattern_id"])
    changed = await change_pattern(call.runtime, call.access, stored, call.json_object())
    return Reply(payload=pattern_view(changed))


async def patch_pattern(call: Call) -> Reply:
    """Replace some keys of a pattern; `fields` is merged, a null removes."""
    stored = await find_pattern(call.runtime, call.tenant, call.values["pattern_id"])
    news, record = call.json_object(), to_record(stored.pattern)
    if isinstance(news.get("fields"), Mapping):
        merged = {**record["fields"], **news["fields"]}
        news["fields"] = {key: value for key, value in merged.items() if value is not None}
    changed = await change_pattern(call.runtime, call.access, stored, {**record, **news})
    return Reply(payload=pattern_view(changed))


async def delete_pattern(call: Call) -> Reply:
    """Remove a pattern."""
    await remove_pattern(call.runtime, call.access, call.tenant, call.values["pattern_id"])
    return Reply(status=204)


async def import_patterns(call: Call) -> Reply:
    """Add the patterns of a JSONL body; for the operator, because most are shared."""
    if not call.access.operator:
        raise Forbidden("shared patterns are the operator's: import with the admin key")
    if not call.body.strip():
        raise BadRequest("the body holds no pattern", param="body")
    try:
        report = await library(call.runtime).import_lines(
            call.body.split(b"\n"),
            call.values["tenant"] or DEFAULT_TENANT,
            names_tenant=not call.values["tenant"],
        )
    except (ValueError, EmbeddingError) as error:
        raise BadRequest(str(error), param="body") from None
    tell(call.runtime, "imported", total=report.total)
    return Reply(payload={result.value: count for result, count in report.counts.items()})


async def export_patterns(call: Call) -> Reply:
    """The patterns the caller may see, one JSON object a line."""
    lines = library(call.runtime).export_lines(_filter(call))

    async def chunks() -> AsyncIterator[bytes]:
        async for line in lines:
            yield line.encode() + b"\n"

    return Reply(media=JSONL, chunks=chunks())


def _filter(call: Call) -> PatternFilter:
    values = call.values
    return PatternFilter(
        tenant=call.tenant,
        tier=Tier(values["tier"]) if values["tier"] else None,
        failure_type=values["failure_type"] or None,
        model_family=values["model_family"] or None,
        text=values.get("text") or None,
    )


_RESULT: Schema = {
    "type": "object",
    "properties": {
        "result": {"enum": [member.value for member in Added]},
        "pattern_id": {"type": "string"},
    },
    "required": ["result", "pattern_id"],
}
_COUNTS: Schema = {
    "type": "object",
    "properties": {member.value: {"type": "integer"} for member in Added},
    "required": [member.value for member in Added],
}

_TEXT_BODY: Schema = {"type": "string", "description": "One pattern as a JSON object a line."}
_PATCH: Schema = {
    "type": "object",
    "properties": {
        **{k: v for k, v in _BODY["properties"].items() if k not in ("pattern_id", "tier")},
        "fields": {"type": "object"},
    },
    "description": "Keys to replace; `fields` is merged key by key, a null removes one.",
}

OPERATIONS = (
    Operation(
        name="listPatterns",
        method="GET",
        path="/api/patterns",
        summary="Patterns, newest first: the tenant's own instances, and what all share.",
        handler=list_patterns,
        params=(*_FILTERS, _TEXT, LIMIT, CURSOR),
        answers={200: Answer("One page.", page_of("patterns", PATTERN))},
        errors=(400, 403),
    ),
    Operation(
        name="addPattern",
        method="POST",
        path="/api/patterns",
        summary="Add a pattern; one whose content is known already changes nothing.",
        handler=post_pattern,
        params=(TENANT,),
        body=_BODY,
        answers={
            200: Answer("Known already, or replaced.", _RESULT),
            201: Answer("Added.", _RESULT),
        },
        errors=(400, 403, 413),
    ),
    Operation(
        name="exportPatterns",
        method="GET",
        path="/api/patterns.jsonl",
        summary="All patterns the caller may see, as JSON lines, newest first.",
        handler=export_patterns,
        params=_FILTERS,
        answers={200: Answer("The patterns.", _TEXT_BODY, JSONL)},
        errors=(400, 403),
    ),
    Operation(
        name="importPatterns",
        method="POST",
        path="/api/patterns.jsonl",
        summary="Add the patterns of JSON lines; e1 patterns become those of `tenant`, else of the "
        "tenant their line names.",
        handler=import_patterns,
        params=(TENANT,),
        body=_TEXT_BODY,
        body_media=JSONL,
        answers={200: Answer("How many were added, replaced and unchanged.", _COUNTS)},
        errors=(400, 403, 413),
    ),
    Operation(
        name="getPattern",
        method="GET",
        path="/api/patterns/{pattern_id}",
        summary="One pattern.",
        handler=get_pattern,
        params=(PATTERN_ID, TENANT),
        answers={200: Answer("The pattern.", PATTERN)},
        errors=(400, 403, 404),
    ),
    Operation(
        name="replacePattern",
        method="PUT",
        path="/api/patterns/{pattern_id}",
        summary="Replace a pattern's content; its id, tier, tenant and counts stay.",
        handler=put_pattern,
        params=(PATTERN_ID, TENANT),
        body=_BODY,
        answers={200: Answer("The pattern as it is now.", PATTERN)},
        errors=(400, 403, 404, 409, 413),
    ),
    Operation(
        name="editPattern",
        method="PATCH",
        path="/api/patterns/{pattern_id}",
        summary="Replace some keys of a pattern.",
        handler=patch_pattern,
        params=(PATTERN_ID, TENANT),
        body=_PATCH,
        answers={200: Answer("The pattern as it is now.", PATTERN)},
        errors=(400, 403, 404, 409, 413),
    ),
    Operation(
        name="deletePattern",
        method="DELETE",
        path="/api/patterns/{pattern_id}",
        summary="Remove a pattern.",
        handler=delete_pattern,
        params=(PATTERN_ID, TENANT),
        answers={204: Answer("Removed.", media="")},
        errors=(400, 403, 404),
    ),
)
