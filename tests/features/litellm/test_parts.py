"""The pure parts of the LiteLLM lane: requests, histories, chunks, error messages."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.litellm import errors, request
from gateway.features.litellm.chunks import ChunkStream, as_chunk, completion, from_generic
from gateway.features.litellm.transport import ProviderCall, Received
from tests.examples import examples
from tests.features.litellm.lane import finish_reasons, message_of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=10,
)
field_names = st.sampled_from(
    ["temperature", "tools", "api_base", "api_key", "mock_response", "my_field", "seed", "stream"]
) | st.text(max_size=8)


def prepare(body: dict[str, Any], **fields: Any) -> request.LiteLLMRequest:
    settings: dict[str, Any] = {"provider": "anthropic", "supported": None, "speaks_openai": False}
    params = fields.pop("params", {"api_key": "k"})
    return request.prepare(body, params, **{**settings, **fields})


@examples(50)
@given(st.dictionaries(field_names, json_values, max_size=6), st.booleans())
def test_a_body_never_reaches_the_adapters_controls(
    body: dict[str, Any], speaks_openai: bool
) -> None:
    """Only OpenAI's parameters and known native ones become arguments, whatever a client sends."""
    before = copy.deepcopy(body)
    kwargs = prepare(body, speaks_openai=speaks_openai).kwargs
    native = {"cache_control", "container", "context_management", "mcp_servers", "output_config"}
    allowed = request.OPENAI_PARAMS | native | {"speed", "top_k", "messages", "extra_body"}
    assert set(kwargs) - {"api_key"} <= allowed
    assert kwargs["api_key"] == "k"
    assert body == before


@examples(50)
@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_no_field_is_lost_unreported(body: dict[str, Any]) -> None:
    """Every field that is not null is passed on, carried in the body, or named as left out."""
    left = {"model", "messages", "stream", "stream_options"}
    wanted = {key for key, value in body.items() if value is not None} - left
    strict = prepare(body, supported=frozenset({"temperature"}))
    assert wanted <= set(strict.kwargs) | set(strict.dropped)
    open_ = prepare(body, speaks_openai=True)
    assert wanted <= set(open_.kwargs) | set(open_.kwargs["extra_body"])
    assert open_.dropped == ()


def test_router_settings_of_a_deployment_stay_behind() -> None:
    """What `litellm_params` says to a router is not an argument of the call."""
    params = {"model": "a/b", "rpm": 5, "weight": 2, "timeout": 3, "num_retries": 9, "api_key": "k"}
    assert set(prepare({}, params=params).kwargs) == {"api_key", "messages"}


@examples(50)
@given(json_values)
def test_copies_are_equal_and_separate(value: Any) -> None:
    """A copy by way of JSON equals the original, integers above 64 bits included."""
    holder = {"value": value, "big": 2**80}
    assert request.copied(holder) == holder
    assert request.copied(holder) is not holder


@examples(50)
@given(st.lists(json_values | st.dictionaries(st.text(max_size=8), json_values), max_size=4))
def test_no_history_is_too_odd(history: list[Any]) -> None:
    """Messages of any shape are put right or left alone, never an exception."""
    request.translatable(request.copied(history), keep_signatures=False)
    request.without_empty_turns(history)
    request.lacks_thinking(history)


def test_thinking_is_missed_only_in_the_turn_that_goes_on() -> None:
    """An old turn without thinking does not matter; the one whose results come now does."""
    call = {"role": "assistant", "tool_calls": [{"id": "a"}]}
    result, user = {"role": "tool", "tool_call_id": "a"}, {"role": "user", "content": "x"}
    signed = {**call, "thinking_blocks": [{"type": "thinking"}]}
    assert request.lacks_thinking([user, call, result])
    assert not request.lacks_thinking([user, signed, result])
    assert not request.lacks_thinking([user, call, result, user])
    assert not request.lacks_thinking([])


def a_stream() -> ChunkStream:
    return ChunkStream(id="chatcmpl-x", created=7, model="fallback")


