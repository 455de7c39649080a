"""The official Anthropic client on `/v1/messages`, nothing but its base URL changed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.looping import GUIDANCE, OFF, STEERING, Start, looping_model, states
from steering_gateway_testing.official import anthropic

TOOL: Any = {
    "name": "bash",
    "description": "run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
TASK = "Repair the parser."
OUTPUT = "FAILED tests/test_parser.py::test_empty - AssertionError"
SYSTEM = "You repair programs."
CACHED = {"type": "ephemeral"}
MODEL = "claude-scripted"


def client_of(server: AppServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="sk-ant-client", base_url=server.url, max_retries=0)


def results_of(answer: Any) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": OUTPUT}
        for block in answer.content
        if block.type == "tool_use"
    ]


def tool_loop(client: anthropic.Anthropic, steps: int, **extra: Any) -> list[Any]:
    """Calls and results until the model answers, as an agent sends them."""
    messages: list[Any] = [{"role": "user", "content": TASK}]
    sent: dict[str, Any] = {"model": MODEL, "max_tokens": 4096, "tools": [TOOL], **extra}
    answers = []
    for _ in range(steps + 1):
        answer = client.messages.create(messages=messages, **sent)
        answers.append(answer)
        content = [block.model_dump(exclude_none=True) for block in answer.content]
        messages += [{"role": "assistant", "content": content}]
        messages += [{"role": "user", "content": found}] if (found := results_of(answer)) else []
    return answers


def test_a_message_goes_through_and_comes_back(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """The client's key, version and beta headers and its query arrive as they were sent."""
    upstream.script(Reply("Hello.", id="msg_one"))
    answer = client_of(gateway_server(STEERING)).messages.create(
        model=MODEL,
        max_tokens=64,
        messages=[{"role": "user", "content": "Hi"}],
        extra_headers={"anthropic-beta": "effort-2025-11-24", "anthropic-version": "2023-06-01"},
        extra_query={"beta": "true"},
    )
    assert (answer.id, answer.content[0].text) == ("msg_one", "Hello.")
    last = upstream.last
    assert last.target == "/v1/messages?beta=true"
    assert last.header("authorization") == "Bearer sk-ant-client"
    assert last.header("anthropic-beta") == "effort-2025-11-24"
    assert last.header("anthropic-version") == "2023-06-01"


@pytest.mark.parametrize(
    "system",
    [
        None,
        SYSTEM,
        [{"type": "text", "text": SYSTEM}],
        [
            {"type": "text", "text": "First.", "cache_control": CACHED},
            {"type": "text", "text": SYSTEM, "cache_control": CACHED},
        ],
    ],
)
def test_guidance_stands_behind_the_system_prompt(
    gateway_server: Start, upstream: ScriptedUpstream, system: Any
) -> None:
    """The client's blocks stay first and as they are; the rules follow, and never change."""
    upstream.default = looping_model(6)
    server = gateway_server(STEERING)
    extra = {} if system is None else {"system": system}
    answers = tool_loop(client_of(server), 6, **extra)
    assert answers[-1].content[-1].text == "The suite passes now."
    assert [row[0] for row in states(server)] == list(range(7))
    own = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    before: list[Any] = []
    for request in upstream.requests:
        blocks = request.fields["system"]
        bare = [{k: b[k] for k in ("type", "text")} for b in blocks]
        assert bare[: len(own)] == [{k: b[k] for k in ("type", "text")} for b in own]
        assert all(b["text"].startswith(GUIDANCE) for b in blocks[len(own) :])
        assert not any("cache_control" in b for b in blocks[len(own) :])
        assert not before or blocks == before
        assert all(m["role"] != "system" for m in request.messages)
        before = blocks
    assert len(before) == len(own) + 1
    told = [b for m in upstream.last.messages for b in m["content"] if GUIDANCE in str(b)]
    assert told
    assert all(b["type"] == "text" for b in told)


