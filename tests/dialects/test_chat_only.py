"""Clients of Responses and Messages before a provider that has chat completions alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from gateway.dialects import RESPONSES
from gateway.upstream.providers import documented_dialects
from gateway.wire.message_identity import tool_names
from steering_gateway_testing import ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.looping import Start
from steering_gateway_testing.patience import ANSWER_S, run_to_end
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall
from tests.dialects.test_agents import FOLDER, found
from tests.relay.test_deployments import a_table, only

pytestmark = [
    pytest.mark.slow,
    # LiteLLM's own use of pydantic; turned into an error it would break its streams off.
    pytest.mark.filterwarnings("ignore:Accessing the 'model_"),
]
SHELL = 'const r = await tools.exec_command({cmd: "echo seen-by-the-shell"}); text(r.output);'
CALLS: dict[str, dict[str, Any]] = {
    "exec": {"content": SHELL},
    "shell_command": {"command": "echo seen-by-the-shell"},
    "shell": {"command": ["echo", "seen-by-the-shell"]},
    "exec_command": {"cmd": "echo seen-by-the-shell"},
}
CODEX = Path(__file__).with_name("codex_body.json")
ASKED: dict[str, dict[str, Any]] = {
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99},
}
TOOL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}


def chat_only(request: ReceivedRequest) -> Reply:
    """One call of a shell's tool, then an answer; every other path is not there."""
    if not request.path.endswith("/chat/completions"):
        return Reply(raw=b'{"detail":"Not Found"}', status=404, content_type="application/json")
    known = [name for name in CALLS if name in tool_names(request.fields)]
    if known and not any(m["role"] == "tool" for m in request.fields["messages"]):
        return Reply("Let me look.", tool_calls=(ToolCall(known[0], CALLS[known[0]]),))
    return Reply("All done here.")


def before(gateway_server: Start, upstream: ScriptedUpstream, **more: Any) -> Any:
    upstream.default = chat_only
    return gateway_server({"default_upstream": {"api_base": upstream.base_url}, **more})


def paths(upstream: ScriptedUpstream) -> list[str]:
    return [r.path.removeprefix("/v1") for r in upstream.requests if r.method == "POST"]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_missing_route_is_translated_and_remembered(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, stream: bool
) -> None:
    """The first call is asked for in vain, and then in chat completions with the client's key; the
    second at once in chat completions."""
    server = before(gateway_server, upstream)
    body = {"model": "some/model", "stream": stream, **ASKED[path]}
    headers = {"authorization": "Bearer sk-of-the-client"}
    for _ in range(2):
        url = server.base_url + path
        answer = httpx.post(url, json=body, headers=headers, timeout=ANSWER_S)
        assert (answer.status_code, "done" in answer.text) == (200, True)
    assert paths(upstream) == [path, "/chat/completions", "/chat/completions"]
    assert (upstream.last.model, upstream.last.header("authorization")) == (
        "some/model",
        "Bearer sk-of-the-client",
    )


@pytest.mark.parametrize("path", ASKED)
def test_a_missing_model_stays_a_404(
    gateway_server: Start, upstream: ScriptedUpstream, path: str
) -> None:
    """Where chat completions has none, either, the client gets the first answer, and nothing is
    remembered."""
    server = before(gateway_server, upstream)
    upstream.default = lambda request: Reply(
        raw=json.dumps({"error": {"message": request.path}}).encode(),
        status=404,
        content_type="application/json",
    )
    for count in (1, 2):
        answer = httpx.post(server.base_url + path, json={"model": "m", **ASKED[path]})
        assert (answer.status_code, path in answer.json()["error"]["message"]) == (404, True)
        assert paths(upstream).count(path) == count


