"""Providers with other wires than Anthropic's: Gemini, Bedrock, Azure and OpenAI-like ones."""

from __future__ import annotations

import binascii
import json
import struct
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.errors import UpstreamFailure
from gateway.features.litellm.lane import LiteLLMLane
from gateway.upstream.deployments import Target
from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall, Usage
from tests.features.litellm.lane import (
    READ,
    a_body,
    a_target,
    finish_reasons,
    message_of,
    read_events,
    read_json,
)

Params = dict[str, Any]


async def failure_of(lane: LiteLLMLane, target: Target, **fields: Any) -> UpstreamFailure:
    """The failure a call ends with."""

    async def all_of_it() -> None:
        answer = await lane.send(target, a_body(tools=[READ], **fields), [])
        await (read_events(answer) if fields.get("stream") else read_json(answer))

    with pytest.raises(UpstreamFailure) as caught:
        await all_of_it()
    return caught.value


# Gemini: generateContent and its SSE form.

GEMINI = "gemini/gemini-2.5-pro"


def gemini(*parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One `GenerateContentResponse`; every one of a stream carries the usage so far."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 9, "totalTokenCount": 115}
    return {
        "candidates": [candidate],
        "usageMetadata": {**usage, "cachedContentTokenCount": 40, "thoughtsTokenCount": 6},
        "modelVersion": "gemini-2.5-pro-002",
        "responseId": "r1",
    }


def gemini_stream(*responses: dict[str, Any]) -> Reply:
    raw = tuple(f"data: {json.dumps(response)}\r\n\r\n".encode() for response in responses)
    return Reply(raw=raw, content_type="text/event-stream")


GEMINI_CALLS = (
    {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2ln"},
    {"functionCall": {"name": "read", "args": {"path": "b"}}},
    {"functionCall": {"name": "now", "args": {}}},
)


@pytest.mark.parametrize("streaming", [False, True])
async def test_gemini_calls_tools_in_parallel(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """Calls of one turn keep names and arguments, get ids of their own, and the right finish."""
    thought = {"text": "I think", "thought": True}
    parts = (gemini(thought), gemini({"text": "So: "}), gemini(*GEMINI_CALLS))
    if streaming:
        upstream.script(gemini_stream(*parts, gemini({"text": ""}, finish="STOP")))
    else:
        whole = gemini(thought, {"text": "So: "}, *GEMINI_CALLS, finish="STOP")
        upstream.script(Reply(raw=json.dumps(whole).encode()))
    body = a_body(tools=[READ], stream=streaming)
    answer = await lane.send(a_target(upstream, GEMINI), body, [])
    if streaming:
        chunks = await read_events(answer)
        message = message_of(chunks)
        calls = message["tool_calls"]
        assert finish_reasons(chunks) == ["tool_calls"]
    else:
        choice = (await read_json(answer))["choices"][0]
        message = choice["message"]
        calls = [{"id": call["id"], **call["function"]} for call in message["tool_calls"]]
        assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "So: "
    assert message["reasoning_content"] == "I think"
    got = [(call["name"], json.loads(call["arguments"])) for call in calls]
    assert got == [("read", {"path": "a"}), ("read", {"path": "b"}), ("now", {})]
    assert len({call["id"] for call in calls}) == 3
    assert answer.usage is not None
    assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 40
    assert answer.usage["completion_tokens"] == 15
    assert "gemini-2.5-pro:" in upstream.last.path


async def test_geminis_signature_survives_the_echo(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """What an OpenAI client echoes of a call is enough to give Gemini its signature back."""
    first = gemini(GEMINI_CALLS[0], finish="STOP")
    upstream.script(Reply(raw=json.dumps(first).encode()))
    body = a_body(tools=[READ])
    answer = await read_json(await lane.send(a_target(upstream, GEMINI), body, []))
    call = answer["choices"][0]["message"]["tool_calls"][0]
    echoed = {key: call[key] for key in ("id", "type", "function")}
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [echoed]},
        {"role": "tool", "tool_call_id": call["id"], "content": "text"},
    ]
    upstream.script(Reply(raw=json.dumps(gemini({"text": "ok"}, finish="STOP")).encode()))
    await read_json(await lane.send(a_target(upstream, GEMINI), body, []))
    (part,) = upstream.last.json["contents"][1]["parts"]
    assert part["function_call"] == {"name": "read", "args": {"path": "a"}}
    assert part["thoughtSignature"] == "c2ln"


async def test_a_call_of_gemini_is_understood_by_anthropic(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """A conversation may change its provider: ids are put into a form the next one accepts."""
    id = "call_1__thought__c2ln"
    call = {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}
    body = a_body(tools=[READ])
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": "text"},
    ]
    await read_json(await lane.send(a_target(upstream), body, []))
    _, asked, result = upstream.last.json["messages"]
    assert asked["content"][0]["id"] == result["content"][0]["tool_use_id"] == "call_1"


async def test_a_cut_gemini_stream_is_never_completed(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """LiteLLM reports `stop` on every chunk of Gemini; only the provider's own word counts."""
    upstream.script(gemini_stream(gemini({"text": "one "}), gemini({"text": "two"})))
    failed = await failure_of(lane, a_target(upstream, GEMINI), stream=True)
    assert failed.status == 502
    assert failed.label == "malformed"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("STOP", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter")],
)
async def test_geminis_finish_reasons_are_translated(
    lane: LiteLLMLane, upstream: ScriptedUpstream, reason: str, expected: str
) -> None:
    """Limits and filters are told apart from a normal end."""
    upstream.script(gemini_stream(gemini({"text": "one"}), gemini({"text": ""}, finish=reason)))
    answer = await lane.send(a_target(upstream, GEMINI), a_body(stream=True), [])
    assert finish_reasons(await read_events(answer)) == [expected]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("status", "state", "message", "expected", "code"),
    [
        (429, "RESOURCE_EXHAUSTED", "Quota exceeded", 429, "rate_limit_exceeded"),
        (400, "INVALID_ARGUMENT", "API key not valid.", 401, "invalid_api_key"),
        (
            400,
            "INVALID_ARGUMENT",
            "The input token count (9) exceeds the maximum number of tokens allowed (8).",
            400,
            "context_length_exceeded",
        ),
        (404, "NOT_FOUND", "models/x is not found", 404, "model_not_found"),
        (503, "UNAVAILABLE", "The model is overloaded.", 503, "service_unavailable"),
    ],
)
async def test_geminis_errors_keep_their_meaning(
    lane: LiteLLMLane,
    upstream: ScriptedUpstream,
    streaming: bool,
    status: int,
    state: str,
    message: str,
    expected: int,
    code: str,
) -> None:
    """Google's error object becomes OpenAI's; the wait stands in its details."""
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
    error: Any = {"code": status, "message": message, "status": state, "details": [retry]}
    error = [{"error": error}] if streaming else {"error": error}
    upstream.script(Reply(status=status, raw=json.dumps(error).encode()))
    failed = await failure_of(lane, a_target(upstream, GEMINI), stream=streaming)
    assert (failed.status, failed.code, failed.message) == (expected, code, message)
    assert failed.retry_after_s == 34
    assert ("retry-after", "34") in failed.headers


# Bedrock: Converse and its binary event stream.

BEDROCK = "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
BEDROCK_USAGE = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 19, "cacheReadInputTokens": 4}


def bedrock_target(upstream: ScriptedUpstream) -> Target:
    return a_target(
        upstream,
        BEDROCK,
        api_key=None,
        api_base=None,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="not-a-real-secret",
        aws_region_name="us-east-1",
        aws_bedrock_runtime_endpoint=upstream.url,
    )


def frame(kind: str, payload: dict[str, Any], message_type: str = "event") -> bytes:
    """One message of the AWS event stream: prelude, headers, payload, two checksums."""
    names = {":message-type": message_type, ":content-type": "application/json"}
    names[":event-type" if message_type == "event" else ":exception-type"] = kind
    headers = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + body
    return message + struct.pack(">I", binascii.crc32(message))


def bedrock_stream(frames: Sequence[bytes]) -> Reply:
    return Reply(raw=tuple(frames), content_type="application/vnd.amazon.eventstream")


def bedrock_frames() -> list[bytes]:
    """A turn of text and two calls, the second without arguments."""

    def start(index: int, id: str, name: str) -> bytes:
        tool = {"toolUse": {"toolUseId": id, "name": name}}
        return frame("contentBlockStart", {"contentBlockIndex": index, "start": tool})

    def delta(index: int, delta: dict[str, Any]) -> bytes:
        return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})

    def stop(index: int) -> bytes:
        return frame("contentBlockStop", {"contentBlockIndex": index})

    return [
        frame("messageStart", {"role": "assistant"}),
        delta(0, {"text": "Hi "}),
        delta(0, {"text": "you"}),
        stop(0),
        start(1, "tooluse_1", "read"),
        delta(1, {"toolUse": {"input": '{"pa'}}),
        delta(1, {"toolUse": {"input": 'th":"a"}'}}),
        stop(1),
        start(2, "tooluse_2", "now"),
        stop(2),
        frame("messageStop", {"stopReason": "tool_use"}),
        frame("metadata", {"usage": BEDROCK_USAGE, "metrics": {"latencyMs": 1}}),
    ]


