"""One call as it was sent and received, and the same call sent to another model."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dashboard.pages import Page, Visit
from gateway.dashboard.runs import find_step
from gateway.dialects import DIALECTS, Dialect
from gateway.errors import BadRequest, Forbidden, GatewayError
from gateway.stores.exchanges import RawCall, unpacked
from gateway.stores.records import StepRow
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import UpstreamCall
from gateway.wire.messages import content_text
from gateway.wire.usage import TokenUsage, token_usage

REPLAY_S = 120.0  # longest wait for the other model
_SHOWN = 200_000
_HEADERS = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_ANTHROPIC = (b"anthropic-version", b"2023-06-01")
# They make sense for the recorded call only: it was streamed, stored, or made in the background.
_LEFT_OUT = ("model", "stream", "stream_options", "background", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a model: `text`, its calls and its cost; or the `error`."""

    model: str
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    tokens: TokenUsage | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    error: str = ""


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


async def replay(visit: Visit) -> Page:
    """The form for a model; when it was sent, ask the model, and show both answers. Raises:
    BadRequest, Forbidden, NotFound."""
    posted = visit.scope["method"] == "POST"
    model = visit.form.get("model", "").strip() if posted else None
    if model is not None and not 0 < len(model) <= 200:
        raise BadRequest("model: name the model to ask", param="model")
    if not visit.access.operator:
        raise Forbidden("only the operator may replay calls: they are paid by the gateway's keys")
    trace, step = await find_step(visit)
    call = await _find(visit, step)
    why = why_not(visit) if call is None else None
    if call is not None and not call.whole_request:
        why = "the request is longer than storage.raw_max_kb and was cut"
    answer = None
    if model and call is not None and why is None:
        answer = await ask(visit, call, model)
    call_of = (step.call.model_requested, step.call.model_asked) if step.call else ()
    known = dict.fromkeys([*call_of, *visit.runtime.services.table.names])
    shown = {
        "title": f"Replay step {step.step_index}",
        "run": trace.run,
        "step": step,
        "models": [name for name in known if "*" not in name],
        "model": model,
        "recorded": _recorded(step),
        "answer": answer,
        "why_not": why,
    }
    return Page(template="replay_call.html", values=shown)


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


async def ask(visit: Visit, call: RawCall, model: str) -> Answer:
    """The answer of `model` to a recorded request; nothing of it is recorded."""
    services, dialect = visit.runtime.services, DIALECTS[call.dialect]
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        body = orjson.loads(call.request)
        async with asyncio.timeout(REPLAY_S):
            delivery = await services.dispatcher.send(_call(body, dialect, model), model)
            try:
                received = b"".join([chunk async for chunk in delivery.response])
            finally:
                await delivery.response.aclose()
        answer = orjson.loads(received)
    except GatewayError as error:
        return Answer(model=model, error=str(error))
    except (TimeoutError, orjson.JSONDecodeError) as error:
        return Answer(model=model, error=f"no answer that can be read ({type(error).__name__})")
    status = delivery.response.status
    if status >= 400 or not isinstance(answer, dict):
        return Answer(model=model, error=f"status {status}: {_text(received)[:500]}")
    read = dialect.read_answer(answer) or {}
    usage = read.get("usage") if isinstance(read.get("usage"), dict) else None
    text, calls = _said(read)
    return Answer(
        model=model,
        text=text,
        calls=calls,
        tokens=token_usage(usage),
        cost_usd=services.catalogue.cost(model, usage),
        seconds=loop.time() - began,
    )


def _call(body: Mapping[str, Any], dialect: Dialect, model: str) -> UpstreamCall:
    kept = {key: value for key, value in body.items() if key not in _LEFT_OUT}
    asked = dialect.addressed(dialect.path)

    def parsed(target: Target) -> Mapping[str, Any]:
        named = {**kept, "model": target.model or model}
        if target.lane != "native":
            if not target.model:
                raise BadRequest(f"no deployment of the config has {model!r}", param="model")
            return named
        return {**target.params, **(kept if asked is not None else named)}

    more = [_ANTHROPIC] if dialect.api == "anthropic" else []
    return UpstreamCall(
        method="POST",
        path=dialect.path,
        path_at=None if asked is None else lambda to: asked.at(to.model or model, seat=False),
        dialect=dialect,
        headers=[*_HEADERS, *more],
        body=lambda target: orjson.dumps(parsed(target)),
        parsed=parsed,
    )


def _said(completion: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text of an answer in the form of a chat completion, and its tool calls."""
    try:
        message = completion["choices"][0]["message"]
        functions = [call.get("function", {}) for call in message.get("tool_calls") or ()]
        calls = tuple((str(f.get("name")), str(f.get("arguments"))) for f in functions)
        return content_text(message.get("content")), calls
    except (LookupError, TypeError, AttributeError):
        return "", ()


def _recorded(step: StepRow) -> Answer | None:
    if step.call is None:
        return None
    call, content = step.call, step.content
    actions = content.reply_actions if content else ()
    tokens = TokenUsage(
        input=call.input_tokens, output=call.output_tokens, cached=call.cached_tokens
    )
    return Answer(
        model=call.model_asked,
        text=content.reply_text if content else "",
        calls=tuple((action.name, action.arguments) for action in actions),
        tokens=tokens,
        cost_usd=call.cost_usd,
        seconds=call.latency_s,
        error=call.error or ("" if call.status < 400 else f"status {call.status}"),
    )


async def _find(visit: Visit, step: StepRow) -> RawCall | None:
    store = visit.runtime.opened.stores.raw
    if store is None or not visit.runtime.settings.storage.store_content:
        return None
    found = await store.find_raw(step.run_id, step.step_index, tenant=visit.tenant)
    return None if found is None else await asyncio.to_thread(unpacked, found)


def _text(body: bytes) -> str:
    """A body for people: JSON with line breaks, anything else as it is."""
    try:
        shown = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2)
    except orjson.JSONDecodeError:
        shown = body
    text = shown[: _SHOWN + 1].decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
