"""Several samples of one prompt, and what else begins with equal words: a run each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import httpx
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, run_log, trace, worker
from steering_gateway_testing.values import Fault, FaultKind, Reply
from tests.examples import by_day

Start = Callable[..., AppServer]
SAMPLES = 6


def varied(steps: int) -> Callable[[ReceivedRequest], Reply]:
    """A model with a temperature: it never says the same twice."""
    model, spoken = worker(steps), count()

    def reply(request: ReceivedRequest) -> Reply:
        said = model(request)
        return Reply(f"{said.content} ({next(spoken)})", tool_calls=said.tool_calls)

    return reply


@pytest.mark.parametrize("stream", by_day([None, True], 1), ids=["whole", "streamed"])
@pytest.mark.parametrize("equal", [False, True], ids=["other words", "equal words"])
@pytest.mark.parametrize("parallel", [True, False], ids=["at a time", "one after another"])
async def test_samples_are_runs(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    parallel: bool,
    equal: bool,
    stream: bool | None,
) -> None:
    """Each sample of an opening is a conversation with its own steps, and none is a retry."""
    upstream.default = worker(3) if equal else varied(3)
    path = tmp_path / "runs.db"
    server = gateway_server({**PLAIN, "storage": {"path": str(path)}})
    agents = [Agent(http, server.base_url, temperature=0.8, stream=stream) for _ in range(SAMPLES)]
    homes = []
    for _ in range(4):
        if parallel:
            answers = list(await asyncio.gather(*(agent.turn() for agent in agents)))
        else:
            answers = [await agent.turn() for agent in agents]
        homes.append([answer.conversation for answer in answers])
        assert "retry" not in {answer.identity for answer in answers}
    assert len(set(homes[0])) == SAMPLES
    assert all(set(each) == set(homes[0]) for each in homes)
    if not equal:
        assert all(each == homes[0] for each in homes)
    async with run_log(path) as log:
        page = await log.list_conversations(tenant=None)
    assert {c.parent_id for c in page.conversations} == {None}
    for home in homes[0]:
        found = await trace(path, home)
        assert [step.step_index for step in found.steps] == [0, 1, 2, 3]
        assert found.run.totals.calls == 4


async def test_a_request_that_was_given_up_is_retried(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The same bytes after a failure, a cut stream or the client's leaving are a retry, whether
    the client says so or not."""
    upstream.default = worker(9)
    path = tmp_path / "runs.db"
    settings = {**PLAIN, "router": {"num_retries": 0}, "storage": {"path": str(path)}}
    agent = Agent(http, gateway_server(settings).base_url)
    homes = set()
    for kind in (FaultKind.SERVER_ERROR, FaultKind.DROP_MID_BODY, FaultKind.SLOW_FIRST_BYTE):
        upstream.script(Fault(kind, delay_s=60))
        if kind is FaultKind.SLOW_FIRST_BYTE:
            given_up = asyncio.ensure_future(agent.send())
            await asyncio.to_thread(upstream.wait_for_requests, len(upstream.requests) + 1)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            await asyncio.to_thread(upstream.last.wait_disconnected)
        else:
            assert (await agent.send()).status != 200
        again = await agent.turn()
        assert again.identity == "retry"
        homes.add(again.conversation)
    assert len(homes) == 1
    found = await trace(path, homes.pop())
    assert [step.step_index for step in found.steps] == [0, 1, 2]


async def test_an_answer_that_a_restart_cut_off_is_retried(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """What is stored does not tell whether its client got it: the next process takes the same
    request for a retry."""
    upstream.default = worker(9)
    settings = {**PLAIN, "storage": {"path": str(tmp_path / "runs.db")}}
    first = gateway_server(settings)
    agent = Agent(http, first.base_url)
    await agent.run(3)
    lost = await agent.send()
    await asyncio.to_thread(first.stop)
    agent.url = gateway_server(settings).base_url
    again = await agent.turn()
    assert (again.identity, again.conversation, again.place) == (
        "retry",
        lost.conversation,
        lost.place,
    )
    assert (await agent.turn()).gateway("step") == "4"


async def test_a_sample_within_a_run_gets_the_same_bytes(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Candidates for one step are branches with the run's state, and continue apart."""
    upstream.default = varied(9)
    agent = Agent(http, gateway_server(PLAIN).base_url)
    await agent.run(4)
    others = [Agent(http, agent.url, agent.messages) for _ in range(2)]
    first, *rest = [await each.turn() for each in (agent, *others)]
    assert [answer.identity for answer in rest] == ["fork"] * 2
    assert {answer.place for answer in rest} == {first.place}
    assert len({r.body for r in list(upstream.requests)[-3:]}) == 1
    homes = [first.conversation, *(answer.conversation for answer in rest)]
    assert len(set(homes)) == 3
    assert [(await each.turn()).conversation for each in (agent, *others)] == homes
