"""The parameters that select runs, shared by lists, summaries and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.api.params import DIGITS, OneOf, Parameters, Text, Time
from gateway.steering.experiments import ARMS
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.pattern import MAX_ID_CHARS
from gateway.stores.queries import MAX_PAGE, OUTCOMES, SORT_KEYS, UNFINISHED, RunFilter

STATES = tuple(state.value for state in FSMState)
Arm = Annotated[str, OneOf(ARMS)]


def described(text: str) -> Any:
    """The description of a parameter in the OpenAPI document."""
    return Field(description=text)


class TenantParameter(Parameters):
    """The tenant whose data is asked for."""

    tenant: Annotated[
        Annotated[str, Field(max_length=MAX_ID_CHARS)] | None,
        described("Only this tenant's data; a tenant's key sees no other."),
    ] = None


class RunFilters(TenantParameter):
    """Which runs; a filter that is absent or empty selects all."""

    conversation_id: Annotated[Text | None, described("Of one conversation.")] = None
    agent: Annotated[Text | None, described("The client's name, from its user agent.")] = None
    model: Annotated[
        Text | None, described("Requested last, or called upstream at least once.")
    ] = None
    state: Annotated[
        Annotated[str, OneOf(STATES)] | None, described("In this state now, or at any step.")
    ] = None
    failure_type: Annotated[Text | None, described("With a step of this failure type.")] = None
    monitor: Annotated[Text | None, described("In which this monitor fired.")] = None
    experiment: Annotated[Text | None, described("Of this experiment.")] = None
    arm: Annotated[Arm | None, described("In this arm.")] = None
    mode: Annotated[Arm | None, described("Steered in this mode.")] = None
    outcome: Annotated[
        Annotated[str, OneOf((*OUTCOMES, UNFINISHED))] | None,
        described("With this outcome; `unfinished`: none was reported."),
    ] = None
    since: Annotated[Time | None, described("Started at or after this time.")] = None
    until: Annotated[Time | None, described("Started before this time.")] = None
    task: Annotated[Text | None, described("Whose task contains this text, ignoring case.")] = None
    key: Annotated[Text | None, described("Made with the gateway key of this name.")] = None
    tag: Annotated[
        Text | None, described("With these tags: `team=web,env`; a name alone is any value.")
    ] = None


class PageParameters(Parameters):
    """One page of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Rows per page."), DIGITS] = 50
    cursor: Annotated[Text | None, described("`next_cursor` of the previous page.")] = None


class SortParameters(PageParameters):
    """One page of a list that can be sorted."""

    sort: Annotated[str, OneOf(tuple(SORT_KEYS)), described("The key to sort by.")] = "started_at"
    order: Annotated[str, OneOf(("desc", "asc")), described("The direction.")] = "desc"


def read_tag_filter(text: str) -> tuple[tuple[str, str | None], ...]:
    """`team=web,env` as (name, value) pairs; a name alone stands for any value."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return tuple((name.strip().lower(), value.strip() if eq else None) for name, eq, value in pairs)


def run_filter(values: Mapping[str, Any], tenant: str | None) -> RunFilter:
    """The filter that parameter values describe, within `tenant`; empty texts select all."""
    chosen = {
        name: values.get(name)
        for name in RunFilters.model_fields
        if name not in ("tenant", "key", "tag") and values.get(name) not in (None, "")
    }
    tags = read_tag_filter(values.get("tag") or "")
    return RunFilter(tenant=tenant, key_name=values.get("key") or None, tags=tags, **chosen)
