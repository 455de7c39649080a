"""Responses and Messages to upstreams that speak another wire, translated by LiteLLM."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.looping import GUIDANCE, STEERING, Start, looping_model, states
from steering_gateway_testing.official import anthropic, openai
from tests.dialects.test_anthropic import tool_loop
from tests.dialects.test_faults import ask, body_of, collect, events
from tests.dialects.test_openai_responses import run_resending

pytestmark = [
    pytest.mark.slow,
    # LiteLLM's own use of pydantic; turned into an error it would break its streams off.
    pytest.mark.filterwarnings("ignore:Accessing the 'model_"),
]
REPLY = Reply("One two three.", tool_calls=(ToolCall("bash", {"command": "ls"}),))
ENDS = {"responses": "response.completed", "messages": "message_stop"}


def deployment(upstream: ScriptedUpstream, kind: str) -> dict[str, Any]:
    """One named upstream: `anthropic`, `openai` (chat and Responses) or `chat`."""
    if kind == "anthropic":
        params = {"model": "anthropic/claude-x", "api_base": upstream.url, "api_key": "sk-ant"}
        return {"model_name": "m", "litellm_params": params}
    params = {"model": "openai/gpt-5", "api_base": upstream.base_url, "api_key": "sk-own"}
    made: dict[str, Any] = {"model_name": "m", "litellm_params": params}
    return made if kind == "openai" else {**made, "dialects": ["chat"]}


def a_gateway(start: Start, upstream: ScriptedUpstream, kind: str, **more: Any) -> AppServer:
    settings = {**STEERING, "router": {"num_retries": 0}, **more}
    return start({**settings, "model_list": [deployment(upstream, kind)]})


@pytest.mark.parametrize(
    ("kind", "path"), [("openai", "/v1/responses"), ("chat", "/v1/chat/completions")]
)
def test_messages_to_openai(
    gateway_server: Start, upstream: ScriptedUpstream, kind: str, path: str
) -> None:
    """A tool loop of the Anthropic client against OpenAI's wire: complete, followed, guided."""
    upstream.default = looping_model(5)
    server = a_gateway(gateway_server, upstream, kind)
    client = anthropic.Anthropic(api_key="theirs", base_url=server.url, max_retries=0)
    answers = tool_loop(client, 5, model="m", system="You repair programs.")
    assert answers[-1].content[-1].text == "The suite passes now."
    assert answers[0].stop_reason == "tool_use"
    assert {request.path for request in upstream.requests} == {path}
    assert {request.header("authorization") for request in upstream.requests} == {"Bearer sk-own"}
    assert {request.model for request in upstream.requests} == {"gpt-5"}
    assert [row[0] for row in states(server)] == list(range(6))
    assert upstream.last.body.decode().count(GUIDANCE) >= 2
    assert b"theirs" not in upstream.last.body


@pytest.mark.parametrize(
    ("kind", "path"), [("anthropic", "/v1/messages"), ("chat", "/v1/chat/completions")]
)
def test_responses_to_others(
    gateway_server: Start, upstream: ScriptedUpstream, kind: str, path: str
) -> None:
    """A tool loop of the OpenAI client on Responses against Anthropic and chat-only upstreams."""
    upstream.default = looping_model(5)
    server = a_gateway(gateway_server, upstream, kind)
    client = openai.OpenAI(api_key="theirs", base_url=server.base_url, max_retries=0)
    original = client.responses.create

    def create(**sent: Any) -> Any:
        return original(**{**sent, "model": "m"})

    client.responses.create = create  # type: ignore[method-assign]
    answers = run_resending(client, 5, store=False, instructions="You repair programs.")
    assert answers[-1].output_text == "The suite passes now."
    assert {request.path for request in upstream.requests} == {path}
    assert [row[0] for row in states(server)] == list(range(6))
    assert upstream.last.body.decode().count(GUIDANCE) >= 2


CASES = [
    ("messages", "openai"),
    ("messages", "chat"),
    ("responses", "anthropic"),
    ("responses", "chat"),
]


@pytest.mark.parametrize(("dialect", "kind"), CASES)
def test_streams_end_in_good_order(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, kind: str
) -> None:
    """The stream has the client's own events, its end, and its usage is counted."""
    upstream.default = REPLY
    server = a_gateway(gateway_server, upstream, kind)
    text, whole = collect(server, dialect)
    assert whole
    found = events(text)
    assert found[-1]["type"] == ENDS[dialect]
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]
    assert (run["totals"]["input_tokens"], run["totals"]["output_tokens"]) == (12, 8)
    numbers = [event["sequence_number"] for event in found if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(("dialect", "kind"), CASES)
@pytest.mark.parametrize(
    "fault", [FaultKind.DROP_MID_BODY, FaultKind.CLEAN_CUT, FaultKind.STALL, FaultKind.ERROR_EVENT]
)
def test_a_cut_stream_is_visible(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, kind: str, fault: FaultKind
) -> None:
    """A provider's stream that breaks off never looks complete to the client."""
    upstream.default = Fault(fault, reply=REPLY, after=4)
    limits = {"idle_s": 1} if fault is FaultKind.STALL else {}
    server = a_gateway(gateway_server, upstream, kind, timeouts=limits)
    text, whole = collect(server, dialect)
    assert not whole or '"error"' in text
    assert ENDS[dialect] not in [event.get("type") for event in events(text)]


@pytest.mark.parametrize(("dialect", "kind"), CASES)
@pytest.mark.parametrize("fault", [FaultKind.RATE_LIMIT, FaultKind.UNAUTHORIZED])
def test_errors_keep_their_status(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, kind: str, fault: FaultKind
) -> None:
    """The provider's status and message come in the client's own form."""
    upstream.default = Fault(fault, reply=REPLY)
    server = a_gateway(gateway_server, upstream, kind)
    answer = ask(server, dialect)
    assert answer.status_code == {"rate-limit": 429, "unauthorized": 401}[fault.value]
    told = answer.json()
    assert told["error"]["message"]
    assert (told.get("type") == "error") == (dialect == "messages")
    assert "sk-" not in answer.text


def test_a_history_nobody_keeps_is_refused(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """`previous_response_id` means nothing to a translated upstream: the client is told."""
    server = a_gateway(gateway_server, upstream, "anthropic")
    body = {"model": "m", "input": "go on", "previous_response_id": "resp_1"}
    answer = httpx.post(f"{server.base_url}/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "previous_response_id"
    assert not upstream.requests


@pytest.mark.parametrize(("dialect", "kind"), CASES)
async def test_a_client_that_leaves_cancels_the_provider(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, kind: str
) -> None:
    """The provider's connection is closed at once."""
    upstream.default = Fault(FaultKind.STALL, reply=REPLY, after=3)
    server = await asyncio.to_thread(a_gateway, gateway_server, upstream, kind)
    async with httpx.AsyncClient(timeout=120) as client:
        body = body_of(dialect, stream=True)
        call = asyncio.ensure_future(client.post(f"{server.base_url}/{dialect}", json=body))
        await asyncio.to_thread(upstream.wait_for_requests)
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(upstream.requests[0].wait_disconnected)
