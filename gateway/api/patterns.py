"""`/api/patterns`: the pattern library."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.api.operations import (
    ApiRequest,
    ApiResponse,
    Body,
    Operations,
    like,
    publish_change,
    shape,
    unusable,
)
from gateway.api.params import (
    Cursor,
    OneOf,
    PageParameters,
    PathText,
    TenantParameter,
    Text,
    naming,
)
from gateway.api.views import pattern_view, picked
from gateway.auth.access import Access
from gateway.auth.keys import DEFAULT_TENANT
from gateway.core.pattern import MAX_ID_CHARS, Pattern, Tier, with_id
from gateway.embedding.base import EmbeddingError
from gateway.errors import BadRequest, Forbidden, GatewayError, NotFound
from gateway.library import PatternLibrary
from gateway.runtime import Runtime
from gateway.steering.guidance.codec import from_record, to_record
from gateway.stores.patterns import Added, PatternConflict, PatternFilter, StoredPattern
from gateway.values import Fields

OPERATIONS = Operations()


async def find_pattern(runtime: Runtime, tenant: str | None, pattern_id: str) -> StoredPattern:
    """The pattern with this id, if `tenant` may see it. Raises: NotFound."""
    await counted(runtime)
    stored = await library(runtime).store.get(tenant, pattern_id)
    if stored is None:
        raise NotFound(f"there is no pattern {pattern_id[:80]!r}", param="pattern_id")
    return stored


def read_pattern(record: Fields, access: Access, tenant: str | None) -> Pattern:
    """The pattern in a record, owned by the caller's tenant or the one that the operator names.
    Raises: BadRequest; Forbidden, a tenant's key may not change shared patterns."""
    owner = access.scope(tenant) or ""
    try:
        pattern = from_record(record, tenant=owner)
    except (ValueError, RecursionError) as error:
        raise BadRequest(str(error) or "nested too deeply", param="body") from None
    if pattern.tier is Tier.E1 and not owner:
        raise BadRequest("tenant: a pattern of tier e1 belongs to one tenant", param="tenant")
    _check_owner(pattern, access)
    return with_id(pattern)


def library(runtime: Runtime) -> PatternLibrary:
    """The pattern library. Raises: GatewayError (503) when patterns are switched off."""
    patterns = runtime.opened.patterns
    code = "patterns_off"
    if patterns is None:
        raise unusable("patterns are switched off (etraces.enabled)", code, code)
    return patterns.library


async def counted(runtime: Runtime) -> None:
    """Flush pattern statistics, so that the next read includes everything so far."""
    if runtime.opened.patterns is not None:
        await runtime.opened.patterns.tally.flush()


def _check_owner(pattern: Pattern, access: Access) -> None:
    if not access.operator and pattern.tenant != access.tenant:
        raise Forbidden("shared patterns belong to the operator: change them with the admin key")


@contextmanager
def _embedding() -> Iterator[None]:
    try:
        yield
    except EmbeddingError as error:
        message = f"the pattern cannot be embedded now: {error}"
        raise unusable(message, "embedder_unavailable", "embedding") from None


JSONL = "application/x-ndjson"
TIERS = tuple(tier.value for tier in Tier)
TierName = Literal["e1", "e2", "e3"]


class PatternPatch(BaseModel):
    """Keys to replace; `fields` is merged key by key, and null removes a key."""

    failure_type: str | None = None  # label of the only failure it is for; null = any
    # the only family it is for, such as `claude`; null = any
    model_family: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    # replaces the tier's injection gate, cosine in [0, 1]
    gate_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    # the run that taught it
    source_trace_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    fields: Mapping[str, Any] = {}  # the payload; its shape depends on the tier


class PatternBody(PatternPatch):
    """One pattern; `gateway.steering.guidance.codec` reads it, as it reads lines of files."""

    pattern_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] = ""  # empty: a new one is made
    tier: TierName  # e1 (an instance), e2 (a kind of failure) or e3 (a universal rule)
    fields: Annotated[Fields, Field(min_length=1)]  # the payload; its shape depends on the tier


@like(Pattern, "pattern_id", "failure_type", "model_family", "gate_threshold", "source_trace_id")
@like(Pattern, "fields")
@like(StoredPattern, "created_at", "updated_at")
class PatternRecord(BaseModel):
    """One stored pattern."""

    tier: TierName  # e1 (an instance), e2 (a kind of failure) or e3 (a universal rule)
    tenant: str  # empty for a pattern that all tenants share
    status: str  # of a learned pattern; else `active`
    origin: str  # how it was learned; empty when it was not
    indexed: bool  # whether a search can find it
    counts: Mapping[str, int]  # how often it was given: `injected`


PatternPage = shape(
    "PatternPage",
    "One page of a list of patterns.",
    patterns=list[PatternRecord],
    next_cursor=Cursor,
)
AddedPattern = shape(
    "AddedPattern", "Result for a pattern that was sent.", result=Added, pattern_id=str
)
ImportCounts = shape(
    "ImportCounts", "Number of imported patterns by result.", added=int, replaced=int, unchanged=int
)


class PatternFilters(TenantParameter):
    """Filter of patterns."""

    tier: Annotated[str, OneOf(TIERS)] | None = None  # of this tier
    failure_type: Text | None = None  # for this failure type
    model_family: Text | None = None  # for this model family


