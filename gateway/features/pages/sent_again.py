"""`/api/runs/{run_id}/steps/{step}/tries`: a recorded call sent once more: to another model,
without its guidance, or with another text in its place.

The stored request goes the way of every call, with the operator's credentials: those of clients are
never stored. It belongs to no conversation: it is not steered, counts on no budget of its run, and
changes no state. It is streamed where it was, but for Gemini, whose path is not stored. The audit
log keeps the figures, the store of raw calls what was sent and answered."""

import json
import time
from contextlib import aclosing
from dataclasses import replace
from math import inf
from secrets import randbelow
from typing import Any, Literal
from urllib.parse import quote

from msgspec.structs import asdict

from gateway.api.audit import act_view
from gateway.api.operations import ApiRequest, ApiResponse, Operations, note
from gateway.api.params import TenantParameter, Text
from gateway.api.runs import RunParameters
from gateway.calls.call import Call
from gateway.calls.records import reply_content
from gateway.conversations.apply_reply import replies_in
from gateway.core.edits import AppendToResult
from gateway.core.guidance_text import frame
from gateway.dialects import DIALECTS, SteeredRequest
from gateway.endpoints.relay import read_whole
from gateway.errors import BadRequest, GatewayError, UpstreamFailure
from gateway.exchange import Exchange, RequestInfo
from gateway.features.pages.runs import StepParameter
from gateway.pipeline import Pipeline
from gateway.runtime import Runtime
from gateway.steering.transcript.content import without_guidance
from gateway.stores.raw_calls_and_answers import RawCall, unpacked
from gateway.tasks import off_loop
from gateway.upstream.credentials import ANY, family_of_host, operator_key
from gateway.upstream.token_estimates import body_tokens
from gateway.values import FieldDict
from gateway.wire.coerce import as_int
from gateway.wire.parsing import parse_object
from gateway.wire.response_tee import ResponseWatch

OPERATIONS = Operations()
_TRIES = "/api/runs/{run_id}/steps/{step}/tries"
_MAXIMA = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_OUTPUT = 10**9  # a client may write any number as its maximum
# Anthropic's API refuses a request without a version. Source: its reference, "Versions".
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"accept-encoding", b"identity"),
    (b"anthropic-version", b"2023-06-01"),
]
# Members of which a part or a message has one, as long as it says or answers anything.
_SAYS = ("text", "content", "parts", "output", "tool_call_id", "tool_use_id", "call_id")


class Choice(TenantParameter):
    """The difference of a try from the call that was made."""

    model: Text  # name of a model
    guidance: Literal["sent", "none"] = "sent"  # `none`: without the guidance that was sent
    rule: Text = ""  # a text that is given in place of the guidance that was sent


class ChoiceAtStep(Choice, RunParameters, StepParameter):
    """A call, and the difference of a try from it."""


def why_not(runtime: Runtime) -> str:
    """Reason that a call's bytes are missing."""
    storage = runtime.settings.storage
    if not storage.store_content:
        return "texts are not stored (storage.store_content: false)"
    if runtime.opened.stores.raw is None:
        return "this store keeps no calls as they were sent"
    if not storage.raw_mb:
        return "calls are not kept as they were sent (storage.raw_mb: 0)"
    return "it was made before this was switched on, or removed to make room (storage.raw_mb)"


async def find_call(runtime: Runtime, run_id: str, step: int, tenant: str | None) -> RawCall | None:
    """The call at a step of a run as it was sent and received; None if it is not kept."""
    store = runtime.opened.stores.raw
    if store is None or not runtime.settings.storage.store_content:
        return None
    found = await store.find_raw(run_id, step, tenant=tenant)
    return found and await off_loop(unpacked, found)


async def _request(
    runtime: Runtime, choice: ChoiceAtStep, tenant: str | None
) -> tuple[RawCall, SteeredRequest]:
    """(what was sent then, the request to send). Raises: BadRequest: it cannot be sent again."""
    raw = await find_call(runtime, choice.run_id, choice.step, tenant=tenant)
    if raw is None:
        raise BadRequest(f"the request of this step is not stored: {why_not(runtime)}")
    dialect = DIALECTS[raw.dialect]
    if dialect.litellm is None:
        raise BadRequest("no other model is asked in the words of Bedrock's Converse")
    addressed = dialect.addressed(dialect.path.replace("{model}", quote(choice.model, safe=":@")))
    body = parse_object(raw.request, json.loads)
    body.pop("background", None)  # nobody would fetch the answer
    if addressed is None:
        body["model"] = choice.model
    else:
        body.pop("session_id", None)  # of Code Assist: the Gemini API refuses it
    if choice.rule or choice.guidance == "none":
        body = _cleared(body)
    request = dialect.parse(json.dumps(body).encode(), json.loads, addressed=addressed)
    if dialect.in_conversation(request):
        raise BadRequest("the provider stores this conversation, and would add the try to it")
    if choice.rule:
        last = len(dialect.placeable(request)) - 1
        edit = AppendToResult(index=last, texts=(frame([choice.rule]),))
        content = request.render(dialect.splices(request, [edit]))
        request = dialect.parse(content, json.loads, addressed=addressed)
    target = runtime.services.table.resolve(choice.model)[0].for_client(dialect, "")
    host = target.api_base.host
    if target.lane == "native" and not operator_key(target) and family_of_host(host) != ANY:
        raise BadRequest(
            f"no key of yours for {host} is configured (model_list, default_upstream.api_key), and "
            "a client's login is never stored"
        )
    return raw, request


