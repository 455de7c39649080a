"""Each way of a call to go wrong, and each moment to leave it, in both dialects."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.hearing import Heard, hear, raw_post
from steering_gateway_testing.looping import OFF, STEERING, Start
from steering_gateway_testing.official import anthropic, openai
from tests.dialects.test_faults import DIALECTS, ENDS, body_of

K = FaultKind
Facing = Callable[[FaultKind], AppServer]
REPLY = Reply("One two three four five.", tool_calls=(ToolCall("bash", {"command": "ls"}, id="c"),))
PATIENT: dict[str, Any] = {**STEERING, "router": {"num_retries": 2, "backoff_s": 0}}
LIMITS = {K.SLOW_FIRST_BYTE: {"first_byte_s": 0.5}, K.STALL: {"idle_s": 0.5}}
"""Only what never comes meets a limit: on a busy machine a short one would hit other faults too."""
BEFORE = {
    K.RATE_LIMIT: (429, 3),
    K.SERVER_ERROR: (500, 3),
    K.UNAVAILABLE: (503, 3),
    K.OVERLOADED: (529, 3),
    K.UNAUTHORIZED: (401, 1),
    K.FORBIDDEN: (403, 1),
    K.NOT_FOUND: (404, 2),  # then as chat completions, in case the host has no such route
    K.BAD_REQUEST: (400, 2),  # with guidance, then as the client wrote it
    K.CONTEXT_LENGTH: (400, 2),
    K.CONTENT_FILTER_ERROR: (400, 2),
    K.HTML_ERROR: (502, 3),
    K.SLOW_FIRST_BYTE: (504, 1),
    K.DROP_BEFORE_RESPONSE: (502, 3),
}
"""Status, and how often the upstream is asked; the same for a stream."""
NOT_WHOLE = {K.STALL: 504, K.DROP_MID_BODY: 502, K.WRONG_CONTENT_LENGTH: 502}
CUT = (K.STALL, K.DROP_MID_BODY, K.CLEAN_CUT)
EITHER_WAY = (K.CONTENT_FILTER, K.WRONG_CONTENT_TYPE, K.INVALID_UTF8, K.HUGE_BODY, K.ERROR_EVENT)
UNREAD = (K.EMPTY_BODY, K.MALFORMED_JSON, K.MALFORMED_SSE)
RELAYED = (*EITHER_WAY, *UNREAD, K.CLEAN_CUT)
RELAYED_STREAMS = (*EITHER_WAY, *UNREAD, K.WRONG_CONTENT_LENGTH)
OFFICIAL = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "RateLimitError",
}
"""The class of an error in both clients."""


def a_fault(kind: FaultKind) -> Fault:
    slow = 30 if kind in (K.SLOW_FIRST_BYTE, K.STALL) else None
    return Fault(kind, retry_after="0", delay_s=slow, size_mb=0.2, reply=REPLY)


@pytest.fixture
def facing(gateway_server: Start) -> Facing:
    """A gateway whose limits are short where the fault is a silence."""
    patient = gateway_server(PATIENT)

    def start(kind: FaultKind) -> AppServer:
        limits = LIMITS.get(kind)
        return gateway_server({**PATIENT, "timeouts": limits}) if limits else patient

    return start


def told_in_form(dialect: str, heard: Heard) -> None:
    """An error made here, or by an upstream of the dialect, is in the dialect's own form."""
    told = heard.json
    assert told["error"]["message"]
    if dialect == "messages":
        assert told["type"] == "error"
        assert set(told["error"]) >= {"type", "message"}
    else:
        assert {"message", "type", "param", "code"} <= set(told["error"])


def last_event(heard: Heard) -> dict[str, Any]:
    """The payload of the last event, which has to be of the name in it."""
    name, data = heard.body.strip().split(b"\n\n")[-1].split(b"\n")
    payload: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: " + payload["type"].encode()
    return payload


