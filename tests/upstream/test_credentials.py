"""Keys at hosts: with every credential planted everywhere, none arrives where it does not belong.

The gateway is a process whose traffic to the world ends in a proxy of the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.keyring import make_key
from gateway.config import TimeoutSettings
from gateway.config.settings import UpstreamSettings
from gateway.errors import Unauthorized
from gateway.upstream import credentials
from gateway.upstream.base import RawHeaders
from gateway.upstream.credentials import ANY, family_of_host, family_of_provider
from gateway.upstream.deployments import Target
from gateway.upstream.litellm_lane.transport import (
    CallTransport,
    Destination,
    ProviderCall,
    current_call,
)
from gateway.upstream.native import NativeLane
from gateway.upstream.providers import BASELESS, litellm_names
from gateway.upstream.seats import Seats
from tests.live.test_refused_dialects import DIALECTS
from tests.patience import ANSWER_S
from tests.relay.processes import GatewayProcess
from tests.upstream.intercepting import InterceptingProxy, Sent

ROOT = Path(__file__).parents[2]
CLIENT_OPENAI, CLIENT_ANTHROPIC = "sk-proj-CLIENT-of-openai-00", "sk-ant-CLIENT-of-anthropic-00"
HOMES = {CLIENT_OPENAI: "api.openai.com", CLIENT_ANTHROPIC: "api.anthropic.com"}
SOME = ("anthropic", "openai", "ai21_chat", "deepseek", "gemini", "groq", "mistral", "zai")
"""Prefixes of each kind: two known hosts, native ones, adapters and OpenAI-like ones."""

WAYS = ("named", "listed", "keyed", "routed")


def variable_key(provider: str) -> str:
    return f"ENV-{provider.upper()}-key-000000"


def own_key(provider: str) -> str:
    return f"CFG-{provider.upper()}-key-000000"


def environment(providers: list[str]) -> dict[str, str]:
    """A key in the variable of every provider."""
    found = {f"{p.upper().replace('-', '_')}_API_KEY": variable_key(p) for p in providers}
    return {name: value for name, value in found.items() if "LITELLM" not in name}


def config_of(providers: list[str]) -> dict[str, Any]:
    """Each provider listed with and without a key, and routed to."""
    listed = [p for p in providers if p not in BASELESS]
    return {
        "model_list": [
            entry
            for p in listed
            for entry in (
                {"model_name": f"listed-{p}", "litellm_params": {"model": f"{p}/x"}},
                {
                    "model_name": f"keyed-{p}",
                    "litellm_params": {"model": f"{p}/x", "api_key": own_key(p)},
                },
            )
        ],
        "model_routing_by_model": {f"routed-{p}": {"NORMAL": f"{p}/x"} for p in listed},
        "router": {"num_retries": 0},
    }


def name_of(way: str, provider: str) -> str:
    return f"{provider}/x" if way == "named" else f"{way}-{provider}"


def company(provider: str) -> str:
    """The first word of a provider's name: `ai21_chat` has the keys of `ai21`."""
    return re.split(r"[-_]", provider.lower().removeprefix("text-completion-"))[0]


def foreign(sent: Sent, provider: str | None) -> list[str]:
    """The planted keys in a request that do not belong to its host, or to the provider asked."""
    text = sent.content.decode("latin-1")
    found = set(re.findall(r"(?:ENV|CFG)-([A-Z0-9_-]+)-key-000000", text))
    wrong = [name for name in found if company(name) != company(provider or "openai")]
    family = family_of_host(sent.host)
    if provider and family not in (ANY, family_of_provider(provider)):
        wrong += found
    return wrong + [k for k, home in HOMES.items() if k in text and sent.host != home]


@pytest.fixture(params=[SOME, pytest.param(None, marks=pytest.mark.nightly)], ids=["some", "all"])
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """(providers, proxy, gateway) with a key in every variable and every deployment."""
    providers = sorted(request.param or litellm_names())
    with InterceptingProxy(tmp_path) as proxy:
        env = {
            **environment(sorted(litellm_names())),
            "HTTPS_PROXY": proxy.url,
            "HTTP_PROXY": proxy.url,
            "SSL_CERT_FILE": str(proxy.authority.file),
            "GATEWAY_STEERING__MODE": "on",
        }
        with GatewayProcess(tmp_path, json.dumps(config_of(providers)), env=env) as gateway:
            yield providers, proxy, gateway


