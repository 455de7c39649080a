"""One call as it was sent and received."""

import orjson

from gateway.features.pages.pages import Page, Visit
from gateway.features.pages.runs import find_step
from gateway.stores.exchanges import RawCall, unpacked
from gateway.stores.records import StepRow
from gateway.tasks import off_loop

_SHOWN = 200_000


async def show(visit: Visit) -> Page:
    """The request and the answer of a step's call, or why they are not there."""
    trace, step = await find_step(visit)
    call = await _find(visit, step)
    shown = {
        "title": f"Step {step.step_index} as sent and received",
        "run": trace.run,
        "step": step,
        "request": _text(call.request) if call else None,
        "response": _text(call.response) if call else None,
        "why_not": None if call else why_not(visit),
    }
    return Page(template="raw.html", values=shown)


def why_not(visit: Visit) -> str:
    """Reason that a call's bytes are missing."""
    storage = visit.runtime.settings.storage
    if not storage.store_content:
        return "texts are not stored (storage.store_content: false)"
    if visit.runtime.opened.stores.raw is None:
        return "this store keeps no calls as they were sent"
    if not storage.raw_mb:
        return "calls are not kept as they were sent (storage.raw_mb: 0)"
    return "it was made before this was switched on, or removed to make room (storage.raw_mb)"


async def _find(visit: Visit, step: StepRow) -> RawCall | None:
    store = visit.runtime.opened.stores.raw
    if store is None or not visit.runtime.settings.storage.store_content:
        return None
    found = await store.find_raw(step.run_id, step.step_index, tenant=visit.tenant)
    if found is None:
        return None
    return await off_loop(unpacked, found)


def _text(body: bytes) -> str:
    """A body for people: JSON with line breaks, anything else as it is."""
    try:
        shown = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2)
    except orjson.JSONDecodeError:
        shown = body
    text = shown[: _SHOWN + 1].decode("utf-8", "replace")
    if len(text) <= _SHOWN:
        return text
    return text[:_SHOWN] + "…"
