"""Conversations that another gateway, or this one before a restart, has served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import httpx

from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.agents import (
    GUIDING,
    PLAIN,
    Agent,
    guidance_frames,
    opening,
    trace,
    worker,
)

Start = Callable[..., AppServer]


async def test_runs_of_one_opening_are_distinguished_after_a_restart(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The others are loaded from the store even when the first is in memory again."""
    words = count()
    model = worker()

    def reply(request: ReceivedRequest) -> Reply:
        said = model(request)
        # Only the text of the model distinguishes the runs.
        return replace(said, content=f"{said.content} {next(words)}")

    upstream.default = reply
    settings = {**PLAIN, "storage": {"path": str(tmp_path / "kept.db")}}
    first = gateway_server(settings)
    agents = [Agent(http, first.base_url) for _ in range(4)]
    for _ in range(2):
        before = [await agent.turn() for agent in agents]
    await asyncio.to_thread(first.stop)
    second = gateway_server(settings)
    for agent in agents:
        agent.url = second.base_url
    after = [await agent.turn() for agent in agents]
    assert [a.conversation for a in after] == [b.conversation for b in before]
    assert [a.gateway("step") for a in after] == ["2"] * 4


async def test_two_gateways_alternate_on_one_conversation(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Gateways on one database take turns, and every step is recorded once."""
    upstream.default = worker(9)
    path = tmp_path / "shared.db"
    settings = {**PLAIN, "storage": {"path": str(path)}}
    gateways = [gateway_server(settings) for _ in range(2)]
    agent = Agent(http, "", opening("Take turns."))
    answers = []
    for turn in range(9):
        agent.url = gateways[turn % 2].base_url
        answers.append(await agent.turn(f"result {turn}"))
    assert len({answer.conversation for answer in answers}) == 1
    assert [answer.gateway("step") for answer in answers] == [str(n) for n in range(9)]
    found = await trace(path, answers[0].conversation)
    assert [step.step_index for step in found.steps] == list(range(9))
    assert all(step.call is not None and step.call.retries == 0 for step in found.steps)


async def test_guidance_of_one_gateway_is_sent_again_by_the_other(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Guidance that was given once stays in the requests, whichever gateway sends them."""
    upstream.default = worker(9)
    settings = {
        **GUIDING,
        "etraces": {"enabled": False},
        "storage": {"path": str(tmp_path / "shared.db")},
    }
    gateways = [gateway_server(settings) for _ in range(2)]
    agent = Agent(http, "")
    for turn in range(9):
        agent.url = gateways[turn % 2].base_url
        await agent.turn()
    frames_sent = [[f.strip() for f in guidance_frames(r.json)] for r in upstream.requests]
    assert [len(frames) for frames in frames_sent[:4]] == [0, 0, 0, 1], (
        "three equal calls are a streak"
    )
    assert len(frames_sent[-1]) > 1
    for earlier, later in pairwise(frames_sent):
        assert later[: len(earlier)] == earlier


async def test_a_compacted_conversation_is_found_after_a_restart(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The conversation continues in the rewritten history, also in the next process."""
    upstream.default = worker(9)
    settings = {**PLAIN, "storage": {"path": str(tmp_path / "kept.db")}}
    first = gateway_server(settings)
    agent = Agent(http, first.base_url, headers={"x-session-id": "s-1"})
    before = (await agent.run(4))[-1]
    kept = agent.messages[-2:]
    agent.messages = [*opening("Summary: four steps done, one is left."), *kept]
    compacted = await agent.turn()
    await asyncio.to_thread(first.stop)
    second = gateway_server(settings)
    # The kept part of the old history identifies the conversation, not an id.
    agent.url, agent.headers = second.base_url, {}
    after = await agent.turn()
    assert compacted.identity == "compaction"
    assert {before.conversation} == {compacted.conversation, after.conversation}
    assert [a.gateway("step") for a in (before, compacted, after)] == ["3", "4", "5"]


async def test_guided_instructions_that_come_back_are_not_doubled(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The Responses API returns the instructions of a request; guidance in them must not be added
    again with each call."""
    upstream.default = worker(9)
    server = gateway_server(GUIDING)
    agent = Agent(http, server.base_url)
    for _ in range(6):
        await agent.turn("FAILED test_it - AssertionError")
        system = upstream.last.messages[0]
        frames = guidance_frames({"messages": [system]})
        assert len(frames) == 1
        agent.messages[0] = system


async def test_a_fork_far_back_in_a_long_run(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Memory has the newest prefix hashes of a long run; older ones are found in the store."""
    upstream.default = worker(200)
    agent = Agent(http, gateway_server(PLAIN).base_url)
    whole = (await agent.run(90))[-1]
    assert whole.gateway("step") == "89"
    back = [*agent.messages[:6], {"role": "user", "content": "Try another way."}]
    forked = await agent.send(back)
    assert (forked.identity, forked.gateway("step")) == ("fork", "2")
    assert (await agent.turn()).conversation == whole.conversation
