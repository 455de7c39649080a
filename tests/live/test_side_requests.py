"""Requests for titles beside a run, in the shapes of three clients: forwarded, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from tests.live.client import PLAIN, Agent, opening, worker
from tests.steering.test_side_requests import TITLES

Start = Callable[..., AppServer]
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
    """It is answered unsteered; the run beside it is the only one that is recorded."""
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
    assert asked.conversation in ("", answers[0].conversation)
    begun = len([m for m in agent.messages if m["role"] == "assistant"]) - len(answers)
    steps = [answer.gateway("step") for answer in answers]
    assert steps == [str(begun + n) for n in range(len(answers))]
    runs = (await http.get(f"{server.url}/api/runs")).json()["runs"]
    assert [run["id"] for run in runs] == [f"{answers[0].conversation}.0"]


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
    """Its requests for titles open no conversation under the session's id, whatever their form."""
    server = gateway_server(PLAIN)
    headers = {"x-claude-code-session-id": "s-1"}
    for name in ("claude code", "claude code, newer"):
        body: dict[str, Any] = {"model": "m", "max_tokens": 64, **TITLES[name]}
        answer = httpx.post(f"{server.base_url}/messages", json=body, headers=headers)
        assert answer.status_code == 200
        assert "x-gateway-state" not in answer.headers
    assert httpx.get(f"{server.url}/api/runs").json()["runs"] == []