def test_a_model_that_takes_them_gets_late_system_messages(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Behind a user message, never two in a row, again at the same place on every later call."""
    upstream.default = looping_model(8)
    server = gateway_server(STEERING)
    tool_loop(client_of(server), 8, system=SYSTEM, model="claude-opus-4-8")
    bodies = [request.fields for request in upstream.requests]
    late = [m for m in bodies[-1]["messages"] if m["role"] == "system"]
    assert late
    for earlier, later in itertools.pairwise(bodies):
        assert later["system"] == earlier["system"]
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    for body in bodies:
        roles = [m["role"] for m in body["messages"]]
        for position, role in enumerate(roles):
            if role == "system":
                assert roles[position - 1] == "user"
                assert roles[position + 1 :][:1] in ([], ["assistant"])


@pytest.mark.parametrize("used", range(6))
def test_never_a_fifth_cache_marker(
    gateway_server: Start, upstream: ScriptedUpstream, used: int
) -> None:
    """The system prompt gets a marker while there is one left, if the client sets any; the client's
    stay where they are."""
    server = gateway_server(STEERING)
    texts: list[Any] = [{"type": "text", "text": f"Part {i}."} for i in range(6)]
    for part in texts[:used]:
        part["cache_control"] = CACHED
    httpx.post(
        f"{server.base_url}/messages",
        json={
            "model": MODEL,
            "max_tokens": 64,
            "system": SYSTEM,
            "messages": [{"role": "user", "content": texts}],
            "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
        },
    )
    body = upstream.last.fields
    assert body["messages"] == [{"role": "user", "content": texts}]
    assert body["system"][0]["text"] == SYSTEM
    assert len(body["system"]) > 1
    markers = [b.get("cache_control") for b in body["system"]]
    assert markers == ([CACHED] if 0 < used < 4 else [None]) + [None] * (len(markers) - 1)


def test_thinking_and_signatures_are_untouched(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """What the model has signed goes back to it byte for byte, and the step has its reasoning."""
    upstream.default = looping_model(3)
    server = gateway_server(STEERING)
    tool_loop(client_of(server), 3, thinking={"type": "enabled", "budget_tokens": 1024})
    thoughts = [
        block
        for message in upstream.last.messages
        if message["role"] == "assistant"
        for block in message["content"]
        if block["type"] == "thinking"
    ]
    assert len(thoughts) == 3
    assert {t["signature"] for t in thoughts} == {Reply().signature}
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]["id"]
    step = httpx.get(f"{server.url}/api/runs/{run}").json()["steps"][1]
    assert step["content"]["reasoning"] == "It may be the cache."


async def test_streams_are_relayed_and_recorded(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """The client assembles its message, usage is counted, and the step is committed by then."""
    usage = Usage(prompt_tokens=100, cached_tokens=60, cache_write_tokens=30, completion_tokens=7)
    call = ToolCall("bash", {"command": "ls", "deep": {"a": [1, 2]}})
    upstream.script(Reply("Looking.", reasoning="Hm.", tool_calls=(call,), usage=usage))
    server = await asyncio.to_thread(gateway_server, STEERING)
    async with (
        anthropic.AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0) as client,
        client.messages.stream(
            model=MODEL, max_tokens=64, tools=[TOOL], messages=[{"role": "user", "content": TASK}]
        ) as stream,
    ):
        message = await stream.get_final_message()
    assert message.content[-1].input == {"command": "ls", "deep": {"a": [1, 2]}}
    assert [row[0] for row in await asyncio.to_thread(states, server)] == [0]
    async with httpx.AsyncClient() as http:
        runs = (await http.get(f"{server.url}/api/runs")).json()["runs"]
    totals = runs[0]["totals"]
    assert (totals["input_tokens"], totals["cached_tokens"]) == (100, 60)
    assert (totals["cache_write_tokens"], totals["output_tokens"]) == (30, 7)


def test_tokens_are_counted_by_the_upstream(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """`count_tokens` goes through with the client's key and touches no state."""
    server = gateway_server(STEERING)
    counted = client_of(server).messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}]
    )
    assert counted.input_tokens > 0
    assert upstream.last.path == "/v1/messages/count_tokens"
    assert upstream.last.header("authorization") == "Bearer sk-ant-client"
    assert states(server) == []


