"""The parameters by which runs are chosen, shared by lists, summaries and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.params import Param
from gateway.steering.etrace.pattern import MAX_ID_CHARS
from gateway.steering.experiments import ARMS
from gateway.steering.fsm import FSMState
from gateway.stores.queries import MAX_PAGE, OUTCOMES, SORT_KEYS, UNFINISHED, RunFilter

TENANT = Param(
    name="tenant",
    description="One tenant's; a tenant's key sees no other.",
    longest=MAX_ID_CHARS,
)
RUN_FILTERS: tuple[Param, ...] = (
    TENANT,
    Param(name="conversation_id", description="Of one conversation."),
    Param(name="agent", description="The client's name, from its user agent."),
    Param(name="model", description="Requested last, or asked of an upstream at least once."),
    Param(
        name="state",
        description="In this state, or was for a step.",
        choices=tuple(state.value for state in FSMState),
    ),
    Param(name="failure_type", description="With a step of this failure type."),
    Param(name="monitor", description="In which this monitor fired."),
    Param(name="experiment", description="Of this experiment."),
    Param(name="arm", description="In this arm.", choices=ARMS),
    Param(name="mode", description="Steered in this mode.", choices=ARMS),
    Param(
        name="outcome",
        description="That came to this; `unfinished`: nobody has said.",
        choices=(*OUTCOMES, UNFINISHED),
    ),
    Param(name="since", description="Begun at or after this time.", kind="time"),
    Param(name="until", description="Begun before this time.", kind="time"),
    Param(name="task", description="Whose task holds this text, case ignored."),
)
LIMIT = Param(
    name="limit", description="Rows a page.", kind="integer", low=1, high=MAX_PAGE, default=50
)
CURSOR = Param(name="cursor", description="`next_cursor` of the page before.")
PAGING: tuple[Param, ...] = (
    LIMIT,
    CURSOR,
    Param(name="sort", description="Order by.", choices=tuple(SORT_KEYS), default="started_at"),
    Param(name="order", description="Direction.", choices=("desc", "asc"), default="desc"),
)


def run_filter(values: Mapping[str, Any], tenant: str | None) -> RunFilter:
    """The filter that parameter values stand for, within `tenant`; empty texts admit all."""
    chosen = {
        param.name: values.get(param.name)
        for param in RUN_FILTERS
        if param is not TENANT and values.get(param.name) not in (None, "")
    }
    return RunFilter(tenant=tenant, **chosen)
