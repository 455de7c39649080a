"""Compressed bodies are steered where they can be unpacked; else they pass on, and are recorded."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli
import httpx
import pytest

from gateway.wire.compression import zstd
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.agents import GUIDING, Agent, Answer, trace, worker
from tests.examples import by_day
from tests.live.test_big_bodies import PATHS, body_of
from tests.live.test_unsteered import counted

Start = Callable[..., AppServer]
JSON = {"content-type": "application/json"}
NOT_READ: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "another coding": ("dcb", gzip.compress),
    "a coding too few": ("gzip, br", gzip.compress),
    "a broken frame": ("zstd", lambda raw: b"\x28\xb5\x2f\xfd" + raw),
    "something behind a stream": ("br", lambda raw: brotli.compress(raw) + b"more"),
    "not packed": ("gzip", lambda raw: raw),
    "cut": ("gzip", lambda raw: gzip.compress(raw)[:-9]),
    "something behind it": ("gzip", lambda raw: gzip.compress(raw) + b"more"),
    "empty": ("gzip", lambda raw: b""),
    "larger than any body": ("gzip", lambda raw: gzip.compress(raw + b" " * 2**22)),
}


PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip": (gzip.compress, gzip.decompress),
    "zstd": (zstd.compress, zstd.decompress),
    "br": (brotli.compress, brotli.decompress),
}


class PackingAgent(Agent):
    """An agent whose requests are compressed."""

    coding = "gzip"

    async def send(self, messages: Any = None, **changes: Any) -> Answer:
        body = {"messages": self.messages, **self.body}
        self.sent = PACKERS[self.coding][0](json.dumps(body).encode())
        answer = await self._client.post(
            f"{self.url}/chat/completions",
            content=self.sent,
            headers={**JSON, "content-encoding": self.coding},
        )
        message = answer.json()["choices"][0]["message"]
        return Answer(
            status=answer.status_code,
            headers=answer.headers,
            content=answer.content,
            message=message,
        )


@pytest.mark.parametrize("coding", PACKERS)
async def test_an_agent_that_compresses_is_steered_as_any_other(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    coding: str,
) -> None:
    """Its steps are scored and it is advised; what is not changed is sent as it came, and what is
    changed in the same coding."""
    path = tmp_path / "runs.db"
    upstream.default = worker(9)
    rules = {"etraces": {"enabled": False}}  # no guidance before there is trouble
    server = gateway_server({**GUIDING, **rules, "storage": {"path": str(path)}})
    agent = PackingAgent(http, server.base_url)
    agent.coding, changed = coding, 0
    for step in range(8):
        answer = await agent.turn()
        assert (answer.gateway("step"), answer.gateway("unsteered")) == (str(step), None)
        assert upstream.last.header("content-encoding") == coding
        if upstream.last.body != agent.sent:
            changed += 1  # guidance that was given is repeated with each call
            received = json.loads(PACKERS[coding][1](upstream.last.body))
            assert received["messages"] != agent.messages[:-2]
    assert 0 < changed < 8
    steps = (await trace(path, answer.conversation)).steps
    assert [step.step_index for step in steps] == list(range(8))
    assert all(step.call and step.call.model_requested == "scripted" for step in steps)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_it_goes_to_the_deployment_that_it_names(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    pack: Callable[[bytes], bytes],
) -> None:
    """With its model, which the upstream reads in a plain body."""
    params = {"model": "openai/real", "api_base": upstream.base_url, "api_key": "sk-deployment"}
    nowhere = {"default_upstream": {"api_base": "http://127.0.0.1:9/v1"}}
    server = gateway_server(
        {"model_list": [{"model_name": "m", "litellm_params": params}], **nowhere}
    )
    coding = "gzip" if pack is gzip.compress else "deflate"
    raw = body_of("chat", "Hello.")
    headers = {**JSON, "content-encoding": coding}
    answer = await http.post(
        f"{server.base_url}/chat/completions", content=pack(raw), headers=headers
    )
    assert answer.status_code == 200, answer.text
    assert upstream.last.body == raw.replace(b'"model" : "m"', b'"model" : "real"')
    assert upstream.last.header("content-encoding") is None
    assert upstream.last.header("authorization") == "Bearer sk-deployment"


async def test_codex_with_a_login_is_steered_and_recorded(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A body as it streams it out, in frames without a size; the answer is compressed, too."""
    path = tmp_path / "runs.db"
    answer = {
        "id": "resp_1",
        "status": "completed",
        "model": "gpt-x",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Done."}]}],
        "usage": {"input_tokens": 70, "output_tokens": 8, "total_tokens": 78},
    }
    upstream.default = Reply(
        raw=zstd.compress(json.dumps(answer).encode()), headers={"content-encoding": "zstd"}
    )
    server = gateway_server({"storage": {"path": str(path)}, "steering": {"mode": "on"}})
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
    body = json.dumps({"model": "gpt-x", "input": [said], "store": False}).encode()
    compressor = zstd.ZstdCompressor(level=3)
    packed = compressor.compress(body[:50]) + compressor.compress(body[50:]) + compressor.flush()
    headers = {**JSON, "content-encoding": "zstd", "session-id": "t-1"}
    got = await http.post(f"{server.base_url}/responses", content=packed, headers=headers)
    assert got.status_code == 200, got.text
    assert json.loads(zstd.decompress(got.content)) == answer
    assert got.headers["x-gateway-step"] == "0"
    assert "x-gateway-unsteered" not in got.headers
    assert (upstream.last.body, upstream.last.header("content-encoding")) == (packed, "zstd")
    [step] = (await trace(path, got.headers["x-gateway-conversation-id"])).steps
    assert step.call is not None
    recorded = step.call.model_requested, step.call.input_tokens, step.call.output_tokens
    assert recorded == ("gpt-x", 70, 8)