def test_parallel_calls_are_one_step(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Two calls and their results, one of them an error, make one step with two actions."""
    calls = (ToolCall("bash", {"command": "ls"}), ToolCall("bash", {"command": "cat x"}))
    upstream.script(Reply("Both.", tool_calls=calls), Reply("Done."))
    server = gateway_server(STEERING)
    client = client_of(server)
    sent: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "tools": [TOOL]}
    messages: list[Any] = [{"role": "user", "content": TASK}]
    answer = client.messages.create(messages=messages, **sent)
    messages.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
    results = results_of(answer)
    results[1] |= {"is_error": True, "content": [{"type": "text", "text": "no such file"}]}
    messages.append({"role": "user", "content": results})
    client.messages.create(messages=messages, **sent)
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]["id"]
    step = httpx.get(f"{server.url}/api/runs/{run}").json()["steps"][1]
    actions = step["content"]["actions"]
    assert [a["arguments"] for a in actions] == ['{"command": "ls"}', '{"command": "cat x"}']
    assert [a["observation"] for a in actions] == [OUTPUT, "no such file"]
    assert [a["is_error"] for a in actions] == [False, True]


def test_errors_have_anthropics_form(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The client raises its own error types for what the gateway itself refuses."""
    server = gateway_server(
        {**STEERING, "model_list": [_chat_only("gpt", upstream)], "router": {"num_retries": 0}}
    )
    client = client_of(server)
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="", max_tokens=1, messages=[])
    assert refused.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "'model' must be a non-empty string"},
    }
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="gpt", messages=[{"role": "user", "content": "Hi"}])


def test_asides_touch_no_state(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Titles and quota probes go through as they are, and leave the session to the agent."""
    server = gateway_server(STEERING)
    session = {"user_id": '{"device_id":"d","session_id":"s-1"}'}
    config = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    asides: list[dict[str, Any]] = [
        {"max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]},
        {"max_tokens": 1, "messages": [{"role": "user", "content": "count"}], "tools": [TOOL]},
        {
            "max_tokens": 512,
            "messages": [{"role": "user", "content": "Write a title."}],
            "output_config": config,
            "tools": [],
        },
    ]
    headers = {"x-claude-code-session-id": "s-1"}
    for aside in asides:
        body = {"model": MODEL, "metadata": session, **aside}
        raw = httpx.Request("POST", "http://x", json=body).content
        answer = httpx.post(f"{server.base_url}/messages", content=raw, headers=headers)
        assert answer.status_code == 200
        assert upstream.last.body == raw
        assert "x-gateway-state" not in answer.headers
    assert states(server) == []


@pytest.mark.parametrize("said", ["quota", "count"])
def test_a_word_is_no_probe(gateway_server: Start, upstream: ScriptedUpstream, said: str) -> None:
    """A person may say only that: a probe asks for one token."""
    server = gateway_server(STEERING)
    body = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": said}]}
    answer = httpx.post(f"{server.base_url}/messages", json=body)
    assert "x-gateway-state" in answer.headers


def test_agents_of_one_session_are_apart(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A sub-agent shares the session's id and has an id of its own: another conversation."""
    server = gateway_server(STEERING)
    seen = []
    for agent in (None, "a-1", None, "a-1"):
        headers = {"x-claude-code-session-id": "s-1"}
        headers |= {"x-claude-code-agent-id": agent} if agent else {}
        body = {
            "model": MODEL,
            "max_tokens": 64,
            "tools": [TOOL],
            "messages": [{"role": "user", "content": f"Work of {agent}."}],
        }
        answer = httpx.post(f"{server.base_url}/messages", json=body, headers=headers)
        seen.append(answer.headers["x-gateway-conversation-id"])
    assert seen[0] == seen[2] != seen[1] == seen[3]


def test_hello_is_answered(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Claude Code asks whether anybody is there; nothing goes upstream."""
    server = gateway_server(STEERING)
    assert httpx.head(f"{server.url}/api/hello").status_code == 200
    assert not upstream.requests


@pytest.mark.parametrize("streamed", [False, True])
def test_off_changes_no_byte(
    gateway_server: Start, upstream: ScriptedUpstream, streamed: bool
) -> None:
    """With steering off the request and the answer are the bytes that were sent."""
    upstream.default = Reply(
        "Größe: 1.0", tool_calls=(ToolCall("bash", {"command": "ls"}, id="t1"),), id="m"
    )
    raw = (
        b'{"stream": %s,  "model":"claude-x", "max_tokens": 64,"x":1.0, "messages":'
        b'[{"content":"\\u00e9","role":"user"}], "system" : "S"}'
    ) % (b"true" if streamed else b"false")
    server = gateway_server(OFF)
    through = httpx.post(f"{server.base_url}/messages", content=raw)
    direct = httpx.post(f"{upstream.base_url}/messages", content=raw)
    assert upstream.requests[0].body == raw
    assert through.content == direct.content
    assert through.headers["content-type"] == direct.headers["content-type"]


def _chat_only(name: str, upstream: ScriptedUpstream) -> dict[str, Any]:
    params = {"model": f"openai/{name}", "api_base": upstream.base_url, "api_key": "k"}
    return {"model_name": name, "litellm_params": params}
