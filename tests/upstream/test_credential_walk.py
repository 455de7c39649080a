"""Credentials on every way through the gateway: each arrives at its own family's hosts, or nowhere.

The gateway is a process whose traffic ends in a proxy of the test, which speaks for every host.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.app import build_app
from gateway.config import Settings
from gateway.dialects import DIALECTS as DIALECTS_SERVED
from gateway.features.keys.keyring import make_key
from gateway.upstream.credentials import ANY, family_of_host
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.processes import GatewayProcess
from tests.live.test_refused_dialects import DIALECTS
from tests.upstream.intercepting import InterceptingProxy
from tests.upstream.test_credentials import CHATGPT, token


class Brought(NamedTuple):
    """A credential as a client brings it, with the family of hosts that it belongs to.

    key: whether a server of the operator's may see it, too: an API key, and no login."""

    secret: str
    family: str
    headers: dict[str, str]
    key: bool = False
    query: str = ""


def bearer(secret: str, family: str, *, key: bool = False) -> Brought:
    return Brought(secret, family, {"authorization": f"Bearer {secret}"}, key)


GATEWAY_KEY = make_key("t").text
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIAMADEUPMADEUP0000/x, Signature=5166"
GOOGLE = "AIza" + "Sy" * 18
BROUGHT = (
    bearer("sk-proj-CLIENT-of-openai-00", "openai", key=True),
    bearer(CHATGPT, "chatgpt"),
    Brought(CHATGPT, "chatgpt", {"authorization": f"Bearer {CHATGPT}", "chatgpt-account-id": "a"}),
    Brought(
        "at-opaque", "chatgpt", {"authorization": "Bearer at-opaque", "chatgpt-account-id": "a"}
    ),
    Brought(
        "sk-ant-api03-CLIENT",
        "anthropic",
        {"x-api-key": "sk-ant-api03-CLIENT", "anthropic-version": "2023-06-01"},
        key=True,
    ),
    bearer("sk-ant-oat01-login", "anthropic"),
    Brought("sk-ant-api03-odd", "anthropic", {"authorization": "Token sk-ant-api03-odd"}, key=True),
    bearer("ya29.a0-login", "google"),
    Brought(GOOGLE, "google", {"x-goog-api-key": GOOGLE}),
    Brought(GOOGLE, "google", {}, query=f"key={GOOGLE}"),
    bearer("ABSKQmVkcm9jay1BUEkta2V5", "aws"),
    # A signature is made for the name of the gateway; the request is signed again, or refused.
    Brought("5166", "", {"authorization": SIGNED, "x-amz-date": "20261101T000000Z"}),
    Brought("azure-opaque", "azure", {"api-key": "azure-opaque"}, key=True),
    bearer(token(iss="https://sts.windows.net/t/"), "azure", key=True),
    bearer("gho_CopilotLogin", "github"),
    bearer("tid=0a1b2c;exp=1;sku=x", "github"),
    Brought("of-a-service", "", {"helicone-auth": "Bearer of-a-service"}, key=True),
    Brought("tag.mac", "", {"cookie": "gateway_session=tag.mac"}),
    bearer(GATEWAY_KEY, ""),
)

HOMES = (
    ("GET", "/v1/files"),
    ("GET", "/backend-api/wham/usage"),
    ("GET", "/v1/messages/batches"),
    ("GET", "/v1beta/cachedContents"),
    ("POST", "/model/anthropic.claude/invoke"),
    ("POST", "/v1internal:loadCodeAssist"),
    ("POST", "/v1internal:generateContent"),
    ("GET", "/copilot/models"),
)
"""Routes that lead to each family, so that every credential can arrive, and one to a fallback."""
EVERY = 40  # of all pairs; without a common divisor with the number of credentials

