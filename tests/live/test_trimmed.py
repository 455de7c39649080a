"""Agents that shorten their history during a run: the same run, with all its steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, RETRIED, Agent, Answer, Message, opening, worker
from tests.examples import by_day

NAMED: tuple[dict[str, str], ...] = ({}, {"x-conversation-id": "job"}, {"x-session-id": "job"})
"""Headers by which a client names its run, or none."""

Start = Callable[..., AppServer]
Trim = Callable[[list[Message]], list[Message]]

_numbers = itertools.count()


def last_pairs(count: int) -> Trim:
    """Keep the opening, and the newest `count` calls with their results."""
    return lambda messages: [*messages[:2], *messages[2:][-2 * count :]]


def cleared(messages: list[Message]) -> list[Message]:
    """Clear all results but the newest."""
    old = [{**m, "content": "[cleared]"} if m["role"] == "tool" else m for m in messages[:-1]]
    return [*old, messages[-1]]


def grown(messages: list[Message]) -> list[Message]:
    """Append to the first user message with each call."""
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


def numbering() -> Callable[[ReceivedRequest], Reply]:
    """A model that reads one part after the other, under ids that are too short to be random."""
    numbers = itertools.count()

    def reply(_: ReceivedRequest) -> Reply:
        number = next(numbers)
        call = ToolCall("bash", {"command": f"cat part{number}"}, id=f"call_{number % 3}")
        return Reply(f"Part {number} is next.", tool_calls=(call,))

    return reply


async def trimmed_run(agent: Agent, trim: Trim, turns: int) -> list[Answer]:
    """Some turns of an agent that sends its history as `trim` shortens it."""
    answers = []
    for _ in range(turns):
        sent = trim(agent.messages) if len(agent.messages) > 2 else agent.messages
        answer = await agent.send(sent)
        assert answer.message is not None
        agent.take(answer.message, "make: *** error 2")
        answers.append(answer)
    return answers


def shortened(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test for each way to shorten a history, without and with an id of the conversation."""
    each_way = pytest.mark.parametrize("trim", TRIMS.values(), ids=TRIMS.keys())
    named = pytest.mark.parametrize("headers", by_day(NAMED, 1))
    marked: Callable[..., Any] = named(each_way(test))
    return marked


def steps(answers: list[Answer]) -> list[str | None]:
    return [answer.gateway("step") for answer in answers]


@shortened
async def test_a_shortened_history_is_the_same_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    trim: Trim,
    headers: dict[str, str],
) -> None:
    """Each call is the next step of one conversation, even when its requests differ only in the ids
    of calls."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url, headers=headers)
    answers = await trimmed_run(agent, trim, 9)
    assert len({answer.conversation for answer in answers}) == 1
    assert steps(answers) == [str(number) for number in range(9)]


@pytest.mark.parametrize("trim", [last_pairs(1), last_pairs(3), cleared])
async def test_a_loop_is_seen_in_a_shortened_history(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, trim: Trim
) -> None:
    """Monitor readings are those of the whole history."""
    upstream.default = looping()
    server = gateway_server(PLAIN)
    whole = await trimmed_run(Agent(http, server.base_url), list, 8)
    cut = await trimmed_run(Agent(http, server.base_url, opening("Another.")), trim, 8)
    assert cut[-1].gateway("monitors")
    assert [a.place for a in cut] == [a.place for a in whole]


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_windows_go_on_after_a_summary(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    restarted: bool,
) -> None:
    """After a summary the run goes on as it was: its steps, its state and what its monitors saw."""
    upstream.default = looping()
    settings = {**PLAIN, "storage": {"path": str(tmp_path / "kept.db")}}
    first = gateway_server(settings)
    whole = await trimmed_run(Agent(http, first.base_url, opening("Another.")), list, 10)
    agent = Agent(http, first.base_url)
    before = (await trimmed_run(agent, list, 8))[-1]
    summary = {"role": "user", "content": "Summary: make fails."}
    agent.messages = [agent.messages[0], summary, *agent.messages[-2:]]
    (after,) = await trimmed_run(agent, list, 1)
    if restarted:
        await asyncio.to_thread(first.stop)
        agent.url = gateway_server(settings).base_url
    (later,) = await trimmed_run(agent, list, 1)
    assert (after.identity, later.identity) == ("compaction", "prefix")
    assert before.conversation == after.conversation == later.conversation
    assert later.gateway("monitors")
    assert [a.place for a in (before, after, later)] == [a.place for a in whole[7:]]


async def test_trimming_agents_in_parallel(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Agents with one opening and equal actions are distinguished by the ids of their calls, once
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
    """The same request adds no step, although its reply made other calls."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url)
    await trimmed_run(agent, last_pairs(1), 3)
    window = last_pairs(1)(agent.messages)
    first, again = await agent.send(window), await agent.send(window, headers=RETRIED)
    assert (first.gateway("step"), again.gateway("step")) == ("3", "3")
    assert again.identity == "retry"


