"""What ended an exact failure, on a running gateway: from two runs to the third one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from gateway.steering.guidance.lessons import SAME_FAILURE
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, TOOLS, opening
from steering_gateway_testing.patience import until_async
from tests.features.learning.test_ended_failures import MOVE

Start = Callable[..., AppServer]
FAILS = ("larch serve orders", 'larch: fatal: table "orders" is behind')
MIGRATES = ("larch migrate", "applied 2 steps")
WORKS = ("larch serve orders", "served")


async def play(
    http: httpx.AsyncClient,
    server: AppServer,
    upstream: ScriptedUpstream,
    name: str,
    calls: Sequence[tuple[str, str]],
) -> list[list[dict[str, Any]]]:
    """One run to its answer; the messages of each of its calls as the model gets them."""

    def model(request: ReceivedRequest) -> Reply:
        turn = sum(m.get("role") == "assistant" for m in request.messages)
        if turn >= len(calls):
            return Reply("It is done.")
        return Reply("", tool_calls=(ToolCall("bash", {"command": calls[turn][0]}, id=f"c{turn}"),))

    upstream.default = model
    before = len(upstream.requests)
    messages = opening(f"See to {name}.")
    for turn in range(len(calls) + 1):
        body = {"model": "m", "messages": messages, "tools": TOOLS}
        answer = await http.post(
            f"{server.base_url}/chat/completions", json=body, headers={"x-conversation-id": name}
        )
        messages.append(answer.raise_for_status().json()["choices"][0]["message"])
        if turn < len(calls):
            result = {"role": "tool", "tool_call_id": f"c{turn}", "content": calls[turn][1]}
            messages.append(result)
    return [request.json["messages"] for request in list(upstream.requests)[before:]]


async def test_the_third_run_is_given_what_ended_the_failure_twice(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Behind the failing result, once in the run, and the same bytes ever after; a run that meets
    another failure is given nothing."""
    learning = {"trials": "on", "interval_s": 0.02}
    server = gateway_server(
        {**PLAIN, "storage": {"path": str(tmp_path / "runs.db")}, "learning": learning}
    )
    async with httpx.AsyncClient(timeout=120) as http:
        for name in ("one", "two"):
            for messages in await play(http, server, upstream, name, (FAILS, MIGRATES, WORKS)):
                assert SAME_FAILURE not in str(messages)

        async def active() -> list[Any]:
            found = await http.get(f"{server.url}/api/lessons?status=active")
            return list(found.raise_for_status().json()["lessons"])

        (lesson,) = await until_async(active)
        assert (lesson["conversations"], lesson["against"]) == (2, 0)
        sent = await play(http, server, upstream, "three", (FAILS, FAILS, MIGRATES, WORKS))
        assert SAME_FAILURE not in str(sent[0])
        assert sent[1][-1]["content"].startswith(FAILS[1])
        assert f"{SAME_FAILURE}: {MOVE}" in sent[1][-1]["content"]
        for messages in sent[1:]:
            assert str(messages).count(SAME_FAILURE) == 1
            assert messages[: len(sent[1])] == sent[1]
        other = ("larch serve orders", "larch: fatal: no such region")
        for messages in await play(http, server, upstream, "four", (other, WORKS)):
            assert SAME_FAILURE not in str(messages)
