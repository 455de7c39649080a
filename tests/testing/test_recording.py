"""What the scripted upstream records: bytes as they came, connections, and clients that leave."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from steering_gateway_testing import Fault, FaultKind, ScriptedUpstream

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@contextmanager
def raw_connection(upstream: ScriptedUpstream) -> Iterator[socket.socket]:
    """A bare TCP connection to the server."""
    with socket.create_connection((upstream.host, upstream.port), timeout=120) as connection:
        yield connection


def read_answer(connection: socket.socket, ending: bytes) -> bytes:
    """Bytes received up to `ending`."""
    received = b""
    while not received.endswith(ending):
        data = connection.recv(65_536)
        assert data, f"connection closed after {received!r}"
        received += data
    return received


def test_a_body_that_is_no_json_has_no_fields(upstream: ScriptedUpstream) -> None:
    """Garbage is recorded and answered without an exception."""
    httpx.post(f"{upstream.base_url}/chat/completions", content=b"\xff{")
    assert (upstream.last.json, upstream.last.fields, upstream.last.stream) == (None, {}, False)
    assert upstream.last.messages == []


def test_expect_continue_is_granted(upstream: ScriptedUpstream) -> None:
    """A client that asks before sending its body is told to go on."""
    with raw_connection(upstream) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 4\r\n\r\n"
        )
        assert read_answer(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        connection.sendall(b"abcd")
        assert read_answer(connection, b"abcd").startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_answered_in_order(upstream: ScriptedUpstream) -> None:
    """Two requests in one packet get two answers, the first one first."""
    one = b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none"
    with raw_connection(upstream) as connection:
        connection.sendall(one + one.replace(b"one", b"two"))
        answers = read_answer(connection, b"two")
    assert answers.index(b"\r\n\r\none") < answers.index(b"\r\n\r\ntwo")


def test_connection_close_is_honoured(upstream: ScriptedUpstream) -> None:
    """A client that asks for it gets the end of the connection after the answer."""
    with raw_connection(upstream) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while data := connection.recv(65_536):
            received += data
    assert received.startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_refused(upstream: ScriptedUpstream) -> None:
    """Bytes that are no request get status 400 and the end of the connection."""
    with raw_connection(upstream) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_answer(connection, b"bad request").startswith(b"HTTP/1.1 400")
        assert connection.recv(10) == b""


def test_a_client_that_leaves_during_its_request_is_recorded(upstream: ScriptedUpstream) -> None:
    """A request cut short is recorded as incomplete."""
    with raw_connection(upstream) as connection:
        connection.sendall(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
    (request,) = upstream.wait_for_requests(1)
    request.wait_disconnected()
    assert not request.complete


def test_a_completed_answer_is_no_disconnect(upstream: ScriptedUpstream) -> None:
    """A client that leaves after its answer has not disconnected from it."""
    httpx.post(f"{upstream.base_url}/chat/completions", json=HELLO)
    upstream.wait_for_connections(0)
    assert upstream.last.finished_at is not None
    with pytest.raises(AssertionError, match="completed"):
        upstream.last.wait_disconnected()


def test_waiting_has_an_end(upstream: ScriptedUpstream) -> None:
    """Waiting for what does not happen raises."""
    with pytest.raises(TimeoutError, match="1 requests"):
        upstream.wait_for_requests(1, timeout_s=0.01)
    upstream.script(Fault(FaultKind.STALL))
    with raw_connection(upstream) as connection:
        connection.sendall(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        (request,) = upstream.wait_for_requests(1)
        with pytest.raises(TimeoutError, match="still connected"):
            request.wait_disconnected(0.01)


def test_connections_are_counted(upstream: ScriptedUpstream) -> None:
    """A kept-alive connection counts once, and is seen to close."""
    with httpx.Client(base_url=upstream.base_url) as client:
        for _ in range(3):
            client.get("/models")
        assert (upstream.open_connections, upstream.connections_opened) == (1, 1)
    upstream.wait_for_connections(0)
    assert [request.connection for request in upstream.requests] == [1, 1, 1]


def test_recording_can_be_bounded() -> None:
    """Only the newest requests are kept when a limit is given."""
    with ScriptedUpstream(record=2) as server:
        for number in range(4):
            httpx.post(f"{server.base_url}/chat/completions", json={"model": str(number)})
        assert [request.model for request in server.requests] == ["2", "3"]
