"""`/api/held`: runs that are stopped or paused, or about which a person is asked."""

import time
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from gateway.api.operations import ApiRequest, ApiResponse, Operations, shape
from gateway.api.params import Author, Parameters, PathText, Sent, TenantParameter
from gateway.api.views import picked
from gateway.errors import NotFound
from gateway.holds import answer_question, known_subject
from gateway.stores.controls import STEERING, Action, Control
from gateway.text.sanitize import one_line
from gateway.values import FieldDict

if TYPE_CHECKING:
    from gateway.runtime import Runtime

OPERATIONS = Operations()
MAX_REASON = 300


class SubjectParameters(Parameters):
    """Id of a run or conversation."""

    subject: PathText  # the id of a run or of a conversation


class ControlBody(Sent):
    """The reason, and who has ordered it; both are shown to the client and on the run's page."""

    # shown to the client and on the run's page
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""
    # name that is shown; nothing proves it
    author: Author = ""


class HeldView(BaseModel):
    """A hold, or the end of one."""

    subject: str  # id of a run or conversation, or what else is held
    # stop, pause, ask (it waits for an answer), off (steering), mute (a kind of alarm in a
    # project), or null: it may go on
    action: str | None
    reason: str  # as it was given; empty without one
    author: str  # a person's name, where known; `gateway`: it did that itself
    at: float | None  # epoch seconds of the order; null when it is unknown
    stored: bool  # false: on this gateway only, until the store works again


HeldPage = shape("HeldPage", "All holds.", held=list[HeldView])


@OPERATIONS.add("GET /api/held", HeldPage, "The holds, oldest first.")
async def list_held(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Runs and conversations that are stopped or paused."""
    tenant = request.tenant
    listed = [
        {**picked(control, "subject", "action", "reason", "author", "at"), "stored": True}
        for control in request.runtime.holds.listed()
        if tenant in (None, control.tenant)
    ]
    return ApiResponse({"held": listed})


async def hold(
    runtime: "Runtime", given: str, action: Action | None, said: ControlBody, tenant: str | None
) -> FieldDict:
    """Stop or pause a run or conversation of the tenant; None: let it go on. Raises: NotFound;
    StoreError."""
    about = _about(said)
    found = await known_subject(runtime.runs, given, tenant)
    if found is None:
        raise NotFound(f"there is no run or conversation {given[:80]!r}", param="subject")
    subject, owner = found
    at = None
    if action is None:
        stored = await runtime.holds.release(subject) is not False
    else:
        at = time.time()
        control = Control(subject=subject, tenant=owner, action=action, at=at, **about)
        stored = await runtime.holds.hold(control)
    runtime.log.warning("run held" if action else "run resumed", subject=subject)
    more = {**about, "at": at, "stored": stored}
    return _published(runtime, owner, subject, action=action, more=more)


def _about(said: ControlBody) -> FieldDict:
    return {"reason": said.reason, "author": one_line(said.author, 80)}


def _published(
    runtime: "Runtime", owner: str | None, subject: str, action: Action | None, more: FieldDict
) -> FieldDict:
    """Publish what holds now, and return it."""
    event = {"type": "control", "tenant": owner, "subject": subject, "action": action or "resume"}
    runtime.events.publish(event)
    return {"subject": subject, "action": action, **more}


async def answer(
    runtime: "Runtime", subject: str, yes: bool, said: ControlBody, tenant: str | None
) -> FieldDict:
    """Answer the question about a run of the tenant. Raises: NotFound: none is open; StoreError."""
    about = _about(said)
    await runtime.holds.refresh()  # a question is shown while it is being stored
    stores = runtime.opened.stores
    asked = await answer_question(stores, subject, about, yes=yes, tenant=tenant)
    if asked is None:
        raise NotFound(f"no question about {subject[:80]!r} is open", param="subject")
    await runtime.holds.refresh()
    runtime.log.warning("question answered", subject=subject, yes=yes)
    action: Action | None = None if yes else "stop"
    more = {**about, "at": None if yes else time.time(), "stored": True}
    return _published(runtime, asked.tenant, subject, action=action, more=more)


def _said(request: ApiRequest[Any]) -> ControlBody:
    said = request.read(ControlBody)
    said.author = said.author or request.access.author
    return said


@OPERATIONS.add("POST /api/steering/off", HeldView, "What holds now.", body=ControlBody)
async def steering_off(request: ApiRequest[Parameters]) -> ApiResponse:
    """Give no guidance and route no call, at every gateway on the store; limits and stops hold."""
    return ApiResponse(
        await hold(request.runtime, STEERING, "off", said=_said(request), tenant=None)
    )


@OPERATIONS.add("POST /api/steering/on", HeldView, "What holds now.", body=ControlBody)
async def steering_on(request: ApiRequest[Parameters]) -> ApiResponse:
    """Steer again."""
    return ApiResponse(
        await hold(request.runtime, STEERING, None, said=_said(request), tenant=None)
    )


def _add(kind: str, verb: str, action: Action | None, what: str, yes: bool | None = None) -> None:
    async def handler(request: ApiRequest[SubjectParameters]) -> ApiResponse:
        about: FieldDict = {"said": _said(request), "tenant": request.tenant}
        subject = request.params.subject
        if yes is None:
            found = await hold(request.runtime, subject, action, **about)
        else:
            found = await answer(request.runtime, subject, yes, **about)
        return ApiResponse(found)

    handler.__name__ = f"{verb}_{kind}"
    handler.__doc__ = f"{verb.capitalize()} {what}"
    route = f"POST /api/{kind}s/{{subject}}/{verb}"
    OPERATIONS.add(route, HeldView, "What holds now.", body=ControlBody, errors=(413,))(handler)


for _kind, _what in (
    ("conversation", "a conversation and its sub-agents; a run's id names that run."),
    ("run", "a run; a conversation's id names it and its sub-agents."),
):
    _add(_kind, "stop", "stop", what=_what)
    _add(_kind, "pause", "pause", what=_what)
    _add(_kind, "resume", None, what=_what)
_add("run", "approve", None, what="a run that waits for an answer: it goes on.", yes=True)
_add("run", "deny", "stop", what="a run that waits for an answer: it is stopped.", yes=False)
