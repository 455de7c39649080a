"""Every other `/v1/*` route is the upstream's: any method, any body, both ways."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, hear, raw_exchange

TARGETS = [
    "/v1/files/a%2Fb%20c?x=a%20b&y=%2B+&z=%e4%bd%a0",
    "/v1/x/%41%7e?q='()*!~",
    "/v1/vector_stores/vs_1/files?limit=10&after=a&after=b&empty=&flag",
    "/v1/x;p=1/@:!$&'()*+,;=",
    "/v1//double//",
    "/v1/trailing/",
    "/v1/fine_tuning/jobs/ft-1/events?a=1?b=2",
    "/v1/%E4%BD%A0",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", [b"GET", b"DELETE"])
def test_paths_and_queries_arrive_byte_for_byte(
    there: ScriptedUpstream, shared_gateway: AppServer, target: str, method: bytes
) -> None:
    """Escapes keep their case, nothing is decoded, encoded, sorted or dropped."""
    head = (
        method
        + b" "
        + target.encode()
        + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert raw_exchange(shared_gateway.port, head).startswith(b"HTTP/1.1 200")
    assert (there.last.target, there.last.method) == (target, method.decode())


@pytest.mark.parametrize("target", ["/v1/../admin", "/v1/a/%2e%2e/%2E%2e/b", "/v1/./x", "/v1/.."])
def test_no_path_leads_out_of_the_api(
    there: ScriptedUpstream, shared_gateway: AppServer, target: str
) -> None:
    """Dot segments, which an upstream would resolve, are refused."""
    head = b"GET " + target.encode() + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert raw_exchange(shared_gateway.port, head).startswith(b"HTTP/1.1 400")
    assert not there.requests


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_goes_through(
    there: ScriptedUpstream, here: httpx.Client, method: str
) -> None:
    """With and without a body."""
    heard = hear(here, "/files/f-1", method=method)
    assert heard.json == {"method": method, "path": "/v1/files/f-1", "query": ""}
    heard = hear(here, "/files/f-1", method=method, content=b"\x00\xff", headers={"x-a": "b"})
    assert (there.last.method, there.last.body) == (method, b"\x00\xff")
    assert heard.body == b"\x00\xff"


@pytest.mark.parametrize("path", ["/files/f-1/content", "/models", "/models/m"])
def test_head_has_the_headers_and_no_body(
    there: ScriptedUpstream, here: httpx.Client, path: str
) -> None:
    """HEAD is answered like GET, without a byte of body; the connection goes on."""
    answer = here.head(path)
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 0
    assert there.last.method == "HEAD"
    assert here.get("/models").json()["object"] == "list"


def test_a_multipart_upload_arrives_byte_for_byte(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """Files and fields with their boundary; the answer is the upstream's."""
    audio = os.urandom(300_000)
    there.script(Reply(raw=b'{"id": "file-1"}'), path="/files")
    files = {"file": ("a \u00e9.wav", audio, "audio/wav")}
    request = here.build_request("POST", "/files", data={"purpose": "batch"}, files=files)
    body = request.read()
    answer = here.send(request)
    assert answer.json() == {"id": "file-1"}
    kind = there.last.header("content-type")
    assert kind is not None
    assert kind.startswith("multipart/form-data; boundary=")
    assert audio in there.last.body
    assert there.last.header("content-length") == str(len(there.last.body))
    assert there.last.body == body