def a_chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_head_fields_stay_the_same_for_a_whole_stream() -> None:
    """Adapters that make a new id for each chunk would split the message at a client."""
    stream = a_stream()
    out = stream.push({**a_chunk(content="a"), "id": "one", "model": "m"})
    out += stream.push({**a_chunk(content="b"), "id": "two", "model": "n"})
    assert {(chunk["id"], chunk["model"], chunk["created"]) for chunk in out} == {("one", "m", 7)}


def test_a_finish_reason_in_the_middle_is_held_to_the_end() -> None:
    """Some adapters report one with every chunk; the last counts, and content after it is kept."""
    stream = a_stream()
    out = stream.push(a_chunk(content="a", finish="stop"))
    out += stream.push(a_chunk(content="b", finish="max_tokens"))
    assert finish_reasons(out) == []
    out += stream.finish(include_usage=False)
    assert message_of(out)["content"] == "ab"
    assert finish_reasons(out) == ["length"]


def test_an_end_marker_does_not_replace_the_real_reason() -> None:
    """LiteLLM turns the wire's end marker into a chunk that says `stop`."""
    stream = a_stream()
    stream.push(a_chunk(content="a", finish="length"))
    marker = {"text": "", "is_finished": True, "finish_reason": "stop", "usage": None}
    assert from_generic(marker, finished=stream.complete) is None
    assert from_generic(marker, finished=False) is not None


def test_a_stream_is_complete_when_every_choice_is() -> None:
    """One choice without its reason keeps the stream open."""
    stream = a_stream()
    assert not stream.complete
    stream.push(a_chunk(0, finish="stop", content="a"))
    stream.push(a_chunk(1, content="b"))
    assert not stream.complete
    stream.end("stop")
    assert stream.complete


def test_a_late_choice_starts_with_its_role() -> None:
    """Each choice gets the role once, on its first delta."""
    stream = a_stream()
    out = [*stream.push(a_chunk(1, content="a")), *stream.push(a_chunk(0, content="b"))]
    out += stream.push(a_chunk(1, content="c", role="assistant"))
    roles = [(c["choices"][0]["index"], c["choices"][0]["delta"].get("role")) for c in out]
    assert roles == [(1, "assistant"), (0, "assistant"), (1, None)]


