"""Errors made by the gateway itself: the right status, OpenAI's shape, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, hear, raw_exchange, raw_post
from steering_gateway_testing.official import openai
from steering_gateway_testing.patience import until

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b'{"model": "m"', None, "line 1, column 14"),
        (b"[1]", None, "an array"),
        (b'"text"', None, "a string"),
        (b"{}", "model", "required"),
        (b'{"model": 7, "messages": []}', "model", "non-empty string"),
        (b'{"model": "m"}', "messages", "required"),
        (b'{"model": "m", "messages": "hi"}', "messages", "array"),
        (b'{"model": "m", "messages": [], "stream": "yes"}', "stream", "true or false"),
        (b"[" * 200_000, None, "nested too deeply"),
    ],
)
def test_a_malformed_body_is_400_and_says_which_key(
    there: ScriptedUpstream, here: httpx.Client, raw: bytes, param: str | None, says: str
) -> None:
    """Nothing is asked upstream; the error names the key, or the place."""
    heard = hear(here, content=raw, headers=JSON)
    assert heard.status == 400
    assert (heard.error["param"], heard.error["type"]) == (param, "invalid_request_error")
    assert says in heard.error["message"]
    assert not there.requests


def test_a_json_array_is_not_an_internal_error(here: httpx.Client) -> None:
    """A list where an object belongs is the client's mistake, and its client says so."""
    with (
        openai.OpenAI(base_url=str(here.base_url), api_key="k", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="JSON object, got an array"),
    ):
        client.post("/chat/completions", body=[1], cast_to=object)


@pytest.mark.parametrize(
    "path", ["/", "/v2/chat/completions", "/embeddings", "/v1", "/api/nothing"]
)
def test_an_unknown_route_is_404(
    there: ScriptedUpstream, shared_gateway: AppServer, path: str
) -> None:
    """Below another prefix there is nothing, and the error says where the API is."""
    answer = httpx.get(f"{shared_gateway.url}{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert "/v1" in answer.json()["error"]["message"]
    assert not there.requests


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/chat/completions", "POST"),
        ("/models", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/responses", "POST"),
        ("/api/hello", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_405(shared_gateway: AppServer, path: str, allow: str) -> None:
    """The methods there are stand in `allow`; the body has the usual shape."""
    answer = httpx.put(f"{shared_gateway.url}{path}")
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_without_v1(there: ScriptedUpstream, shared_gateway: AppServer) -> None:
    """Clients that leave `/v1` out reach the chat endpoint and the list of models."""
    assert httpx.post(f"{shared_gateway.url}/chat/completions", json=HELLO).status_code == 200
    assert there.last.target == "/v1/chat/completions"
    assert httpx.get(f"{shared_gateway.url}/models").json()["object"] == "list"


@pytest.fixture
def small(relay: Callable[..., httpx.Client]) -> httpx.Client:
    """A gateway that takes bodies up to 10 KiB."""
    return relay({"server": {"max_body_mb": 10 / 1024}})


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings", "/files"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(
    upstream: ScriptedUpstream, small: httpx.Client, path: str, chunked: bool
) -> None:
    """Declared or chunked, JSON or a file: the error names the setting, and the gateway goes on."""
    kind = {
        "content-type": "application/octet-stream" if path == "/files" else JSON["content-type"]
    }
    raw = json.dumps({**HELLO, "x": "y" * 20_000}).encode()

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(raw), 4000):
            yield raw[start : start + 4000]

    # Otherwise a file would be echoed while it arrives, and the answer have begun before the limit.
    upstream.script(Reply(raw=b"{}"), Reply(raw=b"{}"), path="/files")
    heard = hear(small, path, content=pieces() if chunked else raw, headers=kind)
    assert (heard.status, heard.error["code"]) == (413, "body_too_large")
    assert "server.max_body_mb" in heard.error["message"]
    assert not [r for r in upstream.requests if r.complete]
    assert hear(small, path, json=HELLO).status == 200


def test_a_length_over_the_limit_is_refused_before_the_body(small: httpx.Client) -> None:
    """A client that asks first (`expect: 100-continue`) need not send what would be refused."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    head += b"connection: close\r\ncontent-length: 999999\r\n\r\n"
    answer = raw_exchange(small.base_url.port or 0, head)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_client_that_asks_first_is_told_to_go_on(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """`expect: 100-continue` is between the client and the gateway."""
    body = json.dumps(HELLO).encode()
    request = raw_post("/v1/chat/completions", body, b"expect: 100-continue")
    answer = raw_exchange(shared_gateway.port, request)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert there.last.header("expect") is None


def test_too_many_requests_at_once_are_429(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """Over `server.max_concurrent_requests` a client is told when to come back; probes pass."""
    client = relay({"server": {"max_concurrent_requests": 1}})
    upstream.script(Fault(FaultKind.STALL, after=1))
    with client.stream("POST", "/chat/completions", json={**HELLO, "stream": True}) as first:
        chunks = first.iter_raw()
        next(chunks)
        refused = hear(client, json=HELLO)
        assert (refused.status, refused.error["code"]) == (429, "gateway_limit")
        assert refused.headers["retry-after"] == "1"
        health = str(client.base_url).replace("/v1/", "/healthz")
        assert client.get(health).status_code == 200
    upstream.last.wait_disconnected()
    until(lambda: hear(client, json=HELLO).status == 200)  # once the first request has ended


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: abc\r\n\r\n",
        b"GET /v1/\xc3\xa9 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_400(shared_gateway: AppServer, request_bytes: bytes) -> None:
    """A request that cannot be parsed is answered and its connection closed."""
    answer = raw_exchange(shared_gateway.port, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{shared_gateway.url}/healthz").status_code == 200
