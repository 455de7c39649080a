"""Web pages are kept out where no key is required; every other client is let in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, Heard, hear, raw_exchange
from steering_gateway_testing.official import openai
from tests.examples import by_day

Relay = Callable[..., httpx.Client]
KEY = "gateway-key-of-a-tenant-0123456789"
KEYS: dict[str, Any] = {"auth": {"gateway_keys": {"acme": KEY}}}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a setting; the test server listens on loopback
PAGE = "https://app.example.com"

CLIENTS: dict[str, dict[str, str]] = {
    "curl": {"user-agent": "curl/8.5.0", "accept": "*/*"},
    "OpenAI SDK": {"user-agent": "OpenAI/Python 3.1.0", "x-stainless-lang": "python"},
    "Claude Code": {
        "user-agent": "claude-cli/2",
        "x-app": "cli",
        "anthropic-version": "2023-06-01",
    },
    "fetch of Node": {"user-agent": "node", "sec-fetch-mode": "cors", "accept-language": "*"},
    "main process of Electron": {"sec-fetch-site": "none", "sec-fetch-mode": "no-cors"},
    "address bar": {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
    "own page": {"sec-fetch-site": "same-origin", "origin": "http://OWN"},
    "own page of an old browser": {"origin": "http://OWN"},
    "own page behind a proxy": {"sec-fetch-site": "same-origin", "origin": PAGE},
    "localhost": {"host": "localhost:1234"},
    "IPv6": {"host": "[::1]:1234"},
    "another loopback address": {"host": "127.1.2.3"},
    "name below localhost": {"host": "gateway.LOCALHOST.:1234"},
    "listening address": {"host": "0.0.0.0:8080"},
    "container": {"host": "host.docker.internal:8080"},
}

PAGES: dict[str, dict[str, str]] = {
    "no-cors POST": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    "old browser": {"origin": "https://evil.example"},
    "image": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    "link": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    "sandboxed frame": {"origin": "null", "sec-fetch-site": "cross-site"},
    "file in a browser": {"origin": "null"},
    "file in Electron": {"origin": "file://"},
    "web view": {"origin": "vscode-webview://1a2b", "sec-fetch-site": "cross-site"},
    "extension": {"origin": "chrome-extension://abc", "sec-fetch-site": "none"},
    "another port": {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    "own name, another port": {"origin": "http://127.0.0.1:1"},
    "unknown site": {"sec-fetch-site": "somewhere"},
}

REBOUND = ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"]
REBOUND += ["evillocalhost", "192.0.2.1:8080", "gateway"]


def request(client: httpx.Client, path: str, headers: dict[str, str], **more: Any) -> Heard:
    """One request in which OWN stands for the gateway's address."""
    own = f"{client.base_url.host}:{client.base_url.port}"
    named = {name: value.replace("OWN", own) for name, value in headers.items()}
    return hear(client, f"{client.base_url.copy_with(path=path)}", headers=named, **more)


@pytest.mark.parametrize("headers", by_day(CLIENTS.values(), 4), ids=CLIENTS)
def test_clients_are_served(
    here: httpx.Client, there: ScriptedUpstream, headers: dict[str, str]
) -> None:
    """No check refuses what programs and the gateway's own pages send."""
    assert request(here, "/v1/chat/completions", headers, json=HELLO).status == 200
    assert request(here, "/chat/completions", headers, json=HELLO).status == 200
    assert len(there.requests) == 2
    assert request(here, "/metrics", headers, method="GET").status == 200


@pytest.mark.parametrize("headers", PAGES.values(), ids=PAGES)
def test_pages_are_refused(
    here: httpx.Client, there: ScriptedUpstream, headers: dict[str, str]
) -> None:
    """Nothing of it reaches the provider; the error names the header and the setting."""
    for path in ("/v1/chat/completions", "/chat/completions", "/v1/files"):
        heard = request(here, path, headers, json=HELLO)
        assert (heard.status, heard.error["code"]) == (403, "origin_not_allowed")
        assert "server.trusted_origins" in heard.error["message"]
        assert "auth.gateway_keys" in heard.error["message"]
        for name in headers.keys() & {"origin", "sec-fetch-site"}:
            assert headers[name] in heard.error["message"]
    for path in ("/v1/models", "/metrics"):
        assert request(here, path, headers, method="GET").status == 403
    asked = headers | {"access-control-request-method": "POST"}
    heard = request(here, "/v1/chat/completions", asked, method="OPTIONS")
    assert heard.status == 403
    assert "access-control-allow-origin" not in heard.headers
    assert not there.requests


