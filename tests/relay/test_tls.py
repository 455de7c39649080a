"""Upstreams over TLS, through the native lane: the gateway as a process that trusts one authority.

The authority is named by SSL_CERT_FILE, as docs/deploy.md says.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing.hearing import HELLO, STREAMED
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.processes import GatewayProcess
from steering_gateway_testing.tls import Authority, Heard, TLSUpstream

WORDS = [
    {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": f"word {n} "}, "finish_reason": None}],
    }
    for n in range(3)
]
WHOLE = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ],
}
BODY = json.dumps(WHOLE).encode()
EVENTS = [b"data: %b\n\n" % json.dumps(word).encode() for word in WORDS]
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
JSON, STREAM = HEAD % b"application/json", HEAD % b"text/event-stream"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body; the last one is empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(heard: Heard) -> None:
    """A complete answer; the connection stays open."""
    heard.send(JSON + b"content-length: %d\r\n\r\n" % len(BODY), BODY)


def streamed(heard: Heard) -> None:
    """A complete stream; the connection stays open."""
    heard.send(STREAM + CHUNKED, *map(chunk, (*EVENTS, DONE, b"")))


def cut_in_chunks(heard: Heard) -> None:
    """A stream that breaks off between two events."""
    heard.send(STREAM + CHUNKED, *map(chunk, EVENTS))
    heard.cut()


def cut_without_length(heard: Heard) -> None:
    """A stream whose end is that of the connection, which breaks off instead of ending."""
    heard.send(STREAM + b"connection: close\r\n\r\n", *EVENTS)
    heard.cut()


def cut_in_body(heard: Heard) -> None:
    """An answer of a known length that breaks off."""
    heard.send(JSON + b"content-length: %d\r\n\r\n" % len(BODY), BODY[:-20])
    heard.cut()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that the gateway trusts."""
    return Authority(tmp_path_factory.mktemp("authority"), "trusted")


@pytest.fixture(scope="module")
def upstreams(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, TLSUpstream]]:
    """Servers by what is wrong with them."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    with (
        TLSUpstream(authority.server("localhost")) as good,
        TLSUpstream(stranger.server("localhost")) as unknown,
        TLSUpstream(authority.server("localhost", expired=True)) as expired,
        TLSUpstream(authority.server("api.example.com")) as other,
        TLSUpstream(authority.server_without_key_identifier("localhost")) as bare,
    ):
        yield {
            "good": good,
            "unknown": unknown,
            "expired": expired,
            "other": other,
            "bare": bare,
        }


@pytest.fixture(scope="module")
def base_url(
    authority: Authority,
    upstreams: dict[str, TLSUpstream],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A gateway with a deployment for each server."""
    hosts = dict.fromkeys(upstreams, "localhost") | {"address": "127.0.0.1"}
    listed = [
        {
            "model_name": name,
            "litellm_params": {
                "model": "openai/m",
                "api_base": f"https://{host}:{upstreams.get(name, upstreams['good']).port}/v1",
                "api_key": "k",
            },
        }
        for name, host in hosts.items()
    ]
    config: dict[str, Any] = {"model_list": listed, "router": {"num_retries": 0}}
    env = {"SSL_CERT_FILE": str(authority.file)}
    folder: Path = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder, json.dumps(config), env=env) as gateway:
        yield gateway.base_url


@pytest.fixture
def client(base_url: str) -> Iterator[httpx.Client]:
    """A client of the gateway."""
    with httpx.Client(base_url=base_url, timeout=ANSWER_S) as made:
        yield made


def test_connections_are_used_again(
    client: httpx.Client, upstreams: dict[str, TLSUpstream]
) -> None:
    """One handshake for plain answers and streams; it names the host."""
    good = upstreams["good"]
    good.script([whole, streamed, whole, streamed])
    for body in (HELLO, STREAMED, HELLO, STREAMED):
        answer = client.post("/chat/completions", json={**body, "model": "good"})
        assert answer.status_code == 200
        assert answer.content == (b"".join([*EVENTS, DONE]) if body is STREAMED else BODY)
    assert good.hellos == ["localhost"]
    assert [heard.head.split(b"\r\n")[1] for heard in good.requests] == [
        b"Host: localhost:%d" % good.port
    ] * 4


