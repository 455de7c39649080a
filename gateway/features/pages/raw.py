"""A call as it was sent and received, and what can be done from it on: tries of the call, the
comparison of its run with another one, and the command that asks what another policy would do."""

from typing import Any

import orjson

from gateway.api.operations import ApiRequest
from gateway.api.params import Text
from gateway.features.pages.compare import CompareParameters, compare_runs
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.features.pages.runs import find_step
from gateway.features.pages.sent_again import (
    Choice,
    ChoiceAtStep,
    find_call,
    list_tries,
    try_again,
)
from gateway.stores.records import StepRow

_SHOWN = 200_000  # bytes of a body


class StepPageParameters(Choice):
    """The difference of a try, and the other side of a comparison."""

    model: Text = ""  # name of a model; empty: the one that the client requested
    other: Text = ""  # id of another run or session; empty: no comparison


async def show(visit: Visit) -> Page:
    """The request and the answer of a step's call, or why they are not there, and its tries."""
    trace, step = await find_step(visit)
    call = await find_call(visit.runtime, step.run_id, step.step_index, tenant=visit.tenant)
    asked = _asked(visit, step)
    shown = {
        "title": "Try again, compare",
        "run": trace.run,
        "step": step,
        "request": _text(call.request) if call else None,
        "response": _text(call.response) if call else None,
        "choice": asked.params,
        "other": visit.values["other"],
        **(await list_tries(asked)).payload,
    }
    if shown["other"]:
        both = CompareParameters(run_id=step.run_id, other=shown["other"], tenant=visit.tenant)
        shown |= (await compare_runs(_request(visit, both))).payload
    return Page(template="raw.html", values=shown)


async def try_it(visit: Visit) -> Page:
    """Send the call once more, and show the answer beside the old one."""
    _, step = await find_step(visit)
    await try_again(_asked(visit, step))
    return redirect(f"{visit.query()}#tries")


def _asked(visit: Visit, step: StepRow) -> ApiRequest[ChoiceAtStep]:
    """The same as a request to the API."""
    given = {**visit.values, **visit.scope["path_params"]}
    if step.call is not None:
        given["model"] = given["model"] or step.call.model_requested
    return _request(visit, ChoiceAtStep(**given))


def _request(visit: Visit, params: Any) -> ApiRequest[Any]:
    return ApiRequest(runtime=visit.runtime, access=visit.access, params=params)


def _text(body: bytes) -> str:
    """A body for people: JSON with line breaks, anything else as it is."""
    try:
        shown = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2)
    except orjson.JSONDecodeError:
        shown = body
    return shown[:_SHOWN].decode("utf-8", "replace")
