"""Which conversation a live request belongs to, and how it changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import (
    GUIDING,
    PLAIN,
    Agent,
    guidance_frames,
    opening,
    run_log,
    trace,
    worker,
)
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.values import Fault, FaultKind, Reply
from tests.examples import by_day

Start = Callable[..., AppServer]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def gateway(gateway_server: Start, upstream: ScriptedUpstream, database: Path) -> AppServer:
    """A gateway without guidance, and a model that makes many calls."""
    upstream.default = worker(99)
    return gateway_server({**PLAIN, "storage": {"path": str(database)}})


@pytest.mark.parametrize(
    ("headers", "body", "label"),
    by_day(
        [
            ({"x-conversation-id": "a"}, {"session_id": "b"}, "header:x-conversation-id"),
            ({"x-session-id": "a"}, {}, "header:x-session-id"),
            ({"x-anything-session-id": "a"}, {}, "header:x-anything-session-id"),
            ({"thread-id": "a", "x-session-id": "b"}, {}, "header:thread-id"),
            ({}, {"metadata": {"session_id": "a"}}, "body:metadata.session_id"),
            ({}, {"prompt_cache_key": "a"}, "body:prompt_cache_key"),
            ({"x-conversation-id": "{{ id }}"}, {}, "new"),
            ({"x-session-id": "null"}, {"user": "someone"}, "new"),
        ],
        3,
    ),
)
async def test_where_the_id_comes_from(
    gateway: AppServer,
    http: httpx.AsyncClient,
    headers: dict[str, str],
    body: dict[str, Any],
    label: str,
) -> None:
    """The label names the header or field that was used, or that the history was compared."""
    agent = Agent(http, gateway.base_url, headers=headers, **body)
    first, second = await agent.run(2)
    assert (first.identity, second.identity) == (label, "prefix" if label == "new" else label)
    assert first.conversation == second.conversation


async def test_tenants_share_no_conversation(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The same id and the same history under two keys are two conversations."""
    upstream.default = worker(9)
    keys = {"one": "key-of-tenant-one", "two": "key-of-tenant-two"}
    server = gateway_server({**PLAIN, "auth": {"gateway_keys": keys}})
    for named in ({}, {"x-conversation-id": "same"}):
        seen = set()
        for key in keys.values():
            headers = {"x-gateway-key": key, **named}
            agent = Agent(http, server.base_url, headers=headers)
            seen.add((await agent.run(2))[-1].conversation)
        assert len(seen) == 2