@pytest.mark.parametrize("host", REBOUND)
def test_names_of_strangers_are_refused(
    here: httpx.Client, there: ScriptedUpstream, host: str
) -> None:
    """To a page behind DNS rebinding the gateway is its own site, and only its name shows it."""
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    heard = request(here, "/v1/chat/completions", headers, json=HELLO)
    assert (heard.status, heard.error["code"]) == (403, "host_not_allowed")
    assert repr(host) in heard.error["message"]
    assert "server.trusted_hosts" in heard.error["message"]
    assert request(here, "/metrics", headers, method="GET").status == 403
    assert not there.requests


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/api/hello"])
@pytest.mark.parametrize("host", ["192.0.2.7", "gateway.example.com", "evil.example"])
def test_probes_are_answered_by_any_name(here: httpx.Client, path: str, host: str) -> None:
    """A load balancer asks by address, or by whatever name it has."""
    assert request(here, path, {"host": host}, method="GET").status == 200


def test_the_errors_of_messages_have_their_form(here: httpx.Client) -> None:
    """A client of the Messages API reads its own shape of errors."""
    heard = request(here, "/v1/messages", {"host": "evil.example"}, json=HELLO)
    assert heard.status == 403
    assert "server.trusted_hosts" in heard.json["error"]["message"]
    assert heard.json["type"] == "error"


def test_http_1_0_needs_no_host(there: ScriptedUpstream, shared_gateway: AppServer) -> None:
    """No browser speaks it; old load testers do."""
    body = json.dumps(HELLO).encode()
    head = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert raw_exchange(shared_gateway.port, head + body).startswith(b"HTTP/1.1 200")


