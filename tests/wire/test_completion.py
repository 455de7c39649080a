"""The chunks of a stream make up the completion that the same call gives without streaming."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.chat_assembly import CompletionAssembler, add_event, assemble
from gateway.wire.sse import parse_event
from steering_gateway_testing import Reply, ToolCall, Usage, chat
from steering_gateway_testing.exchange import ID_MARK
from steering_gateway_testing.received import ReceivedRequest
from tests.examples import examples

texts = st.one_of(st.none(), st.text(max_size=30))
calls = st.lists(
    st.builds(
        ToolCall,
        st.text(min_size=1, max_size=8),
        st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(-9, 9), max_size=3),
        fragments=st.integers(1, 6),
    ),
    max_size=3,
).map(tuple)
single_replies = st.builds(
    Reply,
    texts,
    tool_calls=calls,
    reasoning=st.text(max_size=20),
    refusal=texts,
    finish_reason=st.sampled_from([None, "length", "content_filter"]),
    chunks=st.integers(1, 6),
    interleave=st.booleans(),
    usage=st.just(Usage(prompt_tokens=20, completion_tokens=4, cached_tokens=3)),
    extra=st.just({"x_unknown": {"kept": True}}),
    message_extra=st.just({"x_note": "kept"}),
)
replies = st.builds(
    lambda reply, others: Reply(
        reply.content,
        tool_calls=reply.tool_calls,
        reasoning=reply.reasoning,
        refusal=reply.refusal,
        chunks=reply.chunks,
        interleave=reply.interleave,
        usage=reply.usage,
        extra=reply.extra,
        alternatives=tuple(others),
    ),
    single_replies,
    st.lists(single_replies, max_size=2),
)


def answered(reply: Reply, *, stream: bool, logprobs: bool) -> bytes:
    """The body of the scripted upstream's answer."""
    request = ReceivedRequest(
        method="POST", target="/v1/chat/completions", headers=[], connection=1
    )
    fields = {"model": "m", "stream": stream, "stream_options": {"include_usage": True}}
    request.body = json.dumps({**fields, "logprobs": logprobs}).encode()
    body = b"".join(chat.answer(reply, request).pieces)
    return body.replace(ID_MARK, b"00000001")


