"""What a well-known gateway loses on the way, and this one does not: a test for each."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear, raw_post


@pytest.fixture
def http(gateway: AppServer, upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    """A plain client of the gateway."""
    with httpx.Client(base_url=gateway.base_url, timeout=120) as made:
        yield made


def test_unknown_request_fields(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """Fields of the body that nobody has heard of reach the provider."""
    unknown = {"x_top": 1.0, "safety": {"deep": [None, 2**70]}, "metadata": {"a": "b"}}
    hear(http, json={**HELLO, **unknown})
    assert upstream.last.json == {**HELLO, **unknown}


def test_unknown_response_fields(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """Fields of the answer that nobody has heard of reach the client, streamed or not."""
    unknown = Reply("fine", extra={"x_top": 1.5}, message_extra={"x_inner": [1]})
    upstream.script(unknown, unknown)
    whole = hear(http, json=HELLO).json
    assert (whole["x_top"], whole["choices"][0]["message"]["x_inner"]) == (1.5, [1])
    first = hear(http, json=STREAMED).events[0]
    assert (first["x_top"], first["choices"][0]["delta"]["x_inner"]) == (1.5, [1])


def test_refusals(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """A refusal is told, streamed or not."""
    upstream.script(Reply(None, refusal="I cannot"), Reply(None, refusal="I cannot"))
    assert hear(http, json=HELLO).json["choices"][0]["message"]["refusal"] == "I cannot"
    deltas = [e["choices"][0]["delta"] for e in hear(http, json=STREAMED).events if e != "[DONE]"]
    assert "".join(delta.get("refusal") or "" for delta in deltas) == "I cannot"


def test_null_content_of_echoed_messages(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """`content: null` beside tool calls, and in their results, stays null."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": None},
    ]
    hear(http, json={**HELLO, "messages": messages})
    assert upstream.last.json["messages"] == messages


@pytest.mark.parametrize(
    "name",
    ["openai-organization", "openai-project", "anthropic-beta", "traceparent", "x-request-id"],
)
def test_headers(upstream: ScriptedUpstream, http: httpx.Client, name: str) -> None:
    """What a client says about itself and its request arrives."""
    hear(http, json=HELLO, headers={name: "some-value"})
    assert upstream.last.header(name) == "some-value"


@pytest.mark.parametrize(
    ("kind", "status", "type_", "code"),
    [
        (FaultKind.UNAUTHORIZED, 401, "authentication_error", "invalid_api_key"),
        (FaultKind.FORBIDDEN, 403, "permission_error", "forbidden"),
        (FaultKind.CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded"),
        (FaultKind.OVERLOADED, 529, "overloaded_error", None),
    ],
)
def test_codes_and_types_of_errors(
    upstream: ScriptedUpstream,
    http: httpx.Client,
    kind: FaultKind,
    status: int,
    type_: str,
    code: str | None,
) -> None:
    """An error is the provider's, word for word."""
    upstream.script(Fault(kind))
    heard = hear(http, json=HELLO)
    assert heard.status == status
    assert (heard.json["error"]["type"], heard.json["error"]["code"]) == (type_, code)


def test_event_names_of_responses(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """Each event of a Responses stream has its name."""
    heard = hear(http, "/responses", json={"model": "m", "input": "x", "stream": True})
    names = [line for line in heard.body.splitlines() if line.startswith(b"event: ")]
    assert names[0] == b"event: response.created"
    assert names[-1] == b"event: response.completed"


def test_an_array_as_body(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """It is the client's mistake, not a failure of the server."""
    heard = hear(http, json=[1, 2])
    assert (heard.status, heard.error["type"]) == (400, "invalid_request_error")
    assert not upstream.requests


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
def test_the_clients_cancel(
    gateway: AppServer, upstream: ScriptedUpstream, body: dict[str, Any]
) -> None:
    """A client that leaves ends the provider's call."""
    upstream.script(Fault(FaultKind.STALL))
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=120) as connection:
        connection.sendall(raw_post("/v1/chat/completions", json.dumps(body).encode()))
        upstream.wait_for_requests()
    upstream.last.wait_disconnected()


def test_no_finish_reason_is_invented(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """A cut stream has no finish reason, no end marker and no clean end."""
    upstream.script(Fault(FaultKind.CLEAN_CUT, reply=Reply("a b c d")))
    heard = hear(http, json=STREAMED)
    assert heard.broken is not None
    assert "[DONE]" not in heard.events
    reasons = [c["finish_reason"] for e in heard.events for c in e.get("choices", ())]
    assert set(reasons) == {None}
