"""Clients that continue a saved conversation with another first message, and send no id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, Message, trace, worker
from tests.examples import by_day

Start = Callable[..., AppServer]
TASK = "Fix the failing test."


def says(text: str) -> Message:
    return {"role": "user", "content": text}


def prelude(day: str) -> str:
    return f"<system-reminder>\nToday is {day}.\nFiles: {day}.log, a.py\n</system-reminder>"


def untagged(day: str) -> str:
    return f"This is the Qwen Code. We are setting up the context for our chat.\nToday is {day}."


Opening = Callable[[str], list[Message]]
SYSTEM: Message = {"role": "system", "content": "You are Qwen Code. Work with care."}
OPENINGS: dict[str, Opening] = {
    "a message before": lambda day: [SYSTEM, says(prelude(day)), says(TASK)],
    "one message": lambda day: [SYSTEM, says(f"{prelude(day)}\n{TASK}")],
    "an acknowledged message": lambda day: [
        SYSTEM,
        says(untagged(day)),
        {"role": "assistant", "content": "Got it. Thanks for the context!"},
        says(TASK),
    ],
    "a growing message": lambda day: [SYSTEM, says(f"{TASK}\nFiles in the chat: {day}.py")],
}


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("opening", by_day(OPENINGS, 4))
async def test_a_conversation_continued_with_another_opening(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    opening: str,
    restarted: bool,
) -> None:
    """The user's next message begins the next run of the same conversation, and it goes on."""
    acknowledged = opening == "an acknowledged message"
    upstream.default = worker(3 + acknowledged)
    path = tmp_path / "runs.db"
    settings = {**PLAIN, "storage": {"path": str(path)}}
    first = gateway_server(settings)
    build = OPENINGS[opening]
    agent = Agent(http, first.base_url, build("Monday"))
    before = (await agent.run(4))[-1]
    if restarted:
        await asyncio.to_thread(first.stop)
        agent.url = gateway_server(settings).base_url
    agent.messages[: len(build(""))] = build("Tuesday")
    agent.messages.append(says("Now the next one."))
    upstream.default = worker(9)
    after = await agent.run(3)
    assert {answer.conversation for answer in (before, *after)} == {before.conversation}
    assert [answer.gateway("step") for answer in after] == ["0", "1", "2"]
    ended = await trace(path, before.conversation, int(acknowledged))
    assert (ended.run.state, len(ended.steps)) == ("END", 4)


async def test_strangers_are_not_taken_for_a_continued_conversation(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A greeting that everybody gets, another role, and a second conversation with the same replies
    are no proof."""
    upstream.default = Reply("Hello! How can I help you today?")
    server = gateway_server(PLAIN)
    known = Agent(http, server.base_url, [SYSTEM, says("Hi, I am Ann.")], tools=None)
    first = await known.turn()
    others = [
        [SYSTEM, says("Good evening, this is Bob."), *known.messages[2:], says("The weather?")],
        [says("Hi, I am Ann. And you?"), *known.messages[2:], says("The weather?")],
    ]
    for messages in others:
        answer = await known.send(messages)
        assert answer.identity == "new"
        assert answer.conversation != first.conversation
