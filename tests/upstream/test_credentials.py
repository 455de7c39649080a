"""Keys at hosts: with every credential planted everywhere, none arrives where it does not belong.

The gateway is a process whose traffic to the world ends in a proxy of the test.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import main
from gateway.config.base_url import base_url
from gateway.config.settings import UpstreamSettings
from gateway.errors import Unauthorized
from gateway.features.keys.keyring import make_key
from gateway.upstream import credentials
from gateway.upstream.credentials import ANY, family_of_host, family_of_provider
from gateway.upstream.deployments import Target
from gateway.upstream.providers import BASELESS, TABLE, litellm_names
from gateway.upstream.seats import Seats
from gateway.wire.headers import RawHeaders
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.processes import GatewayProcess
from tests.live.test_refused_dialects import DIALECTS
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


@pytest.fixture(
    scope="module",
    params=[SOME, pytest.param(None, marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """(providers, proxy, gateway) with a key in every variable and every deployment."""
    tmp_path = tmp_path_factory.mktemp("planted")
    providers = sorted(request.param or litellm_names())
    with InterceptingProxy(tmp_path) as proxy:
        env = environment(sorted(litellm_names())) | proxy.env
        with GatewayProcess(tmp_path, json.dumps(config_of(providers)), env=env) as gateway:
            yield providers, proxy, gateway


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_gateway_key_in_a_query_goes_nowhere(planted: Any) -> None:
    """Keys are also put into URLs."""
    _, proxy, gateway = planted
    key = make_key("t").text
    answer = httpx.get(f"{gateway.url}/v1/files?key={key}", timeout=ANSWER_S, trust_env=False)
    assert answer.status_code == 401
    assert "form of a key of this gateway" in answer.text
    assert not any(key.encode() in sent.content for sent in proxy.sent)


@pytest.mark.parametrize(
    "family", ["openai", "anthropic", "azure", "google", "aws", "chatgpt", "github"]
)
def test_the_table_of_the_docs_is_the_rule(family: str) -> None:
    """Each row of `docs/security.md` names a host's family, and the headers that may go there."""
    rows = re.findall(r"^\| `([a-z.]+)` \| (.+?) \|", _table(), re.MULTILINE)
    hosts = [host for host, _ in rows if family_of_host(host) == family]
    assert hosts
    for host in hosts:
        named = dict(rows)[host]
        target = Target(name="t", lane="native", model=None, api_base=base_url(f"https://{host}"))
        target = target.__class__(**{**_fields(target), "client_apis": frozenset({"openai"})})
        for header in sorted(header.encode() for header in TABLE["key_headers"]):
            kept: Any = []
            with contextlib.suppress(Unauthorized):
                kept = credentials.allowed([(header, b"plain-value")], b"", target, "openai")
            assert bool(kept) == (f"`{header.decode()}`" in named), (host, header)


def test_the_docs_and_the_check_say_where_credentials_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check-config` prints what the rule does with a config; the docs have the default's rows."""
    documented = _table().split("| a client's | goes to |")[1]
    rows = re.findall(r"^\| (?!-)(.+?) \| (.+?) \|$", documented, re.MULTILINE)
    file = tmp_path / "gateway.yaml"
    file.write_text("{}")
    assert main(["check-config", "--config", str(file)]) == 0
    printed = re.findall(r"^a client's (.+) goes to: (.+)$", capsys.readouterr().out, re.MULTILINE)
    assert [(form, hosts.replace("`", "")) for form, hosts in rows] == printed
    file.write_text(
        "default_upstream: {api_key: sk-op, chatgpt_api_base: 'http://127.0.0.1:9/c'}\n"
        "model_list: [{model_name: m, forward_client_key: true, litellm_params: {model: openai/x, "
        "api_base: 'http://localhost:8/v1'}}]"
    )
    assert main(["check-config", "--json", "--config", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)["client_credentials"]
    assert found["OpenAI key (sk-proj-)"] == ["localhost:8"]  # instead of it: the operator's
    assert found["ChatGPT login (chatgpt-account-id)"] == ["127.0.0.1:9"]
    assert found["Claude login (sk-ant-oat)"] == ["api.anthropic.com"]


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
    target = Target(name="t", lane="native", model=None, api_base=base_url(f"https://{host}"))
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


def token(**claims: Any) -> str:
    """A made-up token with these claims, in the form of RFC 7519."""
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    words = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*words, "made-up-signature"])


CHATGPT = token(iss="https://auth.openai.com", aud=["https://api.openai.com/v1"])
LOGINS = {
    CHATGPT: "chatgpt",
    token(**{"https://api.openai.com/auth": {"chatgpt_account_id": "a1"}}): "chatgpt",
    "sk-ant-oat01-login": "anthropic",
    "ya29.a0-login": "google",
    "AIza" + "Sy" * 18: "google",
    "ABSK" + "QmVkcm9jaw" * 2: "aws",
    "bedrock-api-key-YmVkcm9jaw": "aws",
    "ghu_login": "github",
    "gho_login": "github",
    "github_pat_login": "github",
    "tid=0a1b2c;exp=1;sku=copilot": "github",
}
TOKENS = {
    token(iss="accounts.google.com"): "google",
    token(iss="https://sts.windows.net/t/"): "azure",
    token(iss="https://token.actions.githubusercontent.com"): "github",
    token(iss="https://login.example.org"): ANY,
    token(sub="nobody"): ANY,
    "eyJhbGciOiJub25lIn0.eyJ": ANY,
    "eyJhbGciOiJub25lIn0." + base64.b64encode(b"[" * 4000).decode(): ANY,
}
"""What identity providers issue: a server of the operator's may check these itself."""

HOSTS = {
    "chatgpt": "chatgpt.com",
    "openai": "api.openai.com",
    "anthropic": "api.anthropic.com",
    "google": "aiplatform.googleapis.com",
    "aws": "bedrock-runtime.us-east-1.amazonaws.com",
    "azure": "x.openai.azure.com",
    "github": "api.githubcopilot.com",
}


@pytest.mark.parametrize("key", [*LOGINS, *TOKENS])
def test_a_login_goes_to_its_own_host_alone(key: str) -> None:
    """By its form or by who issued it, at each known host, and at a server of the operator's."""
    home = (LOGINS | TOKENS)[key]
    given = [(b"authorization", f"Bearer {key}".encode())]
    for family, host in HOSTS.items():
        if home in (family, ANY):
            assert credentials.allowed(given, b"", at(host), "openai") == given
            continue
        with pytest.raises(Unauthorized, match=f"would go to {host}"):
            credentials.allowed(given, b"", at(host), "openai")
    if key in TOKENS:
        assert credentials.allowed(given, b"", at("localhost"), "openai") == given
    else:
        with pytest.raises(Unauthorized, match="would go to localhost"):
            credentials.allowed(given, b"", at("localhost"), "openai")


ANTHROPIC, OPENAI, LEGACY = "sk-ant-api03-x", "sk-proj-x", "sk-abcdefT3BlbkFJabcdef"


def at(host: str, *, key: str | None = None) -> Target:
    """A target there that clients' own credentials go to, unless it has a key."""
    url = base_url(f"https://{host}")
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
