"""Whatever a client sends, the gateway itself does not fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.hearing import hear, raw_exchange
from tests.examples import examples

LONE = b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}'
FEW, MANY = 150, 10_000  # of each kind; there are two kinds
ANYHOW = list(HealthCheck)

CHAT: list[dict[str, Any]] = [
    {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": False}},
    {
        "model": "claude-x",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": "fix it"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "Error: no"},
            {"role": "assistant", "content": "I am not sure."},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "n": 1,
        "stop": ["a"],
    },
]
OTHERS: list[dict[str, Any]] = [
    {"model": "m", "input": "text", "encoding_format": "base64"},
    {"model": "m", "input": [{"role": "user", "content": "x"}], "stream": True},
    {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
]
PATHS = ["/chat/completions", "/embeddings", "/completions", "/responses", "/messages"]
PATHS += ["/messages/count_tokens", "/files", "/models", "/models/m", "/images/generations", "/x/y"]
HEADERS = ["x-conversation-id", "x-session-id", "x-gateway-mode", "x-gateway-outcome", "accept"]
HEADERS += ["content-type", "authorization", "x-request-id", "x-gateway-experiment-unit", "x-any"]
HEADERS += ["x-codex-turn-metadata", "x-claude-code-session-id", "accept-encoding", "traceparent"]

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "tool", "system", "\ud800", "{}", "[DONE]", 2**70])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every value inside `value`."""
    if path:
        yield path
    inside: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else inside:
        yield from places(inner, (*path, key))


@st.composite
def mutated_json(draw: st.DrawFn, seeds: list[dict[str, Any]]) -> bytes:
    """A known body with some of its values replaced, removed or doubled, and some bytes changed."""
    body = json.loads(json.dumps(draw(st.sampled_from(seeds))))
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(body))
        if not found:
            break
        *parents, last = draw(st.sampled_from(found))
        node = body
        for key in parents:
            node = node[key]
        action = draw(st.sampled_from(["replace", "remove", "double"]))
        if action == "replace":
            node[last] = draw(values)
        elif action == "remove":
            del node[last]
        elif isinstance(node, list):
            node.append(node[last])
        else:
            node[draw(st.text(max_size=5))] = node[last]
    raw = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        at = draw(st.integers(0, len(raw)))
        raw[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(raw)


header_values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
headers = st.dictionaries(st.sampled_from(HEADERS), header_values, max_size=4).map(
    lambda drawn: {"content-type": "application/json", **drawn}
)
queries = st.sampled_from(["", "?", "?beta=true", "?a=%ZZ&&=", "?x=" + "y" * 500])


@pytest.fixture(scope="module")
def plain() -> Iterator[ScriptedUpstream]:
    """An upstream that answers everything the same way."""
    with ScriptedUpstream(Reply("fine", model="m"), record=1) as server:
        yield server
        server.errors.clear()  # what it could not make sense of itself


@pytest.fixture(scope="module")
def steered(
    plain: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppServer]:
    """A gateway that steers, so that its reading of conversations is in the way as well."""
    settings = {"steering": {"mode": "on"}, "router": {"num_retries": 0}}
    with a_gateway(plain.base_url, tmp_path_factory.mktemp("fuzz"), settings) as server:
        yield server


@pytest.fixture(scope="module")
def fuzzed(steered: AppServer) -> Iterator[httpx.Client]:
    """A client; at the end the gateway must have had no failure of its own, and be well."""
    with httpx.Client(base_url=steered.base_url, timeout=120) as client:
        yield client
        exposition = steered.app.runtime.metrics.render().decode()
        failures = [
            line
            for line in exposition.splitlines()
            if line.startswith(("gateway_steering_failures_total", "gateway_store_failures_total"))
            and not line.startswith('gateway_steering_failures_total{kind="deadline"}')
        ]
        assert failures == []
        assert 'gateway_errors_total{kind="internal"}' not in exposition


def check(client: httpx.Client, method: str, target: str, body: bytes, sent: Any) -> None:
    """No answer of the gateway's own is a server error."""
    heard = hear(client, target, method=method, content=body, headers=sent)
    upstreams_own = "request-id" in heard.headers
    assert heard.status < 500 or upstreams_own, (heard.status, heard.body)
    assert heard.broken is None or upstreams_own


def chat(client: httpx.Client, body: bytes, sent: Any, query: str) -> None:
    check(client, "POST", f"/chat/completions{query}", body, sent)


def anything(client: httpx.Client, method: str, path: str, body: bytes, sent: Any) -> None:
    check(client, method, path, body, sent)


methods = st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "DELETE", "PATCH", "HEAD"])
chats = given(body=mutated_json(CHAT), sent=headers, query=queries)
others = given(
    method=methods,
    path=st.builds(lambda p, q: p + q, st.sampled_from(PATHS), queries),
    body=mutated_json(CHAT + OTHERS) | st.binary(max_size=40),
    sent=headers,
)


