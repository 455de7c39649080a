"""Every call has tokens and a cost: reported by the provider, or estimated and marked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.wire.sse import SSEDecoder
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, Answer, opening, run_log, trace
from steering_gateway_testing.gateways import replace_settings
from steering_gateway_testing.patience import ANSWER_S, until_async
from steering_gateway_testing.values import Fault, FaultKind, Reply, Usage
from tests.examples import by_day

Start = Callable[..., AppServer]
USAGE = Usage(prompt_tokens=40, completion_tokens=10)
# Priced in LiteLLM's list, so that tokens become a cost.
MODEL = "gpt-4o"
TEXT = "word " * 200


def events(content: bytes) -> list[Any]:
    """The JSON events of a stream."""
    decoder = SSEDecoder()
    found = [*decoder.feed(content), *decoder.flush()]
    return [orjson.loads(event.data) for event in found if event.data and not event.done]


def with_mode(mode: str, path: Path, **more: Any) -> dict[str, Any]:
    """Settings with a store on disk."""
    steering = {**PLAIN["steering"], "mode": mode, **more}
    return {**PLAIN, "steering": steering, "storage": {"path": str(path)}}


async def recorded(path: Path, answer: Answer) -> Any:
    """The latest call of the answer's run."""
    return (await trace(path, answer.conversation)).steps[-1].call


async def run_of(http: httpx.AsyncClient, server: AppServer, conversation: str) -> Any:
    """The first run of a conversation with its steps, once it is on record."""

    async def found() -> Any:
        answer = await http.get(f"{server.url}/api/runs/{conversation}.0")
        return answer.json() if answer.status_code == 200 else None

    return await until_async(found)


@pytest.mark.parametrize("cuts", by_day([None, 1, 7], 2))
@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
async def test_streamed_chat_has_tokens_by_default(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    options: Any,
    cuts: int | None,
) -> None:
    """They are asked for, and their chunk reaches only a client that asked for it itself."""
    path = tmp_path / "runs.db"
    upstream.default = Reply(TEXT, usage=USAGE, write_bytes=cuts)
    server = gateway_server(with_mode("on", path))
    asked = options == {"include_usage": True}
    agent = Agent(http, server.base_url, stream=True, model=MODEL, stream_options=options)
    answer = await agent.turn()
    assert upstream.last.json["stream_options"] == {"include_usage": True}
    chunks = events(answer.content)
    assert [bool(chunk["choices"]) for chunk in chunks].count(False) == asked
    assert answer.message == {"role": "assistant", "content": TEXT}
    call = await recorded(path, answer)
    assert (call.input_tokens, call.output_tokens, call.usage_estimated) == (40, 10, False)
    assert call.cost_usd > 0


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_unsteered_modes_leave_the_request_and_estimate(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    mode: str,
) -> None:
    """No byte is added to a request that is only watched; its tokens are estimated."""
    path = tmp_path / "runs.db"
    upstream.default = Reply(TEXT, usage=USAGE)
    server = gateway_server(with_mode(mode, path))
    agent = Agent(http, server.base_url, stream=True, model=MODEL)
    answer = await agent.turn()
    assert upstream.last.body == agent.sent
    call = await recorded(path, answer)
    assert call.usage_estimated
    assert call.output_tokens == pytest.approx(len(TEXT) / 4, rel=0.1)
    assert call.input_tokens == pytest.approx(len(agent.sent) / 4, rel=0.1)
    assert call.cost_usd > 0


