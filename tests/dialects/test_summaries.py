"""A request with which an agent has its history summarised is no step, and gets no advice."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.steering.identity.branch import asks_for_summary
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.looping import STEERING, Start, looping_model
from tests.dialects.test_compaction import CLAUDE, CODEX, SUMMARY, messages, responses
from tests.examples import by_day

Json = dict[str, Any]
STEPS = 8
ROUTED = {
    **STEERING,
    "fsm": {"slow_threshold": 0.3},
    "routing": {"escalate_at_severity": 0},
    "model_routing": {"SLOW": "strong"},
}
ASKED = "Your task is to create a detailed summary of the conversation so far, with every request."
GUARDED = f"CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Nothing else.\n\n{ASKED}"
SUMMARISER = "You are a helpful AI assistant tasked with summarizing conversations."


def chat(steps: int, opening: str) -> Json:
    turns: list[Any] = [{"role": "system", "content": "Do."}, {"role": "user", "content": opening}]
    for step in range(steps):
        function = {"name": "bash", "arguments": '{"command": "pytest"}'}
        call = {"id": f"call_{step}_of_the_run", "type": "function", "function": function}
        said = {"role": "assistant", "content": "Let me look again.", "tool_calls": [call]}
        turns += [said, {"role": "tool", "tool_call_id": call["id"], "content": "FAILED"}]
    tools = [{"type": "function", "function": {"name": "bash"}}]
    return {"model": "m", "messages": turns, "tools": tools}


def claude(body: Json) -> Json:
    """As Claude Code asks: with all it had, the prompt in one message with the newest results."""
    body["messages"][-1]["content"].append({"type": "text", "text": GUARDED})
    return body


def claude_alone(body: Json) -> Json:
    """As it asks when that failed: with another system prompt, and one of its tools."""
    reader = {"name": "Read", "input_schema": {"type": "object"}}
    return claude(body) | {"system": SUMMARISER, "tools": [reader]}


def claude_recent(body: Json) -> Json:
    """As it asks for a part: the earlier messages stay and are left out of the request."""
    text = "Your task is to create a detailed summary of the RECENT portion of the conversation"
    return body | {"messages": [*body["messages"][3:], {"role": "user", "content": text}]}


def codex(body: Json) -> Json:
    """As Codex asks its own provider."""
    return body | {"input": [*body["input"], {"type": "compaction_trigger"}]}


def codex_local(body: Json) -> Json:
    """As it asks another provider."""
    text = "You are performing a CONTEXT CHECKPOINT COMPACTION. Hand it over."
    said = {"role": "user", "content": [{"type": "input_text", "text": text}]}
    return body | {"input": [*body["input"], said], "tools": []}


def qwen(body: Json) -> Json:
    """As Qwen Code asks, and Gemini CLI in its own dialect: of the beginning of the history."""
    system = "\nYou are the component that summarizes internal chat history into a structure."
    said = {"role": "user", "content": "First, reason in your scratchpad."}
    turns = [{"role": "system", "content": system}, *body["messages"][1:6], said]
    return {"model": body["model"], "messages": turns}


def opencode(body: Json) -> Json:
    """As opencode asks, with a tool that is never called."""
    system = "You are a context summarization agent. You are given a conversation."
    said = {"role": "user", "content": "Create a new anchored summary."}
    turns = [{"role": "system", "content": system}, *body["messages"][1:], said]
    return body | {
        "messages": turns,
        "tools": [{"type": "function", "function": {"name": "_noop"}}],
    }


def pi(body: Json) -> Json:
    """As pi asks: the history is told in one message."""
    system = "You are a context summarization assistant. Read a conversation."
    told = {"role": "user", "content": f"<conversation>{json.dumps(body)}</conversation>"}
    turns = [{"role": "system", "content": system}, told]
    return {"model": body["model"], "messages": turns}


OPENCODE = {"x-session-id": "s-1"}
AGENTS: dict[str, tuple[str, Any, Json, Callable[[Json], Json]]] = {
    "claude": ("messages", messages, CLAUDE, claude),
    "claude alone": ("messages", messages, CLAUDE, claude_alone),
    "claude, recent": ("messages", messages, CLAUDE, claude_recent),
    "codex": ("responses", responses, CODEX, codex),
    "codex, other provider": ("responses", responses, CODEX, codex_local),
    "qwen": ("chat/completions", chat, {}, qwen),
    "opencode": ("chat/completions", chat, OPENCODE, opencode),
    "pi": ("chat/completions", chat, OPENCODE, pi),
}


def ask(server: AppServer, path: str, body: Json, headers: Json) -> httpx.Response:
    answer = httpx.post(f"{server.base_url}/{path}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def summary_for(path: str) -> Reply:
    """The answer to a request for a summary: in Responses an item that stands for the history."""
    return Reply(SUMMARY, usage=Usage(prompt_tokens=1000, completion_tokens=500))


@pytest.mark.parametrize("restarted", by_day([False, True], 1), ids=["running", "restarted"])
@pytest.mark.parametrize("agent", AGENTS)
def test_a_summary_is_recorded_in_its_run_and_sent_as_it_came(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, agent: str, restarted: bool
) -> None:
    """With the model that the client named, without the guidance that the other requests have;
    what was done is counted once, and the next request goes on where the run was."""
    path, build, headers, ask_for_it = AGENTS[agent]
    upstream.default = looping_model(99)
    settings = {**ROUTED, "storage": {"path": str(tmp_path / "kept.db")}}
    server = gateway_server(settings)
    seen = [ask(server, path, build(step, "Repair it."), headers) for step in range(STEPS + 1)]
    assert upstream.last.model == "strong"
    assert seen[-1].headers["x-gateway-state"] == "SLOW"
    if restarted:
        server.stop()
        server = gateway_server(settings)
    upstream.script(summary_for(path))
    body = ask_for_it(copy.deepcopy(build(STEPS, "Repair it.")))
    asked = ask(server, path, body, headers)
    assert upstream.last.json == body
    assert asked.headers["x-gateway-model"] == "m"
    assert "x-gateway-guidance" not in asked.headers
    assert "x-gateway-unsteered" not in asked.headers
    ids = "x-gateway-conversation-id"
    assert asked.headers[ids] == seen[-1].headers[ids]
    assert asked.headers["x-gateway-step"] == str(STEPS)
    [run] = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert (run["state"], run["totals"]["scored_steps"]) == ("SLOW", STEPS)
    assert run["totals"]["input_tokens"] == 12 * (STEPS + 1) + 1000
    assert run["totals"]["output_tokens"] == 8 * (STEPS + 1) + 500
    after = ask(server, path, build(STEPS + 1, "Repair it."), headers)  # it was not taken
    assert after.headers[ids] == seen[-1].headers[ids]
    assert after.headers["x-gateway-step"] == str(STEPS + 1)


@pytest.mark.parametrize("agent", by_day([name for name in AGENTS if AGENTS[name][2]], 4))
def test_what_comes_back_continues_the_run(
    gateway_server: Start, upstream: ScriptedUpstream, agent: str
) -> None:
    """The summary in place of the history, with the id of the client, in the middle of a turn."""
    path, build, headers, ask_for_it = AGENTS[agent]
    upstream.default = looping_model(99)
    server = gateway_server(ROUTED)
    seen = [ask(server, path, build(step, "Repair it."), headers) for step in range(STEPS)]
    upstream.script(summary_for(path))
    ask(server, path, ask_for_it(copy.deepcopy(build(STEPS, "Repair it."))), headers)
    after = [ask(server, path, build(step, SUMMARY), headers).headers for step in range(3)]
    ids = "x-gateway-conversation-id"
    assert {h[ids] for h in after} == {seen[-1].headers[ids]}
    assert after[0]["x-gateway-identity"] == "compaction"
    steps = [int(h["x-gateway-step"]) for h in after]
    # What came with an account of the history alone is not known to have happened.
    first = STEPS - 1 if agent in ("pi", "claude, recent") else STEPS
    assert steps == [first, first + 1, first + 2]
    [run] = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert run["totals"]["scored_steps"] == first + 2


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode"])
def test_a_summary_after_the_answer_begins_no_run(
    gateway_server: Start, upstream: ScriptedUpstream, agent: str
) -> None:
    """`/compact` of an agent that is done: its prompt is no task of a person."""
    path, build, headers, ask_for_it = AGENTS[agent]
    upstream.default = looping_model(3)
    server = gateway_server(ROUTED)
    for step in range(4):
        ask(server, path, build(step, "Repair it."), headers)
    body = build(3, "Repair it.")
    said: Json = {"role": "assistant", "content": "The suite passes now."}
    turns = body["input" if "input" in body else "messages"]
    turns.append(said)
    if agent == "claude":
        turns.append({"role": "user", "content": []})  # takes the prompt
    upstream.script(summary_for(path))
    asked = ask(server, path, ask_for_it(body), headers)
    [run] = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert (run["state"], run["totals"]["calls"], run["totals"]["scored_steps"]) == ("END", 5, 3)
    assert asked.headers["x-gateway-step"] == "3"
    done = build(3, "Repair it.")
    turns = done["input" if "input" in done else "messages"]
    turns += [said, {"role": "user", "content": "Now the lexer."}]
    after = ask(server, path, done, headers)
    assert after.headers["x-gateway-step"] == "0"


def test_a_person_may_speak_of_summaries(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Words about the prompt are no prompt, and another summary is a task as any other."""
    upstream.default = looping_model(99)
    server = gateway_server(ROUTED)
    for step in range(STEPS):
        ask(server, "chat/completions", chat(step, "Repair it."), OPENCODE)
    body = chat(STEPS, "Repair it.")
    for text in (
        f"Why does it say: {ASKED}",
        "Your task is to create a detailed summary of the paper.",
        "Summarise this conversation for me.",
    ):
        body["messages"].append({"role": "user", "content": text})
        assert (
            "strong" in ask(server, "chat/completions", body, OPENCODE).headers["x-gateway-model"]
        )


