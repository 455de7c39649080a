"""Caps for sub-agents: in each client's form it ends with a report, and its parent goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall

Start = Callable[..., AppServer]
KIND = "Explore"
PROMPT = "Count the files of this folder, and say how many there are."
OTHER = "Find every caller of the parser, and list each with its line."
CAP = {"name": "helpers", "match": {"sub_agent": True}, "limits": {"calls": 3}}
LOOKING = Reply("Still looking.", tool_calls=(ToolCall("bash", {"command": "pytest -q"}),))
OUTPUT = "FAILED tests/test_a.py::test_x\n1 failed"


def _codex(thread: str, **more: str) -> dict[str, str]:
    turn = {"session_id": "s1", "thread_id": thread, "agent_name": "/root", **more}
    return {"user-agent": "codex_exec/0.171.0 (linux)", "x-codex-turn-metadata": json.dumps(turn)}


CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, cli)", "x-claude-code-session-id": "s1"}
OPENCODE = {"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.46"}
QWEN = {"user-agent": "QwenCode/0.24.4 (linux; x64)"}
SPAWNED = {"x-codex-parent-thread-id": "s1", "x-openai-subagent": "collab_spawn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What a client sends of its main agent and of a sub-agent, and the call that starts one."""

    dialect: str
    main: Mapping[str, str]
    sub: Mapping[str, str]
    start: ToolCall

    @property
    def model(self) -> str:
        return "claude-haiku-4-5" if self.dialect == "messages" else "gpt-4o-mini"


def explorer(tool: str) -> ToolCall:
    """A call of this tool, which starts a sub-agent by its prompt and kind."""
    return ToolCall(tool, {"prompt": PROMPT, "subagent_type": KIND})


CLIENTS = {
    "claude code": Client(
        dialect="messages",
        main=CLAUDE,
        sub=CLAUDE | {"x-claude-code-agent-id": "a1"},
        start=explorer("Agent"),
    ),
    "claude code, hints": Client(
        dialect="messages",
        main=CLAUDE | {"x-claude-code-request-class": "main"},
        sub=CLAUDE
        | {
            "x-claude-code-agent-id": "a1",
            "x-claude-code-agent-type": KIND,
            "x-claude-code-request-class": "subagent",
        },
        start=ToolCall("Agent", {"prompt": "none of its words"}),
    ),
    "claude code, older": Client(
        dialect="messages",
        main=CLAUDE,
        sub=CLAUDE,
        start=explorer("Task"),
    ),
    "codex": Client(
        dialect="responses",
        main=_codex("s1"),
        sub=_codex("t1", agent_name="/root/count", parent_thread_id="s1") | SPAWNED,
        start=ToolCall(
            "spawn_agent",
            {"message": "(encrypted text)", "task_name": "count", "agent_type": KIND},
        ),
    ),
    "opencode": Client(
        dialect="chat",
        main=OPENCODE | {"x-session-id": "s1", "x-session-affinity": "s1"},
        sub=OPENCODE
        | {"x-session-id": "t1", "x-session-affinity": "t1", "x-parent-session-id": "s1"},
        start=explorer("task"),
    ),
    "qwen code": Client(
        dialect="chat",
        main=QWEN,
        sub=QWEN,
        start=explorer("agent"),
    ),
}


@dataclass(slots=True, kw_only=True)
class Agent:
    """One agent's conversation with a gateway, as its client keeps it."""

    client: Client
    server: AppServer
    headers: Mapping[str, str]
    task: str
    system: str = "You are the main agent."
    tools: tuple[str, ...] = ("bash", "agent")
    history: list[Any] = field(default_factory=list)

    def call(self, *, streamed: bool = False) -> httpx.Response:
        """Send the history; a whole answer and the results of its calls are added to it."""
        if not self.history:
            self.history.append({"role": "user", "content": self.task})
        path, body = _body(self)
        answer = httpx.post(
            f"{self.server.base_url}/{path}",
            json={**body, "stream": streamed},
            headers={**self.headers, "authorization": "Bearer k"},
            timeout=120,
        )
        if answer.status_code == 200 and not streamed:
            _take(self.client.dialect, answer.json(), self.history)
        return answer

    def run(self, most: int = 20) -> str:
        """Call until an answer has no call, which is returned."""
        for _ in range(most):
            known = len(self.history)
            answer = self.call()
            assert answer.status_code == 200, answer.text
            if len(self.history) == known + 1:
                return answer.text
        raise AssertionError("it was not stopped")


