"""What the run log contains of a served conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gateway.calls.call import Call
from gateway.calls.recorder import Recorder
from gateway.core.step import Action
from gateway.stores.records import StepRow
from gateway.stores.traces import RunTrace
from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, opening, run_log, trace, worker

Start = Callable[..., AppServer]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def gateway(gateway_server: Start, database: Path) -> AppServer:
    """A gateway without guidance."""
    return gateway_server({**PLAIN, "storage": {"path": str(database)}})


def prompts(step: StepRow) -> list[tuple[str, str]]:
    assert step.content is not None
    return [(message.role, message.text) for message in step.content.messages]


def actions(found: RunTrace) -> list[Action]:
    return [a for step in found.steps if step.content for a in step.content.actions]


async def test_a_stop_waits_for_what_is_not_recorded_yet(
    gateway: AppServer,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that failed is recorded behind its answer, also when the gateway is stopped then."""
    catch_up = Recorder.catch_up

    async def later(self: Recorder, call: Call) -> None:
        await asyncio.sleep(0.5)
        await catch_up(self, call)

    monkeypatch.setattr(Recorder, "catch_up", later)
    upstream.script(Fault(FaultKind.BAD_REQUEST))
    answer = await Agent(http, gateway.base_url).send()
    await asyncio.to_thread(gateway.stop)
    (step,) = (await trace(database, answer.conversation)).steps
    assert step.call is not None
    assert step.call.status == answer.status == 400


async def test_steps_with_their_calls(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Each step is recorded once, with its tool call and result, and the model call after it."""
    upstream.default = worker(3)
    answers = await Agent(http, gateway.base_url, opening("Count.")).run(4, "it is done")
    found = await trace(database, answers[0].conversation)
    assert [step.step_index for step in found.steps] == [0, 1, 2, 3]
    assert [step.state for step in found.steps] == ["INIT", "NORMAL", "NORMAL", "NORMAL"]
    assert actions(found) == [
        Action(name="bash", arguments=f'{{"command":"step {n}"}}', observation="it is done")
        for n in range(3)
    ]
    assert [s.content and s.content.reply_text for s in found.steps] == [
        "Turn 0 of Count.",
        "Turn 1 of Count.",
        "Turn 2 of Count.",
        "Done: Count.",
    ]
    assert (found.run.state, found.run.ended_at is not None) == ("END", True)
    assert found.run.task_preview == "Count."


async def test_system_and_user_messages_are_recorded(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """A run's first row has its opening, a later row the user messages in between."""
    upstream.default = worker(3)
    agent = Agent(http, gateway.base_url)
    await agent.turn()
    agent.messages.append({"role": "user", "content": [{"type": "text", "text": "Hurry up."}]})
    first = await agent.run(3)
    agent.messages += opening("And the next.")[1:]
    second = await agent.turn()
    (system,), task = (
        [m["content"] for m in opening() if m["role"] == r] for r in ("system", "user")
    )
    found = await trace(database, first[0].conversation)
    assert [prompts(step) for step in found.steps] == [
        [("system", system), ("user", *task)],
        [("user", "Hurry up.")],
        [],
        [],
    ]
    assert second.conversation == first[0].conversation
    following = await trace(database, second.conversation, 1)
    assert prompts(following.steps[0]) == [("system", system), ("user", "And the next.")]
    assert following.run.task_preview == "And the next."


async def test_a_result_in_a_user_message_is_not_a_prompt(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """In a text protocol the user message after a call is that call's result."""
    upstream.default = Reply("I look first.\n\n```bash\nls\n```")
    prompt = "Answer with exactly one command in a ```bash block."
    agent = Agent(http, gateway.base_url, opening(prompt), tools=None)
    answer = await agent.turn()
    agent.messages.append({"role": "user", "content": "<returncode>0</returncode>\nsetup.py"})
    await agent.turn()
    found = await trace(database, answer.conversation)
    assert [action.arguments for action in actions(found)] == ["ls"]
    assert [len(prompts(step)) for step in found.steps] == [2, 0]


async def test_a_run_that_stopped_short_ends_when_the_next_begins(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """A cut answer does not end the run at once; the next user message does."""
    upstream.script(Reply("The answer is", finish_reason="length"), Reply("Forty-two."))
    agent = Agent(http, gateway.base_url)
    answer = await agent.turn()
    assert (await trace(database, answer.conversation)).run.ended_at is None
    agent.messages.append({"role": "user", "content": "Another thing."})
    await agent.turn()
    runs = [await trace(database, answer.conversation, n) for n in range(2)]
    assert [found.run.state for found in runs] == ["END", "END"]


async def test_a_new_list_of_tasks_is_a_new_run(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """After a final answer, a rewritten history begins the next run of the conversation."""
    upstream.default = worker(1)
    agent = Agent(http, gateway.base_url, headers={"x-session-id": "crew"})
    first = (await agent.run(2))[-1]
    agent.messages = opening("The second task.")
    second = (await agent.run(2))[-1]
    assert second.conversation == first.conversation
    runs = [await trace(database, first.conversation, n) for n in range(2)]
    assert [[s.step_index for s in found.steps] for found in runs] == [[0, 1], [0, 1]]
    assert [found.run.state for found in runs] == ["END", "END"]
    async with run_log(database) as log:
        assert await log.get_run(f"{first.conversation}.2", tenant=None) is None


async def test_a_run_begun_elsewhere_keeps_its_opening(
    gateway: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """A history that is first seen in the middle is recorded from its first step."""
    upstream.default = worker(5)
    elsewhere = Agent(http, upstream.base_url)
    await elsewhere.run(3, "so far")
    agent = Agent(http, gateway.base_url, elsewhere.messages)
    answer = await agent.turn()
    found = await trace(database, answer.conversation)
    assert [step.step_index for step in found.steps] == [1, 2, 3]
    assert [step.call is not None for step in found.steps] == [False, False, True]
    assert prompts(found.steps[-1]) == [(m["role"], m["content"]) for m in opening()]
    assert found.run.task_preview == opening()[1]["content"]


async def test_the_task_is_what_the_user_wrote(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A run is listed by the user's words, not by what a client wrote before them."""
    upstream.default = worker(2)
    server = gateway_server(PLAIN)
    reminder = "<system-reminder>\nThe project has many files.\n</system-reminder>\n"
    for opened in ([reminder, "Fix it."], [f"{reminder}Fix it."]):
        messages = [{"role": "user", "content": text} for text in opened]
        await Agent(http, server.base_url, messages).run(2)
    runs = (await http.get(f"{server.url}/api/runs")).json()["runs"]
    assert [run["task_preview"] for run in runs] == ["Fix it."] * 2