async def test_bedrock_answers_over_converse(lane: LiteLLMLane, upstream: ScriptedUpstream) -> None:
    """A signed Converse call; tool use and cached tokens come back in OpenAI's form."""
    content = [
        {"text": "Hi"},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "read", "input": {"path": "a"}}},
    ]
    answered = {"output": {"message": {"role": "assistant", "content": content}}}
    metrics = {"stopReason": "tool_use", "usage": BEDROCK_USAGE, "metrics": {"latencyMs": 1}}
    upstream.script(Reply(raw=json.dumps({**answered, **metrics}).encode()))
    answer = await lane.send(bedrock_target(upstream), a_body(tools=[READ]), [])
    choice = (await read_json(answer))["choices"][0]
    function = {"name": "read", "arguments": '{"path": "a"}'}
    assert choice["message"]["tool_calls"] == [
        {"id": "tooluse_1", "type": "function", "function": function}
    ]
    assert choice["finish_reason"] == "tool_calls"
    assert answer.usage is not None
    assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert upstream.last.path.endswith("/converse")
    assert (upstream.last.header("authorization") or "").startswith("AWS4-HMAC-SHA256 ")


async def test_bedrock_streams_tool_calls(lane: LiteLLMLane, upstream: ScriptedUpstream) -> None:
    """The binary event stream becomes chunks; arguments whole, none as an empty object."""
    upstream.script(bedrock_stream(bedrock_frames()))
    answer = await lane.send(bedrock_target(upstream), a_body(tools=[READ], stream=True), [])
    chunks = await read_events(answer)
    message = message_of(chunks)
    assert message["content"] == "Hi you"
    assert message["tool_calls"] == [
        {"id": "tooluse_1", "name": "read", "arguments": '{"path":"a"}'},
        {"id": "tooluse_2", "name": "now", "arguments": "{}"},
    ]
    assert finish_reasons(chunks) == ["tool_calls"]
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 5


