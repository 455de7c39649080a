"""Where a run ends, and what begins after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, Agent, Message, opening, trace, worker

Start = Callable[..., AppServer]
DONE = Reply("The parser accepts empty input now.")


def calls(number: int, text: str | None = None) -> Reply:
    call = ToolCall("bash", {"command": f"more {number}"}, id=f"more_{number}")
    return Reply(text, tool_calls=(call,))


@pytest.mark.parametrize("stream", [None, True])
async def test_the_answer_that_ends_a_run_says_so(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, stream: bool | None
) -> None:
    """A whole answer says END; the head of a stream was sent before anybody knew."""
    upstream.default = worker(3)
    agent = Agent(http, gateway_server(PLAIN).base_url, stream=stream)
    states = [answer.gateway("state") for answer in await agent.run(4)]
    assert states == ["INIT", "NORMAL", "NORMAL", "NORMAL" if stream else "END"]
    agent.messages.append({"role": "user", "content": "And the lexer?"})
    upstream.default = Reply("Which one do you mean?")
    asked = await agent.turn()
    assert (asked.gateway("step"), asked.gateway("state")) == ("0", "INIT")


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("text", [None, "One more thing."], ids=["calls alone", "with a text"])
async def test_going_on_after_the_final_answer_is_the_next_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    text: str | None,
    restarted: bool,
) -> None:
    """An agent that asks again without a word of the user begins a run; the ended one is left."""
    upstream.default = worker(3)
    path = tmp_path / "runs.db"
    settings = {**PLAIN, "storage": {"path": str(path)}}
    first = gateway_server(settings)
    agent = Agent(http, first.base_url)
    conversation = (await agent.run(4))[-1].conversation
    ended = await trace(path, conversation)
    answers = []
    for number in range(4):
        upstream.script(calls(number, text) if number < 3 else DONE)
        answers.append(await agent.turn())
        if restarted and number == 1:
            await asyncio.to_thread(first.stop)
            agent.url = gateway_server(settings).base_url
    assert {answer.conversation for answer in answers} == {conversation}
    assert [answer.gateway("step") for answer in answers] == ["0", "1", "2", "3"]
    assert [answer.gateway("state") for answer in answers] == ["INIT", "NORMAL", "NORMAL", "END"]
    again = await trace(path, conversation)
    assert (again.run.state, again.steps) == ("END", ended.steps)
    following = await trace(path, conversation, 1)
    assert [step.step_index for step in following.steps] == [0, 1, 2, 3]
    agent.messages.append({"role": "user", "content": "Thank you. Now the lexer."})
    assert (await agent.turn()).gateway("step") == "0"
    assert (await trace(path, conversation, 2)).run.sequence == 2


BETWEEN: dict[str, list[Message]] = {
    "a reminder of the harness": [{"role": "system", "content": "Keep to the style guide."}],
    "steps that were not seen": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "own",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "own", "content": "a.py"},
    ],
}


@pytest.mark.parametrize("between", BETWEEN)
async def test_what_comes_between_is_in_the_next_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    between: str,
) -> None:
    """So are reminders, and steps that the agent made elsewhere."""
    upstream.default = worker(3)
    path = tmp_path / "runs.db"
    agent = Agent(http, gateway_server({**PLAIN, "storage": {"path": str(path)}}).base_url)
    conversation = (await agent.run(4))[-1].conversation
    ended = await trace(path, conversation)
    agent.messages += BETWEEN[between]
    upstream.default = calls(1)
    answers = await agent.run(2)
    steps = sum(message["role"] == "assistant" for message in BETWEEN[between])
    assert [answer.gateway("step") for answer in answers] == [str(steps), str(steps + 1)]
    again = await trace(path, conversation)
    assert (again.run.state, again.steps) == ("END", ended.steps)


async def test_a_question_or_a_cut_answer_ends_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A question to the user and a reply cut by its length are steps of the run that goes on."""
    cut: list[Any] = [
        Reply("Shall I go on with the lexer?"),
        Reply("The parser accepts", finish_reason="length"),
    ]
    server = gateway_server(PLAIN)
    for number, reply in enumerate(cut):
        upstream.default = worker(2)
        agent = Agent(http, server.base_url, opening(f"Task {number}."))
        await agent.run(2)
        upstream.script(reply, calls(1, "Going on."))
        asked, after = await agent.run(2)
        assert asked.gateway("state") == after.gateway("state") == "NORMAL"
        assert (await agent.turn()).gateway("step") == "4"
