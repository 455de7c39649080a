"""A gateway key has inference; the rest of the operator's provider account is not its tenant's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import ScriptedUpstream
from tests.relay.gateways import HELLO, hear

Relay = Callable[..., httpx.Client]
OURS, OTHER, ADMIN = "gw-tenant-a-1111", "gw-tenant-b-2222", "gw-admin-3333"
AUTH = {"gateway_keys": {"a": OURS, "b": OTHER}, "admin_key": ADMIN}
INFERENCE = [
    ("POST", "/chat/completions"),
    ("POST", "/completions"),
    ("POST", "/embeddings"),
    ("POST", "/images/generations"),
    ("POST", "/messages/count_tokens"),
    ("GET", "/models"),
    ("GET", "/models/gpt-4o"),
]
RESOURCES = [
    ("GET", "/files"),
    ("POST", "/files"),
    ("DELETE", "/files/file-1"),
    ("POST", "/batches"),
    ("GET", "/batches"),
    ("POST", "/fine_tuning/jobs"),
    ("GET", "/organization/usage/completions"),
    ("GET", "/assistants"),
    ("DELETE", "/models/ft:gpt"),
    ("GET", "/embeddings"),
    ("PUT", "/chat/completions/x"),
    ("POST", "/messages/batches"),
    ("GET", "/chat/completions"),
    ("POST", "/unknown/of/2027"),
    ("GET", "//files"),
    ("GET", "/models/../files"),
    ("GET", "/models/%2e%2e/files"),
    ("GET", "/Files"),
    ("GET", "/files/"),
    ("POST", "/embeddings/../files"),
]


def settings(upstream: ScriptedUpstream, **auth: Any) -> dict[str, Any]:
    own = {"api_base": upstream.base_url, "api_key": "sk-of-the-operator"}
    return {"auth": {**AUTH, **auth}, "default_upstream": own}


def ask(client: httpx.Client, method: str, path: str, key: str, **headers: str) -> Any:
    body = HELLO if method in ("POST", "PUT") else None
    return hear(client, path, method=method, json=body, headers={"x-gateway-key": key, **headers})


def test_a_key_has_inference_and_no_more(upstream: ScriptedUpstream, relay: Relay) -> None:
    """By any spelling of a path, and whatever else the request claims."""
    client = relay(settings(upstream))
    for method, path in INFERENCE:
        assert ask(client, method, path, OURS).status != 403, path
    assert len(upstream.requests) == len(INFERENCE)
    upstream.requests.clear()
    for method, path in RESOURCES:
        for more in ({}, {"authorization": "Bearer made-up"}, {"x-http-method-override": "POST"}):
            heard = ask(client, method, path, OURS, **more)
            assert heard.status in (400, 403, 404, 405), (method, path, heard.status)
    assert not upstream.requests
    assert "auth.provider_resources" in ask(client, "GET", "/files", OURS).error["message"]


def test_a_tenant_may_be_given_the_rest(upstream: ScriptedUpstream, relay: Relay) -> None:
    """By its name; the other one still has inference."""
    client = relay(settings(upstream, provider_resources=["a"]))
    assert ask(client, "GET", "/files", OURS).status == 200
    assert ask(client, "GET", "/files", OTHER).status == 403


def test_a_clients_own_credential_is_its_providers_business(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Where the operator has configured no key, nothing of the operator's is spent."""
    auth = {"auth": AUTH}
    client = relay(auth)
    heard = ask(client, "GET", "/files", OURS, authorization="Bearer sk-of-the-client")
    assert heard.status == 200
    assert upstream.last.header("authorization") == "Bearer sk-of-the-client"


@pytest.mark.parametrize("path", ["", "/input_items"])
def test_a_stored_answer_belongs_to_the_tenant_that_was_given_it(
    upstream: ScriptedUpstream, relay: Relay, path: str
) -> None:
    """Read, deleted and continued by that one; for the other one there is none."""
    client = relay({**settings(upstream), "steering": {"mode": "on"}})
    made = {"model": "m", "input": "hello"}
    first = hear(client, "/responses", json=made, headers={"x-gateway-key": OURS})
    name = first.json["id"]
    assert ask(client, "GET", f"/responses/{name}{path}", OURS).status == 200
    upstream.requests.clear()
    assert ask(client, "GET", f"/responses/{name}{path}", OTHER).status == 404
    assert ask(client, "DELETE", f"/responses/{name}", OTHER).status == 404
    assert ask(client, "POST", f"/responses/{name}/cancel", OTHER).status == 404
    more = {**made, "previous_response_id": name}
    other = hear(client, "/responses", json=more, headers={"x-gateway-key": OTHER})
    assert other.status == 404
    assert not upstream.requests
    assert hear(client, "/responses", json=more, headers={"x-gateway-key": OURS}).status == 200
