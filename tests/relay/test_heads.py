"""Request heads: what is too large, too slow, ambiguous or no request is refused, not forwarded."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.hearing import HELLO, STREAMED, hear, raw_exchange, raw_post
from steering_gateway_testing.text import echo

HOST = b"host: localhost\r\n"
CHUNKED = b"POST /v1/files HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
END_S = 120.0
"""Longest wait for the end of a connection, in seconds; on a quiet machine it takes one."""
ENDLESS_BYTES = 32 * 2**20
"""More than any limit of a head plus what the operating system buffers."""

QUICK = {"server": {"max_head_s": 1, "keep_alive_s": 2, "max_pipelined_requests": 4}}


def get(target: bytes, *lines: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    """A request without a body, which asks to close its connection."""
    head = [method + b" " + target + b" HTTP/" + version, b"connection: close", *lines]
    return b"\r\n".join([*head, b"", b""])


def models(*lines: bytes) -> bytes:
    return get(b"/v1/models", b"host: localhost", *lines)


def at(target: bytes, method: bytes = b"GET") -> bytes:
    return get(target, b"host: localhost", method=method)


REFUSED: dict[str, tuple[bytes, int]] = {
    "no host": (get(b"/v1/models"), 400),
    "two hosts": (models(b"host: localhost"), 400),
    "two hosts in 1.0": (get(b"/v1/models", b"host: a", b"host: a", version=b"1.0"), 400),
    "empty host": (get(b"/v1/models", b"host:"), 400),
    "host with a path": (get(b"/v1/models", b"host: localhost/x"), 400),
    "host with a user": (get(b"/v1/models", b"host: me@localhost"), 400),
    "host with a space": (get(b"/v1/models", b"host: local host"), 400),
    "host that is open": (get(b"/v1/models", b"host: [::1"), 400),
    "host with a wrong port": (get(b"/v1/models", b"host: localhost:http"), 400),
    "another host in the target": (at(b"http://evil.example/v1/models"), 400),
    "user in the target": (at(b"http://me@localhost/v1/models"), 400),
    "target without a slash": (at(b"v1/models"), 400),
    "target of a tunnel": (at(b"localhost:443", b"CONNECT"), 405),
    "tunnel with a path": (at(b"/v1/models", b"CONNECT"), 405),
    "trace": (at(b"/v1/models", b"TRACE"), 405),
    "trace of a steered route": (at(b"/v1/chat/completions", b"TRACE"), 405),
    "trace of a short route": (at(b"/chat/completions", b"TRACE"), 405),
    "trace of nothing": (at(b"/", b"TRACE"), 405),
    "trace of metrics": (at(b"/metrics", b"TRACE"), 405),
    "an older version": (get(b"/v1/models", b"host: localhost", version=b"0.9"), 400),
    "a newer version": (get(b"/v1/models", b"host: localhost", version=b"2.0"), 400),
    "no version": (b"GET /v1/models\r\n\r\n", 400),
    "HTTP/2 without a question": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "line folding": (models(b"x-a: 1\r\n folded"), 400),
    "space before the colon": (models(b"x-a : 1"), 400),
    "no name": (models(b": 1"), 400),
    "zero byte": (models(b"x-a: 1\x002"), 400),
    "bare line feed": (b"GET /v1/models HTTP/1.1\nhost: localhost\n\n", 400),
    "two lengths": (models(b"content-length: 1", b"content-length: 2"), 400),
    "length and chunks": (models(b"content-length: 1", b"transfer-encoding: chunked"), 400),
    "unknown coding": (models(b"transfer-encoding: xchunked"), 400),
    "chunks that are not last": (models(b"transfer-encoding: chunked, gzip"), 400),
    "signed length": (models(b"content-length: +1"), 400),
    "many fields": (models(*(b"x-%d: 1" % n for n in range(120))), 431),
    "a large field": (models(b"x-a: " + b"a" * 66_000), 431),
    "a long name": (models(b"a" * 66_000 + b": 1"), 431),
    "large fields together": (models(*(b"x-%d: " % n + b"a" * 1000 for n in range(70))), 431),
    "a long target": (at(b"/v1/models?" + b"a" * 66_000), 431),
}

HIDDEN = [
    *(b"/v1/../x", b"/v1/./x", b"/v1/..", b"/v1/x/..;/y", b"/v1/..;a=b/x", b"/v1/.;/x", b"/..;/x"),
    *(b"/v1/%2e%2e/x", b"/v1/%2E./x", b"/v1/.%2e;/x", b"/v1/%2e%2e%3b/x", b"/v1/..%2fx"),
    *(b"/v1/%252e%252e/x", b"/v1/%252e%252e%252fx", b"/v1/%25252e%25252e/x", b"/v1/%2525252e/x"),
    *(b"/v1/..\\x", b"/v1\\x", b"/v1/a%5cb", b"/v1/a%255Cb", b"\\v1\\x", b"/v1/%5c..%5cx"),
    *(b"/v1/%c0%ae%c0%ae/x", b"/v1/%ef%bc%8e%ef%bc%8e/x", b"/v1/a%ef%bc%bcb", b"/v1/%ff"),
    *(b"/v1/%u002e%u002e/x", b"/v1/a%", b"/v1/a%2", b"/v1/a%zz", b"/v1/a#b", b"/v1/..#/x"),
    *(b"/v1/a%00", b"/v1/a%0d%0ax-b:1", b"/v1/a%250a", b"/v1/..%20/x", b"/v1/%20../x"),
    *(b"/v1/chat/completions/..;/../files", b"/healthz/.."),
    b"/v1/models/..%3Fa",
]

FORWARDED = [
    *(b"/v1/files/org%2Fmodel", b"/v1/files/a..b", b"/v1/files/...", b"/v1/files/a.", b"/v1/.well"),
    *(b"/v1/files/100%25", b"/v1/files/a%2Eb", b"/v1/files/a;v=1", b"/v1/files/%C3%A9%20x"),
    *(b"/v1//files", b"/v1/files/a?b=../..\\%5c%00", b"http://LOCALHOST/v1/files"),
]


@pytest.mark.parametrize(("raw", "status"), REFUSED.values(), ids=REFUSED)
def test_hostile_heads_are_refused(
    there: ScriptedUpstream, shared_gateway: AppServer, raw: bytes, status: int
) -> None:
    """Each has its status and an error in OpenAI's shape, and ends the connection."""
    head, _, body = raw_exchange(shared_gateway.port, raw).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert b"connection: close" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    if status == 405:
        assert b"\r\nallow: GET" in head or b"\r\nallow: POST" in head
    assert not there.requests


