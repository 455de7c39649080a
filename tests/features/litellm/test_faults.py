"""What a client sees when the provider behind the LiteLLM lane goes wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamFailure
from gateway.features.litellm import sdk
from gateway.features.litellm.lane import LiteLLMLane
from gateway.upstream.native import NativeLane
from steering_gateway_testing import ScriptedUpstream, closed_port
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall
from tests.examples import by_day
from tests.features.litellm.lane import (
    KEY,
    a_body,
    a_target,
    events,
    message_of,
    read_events,
    read_json,
)

K = FaultKind
LIMITS = TimeoutSettings(idle_s=1)
"""Only what stalls meets a limit: on a busy machine a short wait for the first byte hits others."""
SILENT_S = 0.3
"""Of a provider that says nothing at all."""


@pytest.fixture
def limits() -> TimeoutSettings:
    """Only what stalls meets one."""
    return LIMITS


def sse(event: dict[str, Any]) -> bytes:
    """An event as Anthropic sends it."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


async def failure_of(lane: LiteLLMLane, target: Any, **fields: Any) -> UpstreamFailure:
    """The failure that a call ends with, before its first byte or after."""

    async def all_of_it() -> None:
        answer = await lane.send(target, a_body(**fields), [])
        await (read_events(answer) if fields.get("stream") else read_json(answer))

    with pytest.raises(UpstreamFailure) as caught:
        await all_of_it()
    return caught.value


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("kind", "status", "type", "code", "retryable"),
    by_day(
        [
            (K.BAD_REQUEST, 400, "invalid_request_error", None, False),
            (K.UNAUTHORIZED, 401, "authentication_error", "invalid_api_key", False),
            (K.FORBIDDEN, 403, "permission_error", "permission_denied", False),
            (K.NOT_FOUND, 404, "not_found_error", "model_not_found", False),
            (K.RATE_LIMIT, 429, "rate_limit_error", "rate_limit_exceeded", True),
            (K.SERVER_ERROR, 500, "api_error", None, True),
            (K.UNAVAILABLE, 503, "api_error", "service_unavailable", True),
            (K.OVERLOADED, 529, "overloaded_error", "overloaded", True),
            (K.CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded", False),
            (
                K.CONTENT_FILTER_ERROR,
                400,
                "invalid_request_error",
                "content_policy_violation",
                False,
            ),
        ],
        3,
    ),
)
async def test_errors_keep_their_status_and_get_openais_shape(
    lane: LiteLLMLane,
    upstream: ScriptedUpstream,
    streaming: bool,
    kind: FaultKind,
    status: int,
    type: str,
    code: str | None,
    retryable: bool,
) -> None:
    """Status, type and code as an OpenAI client expects them; the provider's words; one attempt."""
    upstream.script(Fault(kind, message="Words of the provider") if code is None else Fault(kind))
    failed = await failure_of(lane, a_target(upstream), stream=streaming)
    error = json.loads(failed.body())["error"]
    assert (failed.status, error["type"], error["code"]) == (status, type, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert failed.retryable is retryable
    assert failed.raw_body is not None
    assert "litellm" not in error["message"].lower()
    assert "Exception" not in error["message"]
    if code is None:
        assert error["message"] == "Words of the provider"
    assert len(upstream.requests) == 1


async def test_the_wait_a_provider_asks_for_is_passed_on(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """`retry-after` reaches the retry logic as seconds, and the client as the header."""
    upstream.script(Fault(K.RATE_LIMIT, retry_after="7"))
    failed = await failure_of(lane, a_target(upstream))
    assert failed.retry_after_s == 7
    assert ("retry-after", "7") in failed.headers


async def test_a_key_in_a_message_is_blotted_out(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """A provider that repeats the key it got must not tell it to the client."""
    upstream.script(Fault(K.UNAUTHORIZED, message=f"invalid x-api-key: {KEY}"))
    failed = await failure_of(lane, a_target(upstream))
    assert KEY not in failed.body().decode()
    assert failed.message == "invalid x-api-key: ***"


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_html_error_page_keeps_its_status(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """A proxy's web page becomes an error object without the markup."""
    upstream.script(Fault(K.HTML_ERROR))
    failed = await failure_of(lane, a_target(upstream), stream=streaming)
    assert failed.status == 502
    assert failed.retryable
    assert "<" not in failed.message


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_refused_connection_is_a_502(lane: LiteLLMLane, streaming: bool) -> None:
    """No provider there: retryable, with a type of its own, and no second try behind the scenes."""
    with closed_port() as port:
        failed = await failure_of(lane, a_target(f"http://127.0.0.1:{port}"), stream=streaming)
    assert (failed.status, failed.code, failed.retryable) == (502, "upstream_unreachable", True)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_connection_dropped_before_the_answer_is_a_502(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """LiteLLM's own silent retry does not happen: the gateway counts and decides."""
    upstream.script(Fault(K.DROP_BEFORE_RESPONSE, times=3))
    failed = await failure_of(lane, a_target(upstream), stream=streaming)
    assert (failed.status, failed.retryable) == (502, True)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_silent_provider_is_a_504(upstream: ScriptedUpstream, streaming: bool) -> None:
    """The gateway's own limit for the first byte applies, not LiteLLM's."""
    limits = TimeoutSettings(first_byte_s=SILENT_S)
    native = NativeLane(limits, max_connections=10)
    upstream.script(Fault(K.SLOW_FIRST_BYTE, delay_s=30))
    failed = await failure_of(LiteLLMLane(native, limits), a_target(upstream), stream=streaming)
    assert (failed.status, failed.code) == (504, "upstream_timeout")
    await native.aclose()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_deployments_own_timeout_is_a_504(
    upstream: ScriptedUpstream, streaming: bool
) -> None:
    """`litellm_params.timeout` limits the wait of that deployment."""
    timeouts = TimeoutSettings()
    native = NativeLane(timeouts, max_connections=10)
    upstream.script(Fault(K.SLOW_FIRST_BYTE, delay_s=30))
    target = a_target(upstream, timeout=SILENT_S)
    failed = await failure_of(LiteLLMLane(native, timeouts), target, stream=streaming)
    assert (failed.status, failed.code) == (504, "upstream_timeout")
    await native.aclose()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_stall_in_the_middle_is_a_504(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """Bytes that stop coming end the call at the idle limit."""
    upstream.script(Reply("fine"), Fault(K.STALL, after=4))
    await read_json(await lane.send(a_target(upstream), a_body(), []))
    failed = await failure_of(lane, a_target(upstream), stream=streaming)
    assert (failed.status, failed.code) == (504, "upstream_timeout")


@pytest.mark.parametrize("kind", [K.DROP_MID_BODY, K.CLEAN_CUT])
async def test_a_cut_stream_is_never_completed(
    lane: LiteLLMLane, upstream: ScriptedUpstream, kind: FaultKind
) -> None:
    """The chunks that came are given out, then an error: no finish reason, no end marker."""
    reply = Reply("one two three four", tool_calls=(ToolCall("read", {"path": "x"}),))
    upstream.script(Fault(kind, after=5, reply=reply))
    answer = await lane.send(a_target(upstream), a_body(stream=True), [])
    got = b""

    async def read() -> None:
        nonlocal got
        async for part in answer:
            got += part

    with pytest.raises(UpstreamFailure) as caught:
        await read()
    assert caught.value.status == 502
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in events(got))
    assert text
    assert "one two three four".startswith(text)
    assert b"[DONE]" not in got
    assert b'"finish_reason":"' not in got


async def test_a_stream_cut_behind_its_finish_reason_is_complete(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Once the provider has ended its turn, nothing of the answer can be missing."""
    turn = (
        {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
    )
    raw = (*(sse(event) for event in turn), b'data: {"type": "message_')
    upstream.script(Reply(raw=raw, content_type="text/event-stream"))
    *chunks, done = await read_events(await lane.send(a_target(upstream), a_body(stream=True), []))
    assert (message_of(chunks)["content"], done) == ("a", "[DONE]")


async def test_an_error_event_in_a_stream_keeps_its_meaning(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """An `overloaded_error` after the first chunk is still one, not a bare 500."""
    start = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "c"}
    pieces = (
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 1}}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    )
    upstream.script(Reply(raw=tuple(map(sse, pieces)), content_type="text/event-stream"))
    failed = await failure_of(lane, a_target(upstream), stream=True)
    assert (failed.status, failed.type, failed.message) == (529, "overloaded_error", "Overloaded")
    assert failed.retryable


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("streaming", by_day([False, True], 1))
@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b'{"error": ' + DEEP + b"}", {}),
        (b'{"error": ' + b"[" * 950 + b"]" * 950 + b"}", {}),
        (DEEP, {}),
        (b"not packed", {"content-encoding": "gzip"}),
    ],
    ids=["deep", "less deep", "deep array", "not gzip"],
)
async def test_an_error_body_that_cannot_be_read_keeps_its_status(
    lane: LiteLLMLane,
    upstream: ScriptedUpstream,
    raw: bytes,
    headers: dict[str, str],
    streaming: bool,
) -> None:
    """Nested to any depth, or compressed in no way known, an error is one of the same status."""
    for status in (400, 429, 500):
        upstream.script(Reply(raw=raw, status=status, headers=headers))
        failed = await failure_of(lane, a_target(upstream), stream=streaming)
        assert failed.status == status
        assert json.loads(failed.body())["error"]["message"]


def anthropic_stream() -> list[bytes]:
    """A whole answer that says "fine"."""
    begin = {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 5}}
    block = {"type": "text", "text": ""}
    pieces: list[dict[str, Any]] = [
        {"type": "message_start", "message": begin},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}
            for t in ("fi", "ne")
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return [sse(piece) for piece in pieces]


BAD_EVENTS = [
    b"data: no JSON\n\n",
    b'data: {"type": "content_blo\n\n',
    b"dta {\n\x00: :\r\r\n\n",
    b"data: " + DEEP + b"\n\n",
    b": a comment\n\n",
    b"event: ping\n\n",
]


@pytest.mark.parametrize("at", [0, 3])
async def test_a_bad_event_does_not_end_a_stream(
    lane: LiteLLMLane, upstream: ScriptedUpstream, at: int
) -> None:
    """What is no JSON is left out; everything before and after it arrives."""
    for bad in BAD_EVENTS:
        good = anthropic_stream()
        pieces = (*good[:at], bad, *good[at:])
        upstream.script(Reply(raw=pieces, content_type="text/event-stream"))
        answer = await lane.send(a_target(upstream), a_body(stream=True), [])
        assert message_of(await read_events(answer))["content"] == "fine"


async def test_a_compressed_stream(lane: LiteLLMLane, upstream: ScriptedUpstream) -> None:
    """Whatever was asked for, gzip is read, in one member or in many."""
    good = anthropic_stream()
    for packed in ((gzip.compress(b"".join(good)),), tuple(map(gzip.compress, good))):
        headers = {"content-encoding": "gzip"}
        reply = Reply(raw=packed, content_type="text/event-stream", headers=headers)
        upstream.script(reply)
        answer = await lane.send(a_target(upstream), a_body(stream=True), [])
        assert message_of(await read_events(answer))["content"] == "fine"


WHOLE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "one two three four five six"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


@pytest.mark.parametrize("members", [1, 2, 7])
async def test_a_compressed_answer_of_several_members(
    lane: LiteLLMLane, upstream: ScriptedUpstream, members: int
) -> None:
    """All of them are read (RFC 1952, section 2.2): the answer is whole, or it is an error."""
    body = json.dumps(WHOLE).encode()
    size = -(-len(body) // members)
    packed = b"".join(gzip.compress(body[at : at + size]) for at in range(0, len(body), size))
    headers = {"content-encoding": "gzip"}
    for raw, whole in ((packed, True), (packed[:-9], False)):
        upstream.script(Reply(raw=raw, content_type="application/json", headers=headers))
        try:
            answer = await lane.send(a_target(upstream), a_body(), [])
        except UpstreamFailure:
            assert not whole
            continue
        assert whole
        content = json.loads(b"".join([chunk async for chunk in answer]))
        assert content["choices"][0]["message"]["content"] == "one two three four five six"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("coding", ["br", "zstd", "x-own", "gzip, x-own"])
async def test_a_coding_that_was_not_asked_for_is_named(
    lane: LiteLLMLane, upstream: ScriptedUpstream, coding: str, streaming: bool
) -> None:
    """What cannot be read is an error that says so, and no part of an answer."""
    headers = {"content-encoding": coding}
    kind = "text/event-stream" if streaming else "application/json"
    upstream.script(Reply(raw=b"\x1b\x0f\x00" * 9, content_type=kind, headers=headers))
    words = "not asked for: x-own" if "x-own" in coding else "not compressed as announced"
    with pytest.raises(UpstreamFailure, match=words):
        await lane.send(a_target(upstream), a_body(stream=streaming), [])


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", [K.EMPTY_BODY, K.HTML_ERROR])
async def test_an_unreadable_answer_is_a_502(
    lane: LiteLLMLane, upstream: ScriptedUpstream, kind: FaultKind, streaming: bool
) -> None:
    """Status 200 and nothing that can be read is the provider's fault, and worth another try."""
    if kind is K.HTML_ERROR:
        upstream.script(Reply(raw=b"<html>welcome</html>", content_type="text/html"))
    else:
        upstream.script(Fault(kind))
    failed = await failure_of(lane, a_target(upstream), stream=streaming)
    assert failed.status == 502


@pytest.mark.parametrize("kind", by_day(list(K), 8))
@pytest.mark.parametrize("streaming", [False, True])
async def test_the_lane_serves_on_after_any_fault(
    lane: LiteLLMLane, upstream: ScriptedUpstream, kind: FaultKind, streaming: bool
) -> None:
    """Whatever went wrong, it is an answer or an `UpstreamFailure`, and the next call works."""
    upstream.script(Fault(kind, delay_s=30, size_mb=0.2))
    harmless = {K.CONTENT_FILTER, K.WRONG_CONTENT_TYPE, K.HUGE_BODY, K.INVALID_UTF8}
    if streaming:  # the turn ends before the body does
        harmless |= {K.WRONG_CONTENT_LENGTH, K.MALFORMED_JSON, K.MALFORMED_SSE}
    if kind in harmless:
        answer = await lane.send(a_target(upstream), a_body(stream=streaming), [])
        await (read_events(answer) if streaming else read_json(answer))
    else:
        target = a_target(upstream)
        if kind is K.SLOW_FIRST_BYTE:
            target = a_target(upstream, timeout=SILENT_S)
        failed = await failure_of(lane, target, stream=streaming)
        assert 400 <= failed.status <= 599
        assert json.loads(failed.body())["error"]["message"]
    body = await read_json(await lane.send(a_target(upstream), a_body("again"), []))
    assert body["choices"][0]["message"]["content"] == "You said: again"


async def test_a_missing_key_is_the_clients_401(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """Without any key the call fails before it is sent, in words an operator understands."""
    target = a_target(upstream, api_key=None)
    failed = await failure_of(lane, target)
    assert (failed.status, failed.type) == (401, "authentication_error")
    assert not upstream.requests


async def test_a_missing_litellm_is_told_in_words(
    lane: LiteLLMLane, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package only the targets that need it fail, and they say what is missing."""

    def load() -> None:
        raise ModuleNotFoundError("No module named 'litellm'")

    monkeypatch.setattr(sdk, "load", load)
    failed = await failure_of(lane, a_target(upstream))
    assert failed.status == 500
    assert "No module named 'litellm'" in failed.message


async def test_an_unknown_provider_is_an_error_of_the_request(lane: LiteLLMLane) -> None:
    """A model string that LiteLLM cannot place does not become a 500 without words."""
    failed = await failure_of(lane, a_target("http://127.0.0.1:1", "nosuch/model"))
    assert failed.status == 400
    assert not failed.retryable


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "nonsense"},
        {"messages": [1, None]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "system", "content": "alone"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"max_tokens": "many"},
        {"tools": "x"},
        {"tools": [{"type": "function"}]},
        {"tool_choice": 7},
        {"response_format": "json"},
    ],
)
async def test_a_request_that_cannot_be_translated_is_a_400(
    lane: LiteLLMLane, upstream: ScriptedUpstream, fields: dict[str, Any]
) -> None:
    """The client's mistake is its own error, told without a traceback or a path of ours."""
    body = {**a_body(), **fields}
    try:
        answer = await lane.send(a_target(upstream), body, [])
    except UpstreamFailure as exc:
        failed = exc
    else:
        await answer.aclose()  # translated after all: the provider would judge it
        return
    assert (failed.status, failed.type) == (400, "invalid_request_error")
    assert "\n" not in failed.message
    assert "litellm" not in failed.message
    assert not upstream.requests


SLOW = Reply("a long story " * 50, chunk_delay_s=0.05)


async def test_closing_a_stream_closes_the_providers_connection(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """A client that goes away in the middle costs no more tokens."""
    upstream.script(SLOW)
    answer = await lane.send(a_target(upstream), a_body(stream=True), [])
    await anext(aiter(answer))
    await answer.aclose()
    await asyncio.to_thread(upstream.last.wait_disconnected)


async def test_cancelling_a_stream_closes_the_providers_connection(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """The same when the reading task is cancelled while it waits for a chunk."""
    upstream.script(Fault(K.STALL, after=4))
    answer = await lane.send(a_target(upstream), a_body(stream=True), [])
    reading = asyncio.ensure_future(read_events(answer))
    await asyncio.sleep(0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.to_thread(upstream.last.wait_disconnected)


@pytest.mark.parametrize("streaming", [False, True])
async def test_cancelling_before_the_answer_closes_the_providers_connection(
    lane: LiteLLMLane, upstream: ScriptedUpstream, streaming: bool
) -> None:
    """Nothing goes on behind the back of a client that has given up."""
    upstream.script(Fault(K.SLOW_FIRST_BYTE, delay_s=30))
    sending = asyncio.ensure_future(lane.send(a_target(upstream), a_body(stream=streaming), []))
    await asyncio.to_thread(upstream.wait_for_requests)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await asyncio.to_thread(upstream.last.wait_disconnected)


async def test_nothing_piles_up_over_many_faults(
    lane: LiteLLMLane, upstream: ScriptedUpstream
) -> None:
    """No task and no connection is left behind by broken and abandoned streams."""
    tasks = asyncio.all_tasks()
    for kind in (K.DROP_MID_BODY, K.CLEAN_CUT, K.RATE_LIMIT) * 6:
        upstream.script(Fault(kind), SLOW)
        await failure_of(lane, a_target(upstream), stream=True)
        answer = await lane.send(a_target(upstream), a_body(stream=True), [])
        await answer.aclose()
    if ending := asyncio.all_tasks() - tasks:
        _, left = await asyncio.wait(ending, timeout=120)
        assert not left
    await asyncio.to_thread(upstream.wait_for_connections, 1)
