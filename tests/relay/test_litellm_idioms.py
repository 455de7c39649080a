"""What people know from LiteLLM: aliases with fallbacks, fallbacks in a request, `/v1/v1`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, hear

Relay = Callable[..., httpx.Client]
DOWN = Fault(FaultKind.SERVER_ERROR)


def listed(upstream: ScriptedUpstream, *names: str, **more: Any) -> list[dict[str, Any]]:
    made = []
    for name in names:
        params = {"model": f"openai/{name}-up", "api_base": upstream.base_url, "api_key": "k"}
        made.append({"model_name": name, "litellm_params": params, **more})
    return made


@pytest.mark.parametrize("alias", ["real", {"model": "real", "hidden": True}], ids=["name", "dict"])
@pytest.mark.parametrize("section", ["router_settings", "litellm_settings"])
def test_an_alias_has_the_fallbacks_of_its_name(
    upstream: ScriptedUpstream, relay: Relay, alias: Any, section: str
) -> None:
    """The deployment is asked three times, then the fallback."""
    upstream.default = lambda request: DOWN if request.model == "real-up" else Reply("well")
    settings = {
        "model_list": listed(upstream, "real", "fall"),
        "router_settings": {"model_group_alias": {"alias": alias}, "num_retries": 2},
    }
    settings.setdefault(section, {})["fallbacks"] = [{"real": ["fall"]}]  # type: ignore[index]
    assert hear(relay(settings), json={**HELLO, "model": "alias"}).status == 200
    assert [r.model for r in upstream.requests] == ["real-up"] * 3 + ["fall-up"]


def test_an_alias_may_have_fallbacks_of_its_own() -> None:
    """Then those of its name are not added; each kind is looked at by itself."""
    own, other = {"alias": ["mine"]}, {"real": ["fall"]}
    router = {"fallbacks": [own, other], "context_window_fallbacks": [other]}
    raw = {"router_settings": {"model_group_alias": {"alias": "real"}, **router}}
    found = settings_from_dict(raw).router
    assert [dict(entry) for entry in found.fallbacks] == [
        {"alias": ("mine",)},
        {"real": ("fall",)},
        {"context_window:real": ("fall",)},
        {"context_window:alias": ("fall",)},
    ]


LENGTH = b'{"error": {"message": "prompt is too long: 210000 tokens", "code": null}}'
POLICY = b'{"error": {"message": "flagged by our content policy", "code": "content_filter"}}'
SHAPE = b'{"error": {"message": "messages[0].role is unknown", "code": null}}'


@pytest.mark.parametrize("lane", ["native", "litellm"])
@pytest.mark.parametrize(
    ("refusal", "asked"),
    [
        (LENGTH, ["big-up", "long-up"]),
        (POLICY, ["big-up", "free-up"]),
        (SHAPE, ["big-up"]),
    ],
    ids=["length", "policy", "shape"],
)
def test_a_refusal_for_its_content_has_fallbacks_of_its_own(
    upstream: ScriptedUpstream, relay: Relay, lane: str, refusal: bytes, asked: list[str]
) -> None:
    """Another model is asked once; any other refusal, and that of the last, is the client's."""
    refused = Reply(raw=refusal, status=400, content_type="application/json")
    upstream.default = lambda request: refused if request.model == "big-up" else Reply("well")
    settings = {
        "model_list": listed(upstream, "big", "long", "free", "spare", lane=lane),
        "litellm_settings": {
            "fallbacks": [{"big": ["spare"]}],
            "context_window_fallbacks": [{"big": ["long"]}],
            "content_policy_fallbacks": [{"*": ["free"]}],
        },
    }
    client = relay(settings)
    heard = hear(client, json={**HELLO, "model": "big"})
    assert [r.model for r in upstream.requests] == asked
    assert heard.status == (200 if len(asked) > 1 else 400)
    upstream.requests.clear()
    upstream.default = refused
    last = hear(client, json={**HELLO, "model": "big"})
    assert ([r.model for r in upstream.requests], last.status) == (asked, 400)
    assert json.loads(refusal)["error"]["message"] in last.json["error"]["message"]


@pytest.mark.parametrize("lane", ["native", "litellm"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_fallbacks_of_a_client_reach_no_provider(
    upstream: ScriptedUpstream, relay: Relay, lane: str, place: str
) -> None:
    """They are taken out, and the answer says so; all other bytes stay as they were."""
    rest = [*({**HELLO, "model": "big"}).items(), ("x-unknown", [1])]
    texts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rest]
    given = '"fallbacks" : ["small", {"model": "b"}]'
    at = {"first": 0, "middle": 1, "last": len(texts)}[place]
    sent = [*texts[:at], given, *texts[at:]]
    client = relay({"model_list": listed(upstream, "big", lane=lane)})
    headers = {"content-type": "application/json"}
    answer = client.post("/chat/completions", content="{" + ", ".join(sent) + "}", headers=headers)
    assert (answer.status_code, answer.headers["x-gateway-dropped-params"]) == (200, "fallbacks")
    arrived = upstream.last.fields
    if lane == "native":
        assert list(arrived) == [key for key, _ in rest]
        assert arrived == {**dict(rest), "model": "big-up"}
    assert "fallbacks" not in arrived


def test_the_default_upstream_gets_them(upstream: ScriptedUpstream, relay: Relay) -> None:
    """It is the client's own, and may be LiteLLM's proxy: not a byte of the body changes."""
    body = json.dumps({**HELLO, "fallbacks": ["small"]}).encode()
    answer = relay().post("/chat/completions", content=body)
    assert (answer.status_code, upstream.last.body) == (200, body)
    assert "x-gateway-dropped-params" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/v1/v1/files/a%2Fb", "/v1/files/a%2Fb"),
        ("/v1//v1/x", "/v1//v1/x"),
        ("/v1/models/v1/x//y", "/v1/models/v1/x//y"),
    ],
)
def test_a_version_that_is_added_twice_counts_once(
    upstream: ScriptedUpstream, relay: Relay, asked: str, path: str
) -> None:
    """Steered and passed on as `/v1/...`; what is behind it stays as it is."""
    client = relay()
    url = httpx.URL(str(client.base_url).removesuffix("/v1/") + asked)
    body = {**HELLO, "input": "hi", "max_tokens": 9}
    answer = client.get(url) if "models" in asked else client.post(url, json=body)
    assert upstream.last.target == path
    if "chat" in asked or "messages" in asked:
        assert answer.headers["x-gateway-mode"] == "off"