def test_beyond_loopback_private_names_are_answered(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Addresses, service names and private domains cannot be a stranger's; public names can."""
    client = relay({"server": {"host": EVERYWHERE, "trusted_hosts": ["*.corp.example", "gw.io"]}})
    for host in ("10.1.2.3:8080", "[fd00::1]", "gateway", "steering_gateway:8080", "box.local"):
        assert request(client, "/v1/models", {"host": host}, method="GET").status == 200, host
    for host in ("gw.ns.svc.cluster.local", "gw.ns.svc", "a.corp.example", "GW.io.", "localhost"):
        assert request(client, "/v1/models", {"host": host}, method="GET").status == 200, host
    before = len(upstream.requests)
    for host in ("evil.example", "corp.example", "evilcorp.example", "a.gw.io", "10.1.2.3.io"):
        assert request(client, "/v1/models", {"host": host}, method="GET").status == 403, host
    assert len(upstream.requests) == before


def test_with_keys_any_name_and_page_is_served(upstream: ScriptedUpstream, relay: Relay) -> None:
    """A page cannot make up a key: whoever has one is served, whatever the gateway is called."""
    client = relay({**KEYS, "server": {"host": EVERYWHERE}})
    page = {"host": "llm.example.com", "origin": PAGE, "sec-fetch-site": "cross-site"}
    key = {"authorization": f"Bearer {KEY}"}
    assert request(client, "/v1/chat/completions", page | key, json=HELLO).status == 200
    assert request(client, "/v1/chat/completions", page, json=HELLO).status == 401
    named = {"host": "llm.example.com"}
    assert request(client, "/metrics", named, method="GET").status == 200
    assert request(client, "/metrics", page, method="GET").status == 403


def test_metrics_on_loopback_need_its_name_with_keys_too(relay: Relay) -> None:
    """They ask for no key, so that no key protects them."""
    client = relay(KEYS)
    assert request(client, "/metrics", {"host": "evil.example"}, method="GET").status == 403
    assert request(client, "/metrics", {"host": "localhost"}, method="GET").status == 200


def preflight(client: httpx.Client, origin: str) -> Heard:
    """What a browser asks before a page of `origin` may send a request with a key."""
    asked = {
        "origin": origin,
        "sec-fetch-site": "cross-site",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "access-control-request-private-network": "true",
    }
    return request(client, "/v1/chat/completions", asked, method="OPTIONS")


@pytest.mark.parametrize("keys", [False, True])
def test_trusted_pages_may_call_and_read(
    upstream: ScriptedUpstream, relay: Relay, keys: bool
) -> None:
    """Preflights are answered here, and answers carry what lets the page read them."""
    trusted = [PAGE, "http://localhost:*", "vscode-webview://*"]
    client = relay({**(KEYS if keys else {}), "server": {"trusted_origins": trusted}})
    key = {"authorization": f"Bearer {KEY}"}
    for origin in (PAGE, "http://localhost:3000", "http://localhost", "vscode-webview://1a2b"):
        heard = preflight(client, origin)
        assert (heard.status, heard.body) == (204, b"")
        assert heard.headers["access-control-allow-origin"] == origin
        assert heard.headers["access-control-allow-headers"] == "authorization,content-type"
        assert heard.headers["access-control-allow-private-network"] == "true"
        page = {"origin": origin, "sec-fetch-site": "cross-site", **key}
        heard = request(client, "/v1/chat/completions", page, json=HELLO)
        assert heard.status == 200
        assert heard.headers["access-control-allow-origin"] == origin
        assert "origin" in heard.headers["vary"]
        heard = request(client, "/v1/chat/completions", page, content=b"{")
        assert (heard.status, heard.headers["access-control-allow-origin"]) == (400, origin)
    assert len(upstream.requests) == 4
    for origin in ("https://app.example.com.evil.io", "http://app.example.com", "http://localhos"):
        assert preflight(client, origin).status == (401 if keys else 403)
    own = {"origin": PAGE, "sec-fetch-site": "cross-site"}
    assert request(client, "/metrics", own, method="GET").status == 403
    assert request(client, "/api/runs", own, method="GET").status == 403


def test_null_is_trusted_with_keys_only(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Any page can have this origin, in a sandboxed frame."""
    trusted = {"server": {"trusted_origins": ["null"]}}
    page = {"origin": "null", "sec-fetch-site": "cross-site", "authorization": f"Bearer {KEY}"}
    heard = request(relay(trusted), "/v1/chat/completions", page, json=HELLO)
    assert heard.status == 403
    assert "any page can have the origin null" in heard.error["message"]
    heard = request(relay({**trusted, **KEYS}), "/v1/chat/completions", page, json=HELLO)
    assert (heard.status, heard.headers["access-control-allow-origin"]) == (200, "null")


def test_answers_to_other_clients_stay_as_they_are(here: httpx.Client) -> None:
    """Without a page there is nothing about pages in an answer."""
    heard = request(here, "/v1/chat/completions", {}, json=HELLO)
    assert not [name for name in heard.headers if name.startswith(("access-control", "vary"))]


def test_the_official_client_is_served_by_every_name(shared_gateway: AppServer) -> None:
    """The OpenAI client, with streaming, by name and by address."""
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{shared_gateway.port}/v1"
        with openai.OpenAI(base_url=url, api_key="sk-mine", max_retries=0) as client:
            stream = client.chat.completions.create(stream=True, **HELLO)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_the_control_plane_is_in_no_other_page(here: httpx.Client) -> None:
    """Its answers cannot be loaded into other pages; a link to a page of it can be followed."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (
        request(here, "/dashboard", {**link, "sec-fetch-dest": "document"}, method="GET").status
        == 200
    )
    for dest in ("iframe", "embed"):
        assert (
            request(here, "/dashboard", {**link, "sec-fetch-dest": dest}, method="GET").status
            == 403
        )
    loaded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    for path in ("/api/runs", "/api/events", "/dashboard"):
        assert request(here, path, loaded, method="GET").status == 403
    heard = request(here, "/api/runs", {"host": "evil.example"}, method="GET")
    assert heard.status == 403
    assert "auth.admin_key" in heard.error["message"]