@pytest.mark.parametrize(
    ("system", "said", "asks"),
    [
        ("You are an anchored context summarization assistant for coding sessions.", "Go.", True),
        (
            "You are a specialized system component responsible for distilling chat history",
            "",
            True,
        ),
        (f"You are Claude Code.\n{SUMMARISER}", "Go.", True),
        ("", f"\n{GUARDED}", True),
        ("", "Your task is to create a detailed summary of this conversation. It", True),
        ("You are a coding agent.", f"It said: {ASKED}", False),
        ("x" * 900 + SUMMARISER, "You are a context summarization agent", False),
    ],
)
def test_the_texts_of_agents_are_known(system: str, said: str, asks: bool) -> None:
    """At the beginning of either text; a dialect of other fields asks with the texts alone."""
    assert asks_for_summary(system, said) is asks


def test_responses_compact_goes_to_the_conversation_s_deployment(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Of several that have the model, as its requests and `count_tokens` do: the item that comes
    back can be read there only. A model that LiteLLM reaches has no such route."""
    listed = [
        {
            "model_name": "m",
            "litellm_params": {
                "model": "openai/m",
                "api_base": upstream.base_url,
                "api_key": f"sk-of-deployment-{number}",
            },
        }
        for number in range(4)
    ]
    far = {"model": "bedrock/x", "api_key": "k"}
    server = gateway_server(
        {**STEERING, "model_list": [*listed, {"model_name": "far", "litellm_params": far}]}
    )
    used = set()
    for name in range(8):
        headers = {
            "session-id": f"t-{name}",
            "x-codex-turn-metadata": f'{{"thread_id":"t-{name}"}}',
        }
        ask(server, "responses", responses(0, "Repair it."), headers)
        key = upstream.last.header("authorization")
        ask(server, "responses/compact", responses(1, "Repair it."), headers)
        assert upstream.last.path == "/v1/responses/compact"
        assert upstream.last.header("authorization") == key
        used.add(key)
    assert len(used) > 1
    body = responses(1, "Repair it.") | {"model": "far"}
    refused = httpx.post(f"{server.base_url}/responses/compact", json=body)
    assert refused.status_code == 404
