"""A client that goes away ends the call upstream, whatever the call was doing."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear, raw_post

SLOW = Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=60)
STALL = Fault(FaultKind.STALL)


def send(port: int, body: Any, path: str = "/v1/chat/completions") -> socket.socket:
    """A request on a connection of its own."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.sendall(raw_post(path, json.dumps(body).encode()))
    return connection


def leave(upstream: ScriptedUpstream, connection: socket.socket, *, reset: bool = False) -> None:
    """Close the client's connection; the upstream's has to follow, its answer still unfinished."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    upstream.last.wait_disconnected()


@pytest.fixture
def port(shared_gateway: AppServer, there: ScriptedUpstream) -> Iterator[int]:
    """The shared gateway's port; after the test it has to be idle and to serve."""
    yield shared_gateway.port
    runtime = shared_gateway.app.runtime
    with httpx.Client(base_url=shared_gateway.base_url) as client:
        assert hear(client, json=HELLO).status == 200
        deadline = time.monotonic() + 120
        while b"gateway_requests_in_flight 0.0" not in runtime.metrics.render():
            assert time.monotonic() < deadline, "a request is still in flight"
            time.sleep(0.01)


def test_after_a_large_body(there: ScriptedUpstream, port: int) -> None:
    """The server stopped reading while the body was taken in; the disconnect is noticed."""
    there.script(SLOW)
    text = "x" * 2**21
    connection = send(port, HELLO | {"messages": [{"role": "user", "content": text}]})
    there.wait_for_requests()
    leave(there, connection)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
def test_before_the_first_byte(
    there: ScriptedUpstream, port: int, body: dict[str, Any], reset: bool
) -> None:
    """The upstream has said nothing yet: its call is cancelled."""
    there.script(SLOW)
    connection = send(port, body)
    there.wait_for_requests()
    leave(there, connection, reset=reset)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "entry", [STALL, Reply("word " * 5000, chunk_delay_s=0.01)], ids=["stalled", "busy"]
)
def test_in_mid_stream(
    there: ScriptedUpstream, port: int, entry: Reply | Fault, reset: bool
) -> None:
    """Events have arrived; neither a silent nor a busy stream goes on without its reader."""
    there.script(entry)
    connection = send(port, STREAMED)
    assert connection.recv(65536)
    leave(there, connection, reset=reset)


def test_in_the_middle_of_a_body(there: ScriptedUpstream, port: int) -> None:
    """Not streamed: half of the answer has come when the client leaves."""
    there.script(STALL)
    connection = send(port, HELLO)
    there.wait_for_requests()
    leave(there, connection)


@pytest.mark.parametrize("entry", [SLOW, STALL], ids=["silent", "stalled"])
@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/completions", "/v1/responses", "/v1/messages"]
)
def test_on_other_routes(there: ScriptedUpstream, port: int, path: str, entry: Fault) -> None:
    """What is passed through is cancelled as well."""
    there.script(entry, path=path)
    connection = send(port, {**HELLO, "input": "x", "stream": True}, path)
    there.wait_for_requests()
    leave(there, connection)


def test_without_a_body(there: ScriptedUpstream, port: int) -> None:
    """A slow GET is cancelled."""
    there.script(SLOW, path="/content")
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.sendall(b"GET /v1/files/f-1/content HTTP/1.1\r\nhost: localhost\r\n\r\n")
    there.wait_for_requests()
    leave(there, connection)


def test_while_models_are_listed(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """A list that is merged is a call like any other."""
    params = {"model": "openai/x", "api_base": "http://127.0.0.1:9"}
    client = relay({"model_list": [{"model_name": "mine", "litellm_params": params}]})
    upstream.script(SLOW, path="/models")
    raw = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=120)
    connection.sendall(raw)
    upstream.wait_for_requests()
    leave(upstream, connection)


def test_after_an_upload(there: ScriptedUpstream, port: int) -> None:
    """A streamed body is complete and the answer slow."""
    there.script(SLOW, path="/files")
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.sendall(head + b"4\r\nbody\r\n0\r\n\r\n")
    there.wait_for_requests()
    assert there.last.body == b"body"
    leave(there, connection)


def test_during_an_upload(there: ScriptedUpstream, port: int) -> None:
    """The body is half sent: the upstream does not wait for the rest, and nothing is answered."""
    head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    pause_s = 0.1
    while not there.requests:  # nothing tells that the gateway has begun to pass it on
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(head + b"half of it")
            time.sleep(pause_s)
        with contextlib.suppress(TimeoutError):
            there.wait_for_requests(timeout_s=10 * pause_s)
        pause_s *= 2
        assert pause_s < 60, "the half is never passed on"
    there.requests[0].wait_disconnected()
    assert not there.requests[0].complete


def test_before_the_request_is_whole(there: ScriptedUpstream, port: int) -> None:
    """Half a chat request is never forwarded."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.sendall(raw_post("/v1/chat/completions", json.dumps(HELLO).encode())[:-10])
    time.sleep(0.05)
    connection.close()
    time.sleep(0.05)
    assert not there.requests


@pytest.mark.parametrize("entry", [SLOW, STALL], ids=["silent", "stalled"])
def test_with_keep_alives(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client], entry: Fault
) -> None:
    """Comments that keep a stream open do not keep it open for nobody."""
    client = relay({"server": {"sse_keepalive_s": 0.02}})
    upstream.script(entry)
    connection = send(client.base_url.port or 0, STREAMED)
    upstream.wait_for_requests()
    time.sleep(0.1)
    leave(upstream, connection)
    assert hear(client, json=HELLO).status == 200


def test_between_two_attempts(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """While the gateway waits to repeat a call, a client that leaves ends the matter."""
    client = relay({"router": {"num_retries": 5, "backoff_s": 30}})
    upstream.default = Fault(FaultKind.SERVER_ERROR)
    connection = send(client.base_url.port or 0, HELLO)
    upstream.wait_for_requests()
    connection.close()
    metrics = str(client.base_url).replace("/v1/", "/metrics")
    deadline = time.monotonic() + 120
    while b'gateway_errors_total{kind="client_gone"} 1.0' not in client.get(metrics).content:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(upstream.requests) == 1


def test_a_client_that_reads_slowly_is_not_gone(there: ScriptedUpstream, port: int) -> None:
    """A large answer waits for its reader, and arrives whole."""
    there.script(Fault(FaultKind.HUGE_BODY, size_mb=4))
    connection = send(port, STREAMED)
    received = bytearray()
    while chunk := connection.recv(262_144):
        received += chunk
        time.sleep(0.005)
    connection.close()
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b"x" * 1000) >= 4000