def _body(agent: Agent) -> tuple[str, dict[str, Any]]:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    shown = {"description": "a tool", "parameters": schema}
    model = {"model": agent.client.model}
    match agent.client.dialect:
        case "messages":
            tools = [{"name": each, "input_schema": schema} for each in agent.tools]
            body = {"system": agent.system, "messages": agent.history, "max_tokens": 1000}
            return "messages?beta=true", {**model, **body, "tools": tools}
        case "responses":
            tools = [{"type": "function", "name": each, **shown} for each in agent.tools]
            body = {"instructions": agent.system, "input": agent.history, "store": False}
            return "responses", {**model, **body, "tools": tools}
    functions = [{"type": "function", "function": {"name": n, **shown}} for n in agent.tools]
    messages = [{"role": "system", "content": agent.system}, *agent.history]
    return "chat/completions", {**model, "messages": messages, "tools": functions}


def _take(dialect: str, answer: Any, history: list[Any]) -> None:
    """Add an answer and a result for each of its calls."""
    if dialect == "chat":
        message = answer["choices"][0]["message"]
        history.append({key: value for key, value in message.items() if value})
        for call in message.get("tool_calls") or ():
            history.append({"role": "tool", "tool_call_id": call["id"], "content": OUTPUT})
    elif dialect == "messages":
        history.append({"role": "assistant", "content": answer["content"]})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": c["id"], "content": OUTPUT} for c in calls
        ]
        if results:
            history.append({"role": "user", "content": results})
    else:
        history += [item for item in answer["output"] if item["type"] == "message"]
        for item in answer["output"]:
            if item["type"] == "function_call":
                output = {"type": "function_call_output", "call_id": item["call_id"]}
                history += [item, {**output, "output": OUTPUT}]


def main_of(name: str, server: AppServer) -> Agent:
    """The main agent of a client."""
    return Agent(client=CLIENTS[name], server=server, headers=CLIENTS[name].main, task="Do it all.")


def helper_of(name: str, server: AppServer, task: str = PROMPT, **headers: str) -> Agent:
    """A sub-agent of a client, with its own role and tools."""
    client = CLIENTS[name]
    return Agent(
        client=client,
        server=server,
        headers={**client.sub, **headers},
        task=task,
        system="You help another agent.",
        tools=("bash",),
    )


def greedy(name: str) -> Callable[[ReceivedRequest], Reply]:
    """A model whose main agent starts a sub-agent first; nobody comes to an end."""

    def reply(request: ReceivedRequest) -> Reply:
        first = b"main agent" in request.body and b"Still looking" not in request.body
        if first and b"Ask a helper" not in request.body:
            return Reply("Ask a helper.", tool_calls=(CLIENTS[name].start,))
        return LOOKING

    return reply