@examples(FEW, suppress_health_check=ANYHOW)
@example(body=LONE, sent={"content-type": "application/json"}, query="")
@chats
def test_mutated_chat_requests(fuzzed: httpx.Client, body: bytes, sent: Any, query: str) -> None:
    """A chat request with anything wrong about it is answered, refused or forwarded."""
    chat(fuzzed, body, sent, query)


@examples(FEW, suppress_health_check=ANYHOW)
@others
def test_mutated_requests_to_any_route(
    fuzzed: httpx.Client, method: str, path: str, body: bytes, sent: Any
) -> None:
    """Neither does any other route fail."""
    anything(fuzzed, method, path, body, sent)


@pytest.mark.nightly
@settings(max_examples=MANY, suppress_health_check=ANYHOW)
@chats
def test_ten_thousand_mutated_chat_requests(
    fuzzed: httpx.Client, body: bytes, sent: Any, query: str
) -> None:
    """The same with many more."""
    chat(fuzzed, body, sent, query)


@pytest.mark.nightly
@settings(max_examples=MANY, suppress_health_check=ANYHOW)
@others
def test_ten_thousand_mutated_requests_to_any_route(
    fuzzed: httpx.Client, method: str, path: str, body: bytes, sent: Any
) -> None:
    """The same with many more."""
    anything(fuzzed, method, path, body, sent)


WHOLE = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
WHOLE += b"content-type: application/json\r\ncontent-length: 28\r\n\r\n"
WHOLE += b'{"model":"m","messages": []}'


@examples(30, suppress_health_check=ANYHOW)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE)), st.binary(max_size=3)), min_size=1, max_size=3)
)
def test_mutated_http(steered: AppServer, changes: list[tuple[int, bytes]]) -> None:
    """Broken HTTP is refused or cut off, and the next client is served."""
    raw = bytearray(WHOLE)
    for at, put in changes:
        raw[at : at + 1] = put
    try:
        answer = raw_exchange(steered.port, bytes(raw), timeout_s=0.3)
    except (TimeoutError, ConnectionError):
        answer = b""  # it waits for the rest of what was promised, or has closed on us
    status = answer[9:12]
    assert status < b"500" or b"request-id: req_" in answer
    assert httpx.get(f"{steered.url}/healthz").status_code == 200


EVENTS = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n',
    b"data: [DONE]\n\n",
)
COMPLETION = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}'


@examples(150, suppress_health_check=ANYHOW)
@given(data=st.data())
def test_mutated_answers(fuzzed: httpx.Client, plain: ScriptedUpstream, data: Any) -> None:
    """Whatever an upstream answers arrives as it is, or as 502, or as a stream visibly cut."""
    stream = data.draw(st.booleans())
    raw = bytearray(b"".join(EVENTS) if stream else COMPLETION)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    answer = bytes(raw)
    kind = data.draw(st.sampled_from([None, "text/html", "application/json", "text/event-stream"]))
    plain.script(
        Reply(raw=(answer,) if stream else answer, content_type=kind, write_bytes=data.draw(_CUTS))
    )
    wants = {"stream_options": {"include_usage": True}}  # or its chunk would be taken out
    heard = hear(fuzzed, json={**CHAT[0], "stream": stream, **wants})
    assert heard.status in (200, 502)
    if heard.status == 200:
        assert heard.body.startswith(answer)
        assert heard.body == answer or heard.broken is not None


_CUTS = st.sampled_from([None, 1, 5, 64])