def test_a_large_body_and_other_routes(
    client: httpx.Client, upstreams: dict[str, TLSUpstream]
) -> None:
    """What is sent in pieces arrives whole."""
    good = upstreams["good"]
    good.script([whole, whole])
    long = {"model": "good", "messages": [{"role": "user", "content": "word " * 500_000}]}
    assert client.post("/chat/completions", json=long).content == BODY
    assert client.post("/embeddings", json={"model": "good", "input": "x"}).content == BODY
    sent = json.loads(good.requests[0].body)
    assert sent == {**long, "model": "m"}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("unknown", "self-signed certificate in certificate chain|unable to get local issuer"),
        ("expired", "certificate has expired"),
        ("other", "Hostname mismatch, certificate is not valid for 'localhost'"),
        ("address", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["plain", "stream"])
def test_a_certificate_that_is_not_right_is_refused(
    client: httpx.Client,
    upstreams: dict[str, TLSUpstream],
    model: str,
    reason: str,
    body: dict[str, Any],
) -> None:
    """With what is wrong with it, and nothing is sent: the request has a key."""
    server = upstreams.get(model, upstreams["good"])
    server.script([whole])
    answer = client.post("/chat/completions", json={**body, "model": model})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 502, message
    assert any(each in message for each in reason.split("|")), message
    assert "SSL_CERT_FILE" in message
    assert not server.requests


def test_a_certificate_that_newer_pythons_refuse_says_why(
    client: httpx.Client, upstreams: dict[str, TLSUpstream]
) -> None:
    """Without an Authority Key Identifier it serves up to Python 3.12; from 3.13 on the error names
    what is missing and what to do."""
    upstreams["bare"].script([whole])
    answer = client.post("/chat/completions", json={**HELLO, "model": "bare"})
    if sys.version_info < (3, 13):
        assert (answer.status_code, answer.content) == (200, BODY)
        return
    message = answer.json()["error"]["message"]
    assert answer.status_code == 502
    assert "Missing Authority Key Identifier" in message
    assert "Python 3.13 and later ask for it" in message


@pytest.mark.parametrize("cut", [cut_in_chunks, cut_without_length])
def test_a_stream_that_breaks_off_is_seen_to(
    client: httpx.Client, upstreams: dict[str, TLSUpstream], cut: Any
) -> None:
    """An error is its last event; what came before it arrives."""
    upstreams["good"].script([cut])
    received = bytearray()
    asked = client.stream("POST", "/chat/completions", json={**STREAMED, "model": "good"})
    with asked as answer, pytest.raises(httpx.RemoteProtocolError):
        collections.deque(map(received.extend, answer.iter_bytes()), maxlen=0)
    assert received.startswith(b"".join(EVENTS))
    assert b'data: {"error"' in received
    assert DONE not in received


def test_an_answer_that_breaks_off_is_seen_to(
    client: httpx.Client, upstreams: dict[str, TLSUpstream]
) -> None:
    """It is not passed on as if it were whole, and the next one is asked over a new connection."""
    good = upstreams["good"]
    good.script([cut_in_body, whole])
    answer = client.post("/chat/completions", json={**HELLO, "model": "good"})
    assert answer.status_code == 502
    assert "broke off" in answer.json()["error"]["message"]
    again = client.post("/chat/completions", json={**HELLO, "model": "good"})
    assert (again.status_code, again.content) == (200, BODY)


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
@pytest.mark.parametrize("says_so", [True, False])
def test_an_answer_that_ends_with_its_connection_is_whole(
    client: httpx.Client, upstreams: dict[str, TLSUpstream], path: str, says_so: bool
) -> None:
    """Also without a close_notify, which servers in use leave out: httpx and aiohttp take it, too.

    Of a stream the missing last event tells (`cut_without_length`).
    """

    def ended(heard: Heard) -> None:
        heard.send(JSON + b"connection: close\r\n\r\n", BODY)
        (heard.end if says_so else heard.cut)()

    upstreams["good"].script([ended])
    answer = client.post(path, json={**HELLO, "model": "good"})
    assert (answer.status_code, answer.content) == (200, BODY)


def test_a_connection_that_was_cut_while_idle_harms_nobody(
    client: httpx.Client, upstreams: dict[str, TLSUpstream]
) -> None:
    """The next request is sent over another one."""
    good = upstreams["good"]

    def whole_then_cut(heard: Heard) -> None:
        whole(heard)
        heard.cut()

    good.script([whole_then_cut, whole_then_cut, whole])
    for _ in range(3):
        answer = client.post("/chat/completions", json={**HELLO, "model": "good"})
        assert (answer.status_code, answer.content) == (200, BODY)