def test_an_error_in_chat_completions_is_the_answer(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """It shows that the route is there; what passes is tried again, there alone."""
    server = before(gateway_server, upstream, router={"backoff_s": 0})
    busy = Fault(FaultKind.RATE_LIMIT, retry_after="0", times=2)
    upstream.script(busy, path="/chat/completions")
    answer = httpx.post(f"{server.base_url}/responses", json={"model": "m", "input": "hi"})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert paths(upstream) == ["/responses", *["/chat/completions"] * 3]


def test_no_key_of_the_environment_is_spent(
    gateway_server: Start, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteLLM would send OpenAI's to a server of nobody's."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    server = before(gateway_server, upstream)
    for path, fields in ASKED.items():
        answer = httpx.post(server.base_url + path, json={"model": "m", **fields}, timeout=ANSWER_S)
        assert answer.status_code == 200
    assert not [r for r in upstream.requests if "of-the-environment" in str(r.headers)]


def test_claude_codes_changing_line_is_left_out(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """It differs in each call, and stands before everything else: no prompt cache would hold."""
    server = before(gateway_server, upstream)
    for count in range(2):
        line = f"x-anthropic-billing-header: cc_version=2.1.332; cc_entrypoint=cli; cch={count:05};"
        system = [{"type": "text", "text": line}, {"type": "text", "text": "You are Claude Code."}]
        body = {"model": "m", "system": system, **ASKED["/messages"]}
        url = f"{server.base_url}/messages"
        assert httpx.post(url, json=body, timeout=ANSWER_S).status_code == 200
    first, second = [r for r in upstream.requests if r.path.endswith("/chat/completions")]
    assert first.fields["messages"] == second.fields["messages"]
    assert "You are Claude Code." in first.body.decode()


@pytest.mark.parametrize("listed", [False, True], ids=["default", "deployment"])
def test_codexs_own_body_is_answered(
    gateway_server: Start, upstream: ScriptedUpstream, listed: bool
) -> None:
    """What Codex 0.171 sends with its default model: tools in an item, custom ones among them. The
    call comes back as a custom one, and its result arrives."""
    body = json.loads(CODEX.read_text())
    params = {"model": "openai/own", "api_base": upstream.base_url, "api_key": "sk-own"}
    entry = {"model_name": body["model"], "litellm_params": params}
    server = before(gateway_server, upstream, model_list=[entry] if listed else [])
    url = f"{server.base_url}/responses"
    events = httpx.post(url, json=body, timeout=ANSWER_S).text
    ended = json.loads(events.split("event: response.completed\ndata: ")[1].split("\n")[0])
    (call,) = [o for o in ended["response"]["output"] if o["type"] == "custom_tool_call"]
    assert (call["name"], call["input"]) == ("exec", SHELL)
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "42"}
    body["input"] += [call, result]
    assert "All done here." in httpx.post(url, json=body, timeout=ANSWER_S).text
    last = upstream.last.fields["messages"][-1]
    assert (last["role"], last["content"]) == ("tool", "42")
    assert paths(upstream) == ["/responses", *["/chat/completions"] * 2]


async def test_its_websocket_is_refused_in_a_way_that_clients_understand(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """426, after which Codex uses HTTP at once; a 404 it would try again."""
    server = before(gateway_server, upstream)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{server.url}/v1/responses")
    assert refused.value.status == 426


@pytest.mark.skipif(found("codex") is None, reason="codex is not installed")
@pytest.mark.parametrize("mode", ["off", "shadow", "on"])
@pytest.mark.parametrize("model", [None, "gpt-5.2-codex"], ids=["default model", "older model"])
@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_codex_finishes(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    mode: str,
    model: str | None,
    transport: str,
) -> None:
    """The real client runs a task to its end: the shell's output arrives at the provider."""
    server = before(gateway_server, upstream, steering={"mode": mode})
    provider = {"name": "own", "base_url": server.base_url, "wire_api": "responses"}
    given = [f'model_providers.own.{key}="{value}"' for key, value in provider.items()]
    given.append('model_providers.own.env_key="CODEX_API_KEY"')
    given.append(f"model_providers.own.supports_websockets={str(transport == 'websocket').lower()}")
    options = [part for text in ('model_provider="own"', *given) for part in ("-c", text)]
    options += ["-m", model] if model else []
    env = {
        "PATH": f"{FOLDER}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CODEX_HOME": str(tmp_path),
        "CODEX_API_KEY": "sk-proj-of-the-client",
    }
    command = [str(found("codex")), "exec", "--skip-git-repo-check", *options, "look at the shell"]
    done = run_to_end(command, env, tmp_path)
    assert (done.returncode, "All done here." in done.stdout) == (0, True), done.stderr
    assert "seen-by-the-shell" in str(upstream.last.fields["messages"][-1])
    assert paths(upstream).count("/responses") == 1


@pytest.mark.parametrize(
    ("base", "documented"),
    [
        ("https://api.openai.com/v1", {"chat", "responses"}),
        ("https://openrouter.ai/api/v1", {"chat", "responses"}),
        ("https://api.cerebras.ai/v1", {"chat"}),
        ("https://api.deepseek.com/v1", set()),
        ("http://127.0.0.1:9/v1", set()),
    ],
)
def test_what_providers_speak_is_in_the_table(base: str, documented: set[str]) -> None:
    """The default upstream and a deployment at the same host are alike: documented, or tried."""
    params = {"name": "m", "model": "openai/x", "api_base": base}
    table = a_table(params, default_upstream={"api_base": base})
    assert documented_dialects(httpx.URL(base).host) == documented
    for target in (table.default, only(table, "m")):
        assert target.speaks(RESPONSES) is (documented != {"chat"})