def raises(server: AppServer, dialect: str, status: int, *, stream: bool) -> None:
    """The official client sees an error answer as the error that it is."""
    name = OFFICIAL.get(status, "InternalServerError")
    body = body_of(dialect, stream=stream)
    if dialect == "responses":
        with (
            openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as one,
            pytest.raises(getattr(openai, name)),
        ):
            one.responses.create(**body)
        return
    with (
        anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as other,
        pytest.raises(getattr(anthropic, name)),
    ):
        other.messages.create(**body)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_errors_before_the_first_byte(
    facing: Facing, upstream: ScriptedUpstream, dialect: str, stream: bool
) -> None:
    """Status, form and the official client's own error; only what may help is repeated."""
    with httpx.Client(timeout=120) as client:
        for kind, (status, asked) in BEFORE.items():
            server = facing(kind)
            upstream.default = a_fault(kind)
            before = len(upstream.requests)
            url = f"{server.base_url}/{dialect}"
            heard = hear(client, url, json=body_of(dialect, stream=stream))
            assert (kind, heard.status) == (kind, status)
            assert (kind, len(upstream.requests) - before) == (kind, asked)
            if kind is not K.HTML_ERROR:
                told_in_form(dialect, heard)
            if kind is K.RATE_LIMIT:
                assert heard.headers["retry-after"] == "0"
            raises(server, dialect, status, stream=stream)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_answers_that_are_not_whole(
    facing: Facing, upstream: ScriptedUpstream, dialect: str
) -> None:
    """A body that breaks off is no answer."""
    with httpx.Client(timeout=120) as client:
        for kind, status in NOT_WHOLE.items():
            upstream.default = a_fault(kind)
            heard = hear(client, f"{facing(kind).base_url}/{dialect}", json=body_of(dialect))
            assert (kind, heard.status) == (kind, status)
            told_in_form(dialect, heard)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_streams_that_break_off(facing: Facing, upstream: ScriptedUpstream, dialect: str) -> None:
    """An error event last, in the dialect's form, no end, and a connection that breaks, too."""
    with httpx.Client(timeout=120) as client:
        for kind in CUT:
            upstream.default = a_fault(kind)
            url = f"{facing(kind).base_url}/{dialect}"
            heard = hear(client, url, json=body_of(dialect, stream=True))
            assert (heard.status, type(heard.broken)) == (200, httpx.RemoteProtocolError)
            event = last_event(heard)
            assert event["type"] == "error"
            detail = event["error"] if dialect == "messages" else event
            assert detail["message"]
            assert ENDS[dialect].encode() not in heard.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_can_be_relayed_is_relayed(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str, stream: bool
) -> None:
    """Mislabelled, odd, huge and partly broken answers arrive to the byte, under their label."""
    server = gateway_server({**PATIENT, **OFF})  # answers repeat the instructions they were given
    body = body_of(dialect, stream=stream)
    with httpx.Client(timeout=120) as client:
        for kind in RELAYED_STREAMS if stream else RELAYED:
            upstream.default = a_fault(kind)
            straight = hear(client, f"{upstream.base_url}/{dialect}", json=body)
            first = b"%08d" % upstream.last.sequence
            through = hear(client, f"{server.base_url}/{dialect}", json=body)
            second = b"%08d" % upstream.last.sequence  # an error may be repeated
            assert through.body.replace(second, b"N") == straight.body.replace(first, b"N")
            assert (kind, through.status) == (kind, straight.status)
            assert through.headers["content-type"] == straight.headers["content-type"]
            assert through.broken is None


def test_no_fault_is_left_out() -> None:
    """Streaming or not, each kind of fault is in one of the tests above."""
    assert {*BEFORE, *NOT_WHOLE, *RELAYED} == set(FaultKind)
    assert {*BEFORE, *CUT, *RELAYED_STREAMS} == set(FaultKind)


SLOW = Fault(K.SLOW_FIRST_BYTE, delay_s=60)
STALL = Fault(K.STALL, reply=REPLY)
BUSY = Reply("word " * 5000, chunk_delay_s=0.01)


def left(upstream: ScriptedUpstream, line: socket.socket, *, reset: bool) -> None:
    """Close the client's line; the upstream's has to be closed at once."""
    if reset:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    line.close()
    upstream.last.wait_disconnected()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_moment_to_leave(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str
) -> None:
    """Before the first byte, in the middle of a body, of a silent and of a busy stream; between
    two attempts; before the request is whole: the upstream's call ends, and the next is served."""
    server = gateway_server({**STEERING, "router": {"num_retries": 5, "backoff_s": 30}})
    path = f"/v1/{dialect}"

    def said(*, stream: bool) -> socket.socket:
        line = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        line.sendall(raw_post(path, json.dumps(body_of(dialect, stream=stream)).encode()))
        upstream.wait_for_requests(len(before) + 1)
        return line

    moments: list[tuple[Reply | Fault, bool]] = [
        (SLOW, False),
        (SLOW, True),
        (STALL, False),
        (STALL, True),
        (BUSY, True),
    ]
    for reset in (False, True):
        for entry, stream in moments:
            before = list(upstream.requests)
            upstream.default = entry
            line = said(stream=stream)
            if stream and entry is not SLOW:
                assert line.recv(65_536)
            left(upstream, line, reset=reset)
    before = list(upstream.requests)
    upstream.default = Fault(K.SERVER_ERROR)
    said(stream=True).close()
    half = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    half.sendall(raw_post(path, json.dumps(body_of(dialect)).encode())[:-10])
    half.close()
    upstream.default = REPLY
    with httpx.Client(base_url=server.base_url, timeout=120) as client:
        assert hear(client, f"/{dialect}", json=body_of(dialect)).status == 200
        deadline = time.monotonic() + 120
        while b"gateway_requests_in_flight 0.0" not in server.app.runtime.metrics.render():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(upstream.requests) == len(before) + 2
