"""A gateway key has inference; the rest of the operator's provider account is not its tenant's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, hear

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


def deployed(upstream: ScriptedUpstream, **auth: Any) -> dict[str, Any]:
    """The operator's key belongs to a deployment, and the default upstream has none."""
    made = {"model": "openai/real", "api_base": upstream.base_url, "api_key": "sk-of-the-operator"}
    listed = [{"model_name": "ours", "litellm_params": made}]
    return {"auth": {**AUTH, **auth}, "model_list": listed, "steering": {"mode": "on"}}


@pytest.mark.parametrize("more", [{}, {"anthropic-version": "2023-06-01"}])
@pytest.mark.parametrize("path", ["/fine_tuning/jobs", "/batches", "/organization/admin_api_keys"])
def test_a_model_in_the_body_does_not_widen_a_key(
    upstream: ScriptedUpstream, relay: Relay, path: str, more: dict[str, str]
) -> None:
    """The deployment that a body names has a key of the operator, whatever the default has."""
    client = relay(deployed(upstream))
    body = {"model": "ours", "training_file": "file-1"}
    headers = {"x-gateway-key": OURS, **more}
    assert hear(client, path, json=body, headers=headers).status == 403
    assert not upstream.requests


def test_an_answer_of_a_deployment_is_not_continued_by_another_tenant(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Who is given an answer, and by which deployment, are two questions."""
    client = relay(deployed(upstream))
    made = {"model": "ours", "input": "hello"}
    name = hear(client, "/responses", json=made, headers={"x-gateway-key": OURS}).json["id"]
    upstream.requests.clear()
    more = {**made, "previous_response_id": name}
    assert hear(client, "/responses", json=more, headers={"x-gateway-key": OTHER}).status == 404
    assert not upstream.requests
    assert hear(client, "/responses", json=more, headers={"x-gateway-key": OURS}).status == 200


def message(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


NAMED: list[tuple[str, dict[str, Any]]] = [
    ("/responses", {"input": "x", "conversation": "conv_1"}),
    ("/responses", {"input": "x", "conversation": {"id": "conv_1"}}),
    ("/responses", {"input": "x", "prompt": {"id": "pmpt_1"}}),
    ("/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("/responses", {"input": [{"id": "msg_1"}]}),
    ("/responses", {"input": [{"type": None, "id": "msg_1"}]}),
    ("/responses", {"input": message({"type": "input_file", "file_id": "file-1"})}),
    (
        "/responses",
        {"input": "x", "tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    ),
    ("/responses", {"input": "x", "tools": [{"type": "code_interpreter", "container": "cntr_1"}]}),
    (
        "/responses",
        {
            "input": "x",
            "tools": [{"type": "code_interpreter", "container": {"file_ids": ["file-1"]}}],
        },
    ),
    ("/responses/compact", {"previous_response_id": "resp_1"}),
    ("/responses/input_tokens", {"previous_response_id": "resp_1"}),
    ("/responses/input_tokens", {"conversation": "conv_1"}),
    ("/chat/completions", {"messages": message({"type": "file", "file": {"file_id": "f"}})}),
    (
        "/messages",
        {
            "max_tokens": 9,
            "messages": message({"type": "document", "source": {"type": "file", "file_id": "f"}}),
        },
    ),
    ("/messages", {"max_tokens": 9, "messages": message(), "container": "container_1"}),
    ("/images/edits", {"prompt": "x", "images": [{"file_id": "file-1"}]}),
    ("/chat/completions", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
    (
        "/chat/completions",
        {"messages": [{"role": "assistant", "audio": {"expires_at": 1, "id": "audio_1"}}]},
    ),
    ("/chat/completions", {"messages": message(), "audio": {"voice": {"id": "voice_1"}}}),
    ("/audio/speech", {"input": "x", "voice": {"id": "voice_1"}}),
    (
        "/chat/completions",
        {"messages": message({"type": "image_url", "image_url": {"url": "gs://bucket/a.png"}})},
    ),
    (
        "/chat/completions",
        {"messages": message({"type": "file", "file": {"file_data": "s3://bucket/a.pdf"}})},
    ),
    ("/chat/completions", {"messages": message(), "data_sources": [{"type": "azure_search"}]}),
    ("/chat/completions", {"messages": message(), "preset": "of-the-operator"}),
    ("/responses", {"input": [{"type": "image_generation_call", "id": "ig_1"}]}),
    (
        "/responses",
        {"input": [{"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1"}]},
    ),
    (
        "/responses",
        {"input": "x", "tools": [{"type": "shell", "environment": {"container_id": "cntr_1"}}]},
    ),
    (
        "/responses",
        {
            "input": "x",
            "tools": [{"type": "shell", "environment": {"skills": [{"skill_id": "skill_1"}]}}],
        },
    ),
    ("/responses", {"name": "x", "input": message({"type": "input_file", "file_id": "file-1"})}),
]


@pytest.mark.parametrize(("path", "body"), NAMED)
def test_a_body_names_nothing_that_the_account_stores(
    upstream: ScriptedUpstream, relay: Relay, path: str, body: dict[str, Any]
) -> None:
    """By an id, which another tenant or the operator may have been given."""
    own = {"api_base": upstream.base_url, "api_key": "sk-of-the-operator"}
    client = relay(
        {"auth": AUTH, "default_upstream": {**own, "messages_api_base": own["api_base"]}}
    )
    made = {"model": "m", **body}
    for _ in range(2):
        heard = hear(client, path, json=made, headers={"x-gateway-key": OURS})
        assert heard.status in (403, 404), heard.body
    assert not upstream.requests
    content = hear(
        client,
        path,
        content=str(made).encode(),
        headers={
            "x-gateway-key": OURS,
            "content-type": "application/json",
            "content-encoding": "br",
        },
    )
    assert content.status in (400, 403)
    assert not upstream.requests


def test_items_of_an_own_answer_may_be_named(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Clients that let the provider keep the history send ids; arguments may be called so, too."""
    client = relay({**settings(upstream), "steering": {"mode": "on"}})
    first = hear(
        client, "/responses", json={"model": "m", "input": "hello"}, headers={"x-gateway-key": OURS}
    )
    item = first.json["output"][0]["id"]
    named = {
        "model": "m",
        "input": [
            {"role": "user", "content": "hello"},
            {"type": "item_reference", "id": item},
            {"role": "user", "content": "more"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "read",
                "parameters": {"type": "object", "properties": {"file_id": {"type": "string"}}},
            }
        ],
    }
    assert hear(client, "/responses", json=named, headers={"x-gateway-key": OTHER}).status == 404
    assert hear(client, "/responses", json=named, headers={"x-gateway-key": OURS}).status == 200


def test_the_container_of_an_own_call_may_be_named(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """A client that repeats the history repeats the call; another container is refused."""
    client = relay({**settings(upstream), "steering": {"mode": "on"}})
    call = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "code": "1"}
    upstream.default = Reply("done", extra={"output": [{**call, "status": "completed"}]})
    made = {"model": "m", "input": "hello"}
    assert hear(client, "/responses", json=made, headers={"x-gateway-key": OURS}).status == 200
    for key, container, status in (
        (OURS, "cntr_1", 200),
        (OURS, "cntr_2", 403),
        (OTHER, "cntr_1", 404),
    ):
        history = [{"role": "user", "content": "hello"}, {**call, "container_id": container}]
        named = {"model": "m", "input": history}
        heard = hear(client, "/responses", json=named, headers={"x-gateway-key": key})
        assert heard.status == status, heard.body


def test_sound_and_pictures_that_a_body_holds_are_no_stored_things(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """A voice by its name, sound and a picture in the body, and addresses in somebody's words."""
    client = relay({**settings(upstream), "steering": {"mode": "on"}})
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    said = {"type": "text", "text": "gs://bucket/a.png"}
    body = {"model": "m", "audio": {"voice": "alloy"}, "messages": message(sound, picture, said)}
    for path, more in (("/chat/completions", body), ("/audio/speech", {"voice": "alloy"})):
        named = {"model": "m", "input": "x", **more}
        heard = hear(client, path, json=named, headers={"x-gateway-key": OURS})
        assert heard.status == 200, heard.body


RIGHTS = {"a": {"routes": ["/chat/completions", "/embeddings", "/models*"], "models": ["small-*"]}}


def test_a_key_has_the_routes_and_models_of_its_rights(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Another tenant is not limited; what cannot be read is no allowed model."""
    client = relay(settings(upstream, rights=RIGHTS, provider_resources=["a"]))
    for path, model, status in (
        ("/chat/completions", "small-1", 200),
        ("/chat/completions", "large-1", 403),
        ("/embeddings", "small-1", 200),
        ("/embeddings", "large-1", 403),
        ("/responses", "small-1", 403),
        ("/completions", "small-1", 403),
        ("/files", "small-1", 403),
    ):
        body = {**HELLO, "model": model, "input": "x"}
        heard = hear(client, path, json=body, headers={"x-gateway-key": OURS})
        assert heard.status == status, (path, model)
        if path != "/files":
            assert hear(client, path, json=body, headers={"x-gateway-key": OTHER}).status == 200
    upstream.requests.clear()
    sent = {"x-gateway-key": OURS, "content-type": "application/json"}
    for content, more in (
        (b'{"input": "x"}', {}),
        (b"no json", {}),
        (b'{"model": "small-1", "models": ["large-1"]}', {}),
        (b'{"model": "small-1"}', {"content-type": "text/plain"}),
    ):
        heard = hear(client, "/embeddings", content=content, headers=sent | more)
        assert heard.status == 403, content
    assert not upstream.requests
    assert ask(client, "GET", "/models/large-1", OURS).status == 404
    assert "auth.rights" in ask(client, "GET", "/files", OURS).error["message"]


def test_a_list_of_models_has_those_of_the_key(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Each key sees what it may ask."""
    config = deployed(upstream, rights={"a": {"models": ["none"]}})
    client = relay(config)
    assert ask(client, "GET", "/models", OURS).json["data"] == []
    assert ask(client, "GET", "/models/ours", OURS).status == 404
    assert "ours" in {each["id"] for each in ask(client, "GET", "/models", OTHER).json["data"]}


def test_a_key_of_the_config_goes_nowhere(upstream: ScriptedUpstream, relay: Relay) -> None:
    """It may have any form, and clients put it into more headers than the gateway reads."""
    client = relay({"auth": AUTH})
    for name, value in (
        ("api-key", OURS),
        ("x-goog-api-key", OURS),
        ("authorization", f"Token {OURS}"),
        ("cookie", f"key={ADMIN}"),
        ("x-auth-token", OTHER),
    ):
        assert ask(client, "GET", "/files", OURS, **{name: value}).status == 200
        sent = " ".join(f"{k!r}: {v!r}" for k, v in upstream.last.headers)
        assert not any(key in sent for key in (OURS, OTHER, ADMIN)), name
    upstream.requests.clear()
    assert ask(client, "GET", f"/files?key={OURS}", OURS).status == 401
    assert not upstream.requests


def test_a_gateway_key_beside_a_clients_own_does_not_make_it_another_apis(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """`x-api-key` is Anthropic's header, but here it has a key of this gateway."""
    other = {"messages_api_base": "http://127.0.0.1:9"}
    client = relay({"auth": AUTH, "default_upstream": {"api_base": upstream.base_url, **other}})
    headers = {"x-api-key": OURS, "authorization": "Bearer sk-of-the-client"}
    assert hear(client, "/files", method="GET", headers=headers).status == 200
    assert upstream.last.header("authorization") == "Bearer sk-of-the-client"
    assert upstream.last.header("x-api-key") is None


REPEATED = [
    (b'{"Model": "large-1", "model": "small-1", %s}', "model"),
    (b'{"model": "small-1", %s, "MODEL": "large-1"}', "MODEL"),
    (b'{"model": "large-1", "model": "small-1", %s}', "model"),
    (b'{"mod\\u0065l": "large-1", "model": "small-1", %s}', "model"),
    (b'{"model": "small-1", %s, "mode\\u017f": 1, "mode\xc5\xbf": 1}', "mode\u017f"),
    (
        b'{"model": "small-1", %s, "Previous_response_id": "r", "previous_response_id": null}',
        "prev",
    ),
    (b'{"model": "small-1", "x": [NaN], "Model": "large-1", %s}', "Model"),
]
ASKED = {
    "/chat/completions": b'"messages": [{"role": "user", "content": "hi"}]',
    "/responses": b'"input": "hi"',
    "/messages": b'"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]',
    "/embeddings": b'"input": "x"',
}


@pytest.mark.parametrize("limit", ["models", "inference"])
@pytest.mark.parametrize("padding", [0, 3 * 2**20], ids=["small", "too large to be read"])
def test_no_member_of_a_limited_keys_body_has_two_values(
    upstream: ScriptedUpstream, relay: Relay, limit: str, padding: int
) -> None:
    """Two members of one name, case aside, are refused by that name, on every route; readers differ
    about which of them counts. A key without limits is relayed as it is, and so are two names in
    an inner object."""
    rights = {"a": {"models": ["small-*"]}} if limit == "models" else {}
    more = {"rights": rights, "provider_resources": ["a", "b"] if rights else ["b"]}
    client = relay(
        {
            **settings(upstream, **more),
            "default_upstream": {
                "api_base": upstream.base_url,
                "messages_api_base": upstream.base_url,
                "api_key": "sk-of-the-operator",
            },
            "steering": {"mode": "on", "max_new_mb": 1},
        }
    )
    typed = {"content-type": "application/json"}
    for path, asked in ASKED.items():
        tail = asked + b', "padding": "%s"' % (b"x" * padding)
        for form, name in REPEATED:
            content = form % tail
            heard = hear(client, path, content=content, headers={"x-gateway-key": OURS, **typed})
            assert heard.status == 400, (path, form, heard.body)
            assert name in heard.json["error"]["message"]
        assert not upstream.requests
        inner = b'{"model": "small-1", "tools": [{"ID": 1, "id": 2}], %s}' % tail
        for key, content in ((OURS, inner), (OTHER, REPEATED[0][0] % tail)):
            heard = hear(client, path, content=content, headers={"x-gateway-key": key, **typed})
            assert heard.status == 200, (path, heard.body)
        upstream.requests.clear()
