"""HTTP as it is: what is no request, what has trailers, what speaks HTTP/1.0, what lay idle."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from steering_gateway_testing import AppServer, LoopbackServer, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear, raw_exchange
from steering_gateway_testing.loopback import read_request
from steering_gateway_testing.values import Fault, FaultKind, Reply

Relay = Callable[..., httpx.Client]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02garbage\r\n\r\n",
        b"BREW /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: many\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_openais_shape(shared_gateway: AppServer, raw: bytes) -> None:
    """The error a client gets for a broken request reads like every other error."""
    head, _, body = raw_exchange(shared_gateway.port, raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_trailers_do_not_become_headers(there: ScriptedUpstream, shared_gateway: AppServer) -> None:
    """What follows a chunked body is not forwarded as if it had come before it."""
    head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    chunked = b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-late: 1\r\n\r\n"
    assert raw_exchange(shared_gateway.port, head + chunked).startswith(b"HTTP/1.1 200")
    assert there.last.header("x-late") is None
    assert there.last.body == b"hi"


def test_http_1_0_gets_no_chunks(there: ScriptedUpstream, shared_gateway: AppServer) -> None:
    """A stream to such a client ends with its connection, and holds the events and nothing else."""
    body = json.dumps(STREAMED).encode()
    request = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    head, _, answer = raw_exchange(shared_gateway.port, request + body).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert answer.startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")
    health = raw_exchange(shared_gateway.port, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert json.loads(health.partition(b"\r\n\r\n")[2])["status"] == "ok"


class Dropping(LoopbackServer):
    """An upstream that answers its first `answered` requests, and closes at each later one."""

    def __init__(self, answered: int) -> None:
        self.answered = answered
        self.executed: list[bytes] = []
        self._together = threading.Barrier(answered)
        self._lock = threading.Lock()
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Answer until so many requests were executed."""
        while True:
            head, _ = read_request(connection)
            with self._lock:
                self.executed.append(head.split(b" ")[0])
                number = len(self.executed)
            if number > self.answered:
                return
            self._together.wait(120)  # so that each has a connection of its own
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("POST", "/embeddings", 1),
        ("POST", "/images/generations", 1),
        ("POST", "/batches", 1),
        ("POST", "/responses/compact", 1),
        ("DELETE", "/files/f1", 2),
        ("GET", "/files/f1", 2),
    ],
)
def test_a_connection_that_is_closed_as_it_is_used(
    relay: Relay, method: str, path: str, sent: int
) -> None:
    """With eight idle connections, each closed when a request was read: the request is executed
    once; twice where that changes nothing, over a new connection, and the answer says so."""
    idle = 8
    there = Dropping(idle)
    client = relay({"default_upstream": {"api_base": f"{there.url}/v1"}})
    with ThreadPoolExecutor(idle) as many:
        first = many.map(lambda _: hear(client, "/moderations", json=HELLO), range(idle))
        assert {heard.status for heard in first} == {200}
    answer = hear(client, path, method=method, json=HELLO if method == "POST" else None)
    there.close()
    assert answer.status == 502
    assert there.executed[idle:] == [method.encode()] * sent
    assert answer.headers.get("x-gateway-attempts", "1") == str(sent)


def test_an_upload_has_a_connection_of_its_own(upstream: ScriptedUpstream, relay: Relay) -> None:
    """A body that is gone when it is sent goes over no connection that may be closed already."""
    client = relay()
    assert hear(client, "/embeddings", json=HELLO).status == 200
    for _ in range(2):
        assert hear(client, "/files", files={"file": b"x" * 5000}).status == 200
    ids = [request.connection for request in upstream.requests]
    assert len(set(ids)) == 3


def test_a_compressed_request_is_forwarded_as_it_is(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """Whether the upstream reads it is for the upstream to say."""
    raw = gzip.compress(json.dumps(HELLO).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    hear(here, content=raw, headers=headers)
    assert there.last.target == "/v1/chat/completions"
    assert there.last.header("content-encoding") == "gzip"
    assert there.last.body == raw


def test_long_response_headers_are_relayed(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Longer than the 8 KiB that HTTP libraries tend to allow."""
    upstream.script(Reply("well", headers={"x-policy": "p" * 20_000}))
    assert hear(relay(), json=HELLO).headers["x-policy"] == "p" * 20_000


@pytest.mark.parametrize("body", [HELLO, STREAMED])
def test_a_status_that_http_does_not_have_is_relayed(
    upstream: ScriptedUpstream, relay: Relay, body: dict[str, object]
) -> None:
    """After it was tried again, as a server error is."""
    upstream.script(*[Fault(FaultKind.SERVER_ERROR, status=600)] * 3)
    heard = hear(relay(), json=body)
    assert (heard.status, heard.json["error"]["type"]) == (600, "server_error")
    assert len(upstream.requests) == 3