@pytest.mark.parametrize("target", HIDDEN)
def test_hidden_paths_are_refused(
    there: ScriptedUpstream, shared_gateway: AppServer, target: bytes
) -> None:
    """No path that another server could take for another one is forwarded, however encoded."""
    answer = raw_exchange(shared_gateway.port, at(target))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert not there.requests


@pytest.mark.parametrize("target", FORWARDED)
def test_unusual_paths_are_forwarded(
    there: ScriptedUpstream, shared_gateway: AppServer, target: bytes
) -> None:
    """An encoded slash is part of a name, dots within a name are dots, and queries are free."""
    assert raw_exchange(shared_gateway.port, at(target)).startswith(b"HTTP/1.1 200 ")
    assert there.last.target.encode() == target.removeprefix(b"http://LOCALHOST")


def test_heads_up_to_the_limits_are_forwarded(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """A hundred fields, or 60 KiB, are fine, also in front of a long body or in small pieces."""
    fields = b"".join(b"x-%d: 1\r\n" % n for n in range(96))
    raw = raw_post("/v1/files", b"x" * 300_000, b"x-a: " + b"a" * 60_000)
    for request in (get(b"/v1/models", b"host: localhost", fields[:-2]), raw):
        assert raw_exchange(shared_gateway.port, request).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=END_S) as line:
        for piece in (raw[:9], raw[9:50_000], raw[50_000:60_500], raw[60_500:]):
            line.sendall(piece)
            time.sleep(0.01)
        assert line.recv(12) == b"HTTP/1.1 200"


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "fields": (b"GET /v1/models HTTP/1.1\r\n" + HOST, b"x-a: some value\r\n" * 4000),
    "value": (b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x-a: ", b"a" * 65_536),
    "name": (b"GET /v1/models HTTP/1.1\r\n" + HOST, b"a" * 65_536),
    "target": (b"GET /", b"a" * 65_536),
    "empty lines": (b"", b"\r\n" * 32_768),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"x-a: some value\r\n" * 4000),
    "one trailer": (CHUNKED + b"1\r\na\r\n0\r\nx-a: ", b"a" * 65_536),
    "chunk extension": (CHUNKED + b"1;", b"a" * 65_536),
    "after a refused upgrade": (
        models(b"upgrade: websocket").replace(b"connection: close", b"connection: upgrade"),
        b"a" * 65_536,
    ),
}


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS)
def test_endless_heads_end(shared_gateway: AppServer, start: bytes, more: bytes) -> None:
    """Little is read of what never ends; then the connection is closed."""
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=END_S) as line:
        line.sendall(start)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < ENDLESS_BYTES:
                line.sendall(more)
                sent += len(more)
    assert sent < ENDLESS_BYTES


def test_a_large_head_in_pieces_gets_its_answer(shared_gateway: AppServer) -> None:
    """A client that sends more than the limit, and then reads, is told which setting it met."""
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=END_S) as line:
        line.sendall(b"GET /v1/models HTTP/1.1\r\n" + HOST)
        for number in range(80):
            line.sendall(b"x-%d: " % number + b"a" * 1000 + b"\r\n")
        assert b"server.max_head_kb" in rest_of(line)


