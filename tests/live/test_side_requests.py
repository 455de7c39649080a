"""Requests for titles beside a run, in the shapes of three clients: forwarded, and only counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, opening, worker
from tests.steering.test_side_requests import TITLES

Start = Callable[..., AppServer]
ANTHROPIC = [{"name": "bash", "input_schema": {"type": "object"}}]
OPENCODE = {"x-session-id": "ses_1", "x-session-affinity": "ses_1"}


@pytest.mark.parametrize("first", [True, False], ids=["before the run", "during the run"])
@pytest.mark.parametrize(
    ("client", "headers"), [("opencode", OPENCODE), ("gptme", {}), ("at the end", {})]
)
async def test_a_title_request_is_no_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    client: str,
    headers: dict[str, str],
    first: bool,
) -> None:
    """It is answered unsteered and changes nothing of the run beside it; it is a call of that
    without a step, or, where nothing says whose it is, of a run without steps."""
    upstream.default = worker(9)
    server = gateway_server(PLAIN)
    agent = Agent(http, server.base_url, headers=headers)
    titler = Agent(http, server.base_url, headers=headers, tools=None, model="small")
    title = TITLES[client]["messages"]
    if client == "at the end":
        if first:
            return  # it quotes the run
        await agent.turn()
        title = [*agent.messages, title[-1]]
    answers = [] if first else await agent.run(2)
    upstream.script(Reply("Login button repair"))
    asked = await titler.send(title)
    assert (asked.status, asked.gateway("state")) == (200, None)
    assert upstream.last.body == titler.sent
    answers += await agent.run(3)
    assert len({answer.conversation for answer in answers}) == 1
    named, own = answers[0].conversation, asked.conversation
    assert (own == named) == (client != "gptme")
    begun = len([m for m in agent.messages if m["role"] == "assistant"]) - len(answers)
    steps = [answer.gateway("step") for answer in answers]
    assert steps == [str(begun + n) for n in range(len(answers))]
    runs = {run["id"]: run for run in (await http.get(f"{server.url}/api/runs")).json()["runs"]}
    assert runs.keys() == {f"{named}.0", f"{own}.0"}
    assert runs[f"{named}.0"]["model_requested"] == agent.body["model"]
    assert runs[f"{named}.0"]["task_preview"]
    counted = [runs[f"{name}.0"]["totals"] for name in {named, own}]
    sent = [request for request in upstream.requests if "messages" in request.json]
    assert sum(totals["calls"] for totals in counted) == len(sent)
    assert sum(sum(totals["states"].values()) for totals in counted) == begun + len(answers)
    assert all(totals["steps"] < begun + len(answers) for totals in counted)
    health = (await http.get(f"{server.url}/api/health-summary")).json()
    usage = (await http.get(f"{server.url}/api/usage")).json()["groups"]
    for name in ("input_tokens", "output_tokens"):
        total = sum(totals[name] for totals in counted)
        assert (health[name], sum(group["sums"][name] for group in usage)) == (total, total)
    assert sum(group["sums"]["calls"] for group in usage) == len(sent)
    trace = (await http.get(f"{server.url}/api/runs/{named}.0")).json()
    assert all(step["step_index"] >= 0 for step in trace["steps"])
    assert (await http.get(f"{server.url}/dashboard/runs/{named}.0")).status_code == 200


async def test_a_chat_about_titles_is_a_run(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Without tools anywhere, a request for a title that continues a chat is part of it."""
    upstream.default = lambda request: Reply(f"Answer {len(request.messages)}.")
    server = gateway_server(PLAIN)
    chat = Agent(http, server.base_url, opening("Let us talk about gardens."), tools=None)
    begun = await chat.turn()
    for text in ("Go on, please.", "Now suggest a title for this conversation.", "Thank you."):
        chat.messages.append({"role": "user", "content": text})
        answer = await chat.turn()
        assert (answer.identity, answer.conversation) == ("prefix", begun.conversation)


def test_titles_of_claude_code(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Its requests for titles begin no step of the session, whatever their form; they are paid."""
    server = gateway_server(PLAIN)
    headers = {"x-claude-code-session-id": "s-1"}
    for name in ("claude code", "claude code, newer"):
        body: dict[str, Any] = {"model": "m", "max_tokens": 64, **TITLES[name]}
        answer = httpx.post(f"{server.base_url}/messages", json=body, headers=headers)
        assert answer.status_code == 200
        assert "x-gateway-state" not in answer.headers
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]
    assert (run["totals"]["calls"], run["totals"]["states"]) == (2, {})
    body = {"model": "m", "max_tokens": 64, "messages": opening("Fix it."), "tools": ANTHROPIC}
    answer = httpx.post(f"{server.base_url}/messages", json=body, headers=headers)
    assert f"{answer.headers['x-gateway-conversation-id']}.0" == run["id"]
    runs = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert [(each["id"], each["totals"]["calls"]) for each in runs] == [(run["id"], 3)]
    assert "Fix it." in runs[0]["task_preview"]