def test_no_key_reaches_a_host_that_is_not_its_own(planted: Any) -> None:
    """Every provider in every dialect: named by the client, listed, with a key, routed to."""
    providers, proxy, gateway = planted
    wrong, reached = [], set()
    with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
        for provider in providers:
            for way in WAYS:
                if provider in BASELESS and way != "named":
                    continue
                for path, body in DIALECTS.items():
                    proxy.sent.clear()
                    made = {"model": name_of(way, provider), **body(f"{provider} {way}", 1)}
                    client.post(f"{gateway.url}/v1/{path}", json=made, headers=_headers(path))
                    for sent in list(proxy.sent):
                        # The requested model is asked when the routed one refuses.
                        asked = None if way == "routed" and _is_default(sent) else provider
                        reached.add((provider, sent.host))
                        if keys := foreign(sent, asked):
                            wrong.append((provider, way, path, sent.host, keys))
    assert wrong == []
    assert len({provider for provider, _ in reached}) > len(providers) / 2  # the check has checked
    print(f"{len(providers)} providers, {len({host for _, host in reached})} hosts")


@pytest.mark.parametrize("path", DIALECTS)
def test_the_operators_variable_is_used_before_the_clients_key(planted: Any, path: str) -> None:
    """`anthropic/...` without `api_key`, as LiteLLM's own configs have it."""
    _, proxy, gateway = planted
    for name in ("listed-anthropic", "anthropic/x"):
        proxy.sent.clear()
        made = {"model": name, **DIALECTS[path](name, 0)}
        headers = _headers(path)
        httpx.post(
            f"{gateway.url}/v1/{path}",
            json=made,
            headers=headers,
            timeout=ANSWER_S,
            trust_env=False,
        )
        assert {sent.host for sent in proxy.sent} == {"api.anthropic.com"}
        assert all(variable_key("anthropic").encode() in sent.content for sent in proxy.sent)


