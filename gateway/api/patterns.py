"""`/api/patterns`: the pattern library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from pydantic import Field

from gateway.api.filters import PageParameters, TenantParameter, described
from gateway.api.library import (
    add_pattern,
    change_pattern,
    counted,
    find_pattern,
    library,
    publish_change,
    read_pattern,
    remove_pattern,
)
from gateway.api.models import (
    AddedPattern,
    ImportCounts,
    PatternBody,
    PatternPage,
    PatternPatch,
    PatternRecord,
)
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import OneOf, PathText, Text
from gateway.api.views import pattern_view
from gateway.auth.keyring import DEFAULT_TENANT
from gateway.embedding.base import EmbeddingError
from gateway.errors import BadRequest
from gateway.steering.guidance.codec import to_record
from gateway.steering.guidance.pattern import Tier
from gateway.stores.patterns import Added, PatternFilter

JSONL = "application/x-ndjson"

TIERS = tuple(tier.value for tier in Tier)


class PatternFilters(TenantParameter):
    """Which patterns."""

    tier: Annotated[Annotated[str, OneOf(TIERS)] | None, described("Of this tier.")] = None
    failure_type: Annotated[Text | None, described("For this failure type.")] = None
    model_family: Annotated[Text | None, described("For this model family.")] = None


class PatternListParameters(PageParameters, PatternFilters):
    """Which page of which patterns."""

    text: Annotated[Text | None, described("Whose fields contain this text, ignoring case.")] = None


class PatternParameters(TenantParameter):
    """Which pattern."""

    pattern_id: Annotated[PathText, described("The pattern's id.")]


Lines = Annotated[str, Field(description="One pattern as a JSON object per line.")]


async def list_patterns(request: ApiRequest[PatternListParameters]) -> ApiResponse:
    """One page of the patterns the caller may see."""
    await counted(request.runtime)
    params = request.params
    try:
        page = await library(request.runtime).store.list_patterns(
            _filter(params, request.tenant, params.text), limit=params.limit, cursor=params.cursor
        )
    except ValueError as error:
        raise BadRequest(str(error), param="cursor") from None
    views = [pattern_view(stored) for stored in page.patterns]
    return ApiResponse(payload={"patterns": views, "next_cursor": page.next_cursor})


async def get_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """One pattern."""
    stored = await find_pattern(request.runtime, request.tenant, request.params.pattern_id)
    return ApiResponse(payload=pattern_view(stored))


async def post_pattern(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Add a pattern."""
    pattern = read_pattern(request.json_object(), request.access, request.params.tenant)
    added, pattern_id = await add_pattern(request.runtime, pattern)
    return ApiResponse(
        status=201 if added is Added.ADDED else 200,
        payload={"result": added.value, "pattern_id": pattern_id},
    )


async def put_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """Replace a pattern's content."""
    stored = await find_pattern(request.runtime, request.tenant, request.params.pattern_id)
    changed = await change_pattern(request.runtime, request.access, stored, request.json_object())
    return ApiResponse(payload=pattern_view(changed))


async def patch_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """Replace some keys of a pattern; `fields` is merged, and null removes a key."""
    stored = await find_pattern(request.runtime, request.tenant, request.params.pattern_id)
    changes, record = request.json_object(), to_record(stored.pattern)
    if isinstance(changes.get("fields"), Mapping):
        merged = {**record["fields"], **changes["fields"]}
        changes["fields"] = {key: value for key, value in merged.items() if value is not None}
    changed = await change_pattern(request.runtime, request.access, stored, {**record, **changes})
    return ApiResponse(payload=pattern_view(changed))


async def delete_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """Remove a pattern."""
    await remove_pattern(request.runtime, request.access, request.tenant, request.params.pattern_id)
    return ApiResponse(status=204)


