"""End-to-end headers go through, both ways; what belongs to one connection does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear, raw_exchange, raw_post

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'

OF_CLIENTS = {
    "openai-organization": "org-1",
    "openai-project": "proj_1",
    "openai-beta": "assistants=v2",
    "anthropic-beta": "context-1m-2025-08-07,fine-grained",
    "anthropic-version": "2023-06-01",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-stainless-retry-count": "1",
    "x-session-id": "s-1",
    "idempotency-key": "idem-1",
    "user-agent": "agent/1.0",
    "accept": "application/json",
    "accept-encoding": "gzip, br",
    "x-unknown": "kept ; as=it, is",
    "x-utf8": "\u00e9t\u00e9".encode().decode("latin-1"),
}


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings", "/anything/else"])
def test_the_clients_headers_reach_the_upstream(
    there: ScriptedUpstream, here: httpx.Client, path: str
) -> None:
    """Known and unknown headers arrive with their values; none is added but the gateway's mark."""
    headers = [(k.encode(), v.encode("latin-1")) for k, v in OF_CLIENTS.items()]
    hear(here, path, json=HELLO, headers=headers)
    received = {k.lower(): v for k, v in there.last.headers}
    for name, value in headers:
        assert received.pop(name) == value
    assert set(received) == {b"host", b"content-length", b"content-type", b"x-gateway-instance"}


def test_no_header_is_invented(there: ScriptedUpstream, shared_gateway: AppServer) -> None:
    """A request without user agent, accept and content type is forwarded without them."""
    raw = raw_post("/v1/files", b"hi").replace(b"content-type: application/json\r\n", b"")
    assert raw_exchange(shared_gateway.port, raw).startswith(b"HTTP/1.1 200")
    names = sorted(name.lower() for name, _ in there.last.headers)
    assert names == [b"content-length", b"host", b"x-gateway-instance"]
    assert there.last.body == b"hi"