@pytest.mark.parametrize("constant", [True, False])
async def test_numbered_ids_do_not_identify_a_run(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, constant: bool
) -> None:
    """Ids that are the same in each reply, or short, neither merge conversations nor prevent a
    retry."""
    same: Any = Reply(
        "Once more.", tool_calls=(ToolCall("bash", {"command": "make"}, id="call_0"),)
    )
    upstream.default = same if constant else looping(short=True)
    server = gateway_server(PLAIN)
    agent = Agent(http, server.base_url)
    await agent.run(3)
    first, again = await agent.send(), await agent.again()
    assert (first.gateway("step"), again.identity) == ("3", "retry")
    stranger = Agent(http, server.base_url, opening("Something else."))
    assert again.message is not None
    stranger.take({"role": "assistant", "content": "Elsewhere."})
    stranger.take(again.message)
    other = await stranger.send()
    assert other.conversation != first.conversation


SUMMARY = [*opening()[:1], {"role": "user", "content": "Summary: make fails, nothing helped."}]


@pytest.mark.parametrize("shorter", [SUMMARY, None], ids=["rewritten", "cut back"])
async def test_an_exclusive_id_names_one_run(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    shorter: list[Message] | None,
) -> None:
    """Under `x-conversation-id` any shorter history continues the run, with results or not."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url, headers={"x-conversation-id": "job"})
    before = (await trimmed_run(agent, list, 6))[-1]
    agent.messages = agent.messages[:8] if shorter is None else list(shorter)
    (after,) = await trimmed_run(agent, list, 1)
    assert (after.identity, after.conversation) == ("compaction", before.conversation)
    assert (after.gateway("step"), after.gateway("state")) == ("5", before.gateway("state"))


@pytest.mark.parametrize("name", ["x-conversation-id", "x-session-id"])
async def test_sub_agents_that_start_together_stay_separate(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, name: str
) -> None:
    """Agents with one id and one prompt that begin in parallel have separate conversations."""
    upstream.default = looping()
    server = gateway_server(PLAIN)
    agents = [
        Agent(http, server.base_url, opening(f"Part {n}."), headers={name: "job"}) for n in range(3)
    ]
    runs = [[await agent.turn() for agent in agents] for _ in range(4)]
    homes = [{answers[n].conversation for answers in runs} for n in range(3)]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == 3


@pytest.mark.parametrize("name", ["x-session-id", "x-conversation-id"])
async def test_agents_that_share_an_id_and_number_their_calls(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, name: str
) -> None:
    """A branch that awaits results of calls with the same numbers does not get another agent's
    request, neither a retry nor the next one."""
    upstream.default = worker(9)
    server = gateway_server(PLAIN)
    one, other = (
        Agent(http, server.base_url, opening(f"Part {n}."), headers={name: "job"}) for n in range(2)
    )
    for _ in range(2):
        await one.turn()
        await other.turn()
    lost, again = await other.send(), await other.turn()
    assert (again.identity, again.conversation) == ("retry", lost.conversation)
    after = [await one.turn(), await other.turn()]
    assert [answer.gateway("step") for answer in after] == ["2", "3"]
    assert after[1].conversation == lost.conversation != after[0].conversation


async def test_one_call_id_for_every_call_does_not_merge_agents(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """An agent that begins under a shared id is not merged with the one that is working."""
    same = ToolCall("bash", {"command": "make"}, id="call_0")
    upstream.default = Reply("Once more.", tool_calls=(same,))
    server = gateway_server(PLAIN)
    old, new = (
        Agent(http, server.base_url, opening(f"Part {n}."), headers={"x-session-id": "job"})
        for n in range(2)
    )
    before = (await old.run(3))[-1]
    begun = await new.turn()
    after = await old.turn()
    assert begun.conversation != before.conversation == after.conversation
    assert after.gateway("step") == "3"


async def test_a_first_attempt_that_never_arrived(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A request marked as a retry is the next step when only this attempt arrived."""
    upstream.default = looping()
    agent = Agent(http, gateway_server(PLAIN).base_url)
    before = (await trimmed_run(agent, last_pairs(1), 4))[-1]
    agent.headers["x-stainless-retry-count"] = "1"
    (after,) = await trimmed_run(agent, last_pairs(1), 1)
    assert (after.conversation, after.gateway("step")) == (before.conversation, "4")


