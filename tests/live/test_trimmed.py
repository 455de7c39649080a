"""Agents that shorten their history as they go: the same run, with all its steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from tests.live.client import PLAIN, Agent, Answer, Message, opening

Start = Callable[..., AppServer]
Trim = Callable[[list[Message]], list[Message]]

_numbers = itertools.count()


def last_pairs(count: int) -> Trim:
    """Keep the opening, and the newest calls with their results."""
    return lambda messages: [*messages[:2], *messages[2:][-2 * count :]]


def cleared(messages: list[Message]) -> list[Message]:
    """Clear all results but the newest."""
    old = [{**m, "content": "[cleared]"} if m["role"] == "tool" else m for m in messages[:-1]]
    return [*old, messages[-1]]


def grown(messages: list[Message]) -> list[Message]:
    """Let the first user message grow with each call."""
    task = {**messages[1], "content": f"{messages[1]['content']} (files: {len(messages)})"}
    return [messages[0], task, *messages[2:]]


TRIMS: dict[str, Trim] = {
    "the newest": last_pairs(1),
    "the newest three": last_pairs(3),
    "results cleared": cleared,
    "a growing opening": grown,
}


def looping(short: bool = False) -> Callable[[ReceivedRequest], Reply]:
    """A model that makes the same call over and over, under a new id each time."""

    def reply(_: ReceivedRequest) -> Reply:
        number = next(_numbers)
        name = f"call_{number}" if short else f"call_{number:024}"
        return Reply("Once more.", tool_calls=(ToolCall("bash", {"command": "make"}, id=name),))

    return reply


async def trimmed_run(agent: Agent, trim: Trim, turns: int) -> list[Answer]:
    """Some turns of an agent that sends what `trim` leaves of its history."""
    answers = []
    for _ in range(turns):
        sent = trim(agent.messages) if len(agent.messages) > 2 else agent.messages
        answer = await agent.send(sent)
        assert answer.message is not None
        agent.take(answer.message, "make: *** error 2")
        answers.append(answer)
    return answers


def steps(answers: list[Answer]) -> list[str | None]:
    return [answer.gateway("step") for answer in answers]


@pytest.mark.parametrize("headers", [{}, {"x-conversation-id": "job"}, {"x-session-id": "job"}])
@pytest.mark.parametrize("trim", TRIMS.values(), ids=TRIMS.keys())
async def test_a_shortened_history_is_the_same_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    trim: Trim,
    headers: dict[str, str],
) -> None:
    """Each call is the next step of one conversation, be its requests equal to the letter but for
    the ids of calls."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url, headers=headers)
    answers = await trimmed_run(agent, trim, 9)
    assert len({answer.conversation for answer in answers}) == 1
    assert steps(answers) == [str(number) for number in range(9)]


@pytest.mark.parametrize("trim", [last_pairs(1), last_pairs(3), cleared])
async def test_a_loop_is_seen_through_a_window(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, trim: Trim
) -> None:
    """Leaving messages out does not blind the monitors: they read as with the whole history."""
    upstream.default = looping()
    server = gateway_server(PLAIN)
    whole = await trimmed_run(Agent(http, server.base_url), list, 8)
    cut = await trimmed_run(Agent(http, server.base_url, opening("Another.")), trim, 8)
    assert cut[-1].gateway("monitors")
    assert [a.place for a in cut] == [a.place for a in whole]


async def test_a_new_beginning_blinds_the_windows(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A summary is more than a cut: state and steps stay, what repeats is counted anew."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url)
    before = (await trimmed_run(agent, list, 8))[-1]
    summary = {"role": "user", "content": "Summary: make fails."}
    agent.messages = [agent.messages[0], summary, *agent.messages[-2:]]
    (after,) = await trimmed_run(agent, list, 1)
    assert (after.identity, after.conversation) == ("compaction", before.conversation)
    assert after.gateway("step") == "8"
    assert before.gateway("monitors")
    assert not after.gateway("monitors")


async def test_trimming_agents_side_by_side(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Agents of one opening that do the same things are told apart by the ids of their calls, once
    these differ."""
    upstream.default = looping()
    server = gateway_server(PLAIN)
    agents = [Agent(http, server.base_url, opening(f"Task {n}.")) for n in range(6)]
    runs = await asyncio.gather(*(trimmed_run(a, last_pairs(2), 7) for a in agents))
    homes = [{answer.conversation for answer in answers} for answers in runs]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == len(agents)
    assert all(steps(answers) == [str(number) for number in range(7)] for answers in runs)


async def test_sending_a_shortened_request_again_is_a_retry(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The very same request counts no step, though its reply made other calls."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url)
    await trimmed_run(agent, last_pairs(1), 3)
    window = last_pairs(1)(agent.messages)
    first, again = await agent.send(window), await agent.send(window)
    assert (first.gateway("step"), again.gateway("step")) == ("3", "3")
    assert again.identity == "retry"


@pytest.mark.parametrize("constant", [True, False])
async def test_numbered_ids_are_no_sign(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, constant: bool
) -> None:
    """Ids that are the same in each reply, or short, neither merge conversations nor stop a retry
    from being one."""
    same: Any = Reply(
        "Once more.", tool_calls=(ToolCall("bash", {"command": "make"}, id="call_0"),)
    )
    upstream.default = same if constant else looping(short=True)
    server = gateway_server(PLAIN)
    agent = Agent(http, server.base_url)
    await agent.run(3)
    first, again = await agent.send(), await agent.send()
    assert (first.gateway("step"), again.identity) == ("3", "retry")
    stranger = Agent(http, server.base_url, opening("Something else."))
    assert again.message is not None
    stranger.take({"role": "assistant", "content": "Elsewhere."})
    stranger.take(again.message)
    other = await stranger.send()
    assert other.conversation != first.conversation


SUMMARY = [*opening()[:1], {"role": "user", "content": "Summary: make fails, nothing helped."}]


@pytest.mark.parametrize("shorter", [SUMMARY, None], ids=["rewritten", "cut back"])
async def test_an_id_of_its_own_stands_for_one_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    shorter: list[Message] | None,
) -> None:
    """Under `x-conversation-id` any shorter history goes on with the run, calls answered or not."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url, headers={"x-conversation-id": "job"})
    before = (await trimmed_run(agent, list, 6))[-1]
    agent.messages = agent.messages[:8] if shorter is None else list(shorter)
    (after,) = await trimmed_run(agent, list, 1)
    assert (after.identity, after.conversation) == ("compaction", before.conversation)
    assert (after.gateway("step"), after.gateway("state")) == ("5", before.gateway("state"))


@pytest.mark.parametrize("name", ["x-conversation-id", "x-session-id"])
async def test_sub_agents_that_start_together_stay_apart(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, name: str
) -> None:
    """Agents with one id and one prompt that begin side by side have conversations of their own."""
    upstream.default = looping()
    server = gateway_server(PLAIN)
    agents = [
        Agent(http, server.base_url, opening(f"Part {n}."), headers={name: "job"}) for n in range(3)
    ]
    runs = [[await agent.turn() for agent in agents] for _ in range(4)]
    homes = [{answers[n].conversation for answers in runs} for n in range(3)]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == 3
