"""Codex with a ChatGPT login over HTTP: its shapes, its host, its side calls."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.agents import GUIDING
from steering_gateway_testing.patience import runs_at

Start = Callable[..., AppServer]
LOGIN = {
    "authorization": "Bearer a-login",
    "chatgpt-account-id": "account",
    "x-codex-turn-metadata": json.dumps({"session_id": "s", "thread_id": "t"}),
    "x-openai-internal-codex-responses-lite": "true",
}
TOOLS = {"type": "additional_tools", "role": "developer", "tools": [{"name": "shell"}]}


def codex(*more: dict[str, Any]) -> dict[str, Any]:
    """A request as Codex's newest models get it."""
    opening = [TOOLS, {"role": "developer", "content": "Be brief."}]
    task = {"role": "user", "content": [{"type": "input_text", "text": "List the files."}]}
    return {
        "model": "gpt-6.1-sol",
        "input": [*opening, task, *more],
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "t",
    }


@pytest.mark.parametrize("path", ["/backend-api/codex/responses", "/v1/responses"])
@pytest.mark.parametrize("mode", ["shadow", "on"])
def test_a_login_is_steered_at_its_own_host(
    path: str, mode: str, gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """The default upstream, where nobody listens, never gets it; all but guidance is unchanged."""
    upstream.default = Reply("look", usage=Usage(prompt_tokens=60, completion_tokens=10))
    bases = {"api_base": "http://127.0.0.1:9/v1", "chatgpt_api_base": upstream.base_url}
    steering = {**GUIDING["steering"], "mode": mode}
    server = gateway_server({**GUIDING, "default_upstream": bases, "steering": steering})
    call = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "Error: no"}
    sent = [json.dumps(codex(*[call, output] * count)).encode() for count in range(3)]
    headers = {**LOGIN, "content-type": "application/json", "content-encoding": "gzip"}
    for raw in sent:
        answer = httpx.post(server.url + path, content=gzip.compress(raw), headers=headers)
        assert answer.status_code in (200, 404)
    arrived = upstream.requests
    assert {request.path for request in arrived} == {"/v1/codex/responses"}
    assert {request.header("chatgpt-account-id") for request in arrived} == {"account"}
    if mode == "shadow":
        assert [gzip_free(request) for request in arrived] == sent
    else:
        bodies = [json.loads(gzip_free(request)) for request in arrived]
        assert all(body["input"][0] == TOOLS for body in bodies)
    (run,) = runs_at(server.url)
    assert run["model_requested"] == "gpt-6.1-sol"


def gzip_free(request: Any) -> bytes:
    """The body that arrived, unpacked."""
    packed = request.header("content-encoding") == "gzip"
    return gzip.decompress(request.body) if packed else bytes(request.body)


@pytest.mark.parametrize("path", ["/codex/models", "/wham/usage"])
def test_side_calls_of_the_login_pass(
    path: str, gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """To the same host."""
    bases = {"api_base": "http://127.0.0.1:9/v1", "chatgpt_api_base": upstream.base_url}
    server = gateway_server({"default_upstream": bases})
    httpx.get(f"{server.url}/backend-api{path}?client_version=1", headers=LOGIN)
    (request,) = upstream.requests
    assert (request.path, request.header("authorization")) == (f"/v1{path}", "Bearer a-login")
