"""Clients of a gateway's control plane, and an agent whose runs it shows."""

from __future__ import annotations

from typing import Any

import httpx

from gateway.auth.authenticator import process_key
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.server import AppServer
from steering_gateway_testing.upstream import ScriptedUpstream
from steering_gateway_testing.values import Reply, ToolCall

CONTROL = {"x-gateway-key": process_key()}
"""The key of an operator, for gateways of this process that have no admin key."""


def client_of(server: AppServer, key: str | None = None) -> httpx.Client:
    """A client of a gateway, with a key when it has one."""
    headers = {"x-gateway-key": key} if key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=ANSWER_S)


def operator_of(server: AppServer) -> httpx.Client:
    """A client of a gateway without an admin key, with the key that its process made."""
    return httpx.Client(base_url=server.url, headers=CONTROL, timeout=ANSWER_S)


class LoopingAgent:
    """An agent that runs a command again and again, then answers."""

    def __init__(self, client: httpx.Client, upstream: ScriptedUpstream, task: str) -> None:
        self._client = client
        self._upstream = upstream
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        self.run_id = ""

    def step(
        self,
        thought: str = "Let me look again.",
        result: str = "Error: no such file",
        command: str = "ls",
    ) -> str:
        """One call that asks for the command, and its result; returns the state in the headers."""
        call = ToolCall("bash", {"command": command}, id=f"call_{len(self._messages)}")
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
        agent = LoopingAgent(client, upstream, task)
        for _ in range(3):
            agent.step()
        agent.answer()
        return agent.run_id