def _cleared(value: Any) -> Any:
    """A JSON value without framed guidance, and without the parts and messages that were no more
    than that."""
    if isinstance(value, str):
        return without_guidance(value)
    if isinstance(value, dict):
        return {name: _cleared(each) for name, each in value.items()}
    if isinstance(value, list):
        return [
            new for each in value if (new := _cleared(each)) == each or any(map(new.get, _SAYS))
        ]
    return value


@OPERATIONS.add(f"GET {_TRIES}", FieldDict, "The price of a try, and the tries.")
async def list_tries(request: ApiRequest[ChoiceAtStep]) -> ApiResponse:
    """The tries of a step's call whose answers are kept, newest first, and the price of one more;
    nothing is sent."""
    runtime = request.runtime
    choice = request.params
    tries = []
    if (changes := runtime.opened.stores.changes) is not None:
        acts = await changes.find(subjects=[choice.run_id], kind="run", limit=500)
        for view in map(act_view, acts):
            if view["act"] == "try" and view["changed"]["step"] == choice.step:
                place = view["changed"]["place"]
                if kept := await find_call(runtime, choice.run_id, place, tenant=request.tenant):
                    tries.append({**view, "answer": kept.response.decode("utf-8", "replace")})
    return ApiResponse({"price": await _price(request), "tries": tries})


async def _price(request: ApiRequest[ChoiceAtStep]) -> FieldDict:
    """Tokens of the request, by its length; the most tokens of all its answers, 0 if nobody knows;
    US dollars with an empty answer, and with the longest ones of the dearest fallback, None if
    nobody knows. `problem`: why it cannot be sent; empty if it can."""
    model = request.params.model
    try:
        _, asked = await _request(request.runtime, request.params, request.tenant)
    except GatewayError as error:
        return {"problem": error.message}
    services = request.runtime.services
    catalogue = services.catalogue
    info = catalogue.info(model)
    most = max([as_int(asked.body.get(name), 0) for name in _MAXIMA])
    if info is not None and info.listed is not None:
        most = most or info.listed.max_output_tokens or 0
    tokens = body_tokens(asked.raw)
    most = min(most * max(1, as_int(asked.body.get("n"), 1)), _MOST_OUTPUT)
    longest = {"prompt_tokens": tokens, "completion_tokens": most}
    others = services.table.fallbacks(model, 0.0)
    names = [model, *(catalogue.billed_name(model, target) for target in others)]
    costs = [catalogue.cost(name, longest) for name in names]
    usd = [
        catalogue.cost(model, longest | {"completion_tokens": 0}),
        max(costs, key=lambda cost: inf if cost is None else cost),
    ]
    return {"problem": "", "input_tokens": tokens, "most_output_tokens": most, "usd": usd}


@OPERATIONS.add(f"POST {_TRIES}", FieldDict, "The try.")
async def try_again(request: ApiRequest[ChoiceAtStep]) -> ApiResponse:
    """Send a step's call once more, with the operator's credentials, and keep the answer; its run
    and its agent see nothing of it."""
    runtime = request.runtime
    choice = request.params
    raw, asked = await _request(runtime, choice, request.tenant)
    exchange = Exchange(RequestInfo(method="POST", path="", id="try", tenant=raw.tenant))
    pipeline = Pipeline(runtime)
    with runtime.services.in_use() as services:
        call = Call(request=asked, services=services, tenant=raw.tenant, exchange=exchange)
        answer, error = await _answer(pipeline, call)
    cost = services.catalogue.cost(call.billed_model, exchange.upstream.usage)
    services.metrics.charge(cost or 0.0, None)
    place = -1 - randbelow(2**31 - 1)
    said = {
        **choice.model_dump(),
        **asdict(exchange.upstream.tokens),
        "deployment": exchange.upstream.deployment,
        "error": error,
        "cost_usd": cost,
        "seconds": time.perf_counter() - exchange.timing.started,
        "place": place,
    }
    kept = replace(
        raw, step_index=place, at=time.time(), request=asked.raw, response=answer.encode()
    )
    await pipeline.recorder.keep(kept)
    await note(runtime, request.access, "run", act="try", subject=choice.run_id, said=said)
    return ApiResponse({**said, "answer": answer}, noted=True)


async def _answer(pipeline: Pipeline, call: Call) -> tuple[str, str]:
    """(the text and the calls of the answer, the error that it is or that came instead). Raises:
    RunRefused."""
    call.decided()
    request = call.request
    sending = call.upstream_call(_HEADERS, b"", frozenset())
    if (addressed := request.addressed) is not None:
        sending.path_at = lambda at: addressed.at(at.model or request.model, seat=False)
    watch = ResponseWatch(b"", 2**26)  # bytes of an answer that is read
    try:
        async with aclosing(await pipeline.send(call, sending)) as answer:
            async for chunk in answer:
                watch.feed(chunk)
        reply = read_whole(request.dialect, watch, answer.usage)
        if reply.failure is None:
            await pipeline.recorder.complete(call, reply)
    except UpstreamFailure as failure:
        return "", failure.message
    finally:
        pipeline.recorder.end(call, lambda: watch.content)
    if reply.failure is not None:
        return "", str(reply.failure.get("message", reply.failure))
    content = reply_content(replies_in(reply.completion))
    calls = [f"{action.name} {action.arguments}" for action in content.reply_actions]
    return "\n\n".join([content.reply_text, *calls]), ""
