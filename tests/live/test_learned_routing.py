"""`routing.policy: learned` on a real gateway: what runs report decides what later runs get."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, opening, worker
from steering_gateway_testing.patience import until_async

Start = Callable[..., AppServer]

SMALL = {"input_cost_per_token": 1e-7, "output_cost_per_token": 1e-6}
BIG = {"input_cost_per_token": 1e-5, "output_cost_per_token": 1e-4}


def settings(upstream: ScriptedUpstream, path: Path, **routing: Any) -> dict[str, Any]:
    """Two priced models; the small one is what a run in FAST would be sent to."""
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": upstream.base_url},
            "model_info": prices,
        }
        for name, prices in (("big", BIG), ("small", SMALL))
    ]
    return {
        **PLAIN,
        "model_list": models,
        "model_routing": {"FAST": "small"},
        "routing": {"policy": "learned", "explore": 0.0, "refresh_s": 0.05, **routing},
        "storage": {"path": str(path / "runs.db")},
    }


async def report(http: httpx.AsyncClient, url: str, task: str, outcome: str, **body: Any) -> str:
    """A run of one step, with its outcome; the model it was sent to."""
    agent = Agent(http, url, opening(task), **{"model": "big", **body})
    first = await agent.turn()
    agent.headers["x-gateway-outcome"] = outcome
    await agent.turn()
    return first.headers["x-gateway-model"]


async def runs_of(http: httpx.AsyncClient, server: AppServer) -> Counter[tuple[str, str]]:
    """The counted outcomes as the API gives them."""
    answer = await http.get(f"{server.url}/api/routing")
    rows = answer.json()["workloads"]
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row["model"], "success"] += int(row["solved"])
        counts[row["model"], "failure"] += int(row["failed"])
    return +counts


async def test_outcomes_move_later_runs(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Runs stay on the requested model until a cheaper one is known to do as well; each outcome
    counts once, over a restart; another set of tools is another workload."""
    upstream.default = worker(9)
    server = gateway_server(settings(upstream, tmp_path))
    for number in range(4):
        model = await report(http, server.base_url, f"Big task {number}.", "success")
        assert model == "big"
    for number in range(4):
        await report(http, server.base_url, f"Small task {number}.", "success", model="small")
    expected = Counter({("big", "success"): 4, ("small", "success"): 4})
    await until_async(lambda: _counted(http, server, expected))
    # What was asked of `small` itself is another workload; nothing of `small` is known in this one.
    model = await report(http, server.base_url, "Later.", "success")
    assert model == "big"
    await asyncio.to_thread(server.stop)
    server = gateway_server(settings(upstream, tmp_path, explore=1.0))
    expected["big", "success"] += 1
    await until_async(lambda: _counted(http, server, expected))
    explored = Counter[str]()
    # What is explored is drawn: go on until the small model is known well, whatever the draw.
    for number in range(200):
        model = await report(http, server.base_url, f"Explored {number}.", "success")
        explored[model] += 1
        if explored["big"] and 6 <= explored["small"] >= explored["big"] / 1.5:
            break
    assert set(explored) == {"big", "small"}
    for model, count in explored.items():
        expected[model, "success"] += count
    await until_async(lambda: _counted(http, server, expected))
    await asyncio.to_thread(server.stop)
    server = gateway_server(settings(upstream, tmp_path))
    await until_async(lambda: _counted(http, server, expected))
    agent = Agent(http, server.base_url, opening("Decided."), model="big")
    answers = await agent.run(3)
    assert [answer.headers["x-gateway-model"] for answer in answers] == ["small"] * 3
    assert "learned small" in (await _reasons(http, server, answers[0].conversation))[0]
    # A restart does not decide again, though it would draw now.
    agent.headers["x-gateway-outcome"] = "failure"
    await asyncio.to_thread(server.stop)
    server = gateway_server(settings(upstream, tmp_path, explore=1.0))
    agent.url = server.base_url
    assert (await agent.turn()).headers["x-gateway-model"] == "small"
    tools = [{"type": "function", "function": {"name": "other", "parameters": {}}}]
    model = await report(http, server.base_url, "Other tools.", "success", tools=tools)
    assert model == "big"


async def _counted(
    http: httpx.AsyncClient, server: AppServer, expected: Counter[tuple[str, str]]
) -> bool:
    return await runs_of(http, server) == expected


async def _reasons(http: httpx.AsyncClient, server: AppServer, conversation: str) -> list[str]:
    answer = await http.get(f"{server.url}/api/runs/{conversation}.0")
    calls = [step["call"] for step in answer.json()["steps"]]
    return ["; ".join(call["reasons"]) for call in calls]


async def test_without_outcomes_the_states_decide(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """With no outcome reported, `learned` asks for the same model as `states` at every step."""
    upstream.default = worker(9)
    asked = []
    for policy in ("states", "learned"):
        folder = tmp_path / policy
        folder.mkdir()
        server = gateway_server(settings(upstream, folder, policy=policy, explore=0.5))
        agent = Agent(http, server.base_url, model="big")
        asked.append([a.headers["x-gateway-model"] for a in await agent.run(8)])
    assert asked[0] == asked[1]
    assert set(asked[0]) == {"big", "small"}
