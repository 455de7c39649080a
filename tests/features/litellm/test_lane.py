"""Chat completions from a provider that speaks Anthropic's wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamFailure
from gateway.features.litellm.lane import LiteLLMLane
from gateway.upstream.native import NativeLane
from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall, Usage
from tests.features.litellm.lane import (
    CLAUDE,
    KEY,
    READ,
    a_body,
    a_target,
    finish_reasons,
    message_of,
    read_events,
    read_json,
)

CALLS = (
    ToolCall("read", {"path": "ä b.py", "lines": [1, 2]}, id="toolu_one"),
    ToolCall("read", {"path": 'quo"te\\'}, id="toolu_two", fragments=9),
    ToolCall("list", {}, id="toolu_three"),
)


async def test_a_completion_has_the_form_of_openai(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Text, model, finish reason and usage stand where OpenAI's API puts them."""
    usage = Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=60, cache_write_tokens=30)
    upstream.script(Reply("Hello", usage=usage, model="claude-sonnet-4-5-20250929"))
    answer = await lane.send(a_target(upstream), a_body(), [])
    body = await read_json(answer)
    assert (answer.status, dict(answer.headers)[b"content-type"]) == (200, b"application/json")
    assert body["object"] == "chat.completion"
    assert body["model"] == "claude-sonnet-4-5-20250929"
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    ]
    assert body["usage"]["prompt_tokens"] == 100
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["total_tokens"] == 107
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 60
    assert body["usage"]["cache_creation_input_tokens"] == 30
    assert answer.usage == body["usage"]