def _headers(path: str) -> dict[str, str]:
    if path == "messages":
        return {"x-api-key": CLIENT_ANTHROPIC, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {CLIENT_OPENAI}"}


def _is_default(sent: Sent) -> bool:
    return sent.host in HOMES.values() and b'"routed-' in sent.content


PASSED = (
    ("GET", "/v1/models"),
    ("GET", "/v1/files"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/responses/r1/cancel"),
    ("GET", "/v1/responses/r1/input_items"),
    ("GET", "/v1/conversations/c1"),
    ("GET", "/v1/vector_stores"),
    ("POST", "/v1/files"),
    ("GET", "/v1/skills"),
    ("POST", "/v1/complete"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/organization/usage"),
    ("DELETE", "/v1/files/f1"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/responses/r1"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1beta/models/gemini-3:generateContent"),
    ("POST", "/v1/models/gemini-3:streamGenerateContent"),
    ("POST", "/v1/projects/p/locations/l/publishers/anthropic/models/claude:rawPredict"),
    ("POST", "/model/anthropic.claude/invoke"),
    ("POST", "/backend-api/codex/responses"),
)
CALLERS = {
    CLIENT_OPENAI: {"authorization": f"Bearer {CLIENT_OPENAI}"},
    CLIENT_ANTHROPIC: {"x-api-key": CLIENT_ANTHROPIC, "anthropic-version": "2023-06-01"},
    "sk-ant-oat01-login": {"authorization": "Bearer sk-ant-oat01-login"},
    "ya29.google-token": {"authorization": "Bearer ya29.google-token"},
    "AIzaGOOGLE": {"x-goog-api-key": "AIzaGOOGLE"},
    "azure-key": {"api-key": "azure-key"},
    "chatgpt-token": {"authorization": "Bearer chatgpt-token", "chatgpt-account-id": "a1"},
    "sk-ant-in-another-scheme": {"authorization": "Token sk-ant-in-another-scheme"},
    "secret-of-a-service": {"helicone-auth": "Bearer secret-of-a-service"},
    "gateway_session=tag": {"cookie": "gateway_session=tag"},
    "aws-token": {"authorization": "AWS4-HMAC-SHA256 x", "x-amz-security-token": "aws-token"},
}
ALLOWED = {
    CLIENT_OPENAI: "api.openai.com",
    CLIENT_ANTHROPIC: "api.anthropic.com",
    "sk-ant-oat01-login": "api.anthropic.com",
    "sk-ant-in-another-scheme": "api.anthropic.com",
    "ya29.google-token": "googleapis.com",
    "AIzaGOOGLE": "googleapis.com",
    "chatgpt-token": "chatgpt.com",
    "aws-token": "amazonaws.com",
}


def test_routes_that_are_passed_on(planted: Any) -> None:
    """With no config for them: each client's key at its own provider's host, or nowhere."""
    _, proxy, gateway = planted
    wrong, arrived = [], set()
    gateway_key = make_key("t").text
    callers = CALLERS | {gateway_key: {"authorization": f"Bearer {gateway_key}"}}
    with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
        for method, path in PASSED:
            for secret, headers in callers.items():
                proxy.sent.clear()
                content = b"{}" if method == "POST" else None
                kind = {"content-type": "application/json"}
                client.request(
                    method, f"{gateway.url}{path}", content=content, headers=headers | kind
                )
                for sent in proxy.sent:
                    if secret.encode() in sent.content:
                        arrived.add(secret)
                        if not sent.host.endswith(ALLOWED.get(secret, "nowhere")):
                            wrong.append((method, path, secret, sent.host))
    assert wrong == []
    assert arrived == set(ALLOWED)


def test_a_gateway_key_in_a_query_goes_nowhere(planted: Any) -> None:
    """Keys are also put into URLs."""
    _, proxy, gateway = planted
    key = make_key("t").text
    answer = httpx.get(f"{gateway.url}/v1/files?key={key}", timeout=ANSWER_S, trust_env=False)
    assert answer.status_code == 401
    assert "form of a key of this gateway" in answer.text
    assert not any(key.encode() in sent.content for sent in proxy.sent)


@pytest.mark.parametrize("family", ["openai", "anthropic", "azure", "google", "aws", "chatgpt"])
def test_the_table_of_the_docs_is_the_rule(family: str) -> None:
    """Each row of `docs/security.md` names a host's family, and the headers that may go there."""
    rows = re.findall(r"^\| `([a-z.]+)` \| (.+?) \|", _table(), re.MULTILINE)
    hosts = [host for host, _ in rows if family_of_host(host) == family]
    assert hosts
    for host in hosts:
        named = dict(rows)[host]
        target = Target(name="t", lane="native", model=None, api_base=httpx.URL(f"https://{host}"))
        target = target.__class__(**{**_fields(target), "client_apis": frozenset({"openai"})})
        for header in sorted(credentials.CREDENTIAL_HEADERS - {b"chatgpt-account-id"}):
            kept = credentials.allowed([(header, b"plain-value")], b"", target, "openai")
            assert bool(kept) == (f"`{header.decode()}`" in named), (host, header)


def _fields(target: Target) -> dict[str, Any]:
    names = ("name", "lane", "model", "api_base", "api_key", "headers", "params")
    return {name: getattr(target, name) for name in names}


def _table() -> str:
    text = (ROOT / "docs" / "security.md").read_text()
    return text[text.index("## Keys and hosts") :].split("\n## ")[0]


@given(st.text(max_size=40), st.sampled_from(["api.openai.com", "api.anthropic.com"]))
def test_any_header_with_a_gateway_key_is_refused(around: str, host: str) -> None:
    """Whatever stands before it, and in whatever header."""
    key = make_key("t").text
    target = Target(name="t", lane="native", model=None, api_base=httpx.URL(f"https://{host}"))
    value = f"{around} {key}".encode("utf-8", "replace")
    with pytest.raises(Unauthorized, match="key of this gateway"):
        credentials.allowed([(b"x-anything", value)], b"", target, "openai")


@pytest.mark.parametrize(
    ("path", "headers", "base", "asked"),
    [
        ("/v1/chat/completions", [], None, ""),
        ("/v1/organization/projects/p", [], None, ""),
        ("/v1/responses", [(b"chatgpt-account-id", b"a")], "chatgpt.com", "/codex/responses"),
        ("/backend-api/codex/responses", [], "chatgpt.com", "/codex/responses"),
        ("/backend-api/wham/usage", [], "chatgpt.com", "/wham/usage"),
        ("/v1beta/models/g:generateContent", [], "generativelanguage.googleapis.com", None),
        ("/v1/projects/p/locations/eu-x/m:rawPredict", [], "eu-x-aiplatform.googleapis.com", None),
        ("/v1/projects/p/locations/global/m:x", [], "aiplatform.googleapis.com", None),
        ("/v1/projects/p/locations/a.b@c/m:x", [], "aiplatform.googleapis.com", None),
        ("/model/a.b-v1%3A0/invoke", [], "bedrock-runtime.us-west-2.amazonaws.com", None),
    ],
)
def test_a_path_or_a_header_names_the_host_of_a_seat(
    path: str, headers: RawHeaders, base: str | None, asked: str | None
) -> None:
    """And no other text of a client does: a location cannot name another host."""
    seat = Seats(UpstreamSettings(), {"AWS_REGION": "us-west-2"}).of(path, headers)
    assert (seat and seat.base.host) == base
    if seat is not None:
        assert seat.path == (path if asked is None else asked)


ANTHROPIC, OPENAI, LEGACY = "sk-ant-api03-x", "sk-proj-x", "sk-abcdefT3BlbkFJabcdef"


def at(host: str, *, key: str | None = None) -> Target:
    """A target there that clients' own credentials go to, unless it has a key."""
    url = httpx.URL(f"https://{host}")
    both = frozenset({"openai", "anthropic"})
    return Target(name="t", lane="native", model=None, api_base=url, api_key=key, client_apis=both)


@pytest.mark.parametrize(
    ("host", "name", "value"),
    [
        ("api.openai.com", "authorization", f"Token {ANTHROPIC}"),
        ("api.openai.com", "authorization", f"bearer   {ANTHROPIC}"),
        ("api.openai.com", "authorization", "Basic c2stYW50LWFwaTAzLXg6"),  # the same with a colon
        ("api.openai.com", "x-forwarded-for-me", f"key={ANTHROPIC}"),
        ("api.openai.com", "cookie", f"a=b; k={ANTHROPIC}"),
        ("api.openai.com", "sec-websocket-protocol", f"openai-insecure-api-key.{ANTHROPIC}"),
        ("api.anthropic.com", "x-api-key", LEGACY),
        ("api.anthropic.com", "authorization", f"Bearer {LEGACY}"),
        ("api.groq.com", "authorization", f"Bearer {OPENAI}"),
        ("api.deepseek.com", "x-api-key", ANTHROPIC),
        ("openrouter.ai", "authorization", f"Bearer {ANTHROPIC}"),
        ("api.openai.com", "authorization", "Bearer gsk_abcdefghijabcdefghij"),
    ],
)
def test_a_key_of_another_provider_is_refused_in_any_form(host: str, name: str, value: str) -> None:
    """In whatever scheme and header; with a key of the operator there, the header is left out."""
    given = [(name.encode(), value.encode()), (b"x-plain", b"1")]
    with pytest.raises(Unauthorized, match=f"would go to {host}"):
        credentials.allowed(given, b"", at(host), "openai")
    assert credentials.allowed(given, b"", at(host, key="k"), "openai") == [(b"x-plain", b"1")]


def test_a_provider_that_takes_headers_of_others_gets_its_own_keys() -> None:
    """Agents speak Anthropic's API with DeepSeek, and send its key in `x-api-key`."""
    for host, name, value in (
        ("api.deepseek.com", b"x-api-key", b"sk-1234"),
        ("api.groq.com", b"authorization", b"Bearer gsk_abcdefghijabcdefghij"),
        ("localhost", b"authorization", f"Bearer {OPENAI}".encode()),
        ("api.openai.com", b"authorization", f"Bearer {LEGACY}".encode()),
    ):
        assert credentials.allowed([(name, value)], b"", at(host), "openai") == [(name, value)]


@pytest.mark.parametrize(
    "name", ["x-auth-token", "helicone-auth", "ocp-apim-subscription-key", "x-litellm-api-key"]
)
def test_credentials_of_other_services_do_not_reach_a_known_host(name: str) -> None:
    """A server of somebody's own may be that service."""
    given = [(name.encode(), b"secret"), (b"idempotency-key", b"1")]
    assert credentials.allowed(given, b"", at("api.openai.com"), "openai") == given[1:]
    assert credentials.allowed(given, b"", at("api.openai.com", key="k"), "openai") == given[1:]
    assert credentials.allowed(given, b"", at("localhost"), "openai") == given


@pytest.mark.parametrize(
    ("host", "query", "goes"),
    [
        ("api.openai.com", "key=AIzaSHORT", False),
        ("api.openai.com", "a=1&api%5Fkey=x", False),
        ("api.openai.com", f"after={ANTHROPIC}", False),
        ("api.groq.com", f"after={ANTHROPIC}", False),
        ("api.openai.com", "api_key_ids=1&limit=2", True),
        ("x.googleapis.com", "key=AIzaSHORT", True),
        ("localhost", "key=x&token=y", True),
    ],
)
def test_keys_in_queries(host: str, query: str, goes: bool) -> None:
    """Only to a host whose clients send them so, and never beside a key of the operator."""
    if goes:
        credentials.allowed([], query.encode(), at(host), "openai")
    else:
        with pytest.raises(Unauthorized):
            credentials.allowed([], query.encode(), at(host), "openai")
    if host == "x.googleapis.com":
        with pytest.raises(Unauthorized):
            credentials.allowed([], query.encode(), at(host, key="k"), "openai")


def test_a_browsers_key_and_session_stay_here() -> None:
    """The key that a browser sends as a subprotocol, and the cookie of the dashboard."""
    given = [(b"sec-websocket-protocol", b"realtime, openai-insecure-api-key.client")]
    kept = credentials.allowed(given, b"", at("api.openai.com", key="k"), "openai")
    assert kept == [(b"sec-websocket-protocol", b"realtime")]
    assert credentials.allowed(given, b"", at("api.openai.com"), "openai") == given
    cookies = [(b"cookie", b"a=1; gateway_session=tag.mac; b=2")]
    for host in ("api.openai.com", "localhost"):
        kept = credentials.allowed(cookies, b"", at(host), "openai")
        assert kept == [(b"cookie", b"a=1; b=2")]
    alone = [(b"cookie", b"gateway_session=tag.mac")]
    assert credentials.allowed(alone, b"", at("localhost"), "openai") == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_gets_no_key(status: int) -> None:
    """By whatever header an adapter sends it, and with a hop at the first host before."""
    arrived: list[web.BaseRequest] = []

    async def elsewhere(request: web.BaseRequest) -> web.Response:
        arrived.append(request)
        return web.Response()

    async def provider(request: web.BaseRequest) -> web.Response:
        where = "/hop" if request.path == "/" else f"http://127.0.0.1:{other.port}/"
        return web.Response(status=status, headers={"location": where})

    other = await _listening(elsewhere)
    first = await _listening(provider)
    lane = NativeLane(TimeoutSettings(), max_connections=4)
    call = ProviderCall(send=lane.send, to=Destination(provider="elevenlabs"))
    token = current_call.set(call)
    try:
        transport = CallTransport(httpx.AsyncHTTPTransport())
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            url = f"http://127.0.0.1:{first.port}/"
            with pytest.raises(httpx.TransportError, match="redirected the call"):
                await client.post(url, headers={"xi-api-key": "key-of-the-provider"})
    finally:
        current_call.reset(token)
        await lane.aclose()
        await first.runner.cleanup()
        await other.runner.cleanup()
    assert arrived == []


class Listening(NamedTuple):
    """A server that listens, and where."""

    runner: web.ServerRunner
    port: int


async def _listening(handler: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> Listening:
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return Listening(runner, runner.addresses[0][1])