async def test_a_request_sent_again_changes_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Each call of a run is retried twice: same step, state, model and bytes, no new step."""
    upstream.default = worker(99)
    routing = {"model_routing": {"NORMAL": "routed"}, "storage": {"path": str(database)}}
    server = gateway_server({**GUIDING, **routing})
    agent = Agent(http, server.base_url)
    for _ in range(6):
        answers = [await agent.send(), await agent.again(), await agent.again()]
        bodies = [request.body for request in list(upstream.requests)[-3:]]
        assert len({answer.conversation for answer in answers}) == 1
        assert [answer.identity for answer in answers[1:]] == ["retry"] * 2
        assert len({answer.place for answer in answers}) == 1
        assert len({answer.gateway("model") for answer in answers}) == 1
        assert bodies[0] == bodies[1] == bodies[2]
        assert answers[0].message is not None
        agent.take(answers[0].message)
    found = await trace(database, answers[0].conversation)
    assert [step.step_index for step in found.steps] == list(range(6))
    assert [step.call.retries for step in found.steps if step.call] == [2] * 6
    assert len(guidance_frames(upstream.last.json)) > 1


@pytest.mark.parametrize("kind", [FaultKind.BAD_REQUEST, FaultKind.DROP_MID_BODY])
async def test_a_retry_of_a_failed_call(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    database: Path,
    kind: FaultKind,
) -> None:
    """A failed call is not a step; sent again it gets the same bytes, and the run continues."""
    upstream.default = worker(99)
    settings = {**GUIDING, "router": {"num_retries": 0}, "storage": {"path": str(database)}}
    agent = Agent(http, gateway_server(settings).base_url)
    await agent.run(4)
    # A refused request is sent once more as it was written.
    upstream.script(*[Fault(kind)] * (2 if kind is FaultKind.BAD_REQUEST else 1))
    failed = await agent.send()
    again = await agent.turn()
    after = await agent.turn()
    assert failed.status != 200
    bodies = [request.body for request in upstream.requests]
    assert bodies[-4 if kind is FaultKind.BAD_REQUEST else -3] == bodies[-2]
    assert (again.gateway("step"), after.gateway("step")) == ("4", "5")
    assert again.conversation == after.conversation
    found = await trace(database, after.conversation)
    assert [step.step_index for step in found.steps] == list(range(6))


async def test_two_continuations_are_two_branches(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """The second one forks: a child with a copy of its parent's guidance, which continues alone."""
    upstream.default = worker(99)
    server = gateway_server({**GUIDING, "storage": {"path": str(database)}})
    agent = Agent(http, server.base_url)
    before = (await agent.run(5))[-1]
    other = Agent(http, server.base_url, agent.messages)
    agent.messages[-1] = {**agent.messages[-1], "content": "one result"}
    other.messages[-1] = {**other.messages[-1], "content": "another result"}
    first = await agent.turn()
    sent_frames = guidance_frames(upstream.last.json)
    second = await other.turn()
    copied = guidance_frames(upstream.last.json)
    assert first.conversation == before.conversation
    assert (second.identity, second.gateway("step")) == ("fork", "5")
    assert second.conversation != first.conversation
    # Both have the guidance from before the fork; later guidance differs.
    assert copied[: len(sent_frames) - 1] == sent_frames[: len(sent_frames) - 1] != []
    for branch, home in ((agent, first), (other, second)):
        answers = await branch.run(2)
        assert {answer.conversation for answer in answers} == {home.conversation}
        assert [answer.gateway("step") for answer in answers] == ["6", "7"]
    async with run_log(database) as log:
        page = await log.list_conversations(tenant=None)
    parents = {c.id: c.parent_id for c in page.conversations}
    assert parents == {first.conversation: None, second.conversation: first.conversation}


