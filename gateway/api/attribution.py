"""`/api/usage`, `/api/export` and the trees of conversations: cost and tokens by their origin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.api.operations import ApiRequest, ApiResponse, Content, Operations
from gateway.api.params import (
    Flag,
    OneOf,
    PathText,
    RunFilters,
    TenantParameter,
    Text,
    described,
    run_filter,
)
from gateway.errors import BadRequest, GatewayError, NotFound
from gateway.reporting.run_exports import FORMATS, MEDIA, export_lines, group_lines
from gateway.runtime import Runtime
from gateway.stores.queries import RunTrace
from gateway.stores.usage import GROUPS, AttributionStore, Sums, Tree

OPERATIONS = Operations()

_LINES_AT_ONCE = 50


class SumsView(BaseModel):
    """Sums over runs."""

    runs: int
    calls: int
    errors: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    unpriced_calls: int
    cost_usd: float | None
    saved_usd: float | None
    estimated_calls: Annotated[int, Field(description="Whose provider reported no usage.")]
    estimated_tokens: Annotated[int, Field(description="The part of the tokens that is estimated.")]
    estimated_usd: Annotated[float, Field(description="The part of cost_usd that is estimated.")]
    tokens: Annotated[int, Field(description="Input and output tokens together.")]
    cached_share: Annotated[float, Field(ge=0, le=1, description="Cached of all input tokens.")]


class NodeView(BaseModel):
    """One conversation of a tree with the sums over its own runs."""

    id: str
    parent_id: str | None
    external_key: str | None
    created_at: float
    updated_at: float
    sums: SumsView


class TreeView(BaseModel):
    """A conversation with its forks and sub-agents, oldest first."""

    root_id: str
    total: SumsView
    conversations: list[NodeView]


class GroupView(BaseModel):
    """The runs with one value."""

    value: Annotated[str, Field(description="Empty: of the runs without one.")]
    sums: SumsView


class UsageView(BaseModel):
    """Runs by what they were for, the costliest first."""

    by: str
    groups: list[GroupView]


class ConversationTreeParameters(TenantParameter):
    """Id of a conversation."""

    conversation_id: Annotated[PathText, described("The id of any conversation of the tree.")]


class RunTreeParameters(TenantParameter):
    """Id of a run."""

    run_id: Annotated[PathText, described("The id of a run in the tree.")]


class UsageParameters(RunFilters):
    """Filter of runs, and the key that groups them."""

    by: Annotated[Text, described(f"`tag:NAME` or one of {', '.join(GROUPS)}.")] = "key"
    format: Annotated[Literal["json", "csv"], described("Of the answer.")] = "json"


class ExportParameters(RunFilters):
    """Filter of runs, and the form of the export."""

    format: Annotated[
        str,
        OneOf(FORMATS),
        described("jsonl: runs with their steps; csv: a row each; openai: chat messages."),
    ] = "jsonl"
    content: Annotated[Flag, described("With the texts of each step.")] = True


def tree_view(tree: Tree) -> dict[str, Any]:
    """A tree as the control plane and the commands show it."""
    nodes = [
        {
            "id": node.id,
            "parent_id": node.parent_id,
            "external_key": node.external_key,
            "created_at": node.created_at,
            "updated_at": node.updated_at,
            "sums": sums_view(node.sums),
        }
        for node in tree.nodes
    ]
    return {"root_id": tree.root_id, "total": sums_view(tree.total), "conversations": nodes}


def sums_view(sums: Sums) -> dict[str, Any]:
    """Sums with what is derived from them."""
    return {**asdict(sums), "tokens": sums.tokens, "cached_share": sums.cached_share}


@OPERATIONS.add(
    "getConversationTree",
    "GET /api/conversations/{conversation_id}/tree",
    ConversationTreeParameters,
    Content(TreeView, "The tree."),
)
async def get_conversation_tree(request: ApiRequest[ConversationTreeParameters]) -> ApiResponse:
    """Cost, tokens, calls and cached share of a conversation and its sub-agents."""
    return await _tree(request, request.params.conversation_id)


@OPERATIONS.add(
    "getRunTree", "GET /api/runs/{run_id}/tree", RunTreeParameters, Content(TreeView, "The tree.")
)
async def get_run_tree(request: ApiRequest[RunTreeParameters]) -> ApiResponse:
    """The same for the conversation of a run."""
    trace = await request.runtime.runs.get_run(
        request.params.run_id, tenant=request.tenant, content=False, limit=0
    )
    if trace is None:
        raise NotFound(f"there is no run {request.params.run_id[:80]!r}", param="run_id")
    return await _tree(request, trace.run.conversation_id)


async def _tree(request: ApiRequest[Any], conversation_id: str) -> ApiResponse:
    found = await _store(request.runtime).tree(conversation_id, tenant=request.tenant)
    if found is None:
        message = f"there is no conversation {conversation_id[:80]!r}"
        raise NotFound(message, param="conversation_id")
    return ApiResponse(payload=tree_view(found))


@OPERATIONS.add(
    "getUsage",
    "GET /api/usage",
    UsageParameters,
    Content(UsageView, "The sums.", also=(MEDIA["csv"],)),
)
async def get_usage(request: ApiRequest[UsageParameters]) -> ApiResponse:
    """Cost, tokens and calls by tag, key, tenant, agent, model, day; JSON or CSV."""
    params = request.params
    runs = run_filter(dict(params), request.tenant)
    try:
        groups = await _store(request.runtime).groups(runs, params.by)
    except ValueError as error:
        raise BadRequest(str(error), param="by") from None
    if params.format == "csv":
        return ApiResponse(media=MEDIA["csv"], chunks=_once(group_lines(params.by, groups)))
    shown = [{"value": group.value, "sums": sums_view(group.sums)} for group in groups]
    return ApiResponse(payload={"by": params.by, "groups": shown})


@OPERATIONS.add(
    "exportRuns",
    "GET /api/export",
    ExportParameters,
    Content(str, "One run a line.", MEDIA["jsonl"], (MEDIA["csv"],)),
)
async def export_runs(request: ApiRequest[ExportParameters]) -> ApiResponse:
    """Runs as JSON lines, CSV, or the chat messages that OpenAI's tools read."""
    params = request.params
    content = params.content and params.format != "csv"
    runs = run_filter(dict(params), request.tenant)
    traces = request.runtime.runs.export_runs(runs, content=content)
    return ApiResponse(media=MEDIA[params.format], chunks=exported(traces, params.format))


async def exported(traces: AsyncIterator[RunTrace], form: str) -> AsyncIterator[bytes]:
    """An export, some runs at a time."""
    waiting: list[RunTrace] = []
    first = True
    async for trace in traces:
        waiting.append(trace)
        if len(waiting) == _LINES_AT_ONCE:
            yield export_lines(waiting, form, first=first)
            waiting, first = [], False
    if waiting or first:
        yield export_lines(waiting, form, first=first)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _store(runtime: Runtime) -> AttributionStore:
    store = runtime.opened.stores.attribution
    if store is None:
        raise GatewayError("the store cannot sum up runs", status=503, type="server_error")
    return store


def _json(kind: type, text: str) -> Mapping[int, Content]:
    return {200: Content(kind, text)}
