"""Agents that name their conversations, while something happens to gateways and their database.

Each id is one agent's: its calls go to the gateways in turn, its tool fails the same way again and
again, so that it gets guidance, and some ids begin before, in and after an outage.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from gateway.core.guidance_text import FRAME_CLOSE, FRAME_OPEN
from steering_gateway_testing import ReceivedRequest, Reply, ToolCall
from steering_gateway_testing.agents import RETRIED, TOOLS, Message, opening
from steering_gateway_testing.patience import until_async

_PAUSE_S = 0.25
"""Of a call whose connection broke."""

_GUIDANCE = re.compile(f"{re.escape(FRAME_OPEN)}.*?{re.escape(FRAME_CLOSE)}", re.DOTALL)

Place = tuple[int, str]
"""How many messages of the client are before a piece of guidance, and its text."""


def reply(request: ReceivedRequest) -> Reply:
    """The same command again and again."""
    turn = sum(m.get("role") == "assistant" for m in request.messages)
    call = ToolCall("bash", {"command": "pytest tests/test_a.py"}, id=f"call_{turn:016}")
    return Reply("I run the test.", tool_calls=(call,))


def places_in(messages: list[Message]) -> set[Place]:
    """The places of guidance in a request that reached the provider."""
    found, before = set(), 0
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else orjson.dumps(content).decode()
        pieces = _GUIDANCE.findall(text)
        before += not (pieces and not _GUIDANCE.sub("", text).strip())
        found |= {(before, piece) for piece in pieces}
    return found


@dataclass
class Provider:
    """Answers the agents, and keeps where each of them had guidance."""

    given: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    missing: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))

    def __call__(self, request: ReceivedRequest) -> Reply:
        name = str(request.header("x-test-name"))
        found = places_in(request.messages)
        gone = self.given[name] - found
        self.missing[name] |= gone
        self.given[name] |= found
        return reply(request)

    @property
    def places(self) -> int:
        """All places of all agents."""
        return sum(map(len, self.given.values()))

    @property
    def lost(self) -> int:
        """The places whose guidance a later request of the agent lacked."""
        return sum(map(len, self.missing.values()))


@dataclass
class Named:
    """One agent, which sends `sent` as its id in `header`, or else its name; `homes`: the
    conversations that its answers were of, and `identities` what they were found by; `quiet`: the
    turns whose tests pass."""

    name: str
    header: str = "x-conversation-id"
    sent: str = ""
    messages: list[Message] = field(default_factory=list)
    homes: set[str] = field(default_factory=set)
    identities: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: int = 0
    quiet: frozenset[int] = frozenset()

    async def work(self, http: httpx.AsyncClient, url: str, turns: int, pause_s: float = 0) -> None:
        """Make so many calls more, one after the other."""
        self.messages = self.messages or opening(f"Mend what {self.name} found.")
        for _ in range(turns):
            turn = sum(message["role"] == "assistant" for message in self.messages)
            answer = await self._answer(http, url)
            self.homes.add(answer.headers["x-gateway-conversation-id"])
            self.identities.append(answer.headers["x-gateway-identity"])
            if (step := answer.headers["x-gateway-step"]) != str(turn):
                self.wrong.append(f"{self.name}: step {step} in turn {turn}")
            message = answer.json()["choices"][0]["message"]
            self.messages.append({key: message[key] for key in ("role", "content", "tool_calls")})
            said = f"{turn} passed" if turn in self.quiet else "1 failed: exit 1"
            result = {"tool_call_id": message["tool_calls"][0]["id"], "content": said}
            self.messages.append({"role": "tool", **result})
            await asyncio.sleep(pause_s)

    async def _answer(self, http: httpx.AsyncClient, url: str) -> httpx.Response:
        body: dict[str, Any] = {"model": "m", "messages": self.messages, "tools": TOOLS}
        headers = {self.header: self.sent or self.name, "x-test-name": self.name}

        answer = httpx.Response(500)

        async def answered() -> bool:
            nonlocal answer
            try:
                answer = await http.post(f"{url}/chat/completions", json=body, headers=headers)
            except httpx.TransportError:
                self.broken += 1
                headers.update(RETRIED)
                await asyncio.sleep(_PAUSE_S)
                return False
            return True

        await until_async(answered)
        assert answer.status_code == 200, answer.text
        return answer
