"""Bodies that are too much to read go out unread; big ones are read in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.conversations import incoming
from gateway.endpoints.steered import SteeredEndpoint
from gateway.steering.identity import read_request
from gateway.testing import AppServer, Reply, ScriptedUpstream
from gateway.wire.request import BIG_BYTES
from tests.live.test_unsteered import counted

Start = Callable[..., AppServer]

PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
SMALL = {"steering": {"max_body_mb": 0.02}}
LONG = "The test failed again. " * 2000


def body_of(dialect: str, text: str, **more: Any) -> bytes:
    """A body with unusual spaces, which a change of its JSON would lose."""
    said = [{"role": "user", "content": text}]
    key = "input" if dialect == "responses" else "messages"
    fields = {"model": "m", key: said, "max_tokens": 64, **more}
    return json.dumps(fields, separators=(" ,", " : ")).encode()


@pytest.mark.parametrize("mode", ["off", "shadow", "on"])
@pytest.mark.parametrize("dialect", PATHS)
async def test_a_body_over_the_limit_arrives_as_it_was_sent(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    dialect: str,
    mode: str,
) -> None:
    """It is answered; header and metric say that it was not steered, and why."""
    server = gateway_server(SMALL)
    raw = body_of(dialect, LONG)
    headers = {"x-gateway-mode": mode, "content-type": "application/json"}
    answer = await http.post(f"{server.base_url}/{PATHS[dialect]}", content=raw, headers=headers)
    assert (answer.status_code, upstream.last.body) == (200, raw)
    assert answer.headers["x-gateway-unsteered"] == "size"
    assert await counted(http, server, "size", "no") == 1
    health = (await http.get(f"{server.url}/api/health-summary")).json()
    assert health["unrecorded_calls"] == {"size": 1}
    page = (await http.get(f"{server.url}/dashboard/health")).text
    assert "1 call since the start could not be recorded" in page
    short = body_of(dialect, "Hello.")
    answer = await http.post(f"{server.base_url}/{PATHS[dialect]}", content=short, headers=headers)
    assert "x-gateway-unsteered" not in answer.headers


@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
async def test_it_goes_to_the_deployment_that_it_names(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, path: str
) -> None:
    """With that deployment's model and key; nothing else of it changes."""
    params = {"model": "openai/real", "api_base": upstream.base_url, "api_key": "sk-deployment"}
    listed = {"model_list": [{"model_name": "m", "litellm_params": params}]}
    nowhere = {"default_upstream": {"api_base": "http://127.0.0.1:9/v1"}}
    server = gateway_server({**listed, **nowhere})
    raw = body_of("chat", "word " * 250_000, input=[1] * 500_000)
    headers = {"content-type": "application/json"}
    answer = await http.post(f"{server.base_url}/{path}", content=raw, headers=headers)
    assert answer.status_code in (200, 404), answer.text
    assert upstream.last.body == raw.replace(b'"model" : "m"', b'"model" : "real"')
    assert upstream.last.header("authorization") == "Bearer sk-deployment"


async def test_many_values_are_too_much_in_a_smaller_body(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """2 MB of tiny objects would hold the interpreter for 80 ms; 2 MB of text are steered."""
    server = gateway_server()
    tiny, text = ({"x": [{"a": 1}] * 260_000}, {"x": "word " * 400_000})
    for more, unsteered in ((tiny, "size"), (text, None)):
        raw = body_of("chat", "Hello.", **more)
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert answer.headers.get("x-gateway-unsteered") == unsteered
        assert upstream.last.body == raw


@pytest.mark.parametrize("depth", [1500, 100_000])
async def test_a_body_nested_beyond_the_parser_is_the_upstreams_to_refuse(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, depth: int
) -> None:
    """JSON has no limit of depth; what is no JSON is refused as before."""
    upstream.default = Reply("Hello.")
    server = gateway_server()
    raw = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"x":%s}'
    for deep in (b"[" * depth + b"]" * depth, b"9" * 5000):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw % deep)
        assert (answer.status_code, upstream.last.body) == (200, raw % deep)
        assert answer.headers["x-gateway-unsteered"] == "size"
    answer = await http.post(f"{server.base_url}/chat/completions", content=raw % (b"[" * depth))
    assert (answer.status_code, len(upstream.requests)) == (400, 2)


async def test_a_body_without_a_model_is_refused_as_a_small_one_is(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The error names the field, and nothing is sent."""
    server = gateway_server(SMALL)
    for raw in (
        body_of("chat", LONG, model=None),
        b'{"model": "m", "messages": [' + b"1," * 50_000,
    ):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
    assert not upstream.requests


async def test_a_big_body_is_parsed_and_digested_off_the_loop(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small one is read where requests are served, one of many messages or bytes in a thread; all
    are steered."""
    threads: list[str] = []
    parse = SteeredEndpoint._parse

    async def noted_parse(self: SteeredEndpoint, *args: Any) -> Any:
        threads.append(threading.current_thread().name)  # the loop's
        return await parse(self, *args)

    def noted_read(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read_request(*args, **kwargs)

    monkeypatch.setattr(SteeredEndpoint, "_parse", noted_parse)
    monkeypatch.setattr(incoming, "read_request", noted_read)
    server = gateway_server()
    said = [{"role": "user", "content": f"Part {n}."} for n in range(1001)]
    many = json.dumps({"model": "m", "messages": said}).encode()
    big = body_of("chat", "word " * (BIG_BYTES // 5))
    for raw in (body_of("chat", "Hello."), many, big):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert answer.headers["x-gateway-step"] == "0"
    loop, *others = threads
    assert [name == loop for name in others] == [True, True, False, True, False]
