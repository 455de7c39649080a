"""Many calls at once against one budget, through two gateways on one file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.processes import GatewayProcess

Start = Callable[..., AppServer]
CALL_USD = 0.0015 + 0.0006  # 10,000 tokens in, 1,000 out of gpt-4o-mini
BODY = 39_900
"""Characters of about 10,000 tokens."""
LEARNED = 16
"""Calls after which the moving means hold 99.7 % of what those calls used."""
SHARE = 0.3
"""Of the calls at once, those that fit into each budget."""


def budget(name: str, **limits: float) -> dict[str, Any]:
    """Of all calls of one client on one day."""
    return {"name": name, "scope": "tenant", "limits": limits, "match": {"client": f"{name}*"}}


async def ask_all(
    servers: Sequence[AppServer | GatewayProcess], client: str, calls: int
) -> list[int]:
    """The statuses of so many calls at once, each of a conversation of its own."""
    limits = httpx.Limits(max_connections=calls)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:

        async def one(number: int) -> int:
            content = f"{number}".ljust(BODY if client == "cold" else 1)
            body: dict[str, Any] = {
                "model": "gpt-4o-mini",
                "messages": [{"role": "user", "content": content}],
            }
            body |= {"max_tokens": 1_000} if client == "cold" else {}
            url = f"{servers[number % 2].base_url}/chat/completions"
            answer = await http.post(url, json=body, headers={"user-agent": client})
            return answer.status_code

        return await asyncio.gather(*map(one, range(calls)))


@pytest.mark.parametrize(
    "at_once",
    [pytest.param(80, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)],
)
async def test_two_gateways_count_together(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, at_once: int
) -> None:
    """Of many calls exactly those are sent that fit, where their cost is known beforehand: calls;
    dollars by the body and `max_tokens` of a model never called before; dollars once a call of the
    model has ended. Where the body shows little of what the model reads and none has ended, those
    too that the estimate lets pass: never more than are on their way."""
    room = int(SHARE * at_once)
    upstream.default = Reply("ok", usage=Usage(prompt_tokens=10_000, completion_tokens=1_000))
    settings = {
        "storage": {"path": str(tmp_path / "both.db"), "busy_timeout_ms": 60_000},
        "control": {"store_wait_ms": 60_000},
        "budgets": [
            budget("cold", usd=room * CALL_USD),
            budget("calls", calls=room),
            budget("blind", usd=room * CALL_USD),
            budget("warm", usd=room * CALL_USD),
            budget("learning", calls=10 * LEARNED),
        ],
    }
    servers = [gateway_server(settings), gateway_server(settings)]

    def spent(name: str) -> dict[str, Any]:
        for server in servers:  # each reports what it spent before it lists
            page = httpx.get(f"{server.url}/api/budgets", params={"budget": name}).json()
        (account,) = page["accounts"]
        assert page["durable"]
        assert account["reserved"]["calls"] == 0
        return dict(account["spent"])

    for name, most_over in (("cold", 1), ("calls", 0), ("warm", 1), ("blind", at_once)):
        if name == "blind":
            servers = [gateway_server(settings), gateway_server(settings)]
        if name == "warm":
            # Either gateway learns from its own calls, and which of them served those before is
            # a matter of chance.
            for server in servers:
                await ask_all([server, server], "learning", LEARNED)
        before = len(upstream.requests)
        statuses = await ask_all(servers, name, at_once)
        sent = len(upstream.requests) - before
        used = spent(name)
        print(f"{name}: {sent} of {at_once} sent, room for {room}, {used['usd']:.4f} dollars")
        assert statuses.count(200) == sent == used["calls"]
        assert statuses.count(429) == at_once - sent
        assert used["usd"] == pytest.approx(sent * CALL_USD, abs=1e-9)
        assert -1 <= sent - room <= most_over