BASES = {
    "chatgpt_api_base": ("https://chatgpt.own.example/backend-api", "chatgpt"),
    "copilot_api_base": ("https://copilot.own.example", "github"),
    "code_assist_api_base": ("https://assist.own.example", "google"),
    "gemini_api_base": ("https://gemini.own.example", "google"),
    "vertex_api_base": ("https://vertex.own.example", "google"),
    "bedrock_api_base": ("https://bedrock.own.example", "aws"),
    "messages_api_base": ("https://claude.own.example", "anthropic"),
    "api_base": ("https://server.own.example/v1", ANY),
}
OWN = {httpx.URL(base).host: family for base, family in BASES.values()}
OWN["forwarded.own.example"] = ANY
OWN["instead.own.example"] = ANY  # of Code Assist, whose hosts say that the login is at its limit
DRY = frozenset({"cloudcode-pa.googleapis.com", "assist.own.example"})
SERVERS = (
    "server.own.example",
    "claude.own.example",
    "forwarded.own.example",
    "instead.own.example",
)
"""Where the operator has any API of OpenAI's or Anthropic's served."""


def deployment(name: str, model: str, **given: Any) -> dict[str, Any]:
    forwards = {"forward_client_key": True} if given.pop("forwards", False) else {}
    return {"model_name": name, "litellm_params": {"model": model, **given}, **forwards}


CONFIG = {
    "model_list": [
        deployment("native", "openai/x"),
        deployment("keyed", "groq/x", api_key="CFG-groq"),
        deployment("litellm", "anthropic/x"),
        deployment("star-*", "deepseek/*"),
        deployment(
            "forwarded", "openai/x", api_base="https://forwarded.own.example/v1", forwards=True
        ),
        deployment("falls", "openai/x", api_key="CFG-openai"),
        deployment(
            "instead",
            "gemini/x",
            api_base="https://instead.own.example",
            api_key="CFG-gemini",
            forwards=True,
        ),
    ],
    "model_routing_by_model": {"routed": {"NORMAL": "litellm"}},
    "router": {
        "num_retries": 0,
        "fallbacks": [{"falls": ["litellm", "native", "gpt-4o"]}, {"gpt-4o": ["instead"]}],
    },
}
MODELS = (  # one of each way to an upstream
    *("gpt-4o", "native", "keyed", "litellm", "star-x", "forwarded", "falls", "routed"),
    *("openai/x", "anthropic/x", "mistral/x"),
)

# Below the routes that pass anything on.
PASSED = {
    "/v1/{path:path}": (
        *("files", "responses/compact", "responses/r1/cancel", "responses/r1", "skills"),
        *("messages/count_tokens", "messages/batches", "embeddings", "images/generations"),
        *("organization/usage", "models/gemini-3:generateContent", "publishers/x/models/y:z"),
        "projects/p/locations/l/publishers/anthropic/models/claude:rawPredict",
    ),
    "/v1beta/{path:path}": ("models/gemini-3:streamGenerateContent", "cachedContents"),
    "/v1alpha/{path:path}": ("models/gemini-3:countTokens",),
    "/v1beta1/{path:path}": ("projects/p/locations/global/publishers/google/models/g:rawPredict",),
    "/v1/projects/{path:path}/models/count-tokens:rawPredict": (
        "p/locations/l/publishers/anthropic",
    ),
    "/v1beta1/projects/{path:path}/models/count-tokens:rawPredict": (
        "p/locations/global/publishers/anthropic",
    ),
    "/upload/{path:path}": ("v1beta/files",),
    "/model/{path:path}": ("anthropic.claude/invoke", "a.b-v1%3A0/converse-stream"),
    "/v1internal:{path:path}": ("loadCodeAssist",),
    "/v1internal/{path:path}": ("operations/x",),
    "/copilot/{path:path}": ("models", "mcp/readonly"),
    "/backend-api/{path:path}": ("wham/usage", "codex/models"),
    "/openai/deployments/{path:path}": ("d/completions",),
}
_NAMED = (
    "/at/x.openai.azure.com/openai/v1/chat/completions",
    "/at/x.services.ai.azure.com/anthropic/v1/messages",
    "/at/x.openai.azure.com/openai/deployments/d/embeddings",
    "/at/x.openai.azure.com/openai/deployments/d/chat/completions",
    "/at/bedrock-runtime.eu-west-1.amazonaws.com/model/anthropic.claude/invoke",
    "/at/us-east5-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/x/models/y:z",
)
NAMED = tuple(("POST", path) for path in _NAMED)
"""Addresses of hosts that a client names, for which the operator has set no base."""
STEERED = [path for dialect in DIALECTS_SERVED.values() for path in dialect.routes]
HELD = re.compile(r"/(?:api|dashboard)\b|/$|/(?:healthz|readyz|metrics)")  # never forwarded
SOCKET = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "bWFkZS11cC1mb3ItdGVzdA==",
}