async def test_a_rewritten_history_keeps_state_and_caps(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """After a compaction the run continues: step count, state and spent caps stay."""
    upstream.default = Reply("maybe the error in app.main fails because of a bug, wait")
    settings = {
        **PLAIN,
        "injection": {"monitor_cap": 1, "skip_directive": False},
        "conversations": {"run_boundary": "never"},
    }
    server = gateway_server(settings)
    agent = Agent(http, server.base_url, headers={"x-session-id": "s"})
    for _ in range(7):
        answer = await agent.turn()
        agent.messages.append({"role": "user", "content": "Go on."})
    assert answer.gateway("state") == "SLOW"
    agent.messages = [*opening("Summary of seven steps."), *agent.messages[-2:]]
    compacted = await agent.turn()
    assert compacted.identity == "compaction"
    assert compacted.conversation == answer.conversation
    assert (compacted.gateway("step"), compacted.gateway("state")) == ("7", "SLOW")
    assert compacted.gateway("guidance") is None


@pytest.mark.parametrize("explicit", [False, True])
async def test_side_requests_change_nothing(
    gateway: AppServer, http: httpx.AsyncClient, database: Path, explicit: bool
) -> None:
    """A title request in parallel to the run is answered and does not change the run."""
    headers = {"x-session-id": "s"} if explicit else {}
    agent = Agent(http, gateway.base_url, headers=headers)
    before = (await agent.run(3))[-1]
    side = Agent(http, gateway.base_url, opening("Give this a title."), headers=headers, tools=None)
    answer = await side.send()
    after = await agent.run(2)
    assert answer.status == 200
    if explicit:
        assert answer.conversation == before.conversation
        assert answer.gateway("state") is None
    else:
        assert answer.conversation != before.conversation
    assert {a.conversation for a in after} == {before.conversation}
    assert [a.gateway("step") for a in after] == ["3", "4"]
    found = await trace(database, before.conversation)
    assert [step.step_index for step in found.steps] == list(range(5))


async def test_fifty_runs_of_one_opening(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Parallel runs separate as soon as their replies differ, and stay separate."""
    model = worker(99)
    spoken = iter(range(10_000))

    def reply(request: ReceivedRequest) -> Reply:
        said = model(request)
        return Reply(f"{said.content} ({next(spoken)})", tool_calls=said.tool_calls)

    upstream.default = reply
    agents = [Agent(http, gateway.base_url) for _ in range(50)]
    await asyncio.gather(*(agent.turn() for agent in agents))
    homes = []
    for _ in range(3):
        answers = await asyncio.gather(*(agent.turn() for agent in agents))
        homes.append([answer.conversation for answer in answers])
        assert len(set(homes[-1])) == 50
        assert homes[-1] == homes[0]
    assert {answer.gateway("step") for answer in answers} == {"3"}
    for agent, home in zip(agents, homes[0], strict=True):
        found = await trace(database, home)
        said = [s.content.thought for s in found.steps if s.content and s.step_index]
        assert said == [m["content"] for m in agent.messages if m["role"] == "assistant"][:3]


async def test_racing_requests_lose_and_double_nothing(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Two retries of a failed call at a time, in every turn: both succeed, each step is recorded
    once."""
    agent = Agent(http, gateway.base_url)
    for _ in range(8):
        upstream.script(Fault(FaultKind.BAD_REQUEST))
        failed = await agent.send()
        answers = await asyncio.gather(*(agent.again() for _ in range(2)))
        assert [answer.status for answer in (failed, *answers)] == [400, 200, 200]
        assert len({answer.conversation for answer in (failed, *answers)}) == 1
        assert len({answer.place for answer in (failed, *answers)}) == 1
        assert answers[0].message is not None
        agent.take(answers[0].message)

    async def all_recorded() -> bool:
        found = await trace(database, answers[0].conversation)
        return found.run.totals.calls == 24

    await until_async(all_recorded)  # a call that failed is recorded behind its answer
    found = await trace(database, answers[0].conversation)
    assert [step.step_index for step in found.steps] == list(range(8))


async def test_racing_continuations_become_branches(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Two different continuations at a time: both succeed, each in its own conversation."""
    agent = Agent(http, gateway.base_url)
    await agent.run(2)
    agents = [Agent(http, gateway.base_url, agent.messages) for _ in range(2)]
    for number, each in enumerate(agents):
        each.messages[-1] = {**each.messages[-1], "content": f"result {number}"}
    first = await asyncio.gather(*(each.turn() for each in agents))
    second = await asyncio.gather(*(each.turn() for each in agents))
    assert [answer.status for answer in first] == [200, 200]
    assert len({answer.conversation for answer in first}) == 2
    assert [a.conversation for a in first] == [a.conversation for a in second]
    for answer, each in zip(second, agents, strict=True):
        found = await trace(database, answer.conversation)
        assert [step.step_index for step in found.steps][-3:] == [1, 2, 3]
        assert found.steps[-2].content is not None
        assert found.steps[-2].content.actions[0].observation == each.messages[5]["content"]


async def test_parallel_sub_agents_of_one_session(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Agents that share a session id and work in parallel keep their own steps."""
    headers = {"x-session-id": "shared"}
    roles = [
        [
            {"role": "system", "content": f"You are the {role}."},
            {"role": "user", "content": f"Do the {role}'s part."},
        ]
        for role in ("lead", "tester", "writer", "reviewer")
    ]
    agents = [Agent(http, gateway.base_url, messages, headers=headers) for messages in roles]
    answers = [await agents[0].turn()]
    answers += await asyncio.gather(*(agent.turn() for agent in agents[1:]))
    homes = [answer.conversation for answer in answers]
    for step in range(1, 5):
        answers = list(await asyncio.gather(*(agent.turn() for agent in agents)))
        assert [answer.conversation for answer in answers] == homes
        assert {answer.gateway("step") for answer in answers} == {str(step)}
    assert len(set(homes)) == 4
    for agent, home in zip(agents, homes, strict=True):
        found = await trace(database, home)
        said = [s.content.thought for s in found.steps if s.content and s.step_index]
        assert said == [m["content"] for m in agent.messages if m["role"] == "assistant"][:4]


async def test_agents_that_open_with_the_same_words(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Ids separate runs that begin the same; no reply is counted for another run."""
    agents = [
        Agent(http, gateway.base_url, headers={"x-conversation-id": str(n)}) for n in range(3)
    ]
    for step in range(4):
        answers = [await agent.turn() for agent in agents]
        assert len({answer.conversation for answer in answers}) == 3
        assert {answer.gateway("step") for answer in answers} == {str(step)}