@pytest.mark.parametrize("name", CLIENTS)
def test_a_sub_agent_ends_with_a_report_and_its_parent_goes_on(
    gateway_server: Start, upstream: ScriptedUpstream, name: str
) -> None:
    """After three calls it gets an answer in its dialect, streamed or not, that says what it did;
    its parent makes as many calls as it likes, and the kind is the one of the client."""
    upstream.default = greedy(name)
    server = gateway_server({"budgets": [CAP]})
    parent = main_of(name, server)
    parent.call()
    helper = helper_of(name, server)
    said = helper.run()
    assert said.count("Still looking.") == 1
    for part in ("Stopped by the gateway: 3 of the 3-call budget is used", "pytest -q", "(failed)"):
        assert part in said
    assert json.loads(said)["model"] == CLIENTS[name].model
    helper.history.pop()
    streamed = helper.call(streamed=True)
    assert "3 of the 3-call budget is used" in streamed.text
    assert streamed.headers["x-gateway-stopped"] == "budget_exceeded"
    for _ in range(6):
        assert "x-gateway-stopped" not in parent.call().headers
    (account,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
    assert account["spent"]["calls"] == 3
    index = server.app.runtime.services.index
    found = index.get(helper_id(helper))
    assert found is not None
    assert found.sub_agent.kind == KIND
    main = index.get(helper_id(parent))
    assert main is not None
    assert not main.sub_agent.id
    assert found.ancestors[:1] == (main.id,)


def helper_id(agent: Agent) -> str:
    """The conversation of an agent's next call, as the gateway names it."""
    return str(agent.call().headers["x-gateway-conversation-id"])


def test_each_sub_agent_has_its_own_limit_by_its_kind(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A pattern of kinds caps these, each by itself; another kind is not capped."""
    upstream.default = LOOKING
    match = {"sub_agent": True, "kind": "Expl*"}
    server = gateway_server({"budgets": [{**CAP, "match": match}]})
    name = "claude code, hints"
    helper_of(name, server).run()
    helper_of(name, server, OTHER, **{"x-claude-code-agent-id": "a2"}).run()
    other = {"x-claude-code-agent-id": "a3", "x-claude-code-agent-type": "general-purpose"}
    free = helper_of(name, server, OTHER, **other)
    assert all("x-gateway-stopped" not in free.call().headers for _ in range(6))
    listed = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
    assert [each["spent"]["calls"] for each in listed] == [3, 3]


@pytest.mark.parametrize(
    "limits", [{"context": 2_000}, {"tokens": 50}, {"usd": 1e-5}], ids=["context", "tokens", "usd"]
)
def test_other_limits_cap_a_sub_agent_too(
    gateway_server: Start, upstream: ScriptedUpstream, limits: dict[str, float]
) -> None:
    """Of tokens, dollars, and of the size of its context: the parent is larger, and goes on."""
    upstream.default = greedy("opencode")
    server = gateway_server({"budgets": [{**CAP, "limits": limits}]})
    parent = main_of("opencode", server)
    parent.system += " Know this." * 2_000
    parent.call()
    helper = helper_of("opencode", server)
    helper.call()
    helper.history[-1]["content"] = "a long line of output\n" * 1_000
    assert "Stopped by the gateway" in helper.run()
    assert "x-gateway-stopped" not in parent.call().headers


NO_SUB_AGENTS: dict[str, tuple[str, dict[str, str]]] = {
    "a request aside of Claude Code": (
        "claude code",
        {"x-claude-code-agent-id": "a9", "x-claude-code-request-class": "auxiliary"},
    ),
    "a summary of Codex": ("codex", {"x-openai-subagent": "compact"}),
    "a session that names another as its parent": (
        "qwen code",
        {"x-session-id": "s2", "x-parent-session-id": "s1"},
    ),
}


@pytest.mark.parametrize("what", NO_SUB_AGENTS)
def test_what_is_not_known_to_be_a_sub_agent_is_none(
    gateway_server: Start, upstream: ScriptedUpstream, what: str
) -> None:
    """Nothing caps it."""
    upstream.default = LOOKING
    server = gateway_server({"budgets": [CAP]})
    name, headers = NO_SUB_AGENTS[what]
    agent = main_of(name, server)
    agent.headers = {**agent.headers, **headers}
    assert all("x-gateway-stopped" not in agent.call().headers for _ in range(6))


@pytest.mark.parametrize("name", ["claude code", "qwen code"])
def test_a_main_agent_stays_one(
    gateway_server: Start, upstream: ScriptedUpstream, name: str
) -> None:
    """After a compaction, as a fork, and when a person types the words of a call: not capped."""
    upstream.default = greedy(name)
    server = gateway_server({"budgets": [CAP]})
    parent = main_of(name, server)
    parent.call()
    typed = main_of(name, server)
    typed.task = PROMPT
    if name == "claude code":
        typed.headers = {**typed.headers, "x-claude-code-session-id": "s2"}
    forked = main_of(name, server)
    forked.history = [*parent.history, {"role": "user", "content": "Go another way."}]
    parent.history = [{"role": "user", "content": "This session continues: all is counted."}]
    for agent in (typed, forked, parent):
        for _ in range(5):
            assert "x-gateway-stopped" not in agent.call().headers


def test_a_prompt_begins_one_sub_agent(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Of a client without ids, the same words once more, without a call for them, begin none."""
    upstream.default = greedy("qwen code")
    server = gateway_server({"budgets": [CAP]})
    main_of("qwen code", server).call()
    helper_of("qwen code", server).run()
    again = helper_of("qwen code", server)
    again.system = "You are a third agent."
    assert all("x-gateway-stopped" not in again.call().headers for _ in range(5))


@pytest.mark.parametrize("name", ["claude code", "qwen code"])
def test_another_gateway_knows_it_and_its_calls(
    gateway_server: Start, upstream: ScriptedUpstream, either_store: dict[str, str], name: str
) -> None:
    """A sub-agent whose second call goes to another gateway on the store has its limit there."""
    upstream.default = greedy(name)
    settings = {"budgets": [CAP], "storage": either_store, "control": {"poll_s": 0.05}}
    first, second = gateway_server(settings), gateway_server(settings)
    main_of(name, first).call()
    helper = helper_of(name, first)
    helper.call()
    helper.server = second
    assert helper.run().count("pytest -q") == 3


@pytest.mark.parametrize("content", [True, False])
def test_the_store_has_its_kind_and_task(
    gateway_server: Start, upstream: ScriptedUpstream, either_store: dict[str, str], content: bool
) -> None:
    """By which sessions name it; without content the task is left out, and the kind is not."""
    name = "claude code, older"
    called = {"prompt": PROMPT, "subagent_type": "Explore", "description": "count all"}
    upstream.default = Reply("Ask a helper.", tool_calls=(ToolCall("Task", called),))
    server = gateway_server({"storage": {**either_store, "store_content": content}})
    parent = main_of(name, server)
    parent.call()
    helper = helper_of(name, server)
    helper.call()
    sub = helper_id(helper)
    found = httpx.get(f"{server.url}/api/sessions/{helper_id(parent)}").json()["members"]
    (member,) = [each for each in found if each["id"] == sub]
    assert member["kind"] == "Explore"
    assert member["role"] == "sub_agent"
    assert (member["task"] == "count all") is content


FORGED: dict[str, Callable[[Client], dict[str, str]]] = {
    "the marks of the main agent": lambda client: dict(client.main),
    "another id": lambda client: {**client.main, "x-conversation-id": "new"},
    "another id beside its own": lambda client: {**client.sub, "x-conversation-id": "new"},
    "the session of a person": lambda client: {
        **client.main,
        "x-claude-code-session-id": "s9",
        "x-session-id": "s9",
    },
    "other modes": lambda client: {
        **client.sub,
        "x-gateway-mode": "shadow",
        "x-gateway-bypass": "true",
    },
}


@pytest.mark.parametrize("name", ["claude code", "codex", "opencode", "qwen code"])
@pytest.mark.parametrize("forged", FORGED)
def test_its_history_under_another_name_is_capped(
    gateway_server: Start, upstream: ScriptedUpstream, name: str, forged: str
) -> None:
    """With the headers of its parent, of a new session, or without any of its own."""
    upstream.default = greedy(name)
    server = gateway_server({"budgets": [CAP]})
    parent = main_of(name, server)
    parent.call()
    helper = helper_of(name, server)
    for _ in range(3):
        helper.call()
    helper.headers = FORGED[forged](CLIENTS[name])
    assert helper.call().headers["x-gateway-stopped"] == "budget_exceeded"
    assert "x-gateway-stopped" not in parent.call().headers


def test_another_gateway_caps_its_history_under_another_name(
    gateway_server: Start, upstream: ScriptedUpstream, either_store: dict[str, str]
) -> None:
    """It is found in the store."""
    name = "claude code"
    upstream.default = greedy(name)
    settings = {"budgets": [CAP], "storage": either_store, "control": {"poll_s": 0.05}}
    first, second = gateway_server(settings), gateway_server(settings)
    main_of(name, first).call()
    helper = helper_of(name, first)
    for _ in range(3):
        helper.call()
    helper.server = second
    helper.headers = {**CLAUDE, "x-conversation-id": "new"}
    assert helper.call().headers["x-gateway-stopped"] == "budget_exceeded"


@pytest.mark.parametrize("name", ["claude code", "codex", "opencode"])
def test_a_history_that_its_client_rewrote_is_the_same_sub_agent(
    gateway_server: Start, upstream: ScriptedUpstream, name: str
) -> None:
    """A compaction gives it no second limit, and no other kind."""
    upstream.default = greedy(name)
    match = {"kind": "Explore"}
    server = gateway_server({"budgets": [{**CAP, "match": match}]})
    main_of(name, server).call()
    helper = helper_of(name, server)
    for _ in range(2):
        helper.call()
    helper.history = [{"role": "user", "content": "This session continues. All was counted."}]
    assert "x-gateway-stopped" not in helper.call().headers
    assert helper.call().headers["x-gateway-stopped"] == "budget_exceeded"


@pytest.mark.parametrize("name", ["claude code", "codex", "opencode"])
def test_reports_of_its_own_sub_agents_cost_it_no_report(
    gateway_server: Start, upstream: ScriptedUpstream, name: str
) -> None:
    """They are results in its history, and no answers that it has ignored."""
    upstream.default = LOOKING
    server = gateway_server({"budgets": [CAP]})
    helper = helper_of(name, server)
    helper.call()
    helper.call()
    text = json.dumps(helper.history).replace("1 failed", "Stopped by the gateway: 3 calls")
    helper.history = json.loads(text)
    helper.call()
    assert "The task is not finished" in helper.call().text


@pytest.mark.parametrize("name", ["claude code", "claude code, older", "qwen code"])
def test_a_sub_agent_of_a_sub_agent_has_its_own_limit_and_kind(
    gateway_server: Start, upstream: ScriptedUpstream, name: str
) -> None:
    """Whoever has started it."""
    inner = ToolCall("Agent", {"prompt": OTHER, "subagent_type": "Inner"})

    def reply(request: ReceivedRequest) -> Reply:
        if b"main agent" in request.body:
            return Reply("Ask a helper.", tool_calls=(CLIENTS[name].start,))
        if b"You help" in request.body:
            return Reply("Ask another.", tool_calls=(inner,))
        return LOOKING

    upstream.default = reply
    server = gateway_server({"budgets": [CAP]})
    main_of(name, server).call()
    helper = helper_of(name, server)
    helper.call()
    third = helper_of(name, server, OTHER)
    third.system = "You are the third."
    if name == "claude code":
        third.headers = {**third.headers, "x-claude-code-agent-id": "a2"}
    third.run()
    found = server.app.runtime.services.index.get(helper_id(third))
    assert found is not None
    assert found.sub_agent.kind == "Inner"
    assert "x-gateway-stopped" not in helper.call().headers


def test_calls_that_begin_no_sub_agent_take_no_room(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """An agent that asks the same of a tool again and again."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("search", {"query": OTHER}),))
    server = gateway_server({})
    agent = main_of("qwen code", server)
    for _ in range(70):
        agent.call()
    helper_of("qwen code", server).call()
    kept = server.app.runtime.services.index._orders.values()
    assert max(len(orders) for orders in kept) == 64