def test_repeated_request_headers_stay_apart(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """A header sent twice arrives twice, in order."""
    lines = [b"x-multi: a", b"x-other: 1", b"x-multi: b, c"]
    raw_exchange(shared_gateway.port, raw_post("/v1/chat/completions", BODY, *lines))
    assert [v for k, v in there.last.headers if k == b"x-multi"] == [b"a", b"b, c"]


def test_hop_by_hop_headers_end_at_the_gateway(
    there: ScriptedUpstream, shared_gateway: AppServer
) -> None:
    """What RFC 9110 binds to one connection is not forwarded, nor what Connection names."""
    hop = [
        b"connection: close, X-Mine",
        b"x-mine: secret",
        b"keep-alive: timeout=5",
        b"TE: trailers",  # codespell:ignore te
    ]
    hop += [b"proxy-authorization: Basic eA==", b"proxy-connection: close", b"trailer: x-sum"]
    raw_exchange(shared_gateway.port, raw_post("/v1/chat/completions", BODY, *hop))
    names = {name.lower() for name, _ in there.last.headers}
    assert not names & {b"x-mine", b"keep-alive", b"proxy-authorization", b"trailer"}
    assert b"te" not in names  # codespell:ignore te
    assert not names & {b"proxy-connection", b"transfer-encoding", b"upgrade"}


def test_headers_meant_for_the_gateway_stop_there(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """No provider learns of conversation ids, modes, outcomes or experiments."""
    own = {"x-conversation-id": "c", "x-gateway-mode": "off", "x-gateway-outcome": "success"}
    hear(here, json=HELLO, headers={**own, "x-gateway-experiment-unit": "u", "x-gateway-any": "v"})
    names = {name.lower() for name, _ in there.last.headers if b"gateway" in name.lower()}
    assert names == {b"x-gateway-instance"}
    assert there.last.header("x-conversation-id") is None


@pytest.mark.parametrize("body", [HELLO, STREAMED])
@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
def test_the_upstreams_headers_reach_the_client(
    there: ScriptedUpstream, here: httpx.Client, body: dict[str, Any], path: str
) -> None:
    """Rate limits, cache notes, unknown headers: the client reads what the upstream said."""
    said = {
        "openai-organization": "org-1",
        "openai-processing-ms": "12",
        "x-ratelimit-remaining-requests": "99",
        "cf-ray": "abc",
        "x-unknown": "kept; as=it, is",
        "date": "Mon, 01 Jan 2024 00:00:00 GMT",
        "server": "scripted",
    }
    there.script(Reply("fine", headers=said))
    heard = hear(here, path, json=body)
    for name, value in said.items():
        assert heard.headers.get_list(name) == [value]


def test_repeated_answer_headers_stay_apart(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Two cookies are two headers."""
    there.script(Reply("fine", headers={"set-cookie": "a=1", "Set-Cookie": "b=2, c"}))
    heard = hear(here, json=HELLO)
    assert heard.headers.get_list("set-cookie") == ["a=1", "b=2, c"]


def test_hop_by_hop_answer_headers_end_at_the_gateway(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """The upstream's connection is not the client's."""
    said = {"connection": "keep-alive, x-mine", "x-mine": "1", "keep-alive": "timeout=5"}
    there.script(Reply("fine", headers=said), Reply("again"))
    heard = hear(here, json=HELLO)
    assert not {"keep-alive", "x-mine"} & set(heard.headers)
    assert hear(here, json=HELLO).status == 200


@pytest.mark.parametrize("value", ["\u00e9t\u00e9", "tab\tinside", "\u00ff\u0080"])
def test_unusual_answer_values(there: ScriptedUpstream, here: httpx.Client, value: str) -> None:
    """Bytes above ASCII and tabs in a header value are no reason to fail."""
    there.script(Reply("fine", headers={"x-odd": value}))
    heard = hear(here, json=HELLO)
    assert heard.status == 200
    assert dict(heard.headers.raw)[b"x-odd"] == value.encode("latin-1")


@pytest.mark.parametrize("name", ["x-odd", "x odd"])
def test_forbidden_answer_bytes_never_become_an_internal_error(
    there: ScriptedUpstream, here: httpx.Client, name: str
) -> None:
    """An upstream that puts control bytes into its headers is at fault itself: 200 or 502."""
    there.script(Reply("fine", headers={name: "a\x01b\x7f"}), Reply("fine"))
    there.default = Reply("fine", headers={name: "a\x01b\x7f"})
    assert hear(here, json=HELLO).status in (200, 502)
    there.default = Reply("fine")
    assert hear(here, json=HELLO).status == 200


def test_an_odd_model_name_does_no_harm_to_the_answers_headers(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """A model name with line ends cannot add headers, and does not break the answer."""
    there.default = Reply("fine", model="m")
    for model in ("a\r\nset-cookie: x=1", "\u4f60\u597d", "\ud800", "\x00\x7f"):
        body = json.dumps({**HELLO, "model": model})
        heard = hear(here, content=body, headers={"content-type": "application/json"})
        assert heard.status == 200
        assert "set-cookie" not in heard.headers
        assert heard.headers["x-gateway-model"].isprintable()


def test_the_clients_request_id_is_kept(there: ScriptedUpstream, here: httpx.Client) -> None:
    """An id the client brings is forwarded and given back; the upstream's own is still there."""
    heard = hear(here, json=HELLO, headers={"x-request-id": "mine-1"})
    assert there.last.header("x-request-id") == "mine-1"
    assert heard.headers.get_list("x-request-id") == ["mine-1"]
    assert heard.headers["x-upstream-request-id"] == f"req_{there.last.sequence:08d}"


def test_the_upstreams_request_id_is_kept(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Without one from the client, the upstream's id is the one to ask its support about."""
    for path in ("/chat/completions", "/embeddings"):
        heard = hear(here, path, json=HELLO)
        assert heard.headers["x-request-id"] == f"req_{there.last.sequence:08d}"
        assert there.last.header("x-request-id") is None
        assert "x-upstream-request-id" not in heard.headers


@pytest.mark.parametrize("brought", ["", "x" * 300, "two words"])
def test_an_unusable_request_id_is_replaced(here: httpx.Client, brought: str) -> None:
    """An empty, over-long or spaced id is not repeated in our own answers."""
    heard = hear(here, json=[], headers={"x-request-id": brought})
    assert heard.headers["x-request-id"].startswith("req-")


def test_own_answers_have_an_id_of_their_own(here: httpx.Client) -> None:
    """Errors made here have an id too, another one each time."""
    ids = {hear(here, json=[]).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    kept = hear(here, json=[], headers={"x-request-id": "mine"})
    assert kept.headers["x-request-id"] == "mine"


def test_what_the_gateway_adds(here: httpx.Client) -> None:
    """A steered endpoint's answer tells the model asked, the attempts and the time spent."""
    heard = hear(here, json=HELLO)
    assert heard.headers["x-gateway-model"] == "m"
    assert heard.headers["x-gateway-attempts"] == "1"
    assert float(heard.headers["x-gateway-overhead-ms"]) >= 0


def test_errors_keep_the_upstreams_headers(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """A rate limit arrives with its `retry-after` and all else the upstream said."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after="7", headers={"x-limit": "rpm"}))
    heard = hear(relay({"router": {"num_retries": 0}}), json=HELLO)
    assert heard.status == 429
    assert (heard.headers["retry-after"], heard.headers["x-limit"]) == ("7", "rpm")


def test_date_and_server_are_the_upstreams_or_absent(here: httpx.Client) -> None:
    """The gateway signs nothing with a name of its own."""
    heard = hear(here, json=HELLO)
    assert "server" not in heard.headers


def test_a_gateway_behind_the_gateway_does_not_speak_for_it(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """What this gateway tells of itself is told once, whatever the upstream says of the kind."""
    there.script(Reply("well", headers={"x-gateway-model": "theirs", "x-gateway-other": "kept"}))
    heard = hear(here, json=HELLO)
    assert heard.headers.get_list("x-gateway-model") == ["m"]
    assert heard.headers["x-gateway-other"] == "kept"