def without_nothing(value: Any) -> Any:
    """`value` without keys that say nothing: null, empty text, empty lists."""
    if isinstance(value, dict):
        kept = {k: without_nothing(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in (None, "", [], {})}
    return [without_nothing(v) for v in value] if isinstance(value, list) else value


@examples(80)
@given(replies, st.booleans())
def test_the_assembled_completion_is_the_one_not_streamed(reply: Reply, logprobs: bool) -> None:
    """Content, calls, reasoning, refusal, logprobs, usage and every choice arrive complete."""
    whole = json.loads(answered(reply, stream=False, logprobs=logprobs))
    assembler, done = assemble(answered(reply, stream=True, logprobs=logprobs), orjson.loads)
    assert done
    assert assembler.finished
    assert assembler.malformed == 0
    assert without_nothing(assembler.completion()) == without_nothing(whole)


@examples(40)
@given(replies, st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n: ping\n\n"]))
def test_the_fast_path_and_the_decoder_agree(reply: Reply, end: bytes) -> None:
    """Plain streams are parsed at once; any other form of the same stream gives the same."""
    stream = answered(reply, stream=True, logprobs=False)
    fast, _ = assemble(stream, orjson.loads)
    slow, done = assemble(stream.replace(b"\n\n", end))
    assert done
    assert fast.completion() == slow.completion()


def test_a_stream_without_its_end_marker_is_not_done() -> None:
    """Without `[DONE]` the assembler has the chunks, and says that the marker is missing."""
    stream = answered(Reply("two words"), stream=True, logprobs=False)
    assembler, done = assemble(stream.removesuffix(b"data: [DONE]\n\n"))
    assert not done
    assert assembler.finished


@pytest.mark.parametrize("kept", range(4))
def test_a_cut_stream_is_not_finished(kept: int) -> None:
    """Before the finish reason nothing counts as finished."""
    events = answered(Reply("two words"), stream=True, logprobs=False).split(b"\n\n")
    assembler, done = assemble(b"\n\n".join([*events[:kept], b""]))
    assert (assembler.finished, done, assembler.began) == (False, False, kept > 0)


def test_one_finished_choice_is_enough() -> None:
    """Some upstreams leave the finish reasons of further choices out."""
    assembler = CompletionAssembler()
    assembler.add({"choices": [{"index": 1, "delta": {"content": "x"}}]})
    assert not assembler.finished
    assembler.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert assembler.finished


@pytest.mark.parametrize(
    "broken",
    [
        b"data: {\n\n",
        b"data: [1]\n\n",
        b"data: 7\n\n",
        b'data: {"choices": [3]}\n\n',
        b'data: {"choices": {"index": 0}}\n\n',
        b'data: {"choices": [{"index": "x", "delta": 5}]}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [null, {"function": 7}]}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": 5, "refusal": []}}]}\n\n',
        b'data: "\xff"\n\n',
    ],
)
def test_a_broken_chunk_costs_that_chunk(broken: bytes) -> None:
    """Whatever a chunk is, the chunks around it are kept and nothing is raised."""
    stream = answered(Reply("before after", chunks=2), stream=True, logprobs=False)
    events = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    assembler, done = assemble(b"".join([*events[:2], broken, *events[2:]]), orjson.loads)
    assert done
    assert assembler.finished
    assert "before" in str(assembler.completion())


def test_an_error_event_is_kept() -> None:
    """An error in mid-stream is there to be looked at."""
    assembler = CompletionAssembler()
    assert not add_event(assembler, parse_event(b'data: {"error": {"message": "no"}}\n\n'))
    assert assembler.failure is not None
    assert assembler.failure["message"] == "no"


def test_a_legacy_function_call() -> None:
    """The old single call is assembled beside the modern ones."""
    assembler = CompletionAssembler()
    for part in ({"name": "run"}, {"arguments": '{"a"'}, {"arguments": ": 1}"}):
        assembler.add({"choices": [{"index": 0, "delta": {"function_call": part}}]})
    message = assembler.completion()["choices"][0]["message"]
    assert message["function_call"] == {"name": "run", "arguments": '{"a": 1}'}
    assert "tool_calls" not in message


def test_calls_without_an_index_are_told_apart_by_place() -> None:
    """Some servers leave the index of a call out."""
    assembler = CompletionAssembler()
    parts = [{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "g"}}]
    assembler.add({"choices": [{"delta": {"tool_calls": parts}}]})
    found = assembler.completion()["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"]) for call in found] == [("a", "f"), ("b", "g")]


def test_parallel_calls_without_index_and_id_stay_separate() -> None:
    """A name begins the next call; what has none goes on with the newest; an id is its call's."""
    for lists, calls in (
        ([[("", "f", "{}")], [("", "g", "[")], [("", "", "]")]], [("f", "{}"), ("g", "[]")]),
        ([[("", "f", "{}")], [("", "f", "{}")]], [("f", "{}"), ("f", "{}")]),
        ([[("", "f", ""), ("", "g", "1")]], [("f", ""), ("g", "1")]),
        ([[("a", "f", "1")], [("b", "g", "2")], [("a", "", "3")]], [("f", "13"), ("g", "2")]),
        ([[("a", "calc", "{")], [("", "", "}")]], [("calc", "{}")]),
    ):
        assembler = CompletionAssembler()
        for parts in lists:
            made = [
                {"id": id, "function": {"name": name, "arguments": arguments}}
                for id, name, arguments in parts
            ]
            assembler.add({"choices": [{"delta": {"tool_calls": made}}]})
        found = assembler.completion()["choices"][0]["message"]["tool_calls"]
        assert [tuple(call["function"].values()) for call in found] == calls
