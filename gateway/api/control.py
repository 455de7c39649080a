"""Stopping, pausing and resuming: a run, or a conversation with everything below it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.filters import TenantParameter, described
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import Parameters, PathText
from gateway.budgets.holds import known_subject
from gateway.errors import NotFound
from gateway.runtime import Runtime
from gateway.stores.budgets import Action, Control

MAX_REASON = 300


class SubjectParameters(Parameters):
    """Which run or conversation."""

    subject: Annotated[PathText, described("The id of a run or of a conversation.")]


class ControlBody(BaseModel):
    """Why; shown to the client and on the run's page."""

    model_config = ConfigDict(extra="forbid")
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


class HeldView(BaseModel):
    """A hold, or the end of one."""

    subject: str
    action: Annotated[str | None, Field(description="stop, pause, or null: it may go on.")]
    reason: str
    at: float | None
    stored: Annotated[
        bool, Field(description="False: on this gateway only, until the store works again.")
    ]


class HeldPage(BaseModel):
    """All holds."""

    held: list[HeldView]


async def list_held(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """The holds on the tenant's runs."""
    tenant = request.tenant
    held = request.runtime.holds.listed()
    listed = [_view(control, stored=True) for control in held if tenant in (None, control.tenant)]
    return ApiResponse(payload={"held": listed})


async def hold(
    runtime: Runtime, given: str, action: Action, reason: str, tenant: str | None
) -> dict[str, Any]:
    """Stop or pause a run or conversation of the tenant. Raises: NotFound; StoreError."""
    subject, owner = await _subject(runtime, given, tenant)
    control = Control(subject=subject, tenant=owner, action=action, reason=reason, at=time.time())
    stored = await runtime.holds.hold(control)
    _publish(runtime, owner, subject, action)
    return _view(control, stored=stored)


async def release(runtime: Runtime, given: str, tenant: str | None) -> dict[str, Any]:
    """Let a run or conversation of the tenant go on. Raises: NotFound; StoreError."""
    subject, owner = await _subject(runtime, given, tenant)
    stored = await runtime.holds.release(subject)
    _publish(runtime, owner, subject, "resume")
    free = {"subject": subject, "action": None, "reason": "", "at": None}
    return {**free, "stored": stored is not False}


async def _subject(runtime: Runtime, given: str, tenant: str | None) -> tuple[str, str]:
    found = await known_subject(runtime.runs, given, tenant)
    if found is None:
        raise NotFound(f"there is no run or conversation {given[:80]!r}", param="subject")
    return found


def _publish(runtime: Runtime, tenant: str, subject: str, action: str) -> None:
    runtime.log.warning("run held" if action != "resume" else "run resumed", subject=subject)
    runtime.events.publish(
        {"type": "control", "tenant": tenant, "subject": subject, "action": action}
    )


def _view(control: Control, *, stored: bool) -> dict[str, Any]:
    return {
        "subject": control.subject,
        "action": control.action,
        "reason": control.reason,
        "at": control.at,
        "stored": stored,
    }


def _holder(action: Action) -> Callable[[ApiRequest[SubjectParameters]], Awaitable[ApiResponse]]:
    async def handler(request: ApiRequest[SubjectParameters]) -> ApiResponse:
        reason = request.read(ControlBody).reason if request.body else ""
        tenant = request.tenant
        return ApiResponse(
            payload=await hold(request.runtime, request.params.subject, action, reason, tenant)
        )

    return handler


async def _resume(request: ApiRequest[SubjectParameters]) -> ApiResponse:
    tenant = request.tenant
    return ApiResponse(payload=await release(request.runtime, request.params.subject, tenant))


def _operation(kind: str, verb: str, summary: str, handler: Any, *, body: bool) -> Operation[Any]:
    return Operation(
        name=f"{verb}{kind.capitalize()}",
        method="POST",
        path=f"/api/{kind}s/{{subject}}/{verb}",
        summary=summary,
        handler=handler,
        params=SubjectParameters,
        body=Content(ControlBody) if body else None,
        responses={200: Content(HeldView, "What holds now.")},
        errors=(400, 403, 404, 413),
    )


_SUMMARIES = {
    "conversation": "a conversation and its sub-agents; a run's id names that run.",
    "run": "a run; a conversation's id names it and its sub-agents.",
}

OPERATIONS = (
    Operation(
        name="listHeld",
        method="GET",
        path="/api/held",
        summary="What is stopped or paused now.",
        handler=list_held,
        params=TenantParameter,
        responses={200: Content(HeldPage, "The holds, oldest first.")},
        errors=(400, 403),
    ),
    *(
        operation
        for kind, what in _SUMMARIES.items()
        for operation in (
            _operation(kind, "stop", f"Stop {what}", _holder("stop"), body=True),
            _operation(kind, "pause", f"Pause {what}", _holder("pause"), body=True),
            _operation(kind, "resume", f"Resume {what}", _resume, body=False),
        )
    ),
)
