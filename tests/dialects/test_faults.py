"""Every fault of an upstream, and clients that leave, in both dialects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.looping import STEERING, Start, states
from tests.examples import by_day

NO_RETRIES = {**STEERING, "router": {"num_retries": 0}}
REPLY = Reply("One two three four five.", tool_calls=(ToolCall("bash", {"command": "ls"}),))
DIALECTS = ("responses", "messages")
ENDS = {"responses": "response.completed", "messages": "message_stop"}
CUT = (FaultKind.DROP_MID_BODY, FaultKind.CLEAN_CUT, FaultKind.STALL)


def body_of(dialect: str, *, stream: bool = False) -> dict[str, Any]:
    """A request that opens a conversation."""
    said = [{"role": "user", "content": "List the files."}]
    if dialect == "responses":
        tools: Any = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]
        return {"model": "m", "stream": stream, "input": said, "tools": tools}
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    return {"model": "m", "max_tokens": 64, "stream": stream, "messages": said, "tools": tools}


def ask(server: AppServer, dialect: str, *, stream: bool = False) -> httpx.Response:
    body = body_of(dialect, stream=stream)
    return httpx.post(f"{server.base_url}/{dialect}", json=body, timeout=120)


def events(text: str) -> list[dict[str, Any]]:
    """The payloads of a stream; what is no JSON is left out."""
    found = []
    for block in text.split("\n\n"):
        for line in block.splitlines():
            if line.startswith("data: "):
                try:
                    found.append(json.loads(line[6:]))
                except ValueError:
                    continue
    return found


def collect(server: AppServer, dialect: str) -> tuple[str, bool]:
    """(what arrives of a stream, whether it ended in good order)."""
    received: list[str] = []
    body = body_of(dialect, stream=True)
    try:
        with httpx.stream("POST", f"{server.base_url}/{dialect}", json=body, timeout=120) as answer:
            for piece in answer.iter_text():
                received.append(piece)
    except httpx.RemoteProtocolError:
        return "".join(received), False
    return "".join(received), True


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", CUT)
def test_a_cut_stream_is_visible(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, kind: FaultKind
) -> None:
    """An error event in the dialect's own form, no proper end, and a closed connection."""
    upstream.default = Fault(kind, reply=REPLY, after=4)
    limits = {"timeouts": {"idle_s": 1}} if kind is FaultKind.STALL else {}
    server = gateway_server({**NO_RETRIES, **limits})
    text, whole = collect(server, dialect)
    assert not whole
    told = events(text)[-1]
    assert told["type"] == "error"
    assert text.endswith("\n\n")
    assert text.rpartition("event: ")[2].startswith("error\n")
    if dialect == "messages":
        assert told["error"]["message"]
        assert told["error"]["type"] in ("api_error", "timeout_error")
    else:
        assert told["message"]
        assert told["code"] in ("upstream_malformed", "upstream_timeout")
    assert not any(event["type"] == ENDS[dialect] for event in events(text))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_event_of_the_upstream_passes(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str
) -> None:
    """The upstream's own error event is relayed, and no second one is made."""
    upstream.default = Fault(FaultKind.ERROR_EVENT, reply=REPLY, after=3)
    text, whole = collect(gateway_server(NO_RETRIES), dialect)
    assert whole
    assert [e["type"] for e in events(text)].count("error") == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "kind", [FaultKind.MALFORMED_JSON, FaultKind.MALFORMED_SSE, FaultKind.INVALID_UTF8]
)
def test_odd_bytes_in_a_stream_pass(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, kind: FaultKind
) -> None:
    """What cannot be read is relayed byte for byte; the end of the stream still ends the call."""
    reply = Reply("One two three four five.", id="fixed")
    upstream.default = Fault(kind, reply=reply, after=3)
    server = gateway_server(NO_RETRIES)
    text, whole = collect(server, dialect)
    assert whole
    assert ENDS[dialect] in text
    assert len(states(server)) == 1


