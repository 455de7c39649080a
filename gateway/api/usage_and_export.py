"""`/api/usage`, `/api/export` and the trees of conversations: cost and tokens by their origin."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.api.operations import (
    ApiRequest,
    ApiResponse,
    Body,
    Operations,
    like,
    shape,
    usable,
)
from gateway.api.params import (
    Flag,
    OneOf,
    RunFilters,
    Text,
    naming,
)
from gateway.reporting.run_exports import FORMATS, MEDIA, export_lines, group_lines
from gateway.stores.filters import run_filter
from gateway.stores.traces import RunTrace
from gateway.stores.usage import GROUPS, Sums
from gateway.values import FieldDict

OPERATIONS = Operations()
_LINES_AT_ONCE = 50


@like(Sums)
class SumsView(BaseModel):
    """Sums over runs."""

    estimated_calls: int  # whose provider reported no usage
    estimated_tokens: int  # the part of the tokens that is estimated
    estimated_usd: float  # the part of cost_usd that is estimated
    tokens: int  # input and output tokens together
    cached_share: Annotated[float, Field(ge=0, le=1)]  # cached of all input tokens


class GroupView(BaseModel):
    """The runs with one value."""

    value: str  # empty: of the runs without one
    sums: SumsView  # over the runs with this value


UsageView = shape(
    "UsageView", "Runs by what they were for, the costliest first.", by=str, groups=list[GroupView]
)


class UsageParameters(RunFilters):
    """Filter of runs, and the key that groups them."""

    by: Text = Field("key", description=f"`tag:NAME` or one of {', '.join(GROUPS)}.")
    format: Literal["json", "csv"] = "json"  # of the answer


class ExportParameters(RunFilters):
    """Filter of runs, and the form of the export."""

    # `jsonl`: runs with their steps; `csv`: a row each; `openai`: chat messages
    format: Annotated[str, OneOf(FORMATS)] = "jsonl"
    content: Flag = True  # with the texts of each step


def sums_view(sums: Sums) -> FieldDict:
    """Sums with what is derived from them."""
    return {**asdict(sums), "tokens": sums.tokens, "cached_share": sums.cached_share}


@OPERATIONS.add("GET /api/usage", Body(UsageView, "The sums.", also=(MEDIA["csv"],)))
async def get_usage(request: ApiRequest[UsageParameters]) -> ApiResponse:
    """Cost, tokens and calls by tag, key, tenant, agent, model, day; JSON or CSV."""
    params = request.params
    runs = run_filter(dict(params), request.tenant)
    sums = usable(request.runtime.opened.stores.attribution, "the store cannot sum up runs")
    with naming("by"):
        groups = await sums.groups(runs, params.by)
    if params.format == "csv":

        async def table() -> AsyncIterator[bytes]:
            yield group_lines(params.by, groups)

        return ApiResponse(media=MEDIA["csv"], chunks=table())
    shown = [{"value": each.value, "sums": sums_view(each.sums)} for each in groups]
    return ApiResponse({"by": params.by, "groups": shown})


@OPERATIONS.add(
    "GET /api/export", Body(str, "One run a line.", MEDIA["jsonl"], also=(MEDIA["csv"],))
)
async def export_runs(request: ApiRequest[ExportParameters]) -> ApiResponse:
    """Runs as JSON lines, CSV, or the chat messages that OpenAI's tools read."""
    form = request.params.format
    content = request.params.content
    runs = run_filter(dict(request.params), request.tenant)
    traces = request.runtime.runs.export_runs(runs, content=content and form != "csv")
    return ApiResponse(media=MEDIA[form], chunks=exported(traces, form))


async def exported(traces: AsyncIterator[RunTrace], form: str) -> AsyncIterator[bytes]:
    """An export, some runs at a time."""
    waiting: list[RunTrace] = []
    first = True
    async for trace in traces:
        waiting.append(trace)
        if len(waiting) == _LINES_AT_ONCE:
            yield export_lines(waiting, form, first=first)
            waiting = []
            first = False
    if waiting or first:
        yield export_lines(waiting, form, first=first)
