"""Copilot's own models with a login at GitHub: every API of theirs, the login, and its host."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.looping import GUIDANCE, OFF, STEERING
from steering_gateway_testing.patience import runs_at

Start = Callable[..., AppServer]
LOGIN = {
    "authorization": "Bearer gho_madeupmadeupmadeupmadeupmadeupmade",
    "copilot-integration-id": "copilot-developer-cli",
    "editor-version": "copilot/1.0.102",
    "x-initiator": "agent",
    "x-client-session-id": "s1",
}
CALL = Reply("Maybe it is stale.", tool_calls=(ToolCall("bash", {"command": "pytest"}),))
FUNCTION = {"name": "bash", "parameters": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "Mend the test."}
APIS: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "messages": [USER],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "/responses": {"input": [USER], "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": [USER],
        "max_tokens": 100,
        "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    },
}


def serve(start: Start, upstream: ScriptedUpstream, **settings: Any) -> AppServer:
    """A gateway in front of Copilot: nobody listens at any other address."""
    nobody = {"api_base": "http://127.0.0.1:9/v1", "messages_api_base": "http://127.0.0.1:9"}
    own = {**nobody, "copilot_api_base": upstream.url}
    return start({**STEERING, "default_upstream": own, **settings})


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("mode", ["off", "on"])
def test_each_api_is_served_at_its_own_host(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, mode: str
) -> None:
    """With the login and the client's headers; read and guided, and off with the same bytes."""
    always = {"e3_when": "always"}
    steering = {**OFF["steering"], "mode": mode}
    server = serve(gateway_server, upstream, steering=steering, etraces=always)
    upstream.default = CALL
    raw = json.dumps({"model": "gpt-5", **APIS[path]}, indent=1).encode()
    answer = httpx.post(f"{server.url}/copilot{path}?a=b", content=raw, headers=LOGIN)
    assert answer.status_code == 200
    seen = upstream.last
    assert seen.target == f"{path}?a=b"
    assert {name: seen.header(name) for name in LOGIN} == LOGIN
    assert (seen.body == raw) == (mode == "off")
    assert (GUIDANCE.encode() in seen.body) == (mode == "on")
    (run,) = runs_at(server.url)
    assert run["model_requested"] == "gpt-5"
    assert run["identity_source"] == "header:x-client-session-id"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/models"), ("POST", "/mcp/readonly"), ("GET", "/agents/x?y=z")]
)
def test_what_is_beside_them_passes(
    gateway_server: Start, upstream: ScriptedUpstream, method: str, path: str
) -> None:
    """Unchanged, to the same host."""
    server = serve(gateway_server, upstream)
    raw = b'{ "jsonrpc": "2.0" }' if method == "POST" else b""
    httpx.request(method, f"{server.url}/copilot{path}", content=raw, headers=LOGIN)
    seen = upstream.last
    assert (seen.method, seen.target, seen.body) == (method, path, raw)
    assert seen.header("authorization") == LOGIN["authorization"]


@pytest.mark.parametrize("path", APIS)
def test_a_fallback_does_not_get_the_login(
    gateway_server: Start, upstream: ScriptedUpstream, path: str
) -> None:
    """It is asked with its own key, in the API of the client."""
    params = {"model": "openai/gpt-5-mini", "api_base": f"{upstream.url}/own/v1", "api_key": "own"}
    if path == "/v1/messages":
        params["model"] = "anthropic/claude-haiku-4-5"
    listed = [{"model_name": "instead", "litellm_params": params}]
    with ScriptedUpstream(Reply("used up", status=429)) as dry:
        server = serve(
            gateway_server,
            dry,
            model_list=listed,
            router={"num_retries": 0, "fallbacks": [{"gpt-5": ["instead"]}]},
        )
        upstream.default = CALL
        body = {"model": "gpt-5", **APIS[path]}
        answer = httpx.post(f"{server.url}/copilot{path}", json=body, headers=LOGIN, timeout=120)
        assert answer.status_code == 200
        assert len(dry.requests) == 1
    assert upstream.last.path.startswith("/own/v1")
    assert upstream.last.model == params["model"].partition("/")[2]
    assert "gho_" not in str(upstream.last.headers)


def test_the_login_goes_to_no_other_api(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A client that asks OpenAI's or Anthropic's API with it is refused, and nothing is sent."""
    own = {"api_base": upstream.base_url, "messages_api_base": upstream.url}
    server = gateway_server({**STEERING, "default_upstream": own})
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/models"):
        body = {"model": "gpt-5", **APIS["/chat/completions"]}
        answer = httpx.post(f"{server.url}{path}", json=body, headers=LOGIN)
        assert answer.status_code in (401, 405)
    assert not upstream.requests
