"""Keys: the gateway's own never leave it, and a client's key for one provider stays with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.server import exposes_provider_keys
from steering_gateway_testing import Fault, FaultKind, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, hear
from steering_gateway_testing.official import openai
from tests.examples import by_day

OURS, OTHER, ADMIN = "gw-tenant-a-1111", "gw-tenant-b-2222", "gw-admin-3333"
AUTH: dict[str, Any] = {"auth": {"gateway_keys": {"a": OURS, "b": OTHER}, "admin_key": ADMIN}}

Relay = Callable[..., httpx.Client]


def sent(upstream: ScriptedUpstream) -> str:
    """Everything the upstream has read, headers and bodies."""
    return " ".join(f"{r.target} {r.headers} {r.body!r}" for r in upstream.requests)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-gateway-key": OURS},
        {"authorization": f"Bearer {OURS}"},
        {"authorization": f"bearer  {OURS}"},
        {"x-api-key": OTHER},
        {"x-gateway-key": OURS, "authorization": f"Bearer {OURS}", "x-api-key": OURS},
        {"x-gateway-key": OURS, "authorization": f"Bearer {OTHER}", "x-api-key": ADMIN},
    ],
)
@pytest.mark.parametrize("path", by_day(["/chat/completions", "/embeddings", "/models"], 1))
def test_a_gateway_key_opens_and_goes_no_further(
    upstream: ScriptedUpstream, relay: Relay, path: str, headers: dict[str, str]
) -> None:
    """In any of the three headers a known key is good, and no copy of any key is forwarded."""
    client = relay(AUTH)
    method = "GET" if path == "/models" else "POST"
    assert hear(client, path, method=method, json=HELLO, headers=headers).status == 200
    assert len(upstream.requests) == 1
    assert not any(key in sent(upstream) for key in (OURS, OTHER, ADMIN))


def test_a_key_in_a_repeated_header_goes_no_further(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """A second `Authorization` is looked at like the first."""
    twice = [("authorization", "Bearer sk-provider"), ("authorization", f"Bearer {OURS}")]
    assert hear(relay(AUTH), json=HELLO, headers=twice).status == 200
    assert OURS not in sent(upstream)


def test_the_clients_provider_key_goes_on_beside_a_gateway_key(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """With the gateway's key in a header of its own, `Authorization` is the provider's."""
    both = {"x-gateway-key": OURS, "authorization": "Bearer sk-provider"}
    hear(relay(AUTH), json=HELLO, headers=both)
    assert upstream.last.header("authorization") == "Bearer sk-provider"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "missing"),
        ({"authorization": "Bearer wrong"}, "is unknown"),
        ({"authorization": "Basic Z3c6Z3c="}, "missing"),
        ({"x-gateway-key": OURS + "x"}, "is unknown"),
        ({"x-api-key": ""}, "missing"),
        ({"authorization": f"Bearer {ADMIN}"}, "is unknown"),
    ],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
def test_without_a_good_key_nothing_is_forwarded(
    upstream: ScriptedUpstream, relay: Relay, path: str, headers: dict[str, str], says: str
) -> None:
    """401 in OpenAI's shape, before the body is even read."""
    heard = hear(relay(AUTH), path, json=HELLO, headers=headers)
    assert (heard.status, heard.error["code"]) == (401, "invalid_api_key")
    assert says in heard.error["message"]
    assert not upstream.requests


def test_the_official_client_takes_401_for_what_it_is(relay: Relay) -> None:
    """A wrong key is an AuthenticationError, a right one in `api_key` works."""
    url = str(relay(AUTH).base_url)
    with (
        openai.OpenAI(base_url=url, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="x-gateway-key"),
    ):
        client.chat.completions.create(**HELLO)
    with openai.OpenAI(base_url=url, api_key=OURS, max_retries=0) as client:
        assert client.chat.completions.create(**HELLO).choices


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_need_no_key(relay: Relay, path: str) -> None:
    """Whoever watches the process need not hold a key."""
    url = str(relay(AUTH).base_url).removesuffix("/v1/")
    assert httpx.get(url + path).status_code == 200