class PatternListParameters(PageParameters, PatternFilters):
    """Filter of patterns, and the page."""

    text: Text | None = None  # whose fields contain this text, ignoring case


class PatternParameters(TenantParameter):
    """Id of a pattern."""

    pattern_id: PathText  # the pattern's id


Lines = Annotated[str, Field(description="One pattern as a JSON object per line.")]
_CHANGED = Body(PatternRecord, "The pattern after the change.")
_ADDED = {
    200: Body(AddedPattern, "Already known, or replaced."),
    201: Body(AddedPattern, "Added."),
}


@OPERATIONS.add("GET /api/patterns", PatternPage, "One page.")
async def list_patterns(request: ApiRequest[PatternListParameters]) -> ApiResponse:
    """Patterns, newest first: the tenant's own instances and the shared ones."""
    await counted(request.runtime)
    params = request.params
    wanted = _filter(params, request.tenant, params.text)
    with naming("cursor"):
        chosen = picked(params, "limit", "cursor")
        page = await library(request.runtime).store.list_patterns(wanted, **chosen)
    views = [pattern_view(stored) for stored in page.patterns]
    return ApiResponse({"patterns": views, "next_cursor": page.next_cursor})


@OPERATIONS.add("GET /api/patterns/{pattern_id}", PatternRecord, "The pattern.")
async def get_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """One pattern."""
    stored = await find_pattern(request.runtime, request.tenant, request.params.pattern_id)
    return ApiResponse(pattern_view(stored))


@OPERATIONS.add("POST /api/patterns", _ADDED, body=PatternBody)
async def add_pattern(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Add a pattern; one with known content changes nothing."""
    pattern = read_pattern(request.json_object(), request.access, request.params.tenant)
    with _embedding():
        ((added, pattern_id),) = await library(request.runtime).add([pattern])
    publish_change(
        request.runtime, "pattern", added.value, tenant=pattern.tenant, pattern_id=pattern_id
    )
    status = 201 if added is Added.ADDED else 200
    return ApiResponse({"result": added.value, "pattern_id": pattern_id}, status)


@OPERATIONS.add("PATCH /api/patterns/{pattern_id}", _CHANGED, body=PatternPatch, errors=(409,))
async def edit_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """Replace some keys of a pattern; a field of null is removed. Its id, tier, tenant and counts
    stay."""
    runtime = request.runtime
    stored = await find_pattern(runtime, request.tenant, request.params.pattern_id)
    old = stored.pattern
    if old.lesson is not None:
        raise BadRequest("a lesson is changed under /api/lessons", param="pattern_id")
    changes = request.json_object()
    record = to_record(old)
    for key in ("pattern_id", "tier"):
        if changes.get(key, record[key]) != record[key]:
            raise BadRequest(f"{key}: cannot be changed from {record[key]!r}", param=key)
    if isinstance(changes.get("fields"), Mapping):
        merged = {**record["fields"], **changes["fields"]}
        changes["fields"] = {key: value for key, value in merged.items() if value is not None}
    new = read_pattern({**record, **changes}, request.access, old.tenant or None)
    try:
        with _embedding():
            await library(runtime).edit(new)
    except PatternConflict as error:
        raise GatewayError(
            str(error),
            status=409,
            type="invalid_request_error",
            code="conflict",
            label="conflict",
        ) from None
    publish_change(runtime, "pattern", "changed", tenant=old.tenant, pattern_id=old.pattern_id)
    changed = await find_pattern(runtime, old.tenant or None, old.pattern_id)
    return ApiResponse(pattern_view(changed))


@OPERATIONS.add("DELETE /api/patterns/{pattern_id}", {204: Body(None, "Removed.")})
async def delete_pattern(request: ApiRequest[PatternParameters]) -> ApiResponse:
    """Remove a pattern; a tenant's key may not remove shared ones."""
    pattern_id = request.params.pattern_id
    stored = await find_pattern(request.runtime, request.tenant, pattern_id)
    _check_owner(stored.pattern, request.access)
    owner = stored.pattern.tenant
    await library(request.runtime).remove(owner, pattern_id)
    publish_change(request.runtime, "pattern", "deleted", tenant=owner, pattern_id=pattern_id)
    return ApiResponse(status=204)


@OPERATIONS.add(
    "POST /api/patterns.jsonl",
    ImportCounts,
    "How many patterns had each result.",
    body=Body(Lines, media=JSONL),
)
async def import_patterns(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Add the patterns of JSON lines; e1 patterns become those of `tenant`, else of the tenant
    their line names."""
    if not request.body.strip():
        raise BadRequest("the body has no pattern", param="body")
    tenant = request.params.tenant
    lines = request.body.split(b"\n")
    try:
        report = await library(request.runtime).import_lines(
            lines, tenant or DEFAULT_TENANT, names_tenant=not tenant
        )
    except (ValueError, EmbeddingError) as error:
        raise BadRequest(str(error), param="body") from None
    publish_change(request.runtime, "pattern", "imported", tenant=tenant, total=report.total)
    return ApiResponse({result.value: count for result, count in report.counts.items()})


@OPERATIONS.add("GET /api/patterns.jsonl", Body(Lines, "The patterns.", JSONL))
async def export_patterns(request: ApiRequest[PatternFilters]) -> ApiResponse:
    """All patterns the caller may see, as JSON lines, newest first."""
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