NARROW: list[dict[str, Any]] = [
    {"max_transcripts_in_memory": 1},
    {"max_conversations_in_memory": 1},
    {"max_prefix_memory_mb": 0},
]


@pytest.mark.parametrize("limits", NARROW, ids=lambda limits: next(iter(limits)))
async def test_little_memory_loses_no_step(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, limits: Any
) -> None:
    """Agents that push each other out of memory while they wait for answers keep their runs, and
    repeats in them are still counted."""
    upstream.default = looping()
    settings = {**PLAIN, "steering": {**PLAIN["steering"], **limits}}
    roomy, narrow = gateway_server(PLAIN), gateway_server(settings)
    alone = await trimmed_run(Agent(http, roomy.base_url, opening("Task 0.")), last_pairs(2), 7)
    agents = [Agent(http, narrow.base_url, opening(f"Task {n}.")) for n in range(4)]
    agents += [
        Agent(http, narrow.base_url, opening(f"Job {n}."), headers={"x-session-id": f"s{n}"})
        for n in range(2)
    ]
    runs = await asyncio.gather(*(trimmed_run(a, last_pairs(2), 7) for a in agents))
    assert alone[-1].gateway("monitors")
    for answers in runs:
        assert len({answer.conversation for answer in answers}) == 1
        assert steps(answers) == steps(alone)
        assert answers[-1].gateway("monitors") == alone[-1].gateway("monitors")


async def alternate(agent: Agent, gateways: Sequence[AppServer], trim: Trim) -> None:
    """Six turns of one run at the first gateway, and four more at each in turn."""
    agent.url = gateways[0].base_url
    answers = await trimmed_run(agent, trim, 6)
    for turn in range(6, 10):
        agent.url = gateways[turn % 2].base_url
        answers += await trimmed_run(agent, trim, 1)
    assert len({answer.conversation for answer in answers}) == 1
    assert steps(answers) == [str(number) for number in range(10)]


@shortened
async def test_gateways_alternate_on_a_shortened_history(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    trim: Trim,
    headers: dict[str, str],
) -> None:
    """Another gateway on the same database, or the next process, continues the same run."""
    upstream.default = looping()
    settings = {**PLAIN, "storage": {"path": str(tmp_path / "shared.db")}}
    gateways = [gateway_server(settings) for _ in range(2)]
    await alternate(Agent(http, "", headers=headers), gateways, trim)


@pytest.mark.parametrize("name", ["the newest", "the newest three", "results cleared"])
async def test_gateways_alternate_where_ids_tell_nothing(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    name: str,
) -> None:
    """The replies alone connect a shortened history to its run, also at another gateway."""
    upstream.default = numbering()
    settings = {**PLAIN, "storage": {"path": str(tmp_path / "shared.db")}}
    gateways = [gateway_server(settings) for _ in range(2)]
    await alternate(Agent(http, ""), gateways, TRIMS[name])