def test_an_admin_key_alone_closes_nothing_and_stays_here(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """The admin key is for the control plane; sent here by mistake, it is not forwarded."""
    client = relay({"auth": {"admin_key": ADMIN}})
    assert hear(client, json=HELLO).status == 200
    assert hear(client, json=HELLO, headers={"authorization": f"Bearer {ADMIN}"}).status == 200
    assert upstream.last.header("authorization") is None
    assert hear(client, json=HELLO, headers={"authorization": "Bearer sk-1"}).status == 200
    assert upstream.last.header("authorization") == "Bearer sk-1"


CREDENTIALS = {
    "authorization": "Bearer sk-for-default",
    "api-key": "azure-for-default",
    "x-api-key": "anthropic-for-default",
    "x-goog-api-key": "google-for-default",
    "cookie": "session=for-default",
    "openai-organization": "org-for-default",
    "openai-project": "proj-for-default",
}


def a_deployment(name: str, base: str, **params: Any) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": "openai/x", "api_base": base, **params}}


def test_the_default_upstream_gets_the_clients_credentials(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Zero configuration: the client's own key authenticates it to its provider."""
    hear(relay(), json=HELLO, headers=CREDENTIALS)
    for name, value in CREDENTIALS.items():
        assert upstream.last.header(name) == value


@pytest.mark.parametrize("key", [None, "theirs"])
@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
def test_another_provider_never_sees_the_clients_credentials(
    relay: Relay, path: str, key: str | None
) -> None:
    """A deployment elsewhere gets its own key or none; other headers go to it as well."""
    with ScriptedUpstream() as elsewhere:
        params = {} if key is None else {"api_key": key}
        client = relay({"model_list": [a_deployment("m", elsewhere.base_url, **params)]})
        heard = hear(client, path, json=HELLO, headers={**CREDENTIALS, "x-trace": "t"})
        assert heard.status == 200
        assert "for-default" not in sent(elsewhere)
        expected = f"Bearer {key}" if key else None
        assert elsewhere.last.header("authorization") == expected
        assert elsewhere.last.header("x-trace") == "t"


def test_a_fallback_elsewhere_never_sees_them_either(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """When the default upstream fails, its key does not move on with the request."""
    upstream.default = Fault(FaultKind.SERVER_ERROR)
    with ScriptedUpstream() as elsewhere:
        settings = {
            "model_list": [a_deployment("spare", elsewhere.base_url, api_key="spares")],
            "router": {"fallbacks": [{"m": ["spare"]}], "num_retries": 0},
        }
        heard = hear(relay(settings), json=HELLO, headers=CREDENTIALS)
        assert heard.status == 200
        assert upstream.last.header("authorization") == CREDENTIALS["authorization"]
        assert "for-default" not in sent(elsewhere)
        assert elsewhere.last.header("authorization") == "Bearer spares"


def test_a_deployment_may_ask_for_the_clients_key(relay: Relay) -> None:
    """`forward_client_key` says that the client's key is meant for this deployment."""
    with ScriptedUpstream() as elsewhere:
        deployment = {**a_deployment("m", elsewhere.base_url), "forward_client_key": True}
        hear(relay({"model_list": [deployment]}), json=HELLO, headers=CREDENTIALS)
        assert elsewhere.last.header("authorization") == CREDENTIALS["authorization"]


def test_a_deployment_at_the_default_upstream_takes_the_clients_key(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Another name for a model of the same provider needs no key of its own."""
    client = relay({"model_list": [a_deployment("alias", upstream.base_url)]})
    hear(client, json={**HELLO, "model": "alias"}, headers=CREDENTIALS)
    assert upstream.last.model == "x"
    assert upstream.last.header("authorization") == CREDENTIALS["authorization"]


def test_the_gateways_own_provider_key_replaces_the_clients(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """`default_upstream.api_key` is sent in place of whatever the client had."""
    settings = {"default_upstream": {"api_base": upstream.base_url, "api_key": "sk-shared\n"}}
    hear(relay(settings), json=HELLO, headers=CREDENTIALS)
    assert upstream.last.header("authorization") == "Bearer sk-shared"
    assert "for-default" not in sent(upstream)


def test_extra_headers_of_a_deployment(upstream: ScriptedUpstream, relay: Relay) -> None:
    """`extra_headers` are sent to that deployment."""
    made = a_deployment("m", upstream.base_url, api_key="k", extra_headers={"X-Team": "blue"})
    hear(relay({"model_list": [made]}), json=HELLO)
    assert upstream.last.header("x-team") == "blue"


def test_errors_do_not_show_keys(relay: Relay) -> None:
    """What the client is told of a failing deployment holds no key."""
    made = a_deployment("m", "http://127.0.0.1:9", api_key="sk-very-secret")
    heard = hear(relay({"model_list": [made]}), json=HELLO)
    assert heard.status == 502
    assert b"secret" not in heard.body


@pytest.mark.parametrize(
    ("host", "auth", "key", "warned"),
    [
        ("127.0.0.1", {}, "sk-1", False),
        ("0.0.0.0", {}, "sk-1", True),  # noqa: S104 - looked at, not bound
        ("10.0.0.7", {"gateway_keys": {"t": "gw-1"}}, "sk-1", False),
        ("10.0.0.7", {}, None, False),
    ],
)
def test_a_gateway_that_strangers_can_spend_with_is_noticed(
    host: str, auth: dict[str, Any], key: str | None, warned: bool
) -> None:
    """Provider keys behind an address of the network, and no key asked for: worth a warning."""
    deployment = a_deployment("m", "http://x/v1", **({"api_key": key} if key else {}))
    raw = {"server": {"host": host}, "auth": auth, "model_list": [deployment]}
    assert exposes_provider_keys(settings_from_dict(raw)) is warned
