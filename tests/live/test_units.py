"""Which unit of an experiment a conversation belongs to: forks have their parent's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, Answer, opening, trace, worker
from tests.live.test_samples import varied

Start = Callable[..., AppServer]
Settings = dict[str, Any]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    storage = {"path": str(tmp_path / "runs.db")}
    arms = {"on": 1.0, "shadow": 1.0, "off": 1.0}
    return {**PLAIN, "storage": storage, "experiment": {"id": "trial", "arms": arms}}


async def unit(settings: Settings, answer: Answer) -> tuple[str | None, str | None]:
    run = (await trace(Path(settings["storage"]["path"]), answer.conversation)).run
    return run.unit, run.arm


async def test_second_trials_keep_one_arm(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, settings: Settings
) -> None:
    """Two trials of each of eight tasks: every trial is a unit, all its calls are in one arm."""
    upstream.default = varied(3)
    url = gateway_server(settings).base_url
    units = set()
    for task in range(8):
        for _ in range(2):
            answers = await Agent(http, url, opening(f"Task {task}.")).run(4)
            assert len({answer.gateway("arm") for answer in answers}) == 1
            assert len({answer.conversation for answer in answers}) == 1
            units.add((await unit(settings, answers[0]))[0])
    assert len(units) == 16


async def test_forks_inherit_unit_and_arm(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, settings: Settings
) -> None:
    """A fork, its own fork and one after a restart are in the arm of the run they began in; so is
    a fork of a run whose unit only its first call named."""
    upstream.default = varied(9)
    first = gateway_server(settings)
    for number, headers in enumerate([{}, {"x-gateway-experiment-unit": "case-3"}] * 3):
        agent = Agent(http, first.base_url, opening(f"Task {number}."))
        root = await agent.send(headers=headers)
        assert root.message is not None
        agent.take(root.message)
        before = (await agent.run(2))[-1]
        answers = [before]
        for result in ("one way", "another way"):
            agent.messages = [*agent.messages[:-1], {**agent.messages[-1], "content": result}]
            last = list(agent.messages)
            answers += await agent.run(2)
            agent.messages = last
        assert len({answer.conversation for answer in answers}) > 1
        wanted = await unit(settings, root)
        assert wanted[0] == (headers.get("x-gateway-experiment-unit") or root.conversation)
        assert {await unit(settings, answer) for answer in answers} == {wanted}
    await asyncio.to_thread(first.stop)
    agent.url = gateway_server(settings).base_url
    agent.messages[-1] = {**agent.messages[-1], "content": "a third way"}
    late = await agent.send()
    assert late.identity == "fork"
    assert await unit(settings, late) == wanted


PARENTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "claude code": (
        {"x-claude-code-session-id": "s"},
        {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
    ),
    "codex": (
        {"x-codex-turn-metadata": json.dumps({"session_id": "s", "thread_id": "s"})},
        {"x-codex-turn-metadata": json.dumps({"session_id": "s", "thread_id": "t"})},
    ),
    "codex, older": ({"session_id": "s"}, {"session_id": "t", "x-codex-parent-thread-id": "s"}),
    "opencode": ({"x-session-id": "s"}, {"x-session-id": "t", "x-parent-session-id": "s"}),
    "shared session": ({"x-session-id": "s"}, {"x-session-id": "s"}),
    "no id of its own": ({"x-conversation-id": "s"}, {"x-parent-conversation-id": "s"}),
}


@pytest.mark.parametrize("how", PARENTS)
async def test_sub_agents_inherit_unit_and_arm(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    settings: Settings,
    how: str,
) -> None:
    """A sub-agent whose headers name its parent is the parent's child, also after a restart."""
    upstream.default = worker(9)
    parent, child = PARENTS[how]
    first = gateway_server(settings)
    lead = Agent(http, first.base_url, headers=parent)
    begun = await lead.send(headers={"x-gateway-experiment-unit": "case-7"})
    assert begun.message is not None
    lead.take(begun.message)
    await lead.turn()
    helpers = [Agent(http, first.base_url, opening("Search the web."), headers=child)]
    answers = await helpers[0].run(2)
    await asyncio.to_thread(first.stop)
    second = gateway_server(settings)
    late = {name: value.replace("t", "late") for name, value in child.items()}
    if how != "codex":
        helpers.append(Agent(http, second.base_url, opening("Read the docs."), headers=late))
        answers += await helpers[1].run(2)
    assert begun.conversation not in {answer.conversation for answer in answers}
    wanted = await unit(settings, begun)
    assert wanted[0] == "case-7"
    assert {await unit(settings, answer) for answer in answers} == {wanted}
    path = Path(settings["storage"]["path"])
    for answer in answers:
        found = await trace(path, answer.conversation)
        assert found.run.arm == begun.gateway("arm")


async def test_a_shared_cache_key_is_no_parent(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, settings: Settings
) -> None:
    """Conversations that only share a key of the provider's cache are units of their own."""
    upstream.default = varied(3)
    server = gateway_server(settings)
    units = set()
    for task in ("One.", "Two.", "Two."):
        agent = Agent(http, server.base_url, opening(task), prompt_cache_key="our-app")
        answer = (await agent.run(2))[-1]
        units.add((await unit(settings, answer))[0])
    assert len(units) == 3