def test_server_tools_are_left_out_of_a_stream() -> None:
    """Neither the start nor the arguments of a tool that ran at the provider are shown."""

    def call(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return a_chunk(tool_calls=[{"index": index, "id": id, "function": function}])

    stream = a_stream()
    out = stream.push(call(0, "srvtoolu_1", "web_search", ""))
    out += stream.push(call(0, None, None, '{"q": 1}'))
    out += stream.push(call(1, "toolu_2", "read", ""))
    out += stream.push(call(1, None, None, '{"path": 2}'))
    out += stream.push(a_chunk(finish="tool_calls"))
    out += stream.finish(include_usage=False)
    assert message_of(out)["tool_calls"] == [
        {"id": "toolu_2", "name": "read", "arguments": '{"path": 2}'}
    ]


def test_thinking_without_a_signature_is_text_only() -> None:
    """A block that cannot be echoed is not offered for it."""
    stream = a_stream()
    block = {"type": "thinking", "thinking": "hm"}
    out = stream.push(a_chunk(reasoning_content="hm", thinking_blocks=[block]))
    out += stream.finish(include_usage=False)
    assert message_of(out)["reasoning_content"] == "hm"
    assert "thinking_blocks" not in message_of(out)


def test_redacted_thinking_is_passed_at_once() -> None:
    """It comes whole, and gets an index of its own."""
    stream = a_stream()
    redacted = {"type": "redacted_thinking", "data": "x"}
    signed = {"type": "thinking", "thinking": "a", "signature": "s"}
    out = stream.push(a_chunk(thinking_blocks=[redacted]))
    out += stream.push(a_chunk(thinking_blocks=[signed]))
    assert message_of(out)["thinking_blocks"] == [{"index": 0, **redacted}, {"index": 1, **signed}]


def test_usage_is_the_last_one_told() -> None:
    """Running totals replace each other; an empty one does not wipe out the figures."""
    stream = a_stream()
    stream.push({**a_chunk(content="a"), "usage": {"prompt_tokens": 5, "completion_tokens": 1}})
    stream.push({**a_chunk(finish="stop"), "usage": {"prompt_tokens": 5, "completion_tokens": 9}})
    stream.push({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": None}})
    assert stream.usage == {"prompt_tokens": 5, "completion_tokens": 9}


def test_reasoning_that_nobody_counted_is_not_reported_as_zero() -> None:
    """Without a figure of the provider's there is none, rather than a wrong one."""
    answer = {
        "id": "x",
        "choices": [{"message": {"content": "a", "reasoning_content": "hm"}}],
        "usage": {
            "completion_tokens": 3,
            "completion_tokens_details": {"reasoning_tokens": 0, "text_tokens": 3},
        },
    }
    assert completion(answer, model="m")["usage"] == {"completion_tokens": 3}


def test_a_whole_answer_can_be_given_as_a_stream() -> None:
    """An adapter that does not stream still serves a client that asked for it."""
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "a", "tool_calls": [call]}
    answer = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    stream = a_stream()
    out = [*stream.push(as_chunk(answer)), *stream.finish(include_usage=False)]
    assert message_of(out)["tool_calls"] == [{"id": "c", "name": "f", "arguments": "{}"}]
    assert finish_reasons(out) == ["tool_calls"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bad key sk-secret-1 given", "bad key *** given"),
        ("POST https://x/y?key=AIza123&alt=sse failed", "POST https://x/y?key=***&alt=sse failed"),
        ("nothing here", "nothing here"),
    ],
)
def test_credentials_are_cut_out_of_messages(text: str, expected: str) -> None:
    """By value where it is known, by place where it is not."""
    assert errors.hide(text, {"sk-secret-1"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 213462 tokens > 200000 maximum",
        "This model's maximum context length is 128000 tokens.",
        "The input token count (9) exceeds the maximum number of tokens allowed (8).",
        "Input is too long for requested model.",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    ],
)
def test_a_prompt_that_is_too_long_has_openais_code(text: str) -> None:
    """Agents compact their history on this code."""
    body = json.dumps({"error": {"type": "invalid_request_error", "message": text}}).encode()
    failed = errors.failure(ValueError(), answered(400, body))
    assert (failed.status, failed.code, failed.message) == (400, "context_length_exceeded", text)


def answered(status: int, body: bytes) -> ProviderCall:
    """A call that got an error answer."""
    got = Received(status=status, error_body=body)
    return ProviderCall(send=None, received=got)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "body", "message", "code"),
    [
        (400, b'{"error": "just text"}', "just text", None),
        (400, b'{"message": "aws"}', "aws", None),
        (500, b"plain words", "plain words", None),
        (502, b"<html>x</html>", "the provider answered with status 502", None),
        (400, b'{"error": {"message": "m", "code": "c", "param": "p"}}', "m", "c"),
        (418, b"[]", "the provider answered with status 418", None),
        (400, b"\xff\xfe", "\ufffd\ufffd", None),
    ],
)
def test_error_bodies_of_every_shape_are_read(
    status: int, body: bytes, message: str, code: str | None
) -> None:
    """Objects, bare text, markup, lists and rubbish: always a status, a message and a code."""
    failed = errors.failure(ValueError(), answered(status, body))
    error = json.loads(failed.body())["error"]
    assert (failed.status, error["message"], error["code"]) == (status, message, code)


@given(st.binary(max_size=60), st.integers(400, 599))
def test_no_error_body_is_too_odd(body: bytes, status: int) -> None:
    """Any bytes give a failure in OpenAI's shape, and JSON that can be sent."""
    failed = errors.failure(ValueError(), answered(status, body))
    assert json.loads(failed.body())["error"]["message"]
