"""`/api/audit`: who changed what, when and why; `/api/runs/{run_id}/comments`. The log is the
gateway's own: it cannot be deleted with a feature."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
import orjson
from pydantic import StringConstraints

from gateway.api.operations import ApiRequest, ApiResponse, Body, Operations, shape
from gateway.api.params import Author, Cursor, PageParameters, Sent, Text, Time
from gateway.api.runs import RunParameters, run_named, unknown_run
from gateway.api.views import picked
from gateway.auth.access import Access
from gateway.errors import Forbidden
from gateway.reporting.run_exports import MEDIA, csv_lines
from gateway.runtime import Runtime
from gateway.stores.sql.audit_log import Change, ChangeStore
from gateway.values import FieldDict, Fields

OPERATIONS = Operations()
_AT_ONCE = 500
_MOST_CHARS = 4000
_FIELDS = ("id", "at", "kind", "subject", "author", "reason")


class AuditParameters(PageParameters):
    """Filter of acts, and the form of the answer."""

    kind: Text | None = None  # about such an object: `run`, `budget`, `config`
    subject: Text | None = None  # about the object with this id
    author: Text | None = None  # by who stated this name, or by `gateway`
    text: Text | None = None  # with this text in any field, ignoring case
    since: Time | None = None  # at or after this time
    until: Time | None = None  # before this time
    format: Literal["json", "jsonl", "csv"] = "json"  # `jsonl`, `csv`: all pages at once


AuditPage = shape("AuditPage", "Acts, newest first.", acts=list[FieldDict], next_cursor=Cursor)


def act_view(change: Change) -> FieldDict:
    """An act; of a policy or a pilot, which has its own command, not its content."""
    plain = len(change.body) <= _MOST_CHARS and change.kind not in ("policy", "pilot")
    if plain:
        body = msgspec.json.decode(change.body)
    else:
        body = {}
    return {**picked(change, *_FIELDS), "act": body.pop("act", ""), "changed": body}


async def acts_of(
    store: ChangeStore | None, values: Fields, **changed: Any
) -> tuple[list[FieldDict], str | None]:
    """A page of acts by the values of AuditParameters, and its cursor; empty ones select all."""
    values = {name: value or None for name, value in {**values, **changed}.items()}
    wanted = {name: values.get(name) for name in ("kind", "author", "since", "until", "cursor")}
    wanted["text"] = values["text"] and values["text"].lower()
    wanted["subjects"] = values["subject"] and [values["subject"]]
    if store:
        found = await store.find(limit=values["limit"], **wanted)
    else:
        found = []
    cursor = None
    if found and len(found) == values["limit"]:
        cursor = found[-1].id
    return [act_view(change) for change in found], cursor


def audit_log(runtime: Runtime, access: Access) -> ChangeStore | None:
    """The log; None for a store without one. Raises: Forbidden."""
    if not access.operator:
        raise Forbidden("the audit log is read with the admin key")
    return runtime.opened.stores.changes


@OPERATIONS.add("GET /api/audit", Body(AuditPage, "One page.", also=(MEDIA["jsonl"], MEDIA["csv"])))
async def list_acts(request: ApiRequest[AuditParameters]) -> ApiResponse:
    """Acts of people and of the gateway: who, what, when and why; newest first."""
    store = audit_log(request.runtime, request.access)
    values = dict(request.params)
    if (form := request.params.format) == "json":
        acts, cursor = await acts_of(store, values)
        return ApiResponse({"acts": acts, "next_cursor": cursor})
    return ApiResponse(media=MEDIA[form], chunks=act_lines(store, values, form))


async def act_lines(store: ChangeStore | None, values: Fields, form: str) -> AsyncIterator[bytes]:
    """All acts by the values of AuditParameters, as JSON lines or CSV."""
    cursor = values["cursor"]
    head = [[*_FIELDS, "act", "changed"]]
    while cursor is not None or head:
        acts, cursor = await acts_of(store, values, limit=_AT_ONCE, cursor=cursor)
        lines = b"".join(orjson.dumps(act) + b"\n" for act in acts)
        rows = [[*[*act.values()][:-1], orjson.dumps(act["changed"]).decode()] for act in acts]
        yield csv_lines([*head, *rows]) if form == "csv" else lines
        head = []


class CommentBody(Sent):
    """A comment, with or without its author's name."""

    # 1 to 500 characters, blanks at the ends removed
    comment: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
    # name that is shown; nothing proves it
    author: Author = ""


@OPERATIONS.add("POST /api/runs/{run_id}/comments", dict[str, str], "Its run.", body=CommentBody)
async def comment_run(request: ApiRequest[RunParameters]) -> ApiResponse:
    """Comment on a run; it is kept in the audit log and shown on the run's page."""
    request.read(CommentBody)
    run = await run_named(request.runtime.runs, request.params.run_id, request.tenant)
    if run is None:
        raise unknown_run(request.params.run_id)
    return ApiResponse({"run_id": run.id})
