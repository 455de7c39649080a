"""What a key may not do at the seats' hosts, and frames that are made to cost."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from wsproto.events import TextMessage

from gateway.buffered_bytes import Room, Share
from gateway.config.settings import ServerSettings
from gateway.upstream.websocket import MessageSide
from steering_gateway_testing import AppServer, ScriptedUpstream

Start = Callable[..., AppServer]
KEY = "gw-tenant-a-1111"
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Do it."}]}]}
CLAUDE: dict[str, Any] = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "Do it."}],
}
VERTEX = "/v1/projects/p/locations/l/publishers"
GENERATE = f"{VERTEX}/google/models/g:generateContent"
FILE = {"parts": [{"fileData": {"fileUri": "gs://b/x"}}]}
S3 = {"source": {"s3Location": {"uri": "s3://b/x"}}}


def a_gateway(
    start: Start, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> httpx.Client:
    """A gateway with keys that lends its cloud credentials, with one host in all places."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "ABSKmade-up-for-the-test")
    monkeypatch.setattr(
        "gateway.upstream.cloud_credentials.CloudSigner._for_vertex",
        lambda *_: {"authorization": "Bearer ya29.made-up"},
    )
    bases = ("gemini_api_base", "vertex_api_base", "bedrock_api_base")
    default = {"api_base": upstream.base_url, **dict.fromkeys(bases, upstream.url)}
    auth = {"gateway_keys": {"a": KEY}, **more.pop("auth", {})}
    settings = {"default_upstream": {**default, "cloud_credentials": True}, "auth": auth, **more}
    return httpx.Client(base_url=start(settings).url, headers={"x-gateway-key": KEY}, timeout=120)


@pytest.mark.parametrize(
    "path",
    [
        "/model/dear/invoke",
        "/model/d%65ar/invoke",
        "/model/dear/converse",
        "/mod%65l/dear/converse",
        "/model/dear%2Finvoke/converse",
        "/v1beta/models/dear:generateContent",
        "/v1beta/models/dear%3AgenerateContent",
        "/v1beta/models/dear%3agenerateContent",
        "/v1/%6Dodels/dear:generateContent",
        "/v1beta/models/dear:embedContent",
        "/v1beta/models/dear%3AembedContent",
        "/v1beta/tunedModels/dear:generateContent",
        "/v1beta/models%2Fdear:embedContent",
        "/v1beta%2Fmodels%2Fdear:embedContent",
        f"{VERTEX}/anthropic/models/dear:rawPredict",
        f"{VERTEX}/anthropic/models/dear%3ArawPredict",
        f"{VERTEX}/google/models/dear:predict",
    ],
)
def test_the_path_and_no_member_says_which_model_is_asked(
    path: str, gateway_server: Start, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key for one model gets no other, however its name is written, with a key of its own."""
    auth = {"rights": {"*": {"models": ["cheap"]}}}
    own = {"authorization": "Bearer of-the-client"}
    with a_gateway(gateway_server, upstream, monkeypatch, auth=auth) as client:
        for headers in ({}, own):
            body = {**GEMINI, **CLAUDE, "model": "cheap"}
            assert client.post(path, json=body, headers=headers).status_code in (403, 404)
    assert not upstream.requests


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (GENERATE, {**GEMINI, "cachedContent": "c"}),
        (GENERATE, {"contents": [FILE]}),
        (GENERATE, {"contents": FILE}),
        (GENERATE, {"contents": [{"parts": [{"text": "a", **FILE["parts"][0]}]}]}),
        (GENERATE, {**GEMINI, "systemInstruction": FILE}),
        (GENERATE, {"contents": [{"parts": [{"text": "z" * 200_000}]}, FILE]}),
        (GENERATE, {"contents": [{"parts": [{"text": "z" * 200_000}]}], "systemInstruction": FILE}),
        (GENERATE, {**GEMINI, "tools": [{"retrieval": {"vertexAiSearch": {"datastore": "d"}}}]}),
        (
            GENERATE,
            {
                **GEMINI,
                "tools": [
                    {"functionDeclarations": [{"name": "f"}]},
                    {"fileSearch": {"fileSearchStoreNames": ["x"]}},
                ],
            },
        ),
        ("/model/n/converse", {"messages": [{"role": "user", "content": [{"document": S3}]}]}),
        ("/model/n/invoke", {"messages": [{"role": "user", "content": [{"video": S3}]}]}),
        ("/model/arn:aws:bedrock:us-east-1:1:prompt%2Fx/converse", {}),
    ],
)
def test_stored_things_of_a_cloud_account_are_not_its_tenants(
    path: str,
    body: dict[str, Any],
    gateway_server: Start,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files in buckets, caches, stores and prompts, in each place that a body has for them."""
    steering = {"steering": {"max_new_mb": 0.05}}
    with a_gateway(gateway_server, upstream, monkeypatch, **steering) as client:
        assert client.post(path, json=body).status_code == 403
    assert not upstream.requests


def test_what_a_tool_says_names_no_stored_thing(
    gateway_server: Start, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's tools have parameters of any name."""
    said = {"file_id": "f", "fileUri": "gs://b/x"}
    call = {"functionCall": {"name": "read", "args": said}}
    result = {"functionResponse": {"name": "read", "response": said}}
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in said}}
    tools = [{"functionDeclarations": [{"name": "read", "parameters": schema}]}]
    contents = [*GEMINI["contents"], {"role": "model", "parts": [call]}, {"parts": [result]}]
    use = {"type": "tool_use", "id": "t", "name": "read", "input": said}
    claude = {**CLAUDE, "messages": [*CLAUDE["messages"], {"role": "assistant", "content": [use]}]}
    with a_gateway(gateway_server, upstream, monkeypatch) as client:
        client.post(GENERATE, json={"contents": contents, "tools": tools})
        client.post("/model/a/invoke", json=claude)
    assert len(upstream.requests) == 2