def test_binary_answers_arrive_byte_for_byte(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Speech comes as audio, of any length, unchanged."""
    audio = os.urandom(500_000)
    there.script(Reply(raw=audio, content_type="audio/mpeg"), path="/audio/speech")
    heard = hear(here, "/audio/speech", json={"model": "tts-1", "input": "hi", "voice": "alloy"})
    assert heard.body == audio
    assert heard.headers["content-type"] == "audio/mpeg"
    assert heard.headers["content-length"] == str(len(audio))


def test_bodies_stream_in_both_directions_at_once(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """Each piece of a body is answered before the next one is sent."""
    head = b"POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=120) as connection:
        connection.sendall(head + b"connection: close\r\n\r\n")
        received = b""
        for number in range(4):
            connection.sendall(b"9\r\npiece %d; \r\n" % number)
            while b"piece %d; " % number not in received:
                received += connection.recv(65536)
        connection.sendall(b"0\r\n\r\n")
        while chunk := connection.recv(65536):
            received += chunk
    assert received.endswith(b"0\r\n\r\n")
    assert there.last.body == b"piece 0; piece 1; piece 2; piece 3; "


def test_a_streamed_answer_of_another_route(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Legacy completions and Responses stream through with their event names."""
    there.script(Reply("one two", chunk_delay_s=0))
    heard = hear(here, "/responses", json={"model": "m", "input": "x", "stream": True})
    assert b"event: response.created\n" in heard.body
    assert b"event: response.completed\n" in heard.body
    assert heard.broken is None
    heard = hear(here, "/completions", json={"model": "m", "prompt": "x", "stream": True})
    assert heard.body.endswith(b"data: [DONE]\n\n")


def test_messages_pass_with_their_query(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Anthropic's route keeps `?beta=true`, its beta header and its event names."""
    body = {**HELLO, "max_tokens": 9, "stream": True}
    heard = hear(here, "/messages?beta=true", json=body, headers={"anthropic-beta": "x-1"})
    assert (there.last.query, there.last.header("anthropic-beta")) == ("beta=true", "x-1")
    assert b"event: message_stop\n" in heard.body
    counted = hear(here, "/messages/count_tokens?beta=true", json=HELLO)
    assert counted.json["input_tokens"] > 0


def test_a_body_that_is_no_json_object_is_the_upstreams_to_judge(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """Arrays, text and broken JSON go through on routes that are not ours."""
    for raw in (b"[1, 2]", b"{broken", b"", b'"x"', b'{"model": 5}'):
        hear(here, "/embeddings", content=raw, headers={"content-type": "application/json"})
        assert there.last.body == raw


@pytest.mark.parametrize("status", [201, 204, 206, 301, 304, 307, 400, 418, 451, 500, 503])
def test_any_status_goes_through(there: ScriptedUpstream, here: httpx.Client, status: int) -> None:
    """Redirects are not followed, errors not repeated, and empty answers stay empty."""
    raw = b"" if status in (204, 304) else b'{"a": 1}'
    there.script(Reply(raw=raw, status=status, headers={"location": "/v1/else"}), path="/x")
    heard = hear(here, "/x", content=b"body")
    assert (heard.status, heard.body) == (status, raw)
    assert heard.headers["location"] == "/v1/else"
    assert len(there.requests) == 1


def test_compressed_answers_stay_compressed(there: ScriptedUpstream, here: httpx.Client) -> None:
    """The gateway neither unpacks nor repacks."""
    packed = gzip.compress(json.dumps({"id": "x"}).encode())
    there.script(*[Reply(raw=packed, headers={"content-encoding": "gzip"})] * 2)
    for path in ("/chat/completions", "/embeddings"):
        heard = hear(here, path, json=HELLO)
        assert heard.body == packed
        assert heard.headers["content-encoding"] == "gzip"


def test_a_named_deployment_takes_its_other_routes_too(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """Embeddings for a configured name go to its deployment, with its model and key."""
    params = {"model": "openai/real", "api_base": f"{upstream.url}/other/v1", "api_key": "theirs"}
    client = relay({"model_list": [{"model_name": "embed", "litellm_params": params}]})
    hear(client, "/embeddings", content=b'{"input": 1.0, "model":"embed"}', headers=_JSON)
    assert upstream.last.target == "/other/v1/embeddings"
    assert upstream.last.body == b'{"input": 1.0, "model":"real"}'
    assert upstream.last.header("authorization") == "Bearer theirs"
    hear(client, "/embeddings", json={"input": "x", "model": "else"})
    assert upstream.last.target == "/v1/embeddings"


@pytest.mark.slow
def test_a_deployment_of_another_wire_is_no_place_for_other_routes(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """A name served by both lanes sends its embeddings to the native deployment only."""
    mixed: list[dict[str, Any]] = [
        {"model_name": "both", "litellm_params": {"model": "anthropic/claude-x", "api_key": "a"}},
        {
            "model_name": "both",
            "litellm_params": {"model": "openai/real", "api_base": upstream.base_url},
        },
    ]
    client = relay({"model_list": mixed})
    for _ in range(4):
        assert hear(client, "/embeddings", json={"input": "x", "model": "both"}).status == 200
        assert upstream.last.model == "real"


_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions"])
def test_a_websocket_upgrade_is_refused_cleanly(
    there: ScriptedUpstream, shared_gateway: AppServer, path: str
) -> None:
    """426 in OpenAI's error shape, naming what is spoken; nothing reaches the upstream."""
    with httpx.Client(base_url=shared_gateway.url) as client:
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        answer = client.get(
            path, headers={**upgrade, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
        )
    assert answer.status_code == 426
    assert answer.headers["upgrade"] == "HTTP/1.1"
    assert "Upgrade" in answer.headers["connection"]
    assert answer.json()["error"]["code"] == "websocket_not_supported"
    assert not there.requests


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
def test_an_offer_of_http2_is_ignored(
    there: ScriptedUpstream, here: httpx.Client, path: str
) -> None:
    """Java's HTTP client offers `Upgrade: h2c` on each request; its body must not be lost."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAAB"}
    for _ in range(2):
        assert hear(here, path, json=HELLO, headers=offer).status == 200
        assert there.last.json == HELLO
        assert there.last.header("http2-settings") is None
    assert here.get("/models", headers=offer).status_code == 200
    assert hear(here, path, json=HELLO).status == 200


def test_an_offer_of_http2_in_pieces(there: ScriptedUpstream, shared_gateway: AppServer) -> None:
    """However the head and the body are cut, the request is read whole, and the next one too."""
    body = json.dumps(HELLO).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    head += b"upgrade: h2c\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n"
    whole = head + body
    for cut in (20, head.index(b"h2c") + 1, len(head) - 2, len(head), len(head) + 5):
        address = ("127.0.0.1", shared_gateway.port)
        with socket.create_connection(address, timeout=120) as connection:
            for piece in (whole[:cut], whole[cut:], whole):
                connection.sendall(piece)
                time.sleep(0.01)
            received = b""
            while received.count(b"HTTP/1.1 200 OK") < 2:
                received += connection.recv(65536)
        assert there.last.json == HELLO


def test_a_query_of_the_bases_own_comes_first(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """Some providers want their API version with every call."""
    base = {"default_upstream": {"api_base": f"{upstream.base_url}?api-version=1"}}
    client = relay(base)
    hear(client, "/files?limit=2", method="GET")
    hear(client, json=HELLO)
    targets = [request.target for request in upstream.requests]
    assert targets == ["/v1/files?api-version=1&limit=2", "/v1/chat/completions?api-version=1"]