async def import_patterns(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Add the patterns of a JSONL body; for the operator only, because most are shared."""
    if not request.body.strip():
        raise BadRequest("the body has no pattern", param="body")
    try:
        report = await library(request.runtime).import_lines(
            request.body.split(b"\n"),
            request.params.tenant or DEFAULT_TENANT,
            names_tenant=not request.params.tenant,
        )
    except (ValueError, EmbeddingError) as error:
        raise BadRequest(str(error), param="body") from None
    publish_change(request.runtime, "imported", total=report.total)
    return ApiResponse(payload={result.value: count for result, count in report.counts.items()})


async def export_patterns(request: ApiRequest[PatternFilters]) -> ApiResponse:
    """The patterns that the caller may see, one JSON object per line."""
    lines = library(request.runtime).export_lines(_filter(request.params, request.tenant))

    async def chunks() -> AsyncIterator[bytes]:
        async for line in lines:
            yield line.encode() + b"\n"

    return ApiResponse(media=JSONL, chunks=chunks())


def _filter(params: PatternFilters, tenant: str | None, text: str | None = None) -> PatternFilter:
    return PatternFilter(
        tenant=tenant,
        tier=Tier(params.tier) if params.tier else None,
        failure_type=params.failure_type or None,
        model_family=params.model_family or None,
        text=text or None,
    )


OPERATIONS = (
    Operation(
        name="listPatterns",
        method="GET",
        path="/api/patterns",
        summary="Patterns, newest first: the tenant's own instances and the shared ones.",
        handler=list_patterns,
        params=PatternListParameters,
        responses={200: Content(PatternPage, "One page.")},
        errors=(400, 403),
    ),
    Operation(
        name="addPattern",
        method="POST",
        path="/api/patterns",
        summary="Add a pattern; one with known content changes nothing.",
        handler=post_pattern,
        params=TenantParameter,
        body=Content(PatternBody),
        responses={
            200: Content(AddedPattern, "Already known, or replaced."),
            201: Content(AddedPattern, "Added."),
        },
        errors=(400, 403, 413),
    ),
    Operation(
        name="exportPatterns",
        method="GET",
        path="/api/patterns.jsonl",
        summary="All patterns the caller may see, as JSON lines, newest first.",
        handler=export_patterns,
        params=PatternFilters,
        responses={200: Content(Lines, "The patterns.", JSONL)},
        errors=(400, 403),
    ),
    Operation(
        name="importPatterns",
        method="POST",
        path="/api/patterns.jsonl",
        summary="Add the patterns of JSON lines; e1 patterns become those of `tenant`, else of the "
        "tenant their line names.",
        handler=import_patterns,
        params=TenantParameter,
        body=Content(Lines, media=JSONL),
        responses={200: Content(ImportCounts, "How many patterns had each result.")},
        errors=(400, 403, 413),
    ),
    Operation(
        name="getPattern",
        method="GET",
        path="/api/patterns/{pattern_id}",
        summary="One pattern.",
        handler=get_pattern,
        params=PatternParameters,
        responses={200: Content(PatternRecord, "The pattern.")},
        errors=(400, 403, 404),
    ),
    Operation(
        name="replacePattern",
        method="PUT",
        path="/api/patterns/{pattern_id}",
        summary="Replace a pattern's content; its id, tier, tenant and counts stay.",
        handler=put_pattern,
        params=PatternParameters,
        body=Content(PatternBody),
        responses={200: Content(PatternRecord, "The pattern after the change.")},
        errors=(400, 403, 404, 409, 413),
    ),
    Operation(
        name="editPattern",
        method="PATCH",
        path="/api/patterns/{pattern_id}",
        summary="Replace some keys of a pattern.",
        handler=patch_pattern,
        params=PatternParameters,
        body=Content(PatternPatch),
        responses={200: Content(PatternRecord, "The pattern after the change.")},
        errors=(400, 403, 404, 409, 413),
    ),
    Operation(
        name="deletePattern",
        method="DELETE",
        path="/api/patterns/{pattern_id}",
        summary="Remove a pattern.",
        handler=delete_pattern,
        params=PatternParameters,
        responses={204: Content(None, "Removed.")},
        errors=(400, 403, 404),
    ),
)