@pytest.mark.parametrize("case", by_day(NOT_READ, 3))
@pytest.mark.parametrize("dialect", PATHS)
async def test_what_cannot_be_unpacked_passes_on_and_is_recorded(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    dialect: str,
    case: str,
) -> None:
    """As it came, to the default upstream; under the client's id, with the tokens that the answer
    reports and the model that it names."""
    path = tmp_path / "runs.db"
    upstream.default = Reply("fine", usage=Usage(prompt_tokens=70, completion_tokens=8))
    params = {"model": "openai/x", "api_base": "http://127.0.0.1:9/v1", "api_key": "k"}
    server = gateway_server(
        {
            "storage": {"path": str(path)},
            "server": {"max_body_mb": 2},
            "model_list": [{"model_name": "*", "litellm_params": params}],
        }
    )
    coding, pack = NOT_READ[case]
    packed = pack(body_of(dialect, "Hello."))
    headers = {**JSON, "content-encoding": coding}
    seen = []
    for more in ({"x-conversation-id": "one"}, {"x-conversation-id": "one"}, {}):
        answer = await http.post(
            f"{server.base_url}/{PATHS[dialect]}", content=packed, headers={**headers, **more}
        )
        assert answer.headers["x-gateway-unsteered"] == "encoding"
        assert (upstream.last.body, upstream.last.header("content-encoding")) == (packed, coding)
        seen.append(answer.headers["x-gateway-conversation-id"])
    assert (seen[0] == seen[1], len(set(seen))) == (True, 2)
    assert await counted(http, server, "encoding", "yes") == 3
    calls = [step.call for step in (await trace(path, seen[0])).steps]
    assert len(calls) == 2
    if answer.status_code == 200:
        model = answer.json()["model"]
        assert [(c.input_tokens, c.output_tokens, c.model_requested) for c in calls if c] == [
            (70, 8, model)
        ] * 2


async def test_a_bomb_is_not_unpacked(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """32 kB that hold 32 MB of valid JSON pass on as they came."""
    server = gateway_server()
    packed = gzip.compress(body_of("chat", "a" * 2**25))
    headers = {**JSON, "content-encoding": "gzip"}
    answer = await http.post(f"{server.base_url}/chat/completions", content=packed, headers=headers)
    assert answer.headers["x-gateway-unsteered"] == "encoding"
    assert upstream.last.body == packed


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
async def test_a_body_in_another_encoding_is_read(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, encoding: str
) -> None:
    """As servers in Python read it; unchanged it is sent as it came."""
    server = gateway_server()
    raw = body_of("chat", "Grüße.").decode().encode(encoding)
    for content, more in ((raw, {}), (gzip.compress(raw), {"content-encoding": "gzip"})):
        answer = await http.post(
            f"{server.base_url}/chat/completions", content=content, headers={**JSON, **more}
        )
        assert (answer.status_code, answer.headers["x-gateway-step"]) == (200, "0")
        assert upstream.last.body == content