@pytest.mark.parametrize("dialect", by_day(DIALECTS, 4))
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "kind", [FaultKind.CONTENT_FILTER, FaultKind.HUGE_BODY, FaultKind.SLOW_FIRST_BYTE]
)
def test_unusual_answers_are_answers(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, stream: bool, kind: FaultKind
) -> None:
    """A filtered, a huge and a late reply arrive whole and are recorded."""
    upstream.default = Fault(kind, reply=Reply("One two."), size_mb=1, delay_s=0.2)
    server = gateway_server(NO_RETRIES)
    if stream:
        text, whole = collect(server, dialect)
        assert whole
        assert text.count("event: ") > 3
    else:
        assert ask(server, dialect).status_code == 200
    assert len(states(server)) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_retries_are_one_step(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, stream: bool
) -> None:
    """The gateway tries again before the first byte; the step is counted once."""
    upstream.script(Fault(FaultKind.OVERLOADED, times=2, retry_after="0"))
    upstream.default = REPLY
    server = gateway_server({**STEERING, "router": {"num_retries": 2, "backoff_s": 0.01}})
    answer = ask(server, dialect, stream=stream)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-attempts"] == "3"
    assert len(states(server)) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_upstream(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, stream: bool
) -> None:
    """The upstream call ends at once, and the gateway goes on serving."""
    upstream.default = Fault(FaultKind.STALL, reply=REPLY, after=3)
    server = await asyncio.to_thread(gateway_server, STEERING)
    async with httpx.AsyncClient(timeout=120) as client:
        body = body_of(dialect, stream=stream)
        call = asyncio.ensure_future(client.post(f"{server.base_url}/{dialect}", json=body))
        await asyncio.to_thread(upstream.wait_for_requests, 1)
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(upstream.requests[0].wait_disconnected)
        upstream.default = REPLY
        again = await client.post(f"{server.base_url}/{dialect}", json=body_of(dialect))
    assert again.status_code == 200


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("write_bytes", [1, 7, 64])
def test_any_split_of_the_stream_is_the_same(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, write_bytes: int
) -> None:
    """However the bytes are cut up, they arrive as they are and the call is complete."""
    reply = Reply("One two three.", tool_calls=REPLY.tool_calls, write_bytes=write_bytes, id="x")
    upstream.default = reply
    server = gateway_server(STEERING)
    text, whole = collect(server, dialect)
    assert whole
    assert events(text)[-1]["type"] == ENDS[dialect]
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]
    assert run["totals"]["output_tokens"] == 8


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_that_writes_about_events_ends_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str
) -> None:
    """Text that looks like the end of a stream is text."""
    lure = 'event: message_stop\ndata: {"type":"message_stop"}\n\n"type":"response.completed"\n\n'
    upstream.default = Reply(lure * 3, chunks=40, write_bytes=100)
    server = gateway_server(STEERING)
    text, whole = collect(server, dialect)
    assert whole
    assert [e["type"] for e in events(text)].count(ENDS[dialect]) == 1
    assert len(states(server)) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_refused_body_is_told_in_the_dialect(gateway_server: Start, dialect: str) -> None:
    """What is no JSON, too large, or without a key, is refused in the client's own form."""
    settings = {
        **STEERING,
        "server": {"max_body_mb": 0.001},
        "auth": {"gateway_keys": {"team": "gw-key"}},
    }
    server = gateway_server(settings)
    key = {"x-gateway-key": "gw-key"}
    url = f"{server.base_url}/{dialect}"
    for content, headers, status in (
        (b"{", key, 400),
        (b"{" + b" " * 2000, key, 413),
        (b"{}", {}, 401),
    ):
        answer = httpx.post(url, content=content, headers=headers)
        assert answer.status_code == status
        assert (answer.json().get("type") == "error") == (dialect == "messages")


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens", "/messages/batches"])
def test_a_full_gateway_tells_it_in_the_dialect(
    gateway_server: Start, upstream: ScriptedUpstream, path: str
) -> None:
    """What is refused before any route is looked at has the form of the path's dialect."""
    server = gateway_server({**STEERING, "server": {"max_concurrent_requests": 1}})
    upstream.default = Fault(FaultKind.STALL, reply=REPLY)
    url = f"{server.base_url}/messages"
    with httpx.stream("POST", url, json=body_of("messages", stream=True)) as held:
        pieces = held.iter_raw()
        assert next(pieces)
        answer = httpx.post(f"{server.base_url}{path}", json={})
    assert (answer.status_code, answer.json()["type"]) == (429, "error")
    assert answer.json()["error"]["type"] == "rate_limit_error"