async def test_estimates_are_marked_wherever_they_are_added_up(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A provider that reports nothing: record, totals, health, page and metric say so."""
    path = tmp_path / "runs.db"
    upstream.default = Reply(TEXT, usage=None)
    server = gateway_server(with_mode("on", path))
    answers = [
        await Agent(http, server.base_url, model=MODEL, stream=streamed).turn()
        for streamed in (True, False)
    ]
    health = (await http.get(f"{server.url}/api/health-summary")).json()
    run = await run_of(http, server, answers[0].conversation)
    assert run["steps"][0]["call"]["usage_estimated"]
    assert run["run"]["totals"]["estimated"]["calls"] >= 1
    assert health["unpriced_calls"] == 0
    assert health["estimated"]["calls"] == 2
    assert health["estimated"]["cost_usd"] == pytest.approx(health["cost_usd"])
    assert health["estimated"]["tokens"] == health["input_tokens"] + health["output_tokens"]
    page = (await http.get(f"{server.url}/dashboard/health")).text
    assert "tokens of 2 calls estimated" in page

    async def counted() -> bool:
        text = (await http.get(f"{server.url}/metrics")).text
        return "gateway_estimated_calls_total 2.0" in text

    await until_async(counted)  # when the client has its last byte


@pytest.mark.parametrize("status", [400, 422])
async def test_a_provider_that_refuses_to_report(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    status: int,
) -> None:
    """It is asked again without, once; later calls leave it out, also after a reload of the config,
    and every answer arrives."""
    path = tmp_path / "runs.db"

    def refuses(request: ReceivedRequest) -> Reply:
        if "stream_options" in request.json:
            body = b'{"error": {"message": "Unknown parameter: \'stream_options\'."}}'
            return Reply(raw=body, status=status, content_type="application/json")
        return Reply(TEXT, usage=None)

    upstream.default = refuses
    server = gateway_server(with_mode("on", path))
    answers = [
        await Agent(http, server.base_url, model=MODEL, stream=True).turn() for _ in range(2)
    ]
    replace_settings(
        server, with_mode("on", path) | {"default_upstream": {"api_base": upstream.base_url}}
    )
    answers.append(await Agent(http, server.base_url, model=MODEL, stream=True).turn())
    asked = ["stream_options" in request.json for request in upstream.requests]
    assert asked == [True, False, False, False]
    assert [answer.message for answer in answers] == [{"role": "assistant", "content": TEXT}] * 3
    assert (await recorded(path, answers[0])).usage_estimated


async def test_another_refusal_is_the_clients(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A 400 about something else is relayed with its bytes, after the request as it was written."""
    body = b'{"error": {"message": "max_tokens is too large"}}'
    upstream.default = Reply(raw=body, status=400, content_type="application/json")
    server = gateway_server(with_mode("on", tmp_path / "runs.db"))
    answer = await Agent(http, server.base_url, model=MODEL, stream=True).send()
    assert (answer.status, answer.content) == (400, body)
    assert len(upstream.requests) == 2
    assert b"stream_options" not in upstream.last.body


async def test_usage_of_streams_can_be_left_alone(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """`stream_usage: never` adds nothing, and a chunk that comes unasked stays."""
    chunk = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n\n'
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    pieces = (end, chunk, b"data: [DONE]\n\n")
    upstream.default = Reply(raw=pieces)
    server = gateway_server(with_mode("on", tmp_path / "runs.db", stream_usage="never"))
    agent = Agent(http, server.base_url, model=MODEL, stream=True)
    answer = await agent.send()
    assert "stream_options" not in upstream.last.json
    assert answer.content == b"".join(pieces)


async def test_a_stream_that_breaks_off_has_cost_what_arrived(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Nobody reports its tokens any more: they are estimated from the part that came."""
    path = tmp_path / "runs.db"
    upstream.default = Fault(FaultKind.DROP_MID_BODY, reply=Reply(TEXT, usage=USAGE))
    server = gateway_server(with_mode("on", path))
    agent = Agent(http, server.base_url, model=MODEL, stream=True)
    body = {"messages": agent.messages, **agent.body}
    received = b""
    with contextlib.suppress(httpx.RemoteProtocolError):
        async with http.stream("POST", f"{server.base_url}/chat/completions", json=body) as answer:
            async for chunk in answer.aiter_raw():
                received += chunk
    identity = answer.headers["x-gateway-conversation-id"]
    found = None
    async with asyncio.timeout(ANSWER_S), run_log(path) as log:
        while found is None:  # recorded in a task of its own
            await asyncio.sleep(0.05)
            found = await log.get_run(f"{identity}.0", tenant=None)
    call = found.steps[0].call
    assert call is not None
    assert (call.failed, call.usage_estimated) == (True, True)
    assert call.input_tokens
    assert call.output_tokens == pytest.approx(received.count(b"word") * len("word ") / 4, rel=0.2)


async def test_a_model_in_no_list_costs_what_its_relative_does(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Marked: the cost is estimated, the tokens are not, and the reason names the relative."""
    upstream.default = Reply(TEXT, usage=USAGE)
    server = gateway_server(PLAIN)
    answer = await Agent(http, server.base_url, model="claude-opus-99").turn()
    run = await run_of(http, server, answer.conversation)
    call, totals = run["steps"][0]["call"], run["run"]["totals"]
    assert (call["price_estimated"], call["usage_estimated"]) == (True, False)
    assert "claude-opus-" in " ".join(call["reasons"])
    assert totals["cost_usd"] > 0
    assert totals["unpriced_calls"] == 0
    assert totals["estimated"] == {"calls": 1, "tokens": 0, "cost_usd": totals["cost_usd"]}


async def test_a_model_on_this_machine_costs_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """By the provider of its deployment, or by a name as Ollama's; a listed name has its price."""
    upstream.default = Reply(TEXT, usage=USAGE)
    own = {"model": "hosted_vllm/our-own", "api_base": upstream.base_url}
    config = {**PLAIN, "model_list": [{"model_name": "ours", "litellm_params": own}]}
    server = gateway_server(config)
    for model, usd in (("ours", 0.0), ("qwen99-coder:30b", 0.0), ("gpt-4o", 0.0002)):
        answer = await Agent(http, server.base_url, opening(model), model=model).turn()
        run = (await run_of(http, server, answer.conversation))["run"]
        assert run["totals"]["cost_usd"] == pytest.approx(usd)
        assert not run["totals"]["estimated"]


@pytest.mark.parametrize(
    ("headers", "paid"),
    [
        ({"authorization": "Bearer sk-ant-oat01-x"}, {"paid": "subscription"}),
        ({"authorization": "Bearer sk-ant-api03-x"}, {}),
    ],
)
async def test_a_run_of_a_subscription_says_so(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    headers: dict[str, str],
    paid: dict[str, str],
) -> None:
    """By a tag, so that its dollars can be told from those that somebody pays."""
    upstream.default = Reply(TEXT, usage=USAGE)
    server = gateway_server(PLAIN)
    answer = await Agent(http, server.base_url, model=MODEL, headers=headers).turn()
    run = (await run_of(http, server, answer.conversation))["run"]
    assert run["tags"] == paid
