"""Gateways with a control plane to ask, and agents whose runs it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from gateway.hooks import features
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.patience import DEADLINE_MS
from tests.control import CONTROL

Start = Callable[..., AppServer]

SETTINGS: Mapping[str, Any] = {
    "embedding": {"embedder": "hashing"},
    "steering": {"deadline_ms": DEADLINE_MS},
}

with_pages = pytest.mark.skipif("pages" not in features(), reason="the pages are not there")
"""For a test that looks at a page, too."""

with_budgets = pytest.mark.skipif("budgets" not in features(), reason="budgets are not there")
"""For a test of a gateway that has budgets."""

with_keys = pytest.mark.skipif("keys" not in features(), reason="gateway keys are not there")
"""For a test of a gateway that has keys."""


@pytest.fixture
def start(gateway_server: Start) -> Start:
    """Start a gateway with the settings of these tests, and more."""
    return lambda **more: gateway_server({**SETTINGS, **more})


def client_of(server: AppServer, key: str | None = None) -> httpx.Client:
    """A client of a gateway, with a key when it has one."""
    headers = {"x-gateway-key": key} if key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=120)


def operator_of(server: AppServer) -> httpx.Client:
    """A client of a gateway without an admin key, with the key that its process made."""
    return httpx.Client(base_url=server.url, headers=CONTROL, timeout=120)


class Agent:
    """An agent that runs a command again and again, then answers."""

    def __init__(self, client: httpx.Client, upstream: ScriptedUpstream, task: str) -> None:
        self._client = client
        self._upstream = upstream
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        self.run_id = ""

    def step(self, thought: str = "Let me look again.", result: str = "Error: no such file") -> str:
        """One call that asks for the command, and its result; returns the state in the headers."""
        call = ToolCall("bash", '{"command": "ls"}', id=f"call_{len(self._messages)}")
        state = self._ask(Reply(thought, tool_calls=(call,)))
        self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return state

    def answer(self, text: str = "Done.", **headers: str) -> str:
        """The last call, whose reply is the final answer."""
        return self._ask(Reply(text), **headers)

    def _ask(self, reply: Reply, **headers: str) -> str:
        self._upstream.default = reply
        body = {
            "model": "gpt-4o",
            "messages": self._messages,
            "tools": [{"type": "function", "function": {"name": "bash"}}],
        }
        answer = self._client.post("/v1/chat/completions", json=body, headers=headers)
        answer.raise_for_status()
        self._messages.append(answer.json()["choices"][0]["message"])
        self.run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        return answer.headers["x-gateway-state"]


def a_finished_run(
    server: AppServer, upstream: ScriptedUpstream, *, key: str | None = None, task: str = "Look."
) -> str:
    """The id of a run of three steps and an answer."""
    with client_of(server, key) as client:
        agent = Agent(client, upstream, task)
        for _ in range(3):
            agent.step()
        agent.answer()
        return agent.run_id