def routes() -> dict[tuple[str, str], tuple[str, ...]]:
    """By (method, path) of every route of the application that leads out of it: the models to name
    there. A path that is served with and without `/v1` is one route."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for route in build_app(Settings()).app.routes:
        if HELD.match(route.path):
            continue
        below = PASSED.get(route.path)
        assert below or "{path:path}" not in route.path, f"what is below {route.path}?"
        for path in [route.path.replace("{path:path}", each) for each in below or ("",)]:
            for method in sorted(route.methods or {"GET", "POST"}):
                many = below is None and method == "POST" and f"/v1{path}" not in STEERED
                found.setdefault((method, path), MODELS if many else MODELS[:1])
    return found | dict.fromkeys(NAMED, MODELS[:1])


def body_of(path: str, model: str) -> bytes:
    """A request that is valid in the dialect of the path."""
    made = next((make for end, make in DIALECTS.items() if path.endswith(end)), None)
    asked = made(f"{path} {model}", 1) if made else {"contents": [], "messages": []}
    if path.startswith("/v1internal:"):
        asked = {"request": asked}
    return json.dumps({"model": model, **asked}).encode()


def requests() -> Iterator[tuple[str, str, bytes | None, dict[str, str]]]:
    """Every route with every model that it may lead to; those that answer WebSockets, too."""
    for (method, path), models in routes().items():
        for model in models:
            named = re.sub(r"\{[^}]*\}", model, path)
            if method == "GET":
                yield method, named, None, SOCKET if "realtime" in path or "resp" in path else {}
            else:
                yield method, named, body_of(path, model), {"content-type": "application/json"}


@pytest.fixture(params=["theirs", "operators"])
def walked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """(hosts of each family, proxy, gateway)"""
    own = {name: base for name, (base, _) in BASES.items()} if request.param == "operators" else {}
    with InterceptingProxy(tmp_path, DRY) as proxy:
        config = json.dumps(CONFIG | {"default_upstream": own})
        with GatewayProcess(tmp_path, config, env=proxy.env) as gateway:
            yield bool(own), proxy, gateway


@pytest.mark.slow
@pytest.mark.parametrize(
    "every", [EVERY, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_every_credential_on_every_route_to_every_upstream(walked: Any, every: int) -> None:
    """Each arrives at a host of its family at least once, and never at another's. By day routes
    other than HOMES have one or two of the credentials."""
    own, proxy, gateway = walked
    strays, arrived, hosts = set(), set(), set()
    pairs = enumerate(itertools.product(requests(), BROUGHT))
    walk = [pair for number, pair in pairs if number % every == 0 or pair[0][:2] in HOMES + NAMED]
    with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
        for (method, path, content, headers), brought in walk:
            proxy.sent.clear()
            url = f"{gateway.url}{path}" + (f"?{brought.query}" if brought.query else "")
            client.request(method, url, content=content, headers=headers | brought.headers)
            for sent in list(proxy.sent):
                hosts.add(sent.host)
                if brought.secret.encode() not in sent.content:
                    continue
                family = OWN.get(sent.host, family_of_host(sent.host))
                if family == brought.family or (sent.host in SERVERS and brought.key):
                    arrived.add((brought.secret, brought.family))
                else:
                    strays.add((method, path, str(brought.headers)[-40:], sent.host))
    assert strays == set()
    homes = {"openai", "chatgpt", "anthropic", "google", "aws", "github", "azure"}
    assert {b.secret for b in BROUGHT if b.family in homes} <= {secret for secret, _ in arrived}
    assert len(hosts & OWN.keys()) == (len(OWN) if own else 2)  # the walk went everywhere