@pytest.mark.parametrize("sent", [2, 6, 10])
async def test_a_cut_bedrock_stream_is_never_completed(
    lane: LiteLLMLane, upstream: ScriptedUpstream, sent: int
) -> None:
    """Without `messageStop` the turn has not ended, wherever the stream stops."""
    upstream.script(bedrock_stream(bedrock_frames()[:sent]))
    failed = await failure_of(lane, bedrock_target(upstream), stream=True)
    assert failed.status == 502


async def test_bedrocks_throttling_is_a_429(lane: LiteLLMLane, upstream: ScriptedUpstream) -> None:
    """The error type stands in a header, the message alone in the body."""
    type = {"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/"}
    body = b'{"message":"Too many requests"}'
    upstream.script(Reply(status=429, raw=body, headers=type))
    failed = await failure_of(lane, bedrock_target(upstream), stream=True)
    assert (failed.status, failed.code) == (429, "rate_limit_exceeded")
    assert failed.message == "Too many requests"


async def test_an_exception_in_a_bedrock_stream_is_passed_on(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """An exception frame after the first text ends the stream with its status and words."""
    broken = frame("throttlingException", {"message": "Slow down"}, message_type="exception")
    upstream.script(bedrock_stream([*bedrock_frames()[:3], broken]))
    failed = await failure_of(lane, bedrock_target(upstream), stream=True)
    assert 400 <= failed.status <= 599
    assert "Slow down" in failed.message


# Providers that speak OpenAI's wire, reached through LiteLLM on request.

OPENAI_LIKE = [
    ("openai/gpt-4o", {}),
    ("azure/gpt-4o", {"api_version": "2024-10-21"}),
    ("groq/llama-3.3-70b-versatile", {}),
    ("mistral/mistral-large-latest", {}),
    ("deepseek/deepseek-chat", {}),
]


def like_target(upstream: ScriptedUpstream, model: str, params: Params) -> Target:
    base = upstream.url if model.startswith("azure/") else upstream.base_url
    return a_target(upstream, model, api_base=base, **params)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("model", "params"), OPENAI_LIKE)