BASES = "api messages_api copilot_api code_assist_api chatgpt_api gemini_api bedrock_api vertex_api"


@pytest.mark.parametrize("first", ["v1", "copilot", "backend-api", "v1internal", "v1beta", "model"])
def test_no_path_continues_the_name_of_a_host(
    gateway_server: Start, upstream: ScriptedUpstream, first: str
) -> None:
    """Where an operator's base ends with its host, an encoded slash and `@` would name another one,
    which would be sent the operator's key, or the client's login."""
    own = dict.fromkeys([f"{name}_base" for name in BASES.split()], upstream.url)
    server = gateway_server({"default_upstream": own, "timeouts": {"first_byte_s": 1.0}})
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"{first}%2f@127.0.0.1:{other.getsockname()[1]}"
        for method, rest in (("GET", "/x"), ("POST", "/x"), ("GET", ""), ("POST", "/responses")):
            path = f"{server.url}/{place}{rest}"
            httpx.request(method, path, headers={"x-goog-api-key": "mine"}, timeout=120)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            other.accept()


@pytest.mark.parametrize(
    ("path", "seat"),
    [
        ("/copilot%2fchat/completions", "copilot"),
        ("/copilot%2Fchat%2Fcompletions", "copilot"),
        ("/backend-api%2Fcodex/responses", "chatgpt"),
        ("/v1internal%2Fx", "code_assist"),
        ("/v1beta%2Fmodels/g:generateContent", "gemini"),
        (GENERATE.replace("projects/", "projects%2F"), "vertex"),
        ("/model%2Fn/invoke", "bedrock"),
    ],
)
def test_an_encoded_slash_takes_no_login_to_another_host(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, seat: str
) -> None:
    """A route is found by the decoded path, and so is the host that the login is for."""
    with ScriptedUpstream() as right:
        own = dict.fromkeys([f"{name}_base" for name in BASES.split()], upstream.url)
        server = gateway_server({"default_upstream": own | {f"{seat}_api_base": right.url}})
        body = {"model": "m", "request": GEMINI, **GEMINI, **CLAUDE, "input": "hi"}
        httpx.post(server.url + path, json=body, headers={"authorization": "Bearer mine"})
    assert not upstream.requests


async def test_frames_of_nothing_take_no_memory() -> None:
    """A message in very many frames is held as its content."""
    reader = asyncio.StreamReader(limit=2**26)

    class Writer:
        def write(self, _: bytes) -> None: ...
        async def drain(self) -> None: ...

    share = Share(Room(), ServerSettings())
    side = MessageSide((reader, Writer()), 1, share)  # type: ignore[arg-type]
    mask = b"\0\0\0\0"
    count = 2_000
    reader.feed_data(b"\x01\x82" + mask + b"{}")
    reader.feed_data(b"".join([b"\x00\x80", mask]) * count)
    reader.feed_data(b"".join([b"\x00\x81", mask, b" "]) * count)
    tracemalloc.start()
    waiting = asyncio.ensure_future(anext(aiter(side.events())))
    while reader._buffer:  # type: ignore[attr-defined]  # noqa: ASYNC110
        await asyncio.sleep(0)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2**19
    reader.feed_data(b"\x80\x80" + mask)
    event = await waiting
    assert isinstance(event, TextMessage)
    assert json.loads(event.data) == {}
    assert len(event.data) == count + 2
