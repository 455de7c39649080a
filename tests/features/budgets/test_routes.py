"""A hard budget that is used up lets no money through, whatever the route and form of a call."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest

from gateway.endpoints.passthrough import form_model
from gateway.features.budgets.routes import counted_how
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.growth import exceeds_linear
from tests.features.budgets.test_other_calls import spent
from tests.relay.test_realtime import Provider, provider  # noqa: F401 - a fixture

Start = Callable[..., AppServer]
JSON = {"content-type": "application/json"}
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
TOLD = {"model": "gpt-4o", "prompt": "hi"}
SAID = {"model": "gpt-4o", "input": "hi"}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
CLAUDE = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": CHAT["messages"]}
VERTEX = "/v1/projects/p/locations/us/publishers/anthropic/models/claude-haiku-4-5"
AZURE = "/at/x.openai.azure.com/openai/deployments/gpt-4o"
BEDROCK = "/model/anthropic.claude-3-haiku-20240307-v1:0"


def form(**fields: str) -> tuple[bytes, dict[str, str]]:
    """A form with a file and these fields."""
    request = httpx.Request(
        "POST", "http://x", data=fields, files={"file": ("a.mp3", b"\x00" * 3000, "audio/mpeg")}
    )
    return request.read(), {"content-type": request.headers["content-type"]}


def body(fields: Any, **more: str) -> tuple[bytes, dict[str, str]]:
    """A body of JSON."""
    return json.dumps(fields).encode(), {**JSON, **more}


def packed(fields: Any) -> tuple[bytes, dict[str, str]]:
    """The same, compressed."""
    return gzip.compress(json.dumps(fields).encode()), {**JSON, "content-encoding": "gzip"}


EMPTY = (b"", dict[str, str]())
Form = tuple[str, str, tuple[bytes, dict[str, str]]]
PAID: list[Form] = [
    ("POST", "/v1/chat/completions", body(CHAT)),
    ("POST", "/chat/completions", body(CHAT)),
    ("POST", "/v1/chat/completions", packed(CHAT)),
    ("POST", "/v1/chat/completions", body({"messages": CHAT["messages"]})),
    ("POST", "/v1/chat/completions", body({**CHAT, "stream": True})),
    ("POST", "/v1/responses", body(SAID)),
    ("POST", "/v1/responses", body({"input": "hi"})),
    ("POST", "/v1/responses/compact", body(SAID)),
    ("POST", "/v1/messages", body({**CHAT, "max_tokens": 9})),
    ("POST", "/v1/completions", body(TOLD)),
    ("POST", "/v1/completions", body({"prompt": "hi"})),
    ("POST", "/v1/completions", body(TOLD, **{"content-type": "Application/JSON"})),
    ("POST", "/v1/completions", body(TOLD, **{"content-type": "text/plain"})),
    ("POST", "/v1/completions", (json.dumps(TOLD).encode(), {})),
    ("POST", "/v1/complete", body(TOLD)),
    ("POST", "/v1/embeddings", body(SAID)),
    ("POST", "/v1/embeddings", body({"input": "hi"})),
    ("POST", "/v1/embeddings", packed(SAID)),
    ("POST", "/v1/moderations", body({"input": "hi"})),
    ("POST", "/v1/rerank", body({"query": "hi", "documents": ["a"]})),
    ("POST", "/v1/images/generations", body({"prompt": "a cat"})),
    ("POST", "/v1/images/generations", body({"prompt": "a cat", "model": "gpt-image-1.5"})),
    ("POST", "/v1/images/generations", body({"prompt": "a cat", "model": "dall-e-3"})),
    ("POST", "/v1/images/edits", form(prompt="a cat")),
    ("POST", "/v1/images/edits", form(prompt="a cat", model="gpt-image-1.5")),
    ("POST", "/v1/images/edits", body({"prompt": "a cat", "model": "gpt-image-1.5"})),
    ("POST", "/v1/images/variations", form()),
    ("POST", "/v1/audio/transcriptions", form(model="whisper-1")),
    ("POST", "/v1/audio/transcriptions", form(model="gpt-4o-transcribe")),
    ("POST", "/v1/audio/transcriptions", form()),
    ("POST", "/v1/audio/translations", form(model="whisper-1")),
    ("POST", "/v1/audio/speech", body({"model": "tts-1", "input": "hi", "voice": "a"})),
    ("POST", "/v1/audio/speech", body({"input": "hi", "voice": "a"})),
    ("POST", "/v1/videos", form(prompt="a cat", model="sora-2")),
    ("POST", "/v1/videos", body({"prompt": "a cat"})),
    ("POST", "/v1/batches", body({"input_file_id": "f", "endpoint": "/v1/chat/completions"})),
    ("POST", "/v1/messages/batches", body({"requests": []})),
    ("POST", "/v1/fine_tuning/jobs", body({"model": "gpt-4o", "training_file": "f"})),
    ("POST", "/v1/evals", body({"name": "e"})),
    ("POST", "/v1/evals/e/runs", body({"name": "e"})),
    ("POST", "/v1/threads/runs", body({"assistant_id": "a"})),
    ("POST", "/v1/threads/t/runs", body({"assistant_id": "a"})),
    ("POST", "/v1/vector_stores", body({"file_ids": ["f"]})),
    ("POST", "/v1/vector_stores/v/search", body({"query": "hi"})),
    ("POST", "/v1/containers", body({"name": "c"})),
    ("POST", "/v1/realtime/sessions", body({"model": "gpt-realtime"})),
    ("POST", "/v1/realtime/client_secrets", body({})),
    ("POST", "/v1/realtime/calls", (b"v=0", {"content-type": "application/sdp"})),
    ("POST", "/v1/unknown/of/2027", body({})),
    ("POST", "/v1/unknown/of/2027", EMPTY),
    ("PUT", "/v1/unknown/of/2027", body({})),
    ("PATCH", "/v1/embeddings", body(SAID)),
    ("POST", "/v1/Embeddings", body(SAID)),
    ("POST", "/v1/embeddings/", body(SAID)),
    ("POST", "/v1//embeddings", body(SAID)),
    ("POST", "/v1/%65mbeddings", body(SAID)),
    ("POST", "/v1/chat/completions/count_tokens/", body(CHAT)),
    ("GET", "/v1/embeddings", body(SAID, **{"x-http-method-override": "POST"})),
    ("POST", "/v1beta/models/gemini-2.5-flash:generateContent", body(GEMINI)),
    ("POST", "/v1beta/models/gemini-2.5-flash%3AstreamGenerateContent", body(GEMINI)),
    ("POST", "/v1beta/models/gemini-embedding-001:embedContent", body({"content": {}})),
    ("POST", "/v1beta/models/gemini-embedding-001:asyncBatchEmbedContent", body({})),
    ("POST", "/v1beta/models/imagen-4:predict", body({"instances": []})),
    ("POST", "/v1beta/models/veo-3:predictLongRunning", body({"instances": []})),
    ("POST", "/v1beta/cachedContents", body({"model": "models/gemini-2.5-flash"})),
    ("POST", f"{AZURE}/chat/completions", body(CHAT)),
    ("POST", f"{AZURE}/chat/completions", body({"messages": CHAT["messages"]})),
    ("POST", f"{AZURE}/completions", body(TOLD)),
    ("POST", f"{AZURE}/embeddings", body(SAID)),
    ("POST", f"{VERTEX}:rawPredict", body(CLAUDE)),
    ("POST", f"{BEDROCK}/invoke", body(CLAUDE)),
    ("POST", f"{BEDROCK}/converse", body({"messages": []})),
    ("POST", f"{BEDROCK}/converse-stream", body({"messages": []})),
]
FREE: list[Form] = [
    ("GET", "/v1/models", EMPTY),
    ("GET", "/v1/files", EMPTY),
    ("GET", "/v1/realtime/calls/x", EMPTY),
    ("DELETE", "/v1/files/f", EMPTY),
    ("POST", "/v1/files", form(purpose="batch")),
    ("POST", "/v1/uploads", body({"filename": "a"})),
    ("POST", "/v1/batches/b/cancel", EMPTY),
    ("POST", "/v1/messages/count_tokens", body(CHAT)),
    ("POST", "/v1/responses/input_tokens", body(SAID)),
    ("POST", "/v1/conversations", body({"items": []})),
    ("POST", "/v1/assistants", body({"model": "gpt-4o"})),
    ("POST", "/v1beta/models/gemini-2.5-flash:countTokens", body(GEMINI)),
]


def hard(**more: Any) -> dict[str, Any]:
    """A hard budget in dollars, which one call uses up."""
    stop = [{"at": 1.0, "do": "stop"}]
    limits = {"usd": 0.01}
    return {
        "name": "all",
        "scope": "tenant",
        "limits": limits,
        "ladder": stop,
        "hard": True,
        **more,
    }


def gateway_settings(upstream: ScriptedUpstream, **budget: Any) -> dict[str, Any]:
    root = upstream.base_url.removesuffix("/v1")
    bases = ("gemini_api_base", "vertex_api_base", "bedrock_api_base", "chatgpt_api_base")
    own = {"api_base": upstream.base_url, "messages_api_base": upstream.base_url}
    return {
        "default_upstream": {**own, **dict.fromkeys(bases, root)},
        "budgets": [hard(**budget)],
        "router": {"num_retries": 0},
    }


def use_up(server: AppServer, upstream: ScriptedUpstream) -> None:
    """One call that costs ten times the budget."""
    upstream.script(Reply("ok", usage=Usage(prompt_tokens=40_000, completion_tokens=0)))
    answer = httpx.post(f"{server.base_url}/chat/completions", json=CHAT, timeout=120)
    assert answer.status_code == 200
    assert spent(server)["usd"] == pytest.approx(0.1)
    upstream.requests.clear()


@pytest.mark.parametrize("match", [None, {"model": "gpt-*"}], ids=["any model", "some models"])
def test_no_route_or_form_costs_more_than_a_hard_budget_has(
    gateway_server: Start, upstream: ScriptedUpstream, match: dict[str, str] | None
) -> None:
    """Whatever asks a model is refused unsent, and what has no price is; free routes go on."""
    server = gateway_server(gateway_settings(upstream))
    if match is not None:  # names of other models are not its business, no name is
        server.stop()
        server = gateway_server(gateway_settings(upstream, match=match))
    use_up(server, upstream)
    before = spent(server)
    with httpx.Client(base_url=server.url, timeout=120) as client:
        for method, path, (content, headers) in PAID:
            named = b'"model"' in content or b"Disposition" in content or "/model" in path
            if match is not None and (named or headers.get("content-encoding")):
                continue
            answer = client.request(method, path, content=content, headers=headers)
            if b"'model' is required" not in answer.content:
                assert answer.status_code == 429, (method, path, answer.content)
                assert b"budget" in answer.content, (method, path)
            assert not upstream.requests, (method, path)
        for method, path, (content, headers) in FREE:
            answer = client.request(method, path, content=content, headers=headers)
            assert answer.status_code == 200, (method, path, answer.content)
            assert upstream.last.method == method, (method, path)
    assert spent(server) == before


def test_a_hard_budget_with_room_refuses_what_it_cannot_count(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A route in no list, pictures without a price for tokens; all else passes and is counted by
    what it reports."""
    server = gateway_server(gateway_settings(upstream, limits={"usd": 1}))
    v1, drawn = server.base_url, {"usage": {"input_tokens": 50, "output_tokens": 1000}}
    reply = Reply(raw=json.dumps(drawn).encode(), content_type="application/json")
    for path, (content, headers) in (
        ("/images/generations", body({"prompt": "a cat", "model": "dall-e-3"})),
        ("/audio/transcriptions", form(model="whisper-1")),
        ("/batches", body({"input_file_id": "f"})),
        ("/videos", form(model="sora-2")),
    ):
        answer = httpx.post(v1 + path, content=content, headers=headers, timeout=120)
        assert answer.status_code == 429
        message = answer.json()["error"]["message"]
        assert (path in message, "all" in message, "hard" in message) == (True, True, True)
    assert not upstream.requests
    used = 0.0
    for path, (content, headers), usd in (
        ("/images/generations", body({"prompt": "a", "model": "gpt-image-1.5"}), 0.0324),
        ("/images/edits", form(prompt="a", model="gpt-image-1.5"), 0.0324),
        ("/audio/transcriptions", form(model="gpt-4o-transcribe"), 0.010125),
    ):
        upstream.script(reply)
        answer = httpx.post(v1 + path, content=content, headers=headers, timeout=120)
        assert (answer.status_code, answer.json()) == (200, drawn)
        assert upstream.last.body == content
        used += usd
        assert spent(server)["usd"] == pytest.approx(used)


