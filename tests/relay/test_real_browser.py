"""Pages in a real Chromium, before a gateway on loopback; skipped by name where there is none.

`evil.example` is a name that leads to loopback, as DNS rebinding makes one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.browser import Tab, browser, chromium
from steering_gateway_testing.hearing import HELLO
from steering_gateway_testing.loopback import OneAnswer, an_answer
from steering_gateway_testing.text import echo

Start = Callable[..., AppServer]
REBOUND = "--host-resolver-rules=MAP evil.example 127.0.0.1"
BODY = json.dumps(HELLO)

IMAGE = """
new Promise(done => {
  const image = new Image();
  image.onerror = () => done(true);
  image.src = 'URL';
})"""
SANDBOX = """
new Promise(done => {
  const frame = document.createElement('iframe');
  frame.sandbox = 'allow-scripts';
  frame.srcdoc = `<script>fetch('URL', {method: 'POST', mode: 'no-cors', body: '{}'})
    .finally(() => parent.postMessage('done', '*'))</script>`;
  window.onmessage = event => done(event.data);
  document.body.append(frame);
})"""
FORM = """
(() => {
  const form = document.createElement('form');
  Object.assign(form, {method: 'POST', enctype: 'text/plain', action: 'URL'});
  document.body.append(form);
  form.submit();
})()"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium here"),
]


@pytest.fixture
def site() -> Iterator[int]:
    """The port of somebody else's site, with an empty page at every address."""
    page = an_answer(b"<!doctype html><title>page</title>")
    with OneAnswer(lambda head, body: page) as server:
        yield server.port


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    async with browser(tmp_path / "profile", REBOUND) as opened:
        yield opened


def fetch(url: str, **options: Any) -> str:
    """JavaScript: the status and text of an answer, or the name of the error."""
    call = f"fetch({json.dumps(url)}, {json.dumps(options)})"
    return f"{call}.then(async a => [a.status, await a.text()], e => [e.name, ''])"


ASKING = {"method": "POST", "body": BODY, "headers": {"content-type": "application/json"}}


async def test_another_sites_page_spends_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, site: int, tab: Tab
) -> None:
    """Requests that need no permission, forms, frames and images: none reaches the provider."""
    upstream.default = echo
    gateway = gateway_server()
    chat = f"{gateway.base_url}/chat/completions"
    for page in (f"http://evil.example:{site}/", f"http://127.0.0.1:{site}/"):
        await tab.open(page)
        simple = {"method": "POST", "mode": "no-cors", "body": BODY}
        assert await tab.js(fetch(chat, **simple)) == [0, ""]
        assert await tab.js(fetch(chat, **simple, referrerPolicy="no-referrer")) == [0, ""]
        assert await tab.js(fetch(chat, **ASKING)) == ["TypeError", ""]
        assert await tab.js(f"navigator.sendBeacon({chat!r}, {BODY!r})")
        assert await tab.js(IMAGE.replace("URL", f"{gateway.base_url}/models"))
        assert await tab.js(SANDBOX.replace("URL", chat)) == "done"
        form = FORM.replace("URL", chat)
        await tab.following(form)
        assert "server.trusted_origins" in await tab.js("document.body.innerText")
    assert not upstream.requests


async def test_a_rebound_page_reads_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """Its name leads here, so that to the browser the gateway is its own site."""
    upstream.default = echo
    gateway = gateway_server()
    await tab.open(f"http://evil.example:{gateway.port}/healthz")
    assert await tab.js("location.origin") == f"http://evil.example:{gateway.port}"
    for path, options in (("/v1/chat/completions", ASKING), ("/v1/models", {}), ("/metrics", {})):
        status, text = await tab.js(fetch(path, **options))
        assert status == 403
        assert "server.trusted_hosts" in text
    status, text = await tab.js(fetch("/api/runs"))
    assert (status, "auth.admin_key" in text) == (403, True)
    assert not upstream.requests


async def test_a_trusted_page_reads_its_answer(
    gateway_server: Start, upstream: ScriptedUpstream, site: int, tab: Tab
) -> None:
    """With a preflight, a key in a header, and a stream."""
    upstream.default = echo
    gateway = gateway_server({"server": {"trusted_origins": ["http://127.0.0.1:*"]}})
    await tab.open(f"http://127.0.0.1:{site}/")
    asking: dict[str, Any] = {**ASKING, "body": json.dumps({**HELLO, "stream": True})}
    asking["headers"] = {**asking["headers"], "authorization": "Bearer sk-mine"}
    status, text = await tab.js(fetch(f"{gateway.base_url}/chat/completions", **asking))
    assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
    ids = f"fetch('{gateway.base_url}/models').then(a => a.headers.get('x-request-id'))"
    assert await tab.js(ids)
    assert await tab.js(fetch(f"{gateway.url}/api/runs")) == ["TypeError", ""]


async def test_the_dashboard_can_be_linked_to(gateway_server: Start, site: int, tab: Tab) -> None:
    """A link on another site opens it; its own requests are served."""
    gateway = gateway_server()
    await tab.open(f"http://evil.example:{site}/")
    await tab.following(f"location.href = '{gateway.url}/dashboard'")
    assert await tab.js("location.pathname") == "/dashboard"
    assert (await tab.js(fetch("/api/runs")))[0] == 200
    await tab.until("document.querySelector('#live').dataset.state === 'on'")