@pytest.fixture
def quick(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[AppServer]:
    """A gateway with short waits."""
    upstream.default = echo
    with a_gateway(upstream.base_url, tmp_path, QUICK) as server:
        yield server


def rest_of(line: socket.socket) -> bytes:
    """What arrives until the connection ends."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := line.recv(65_536):
            received += piece
    return received


def test_slow_heads_and_silence_end(quick: AppServer, upstream: ScriptedUpstream) -> None:
    """A head that trickles, a body that stops and a silent connection are not waited for."""
    body = raw_post("/v1/chat/completions", json.dumps(HELLO).encode())
    cases = {
        "nothing": (b"", b""),
        "an empty line": (b"\r\n", b"408"),
        "half a head": (b"GET /v1/models HTTP/1.1\r\n" + HOST, b"server.max_head_s"),
        "half a body": (body[:-5], b"server.keep_alive_s"),
        "half a chunk": (
            CHUNKED.replace(b"files", b"chat/completions") + b"5\r\nab",
            b"server.keep_alive_s",
        ),
    }
    lines = {
        name: socket.create_connection(("127.0.0.1", quick.port), timeout=END_S) for name in cases
    }
    for name, (sent, _) in cases.items():
        lines[name].sendall(sent)
    for name, (_, expected) in cases.items():
        with lines[name] as line:
            answer = rest_of(line)
            assert expected in answer, name
            assert bool(answer) == bool(expected), name
    with socket.create_connection(("127.0.0.1", quick.port), timeout=END_S) as line:
        line.sendall(b"GET /v1/models HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            while True:  # one more byte each time, for ever
                line.sendall(b"x")
                time.sleep(0.02)
    assert not [request for request in upstream.requests if request.complete]


def test_an_answer_may_take_longer_than_a_connection_may_be_silent(
    quick: AppServer, upstream: ScriptedUpstream
) -> None:
    """Waiting for the provider is not silence of the client."""
    upstream.script(Reply("one two three", first_byte_delay_s=2.5))
    with httpx.Client(base_url=quick.base_url, timeout=END_S) as client:
        assert hear(client, json=STREAMED).events[-1] == "[DONE]"


def test_requests_in_a_row_are_answered_in_order(quick: AppServer) -> None:
    """Without waiting for answers a client gets those that were taken, and then the end."""
    ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", quick.port), timeout=END_S) as line:
        line.sendall(ask * 4)
        received = b""
        while received.count(b'"status":"ok"') < 4:
            received += line.recv(65_536)
    with socket.create_connection(("127.0.0.1", quick.port), timeout=END_S) as line:
        line.sendall(ask * 2000)
        assert 1 <= rest_of(line).count(b"HTTP/1.1 200 OK") <= 8


def test_a_bad_head_waits_for_the_answer_before_it(
    quick: AppServer, upstream: ScriptedUpstream
) -> None:
    """The answer to the request before is whole, and nothing is written into it."""
    upstream.script(Reply("one two three", chunk_delay_s=0.1))
    first = raw_post(
        "/v1/chat/completions", json.dumps(STREAMED).encode(), b"connection: keep-alive"
    )
    for second in (b"GET /v1/models HTTP/1.1\r\n\r\n", b"no request at all\r\n\r\n"):
        upstream.script(Reply("one two three", chunk_delay_s=0.1))
        with socket.create_connection(("127.0.0.1", quick.port), timeout=END_S) as line:
            line.sendall(first + second)
            received = rest_of(line)
        assert received.count(b"HTTP/1.1 ") == 1
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_offers_are_ignored_and_bodies_kept(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """An upgrade to anything but a WebSocket leaves a request what it is."""
    body = json.dumps(HELLO).encode()
    for offer in (b"h2c", b"TLS/1.0", b"websocket"):
        more = (b"connection: upgrade", b"upgrade: " + offer)
        with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=END_S) as line:
            raw = raw_post("/v1/chat/completions", body, *more)
            line.sendall(raw[:-20])
            time.sleep(0.01)
            line.sendall(raw[-20:])
            assert line.recv(12) == b"HTTP/1.1 200", offer
        assert there.last.body == body


def test_nothing_after_a_refused_upgrade_is_a_request(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """What follows is of another protocol: read as HTTP, it would be a smuggled request."""
    head = (
        b"GET /v1/responses HTTP/1.1\r\n"
        + HOST
        + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=END_S) as line:
        line.sendall(head)
        with contextlib.suppress(ConnectionError):
            line.sendall(models())
        received = rest_of(line)
    assert received.startswith(b"HTTP/1.1 426 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert [request.path for request in there.requests] == ["/v1/responses"]


def test_refusals_are_counted_and_logged(shared_gateway: AppServer) -> None:
    """What never had a route is in the metrics all the same."""
    metrics: Callable[[], bytes] = shared_gateway.app.runtime.metrics.render
    raw_exchange(shared_gateway.port, models(*(b"x: 1" for _ in range(120))))
    raw_exchange(shared_gateway.port, b"no request at all\r\n\r\n")
    found = metrics().decode()
    for label in ("head_too_large", "bad_request"):
        assert f'gateway_errors_total{{kind="{label}"}}' in found