def test_other_budgets_count_such_calls_and_let_them_pass(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A budget that is not hard counts a call of any route, and refuses it only when used up."""
    server = gateway_server(gateway_settings(upstream, hard=False, limits={"calls": 2}))
    for number in range(3):
        answer = httpx.post(f"{server.base_url}/batches", json={"input_file_id": "f"}, timeout=120)
        assert answer.status_code == (429 if number == 2 else 200)
    assert spent(server)["calls"] == 2


async def test_a_realtime_session_is_a_call(
    gateway_server: Start,
    provider: Provider,  # noqa: F811
) -> None:
    """Of a budget; a hard one, which cannot count what crosses, lets none begin."""
    for is_hard, statuses in ((False, [101, 429]), (True, [429])):
        config = {
            "default_upstream": {"api_base": provider.url},
            "budgets": [hard(hard=is_hard, limits={"calls": 1})],
        }
        server = await asyncio.to_thread(gateway_server, config)
        provider.heads.clear()
        async with aiohttp.ClientSession() as session:
            for status in statuses:
                url = f"{server.url}/v1/realtime?model=gpt-realtime"
                if status == 101:
                    async with session.ws_connect(url) as socket:
                        assert (await socket.receive_json())["type"] == "session.created"
                    continue
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await session.ws_connect(url)
                assert refused.value.status == status
        assert len(provider.heads) == statuses.count(101)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("POST /embeddings", "input"),
        ("POST /images/edits", "media"),
        ("POST /embeddings/count_tokens", ""),
        ("GET /realtime", ""),
        (f"POST {BEDROCK}/count-tokens", "free"),
        ("DELETE /files/f", "free"),
        ("POST /v1beta/models/m:generateContent/x", ""),
    ],
)
def test_a_route_is_in_one_list_or_none(line: str, how: str) -> None:
    """As a whole, so that no other spelling passes for it."""
    method, path = line.split(" ", 1)
    assert counted_how(method, path, []) == how


def test_the_model_of_a_form_is_the_only_one_that_it_names() -> None:
    """A part with more headers, quotes or none; two names are no name."""
    assert form_model(form(model="whisper-1")[0]) == "whisper-1"
    head = b"--b\r\nContent-Disposition: form-data; name=model\r\nContent-Type: text/plain\r\n\r\n"
    assert form_model(head + b"a\r\n--b--") == "a"
    assert form_model(form(model="whisper-1")[0] + head + b"other\r\n--b--") == ""
    assert form_model(b"\x00" * 100) == ""
    assert form_model(form(model="whisper-1")[0] + b'name="model"' + b" " * 5000) == ""


@pytest.mark.parametrize("unit", ['name="model"', 'name="model" a\r\na\r\n', "name=model\r\n\r\n"])
def test_a_form_takes_linear_time(unit: str) -> None:
    """However often it begins to name a model."""
    sizes = [2048, 8192, 32768]
    slow = exceeds_linear(
        lambda text: lambda: form_model(text.encode()),
        lambda size: unit * (size // len(unit)),
        sizes,
    )
    assert not slow