async def test_the_provider_gets_its_own_wire_and_key(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """System message, tools and limits are translated; the deployment's key goes along."""
    body = a_body(tools=[READ], max_completion_tokens=50, stop=["END"], temperature=0.5)
    body["messages"].insert(0, {"role": "system", "content": "Be brief."})
    client = [(b"authorization", b"Bearer client-key"), (b"traceparent", b"00-ab-cd-01")]
    await read_json(await lane.send(a_target(upstream), body, client))
    sent, request = upstream.last.json, upstream.last
    assert request.path == "/v1/messages"
    assert sent["model"] == "claude-sonnet-4-5"
    assert sent["system"] == [{"type": "text", "text": "Be brief."}]
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert sent["tools"][0]["name"] == "read"
    assert sent["tools"][0]["input_schema"] == READ["function"]["parameters"]
    assert (sent["max_tokens"], sent["stop_sequences"], sent["temperature"]) == (50, ["END"], 0.5)
    assert request.header("x-api-key") == KEY
    assert request.header("x-gateway-instance") == "me"
    assert request.header("traceparent") == "00-ab-cd-01"
    assert b"client-key" not in b"".join(value for _, value in request.headers)


@pytest.mark.parametrize("streaming", [False, True])
async def test_parallel_tool_calls_arrive_whole(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """Ids, names and arguments of every call, however they were cut, and the finish reason."""
    upstream.script(Reply("Looking.", tool_calls=CALLS))
    answer = await lane.send(a_target(upstream), a_body(tools=[READ], stream=streaming), [])
    if streaming:
        chunks = await read_events(answer)
        message = message_of(chunks)
        got = [(c["id"], c["name"], json.loads(c["arguments"])) for c in message["tool_calls"]]
        assert finish_reasons(chunks) == ["tool_calls"]
    else:
        choice = (await read_json(answer))["choices"][0]
        message = choice["message"]
        functions = [(c["id"], c["function"]) for c in message["tool_calls"]]
        got = [(id, f["name"], json.loads(f["arguments"])) for id, f in functions]
        assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Looking."
    assert got == [(call.id, call.name, call.value) for call in CALLS]


async def test_a_stream_has_the_form_of_openai(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """One id and model, the role once, the finish reason once and last, then the end marker."""
    upstream.script(Reply("Hello there, world"))
    answer = await lane.send(a_target(upstream), a_body(stream=True), [])
    *chunks, done = await read_events(answer)
    assert dict(answer.headers)[b"content-type"].startswith(b"text/event-stream")
    assert done == "[DONE]"
    assert {(c["object"], c["id"], c["model"], c["created"]) for c in chunks} == {
        ("chat.completion.chunk", chunks[0]["id"], "claude-sonnet-4-5", chunks[0]["created"])
    }
    assert [c["choices"][0]["delta"].get("role") for c in chunks][:1] == ["assistant"]
    assert sum("role" in c["choices"][0]["delta"] for c in chunks) == 1
    assert message_of(chunks)["content"] == "Hello there, world"
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert finish_reasons(chunks) == ["stop"]


@pytest.mark.parametrize("asked", [True, False])
async def test_usage_is_streamed_only_when_asked_for(
    lane: LiteLLMLane, upstream: ScriptedUpstream, asked: bool
) -> None:
    """The gateway learns the usage of every stream; the client sees it with `include_usage`."""
    upstream.script(Reply("Hi", usage=Usage(prompt_tokens=50, cached_tokens=20)))
    body = a_body(stream=True, stream_options={"include_usage": asked})
    answer = await lane.send(a_target(upstream), body, [])
    chunks = (await read_events(answer))[:-1]
    shown = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] == 50
    assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 20
    assert shown == ([answer.usage] if asked else [])
    if asked:
        assert chunks[-1]["choices"] == []


async def test_the_official_client_can_join_every_stream(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Thinking, text and parallel calls add up in OpenAI's own accumulator."""
    upstream.script(Reply("Sure.", reasoning="Let me think", signature="c2ln", tool_calls=CALLS))
    body = a_body(tools=[READ], stream=True, stream_options={"include_usage": True})
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in (await read_events(await lane.send(a_target(upstream), body, [])))[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    whole = state.get_final_completion()
    message = whole.choices[0].message
    assert (message.content, whole.choices[0].finish_reason) == ("Sure.", "tool_calls")
    assert [
        (call.id, call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
        if call.type == "function"
    ] == [(call.id, call.name, call.value) for call in CALLS]
    thinking = message.model_extra["thinking_blocks"] if message.model_extra else []
    assert [(block["thinking"], block["signature"]) for block in thinking] == [
        ("Let me think", "c2ln")
    ]
    assert whole.usage is not None


async def test_the_form_before_tools_is_refused(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """A provider that knows only tools is not asked without the functions of the client."""
    with pytest.raises(UpstreamFailure, match="send tools") as refused:
        await lane.send(a_target(upstream), a_body(functions=[READ["function"]]), [])
    assert (refused.value.status, refused.value.param) == (400, "functions")
    assert not upstream.requests


async def test_arguments_sent_with_the_start_of_a_call_are_not_lost(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Servers that imitate Anthropic may send the whole input at once instead of in deltas."""
    block = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "ä"}}
    turn: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ]
    raw = tuple(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in turn)
    upstream.script(Reply(raw=raw, content_type="text/event-stream"))
    body = a_body(tools=[READ], stream=True)
    chunks = await read_events(await lane.send(a_target(upstream), body, []))
    (call,) = message_of(chunks)["tool_calls"]
    assert json.loads(call["arguments"]) == {"path": "ä"}
    assert finish_reasons(chunks) == ["tool_calls"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_signed_thinking_survives_the_round_trip(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """Reasoning is shown as text, and the echoed signed block reaches the provider as it was."""
    upstream.script(
        Reply("Sure.", reasoning="Let me think", signature="c2ln", tool_calls=CALLS[:1])
    )
    body = a_body(tools=[READ], stream=streaming, reasoning_effort="low", max_tokens=9000)
    answer = await lane.send(a_target(upstream), body, [])
    if streaming:
        message = message_of(await read_events(answer))
        call = message["tool_calls"][0]
        function = {"name": call["name"], "arguments": call["arguments"]}
        message["tool_calls"] = [{"id": call["id"], "type": "function", "function": function}]
    else:
        message = (await read_json(answer))["choices"][0]["message"]
    assert message["reasoning_content"] == "Let me think"
    assert upstream.last.json["thinking"]["type"] == "enabled"

    result = {"role": "tool", "tool_call_id": "toolu_one", "content": "text of the file"}
    followed = {**body, "messages": [*body["messages"], {**message, "role": "assistant"}, result]}
    await (await lane.send(a_target(upstream), followed, [])).aclose()
    assistant = upstream.last.json["messages"][1]["content"]
    assert assistant[0] == {"type": "thinking", "thinking": "Let me think", "signature": "c2ln"}
    assert [block["type"] for block in assistant] == ["thinking", "text", "tool_use"]
    assert upstream.last.json["thinking"]["type"] == "enabled"


async def test_thinking_is_left_out_when_the_client_did_not_echo_it(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Anthropic refuses to think on after a call without its thinking; the client is told."""
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    body = a_body(tools=[READ], reasoning_effort="low")
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "text"},
    ]
    answer = await lane.send(a_target(upstream), body, [])
    await answer.aclose()
    assert "thinking" not in upstream.last.json
    assert dict(answer.headers)[b"x-gateway-dropped-params"] == b"reasoning_effort"


async def test_images_and_documents_of_the_conversation_go_through(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Image parts, inline and by URL, become Anthropic's image blocks."""
    pixel = "iVBORw0KGgo="
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
    ]
    body = {"model": "smart", "messages": [{"role": "user", "content": parts}]}
    await read_json(await lane.send(a_target(upstream), body, []))
    blocks = upstream.last.json["messages"][0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "image"]
    assert blocks[1]["source"]["data"] == pixel
    assert blocks[2]["source"] == {"type": "url", "url": "https://example.com/cat.png"}


async def test_the_history_of_an_agent_is_translated_without_loss(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Null content, odd ids, results as parts, broken arguments, extra keys: all arrive."""
    calls = [
        {"id": "call:1", "type": "function", "function": {"name": "read", "arguments": "{bad"}},
        {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": ""}},
    ]
    body = a_body(tools=[READ])
    body["messages"] += [
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call:1", "content": [{"type": "text", "text": "one"}]},
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "Done", "annotations": [], "audio": None},
        {"role": "user", "content": "and now?", "name": "me"},
    ]
    before = json.dumps(body)
    await read_json(await lane.send(a_target(upstream), body, []))
    assert json.dumps(body) == before
    roles = [message["role"] for message in upstream.last.json["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    _, asked, results, said, _ = [m["content"] for m in upstream.last.json["messages"]]
    assert [block["input"] for block in asked] == [{"arguments": "{bad"}, {}]
    assert [block["tool_use_id"] for block in results] == [block["id"] for block in asked]
    assert said == [{"type": "text", "text": "Done"}]


async def test_structured_output_comes_back_as_content(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """A JSON schema reaches the provider, and the answer is plain content."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    upstream.script(Reply('{"n": 1}'))
    answer = await read_json(
        await lane.send(a_target(upstream), a_body(response_format=wanted), [])
    )
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"n": 1}
    assert '"n"' in json.dumps(upstream.last.json)


async def test_structured_output_through_a_tool_is_no_tool_call(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Where the schema is sent as a tool, the client still sees content and `stop`."""
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    target = a_target(upstream, "anthropic/claude-3-haiku-20240307")
    body = a_body(response_format=wanted)
    made = Reply(tool_calls=(ToolCall("json_tool_call", {"n": 1}),))
    upstream.script(made, made)
    choice = (await read_json(await lane.send(target, body, [])))["choices"][0]
    assert json.loads(choice["message"]["content"]) == {"n": 1}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    chunks = await read_events(await lane.send(target, {**body, "stream": True}, []))
    assert json.loads(message_of(chunks)["content"]) == {"n": 1}
    assert finish_reasons(chunks) == ["stop"]


async def test_unknown_and_unsupported_fields_do_not_stop_a_request(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """What the provider cannot take is left out and named; what it knows of its own is kept."""
    body = a_body(seed=1, logit_bias={"1": 2}, n=1, session_id="s", top_k=5, store=False)
    answer = await lane.send(a_target(upstream), body, [])
    await answer.aclose()
    assert upstream.last.json["top_k"] == 5
    assert not {"seed", "logit_bias", "session_id", "n", "store"} & set(upstream.last.json)
    named = dict(answer.headers)[b"x-gateway-dropped-params"].split(b",")
    assert set(named) == {b"seed", b"logit_bias", b"session_id"}


async def test_a_client_cannot_steer_the_adapter(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """LiteLLM's own controls in a body have no effect: no other host, no mock, no other key."""
    evil = {
        "api_base": "http://127.0.0.1:1",
        "base_url": "http://127.0.0.1:1",
        "api_key": "stolen",
        "mock_response": "mocked",
        "custom_llm_provider": "openai",
        "fallbacks": ["gpt-4"],
        "callbacks": ["langfuse"],
        "extra_headers": {"x-api-key": "stolen"},
        "model_list": [],
        "aws_role_name": "x",
        "proxy_server_request": {},
    }
    body = await read_json(await lane.send(a_target(upstream), a_body("really", **evil), []))
    assert body["choices"][0]["message"]["content"] == "You said: really"
    assert len(upstream.requests) == 1
    assert upstream.last.header("x-api-key") == KEY


async def test_the_deployment_gives_defaults_that_the_client_overrides(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Parameters in `litellm_params` apply when the request does not say otherwise."""
    target = a_target(upstream, max_tokens=11, temperature=0.1, extra_headers={"x-team": "a"})
    await read_json(await lane.send(target, a_body(temperature=0.9), []))
    assert (upstream.last.json["max_tokens"], upstream.last.json["temperature"]) == (11, 0.9)
    assert upstream.last.header("x-team") == "a"


async def test_a_colon_names_the_provider_too(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """`anthropic:model` means `anthropic/model`."""
    target = a_target(upstream, "anthropic:claude-sonnet-4-5")
    await read_json(await lane.send(target, a_body(), []))
    assert upstream.last.json["model"] == "claude-sonnet-4-5"


async def test_tools_that_ran_at_the_provider_are_no_calls_of_the_client(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """A server-side search inside the turn is not offered to the agent for execution."""
    blocks: list[dict[str, Any]] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Found."},
    ]
    upstream.script(Reply("", message_extra={"content": blocks}))
    body = await read_json(await lane.send(a_target(upstream), a_body(), []))
    assert body["choices"][0]["message"]["content"] == "Found."
    assert "tool_calls" not in body["choices"][0]["message"]
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_calls_run_side_by_side_without_mixing(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Thirty concurrent calls, streamed and not, each get their own answer."""

    async def one(number: int) -> str:
        body = a_body(f"question {number}", stream=number % 2 == 0)
        answer = await lane.send(a_target(upstream), body, [])
        if number % 2 == 0:
            return str(message_of(await read_events(answer))["content"])
        return str((await read_json(answer))["choices"][0]["message"]["content"])

    got = await asyncio.gather(*(one(number) for number in range(30)))
    assert got == [f"You said: question {number}" for number in range(30)]


async def test_two_lanes_in_one_process_keep_their_connections_apart(
    upstream: ScriptedUpstream,
) -> None:
    """LiteLLM is shared, the pools are not: closing one gateway leaves the other alone."""
    timeouts = TimeoutSettings()
    pools = [NativeLane(timeouts, max_connections=10) for _ in range(2)]
    lanes = [LiteLLMLane(pool, timeouts) for pool in pools]
    for lane in lanes:
        await read_json(await lane.send(a_target(upstream, CLAUDE), a_body(), []))
    await pools[0].aclose()
    assert (await lanes[1].send(a_target(upstream), a_body(), [])).status == 200
    await pools[1].aclose()