async def test_openai_like_providers_work_through_the_lane(
    lane: LiteLLMLane, upstream: ScriptedUpstream, model: str, params: Params, streaming: bool
) -> None:
    """Text, parallel calls and usage, with the SDK or with LiteLLM's own client underneath."""
    calls = (ToolCall("read", {"path": "x"}, id="c1"), ToolCall("now", {}, id="c2"))
    usage = Usage(prompt_tokens=50, cached_tokens=20)
    upstream.script(Reply("Hi there", tool_calls=calls, usage=usage, interleave=True))
    body = a_body(tools=[READ], stream=streaming, stream_options={"include_usage": True})
    answer = await lane.send(like_target(upstream, model, params), body, [])
    if streaming:
        chunks = await read_events(answer)
        message, reasons = message_of(chunks), finish_reasons(chunks)
        got = message["tool_calls"]
    else:
        choice = (await read_json(answer))["choices"][0]
        message, reasons = choice["message"], [choice["finish_reason"]]
        got = [{"id": c["id"], **c["function"]} for c in message["tool_calls"]]
        assert answer.usage is not None
        assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 20
    assert message["content"] == "Hi there"
    assert [(c["id"], c["name"], json.loads(c["arguments"])) for c in got] == [
        (call.id, call.name, call.value) for call in calls
    ]
    assert reasons == ["tool_calls"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("model", "params"), OPENAI_LIKE[:2])
async def test_several_choices_all_arrive(
    lane: LiteLLMLane, upstream: ScriptedUpstream, model: str, params: Params, streaming: bool
) -> None:
    """`n` choices keep their indexes and finish reasons; LiteLLM's stream wrapper keeps one."""
    upstream.script(Reply("first", alternatives=(Reply("second", finish_reason="length"),)))
    body = a_body(n=2, stream=streaming)
    answer = await lane.send(like_target(upstream, model, params), body, [])
    if streaming:
        chunks = await read_events(answer)
        texts = [message_of(chunks, choice)["content"] for choice in (0, 1)]
        reasons = finish_reasons(chunks)
    else:
        choices = (await read_json(answer))["choices"]
        texts = [choice["message"]["content"] for choice in choices]
        reasons = [choice["finish_reason"] for choice in choices]
    assert (texts, reasons) == (["first", "second"], ["stop", "length"])


async def test_unknown_fields_reach_an_openai_like_provider(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """They go into the body as they are, and nothing is reported as left out."""
    target = like_target(upstream, "openai/gpt-4o", {"extra_body": {"ours": 1}})
    body = a_body(my_field={"deep": [1, None]}, api_base="http://127.0.0.1:1")
    answer = await lane.send(target, body, [])
    await answer.aclose()
    assert upstream.last.json["my_field"] == {"deep": [1, None]}
    assert upstream.last.json["ours"] == 1
    assert b"x-gateway-dropped-params" not in dict(answer.headers)


@pytest.mark.parametrize("model", ["openai/gpt-4o", "groq/llama-3.3-70b-versatile"])
async def test_a_cut_openai_like_stream_is_never_completed(
    lane: LiteLLMLane, upstream: ScriptedUpstream, model: str
) -> None:
    """Also where the wire's end marker is swallowed below, a missing finish reason is an error."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {"index": 0, "delta": {"role": "assistant", "content": "one"}, "finish_reason": None}
    raw = f"data: {json.dumps({**chunk, 'choices': [delta]})}\n\n".encode()
    upstream.script(Reply(raw=(raw,), content_type="text/event-stream"))
    failed = await failure_of(lane, like_target(upstream, model, {}), stream=True)
    assert failed.status == 502


# Vertex AI: the one of LiteLLM's large providers whose package it does not bring along.


async def test_a_package_that_is_missing(
    lane: LiteLLMLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has to install it: no fault of the request, and not to be retried."""
    monkeypatch.setitem(sys.modules, "google.auth", None)
    params = {"vertex_project": "p", "vertex_location": "l"}
    target = a_target("http://127.0.0.1:9", "vertex_ai/gemini-2.5-pro", **params)
    failed = await failure_of(lane, target)
    assert failed.status == 500
    assert not failed.retryable
    assert "a package that is not installed" in str(failed)
    assert "google" in str(failed)


# Keys that LiteLLM finds in the environment by itself.


@pytest.mark.parametrize("model", ["moonshot/kimi-k2", "deepinfra/x", "zai/glm-4.6", "github/x"])
async def test_openais_key_goes_to_no_other_provider(
    lane: LiteLLMLane, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """A provider without a key of its own is not asked; its own variable makes it work."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    params = {"model": model, "api_base": upstream.base_url}
    target = replace(a_target(upstream, model), params=params)
    with pytest.raises(UpstreamFailure, match="no key for provider") as caught:
        await lane.send(target, a_body(), [])
    assert (caught.value.status, caught.value.retryable) == (401, False)
    assert not upstream.requests
    monkeypatch.setenv(f"{model.partition('/')[0].upper()}_API_KEY", "its-own-key")
    answer = await lane.send(target, a_body(), [])
    await answer.aclose()
    assert upstream.last.header("authorization") == "Bearer its-own-key"
