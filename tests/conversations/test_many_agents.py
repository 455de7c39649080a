"""Many realistic agents at once: every request is matched to its own conversation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.identity import MatchKind
from tests.conversations.driver import Call, Driver, answers, result, says

Echo = Callable[[dict[str, Any], random.Random], list[dict[str, Any]]]
Message = dict[str, Any]


def verbatim(message: Message, rng: random.Random) -> list[Message]:
    return [message]


def as_parts(message: Message, rng: random.Random) -> list[Message]:
    """Text parts, cache markers, white space, null keys."""
    text = (message.get("content") or "") + rng.choice(["", "\n", "  "])
    part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    return [{**message, "content": [part] if text.strip() else None, "refusal": None}]


def reserialised(message: Message, rng: random.Random) -> list[Message]:
    """Other spaces in arguments, other ids, no content next to calls."""
    message = dict(message)
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {
                "function": {
                    "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=1),
                    "name": call["function"]["name"],
                },
                "type": "function",
                "id": f"toolu_{call['id']}",
            }
            for call in message["tool_calls"]
        ]
    if "tool_call_id" in message:
        message["tool_call_id"] = f"toolu_{message['tool_call_id']}"
    return [message]


def split(message: Message, rng: random.Random) -> list[Message]:
    """One reply as two messages."""
    if not message.get("tool_calls") or not message.get("content"):
        return [message]
    calls = {"role": "assistant", "tool_calls": message["tool_calls"]}
    return [{"role": "assistant", "content": message["content"]}, calls]


def rendered(message: Message, rng: random.Random) -> list[Message]:
    """Calls and results as plain text."""
    if message.get("tool_calls"):
        return [answers(f"{message.get('content')} Calling tools: {message['tool_calls']}")]
    if message["role"] == "tool":
        return [says(f"Observation: {message['content']}")]
    return [message]


FAITHFUL: list[Echo] = [verbatim, as_parts, reserialised, split]


@dataclass(kw_only=True, eq=False)
class Agent:
    """One run: the `replies` of its model, the `results` of its tools."""

    task: str
    replies: list[Message]
    results: list[str]
    echo: Echo = verbatim
    headers: dict[str, str] = field(default_factory=dict)
    log: list[tuple[tuple[str, ...], Call]] = field(default_factory=list)
    truth: list[Message] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._say([says(self.task)], random.Random(0))

    def _say(self, messages: list[Message], rng: random.Random) -> None:
        self.truth += messages
        for message in messages:
            self.sent += self.echo(message, rng)

    @property
    def done(self) -> bool:
        return len(self.log) == len(self.replies)

    def begin(self, driver: Driver, rng: random.Random) -> Call:
        """Send the next request."""
        system = {"role": "system", "content": f"Time: {rng.random()}"}
        call = driver.begin([system, *self.sent], headers=self.headers)
        self.log.append((tuple(map(json.dumps, self.truth)), call))
        return call

    def finish(self, driver: Driver, rng: random.Random) -> None:
        """Receive the reply and add the tools' results."""
        step = len(self.log) - 1
        reply = self.replies[step]
        driver.finish(self.log[-1][1], reply)
        ids = [tool_call["id"] for tool_call in reply.get("tool_calls") or ()]
        outcome = [result(f"{self.results[step]}{n}", id) for n, id in enumerate(ids)]
        self._say([reply, *(outcome or [says(self.results[step])])], rng)

    def ask(self, driver: Driver, rng: random.Random) -> Call:
        """One request with its reply."""
        call = self.begin(driver, rng)
        self.finish(driver, rng)
        return call

    def ask_again(self, driver: Driver) -> Call:
        """Send the latest request once more, as an SDK does."""
        truth = self.truth[: len(self.log[-1][0])]
        messages = [part for m in truth for part in self.echo(m, random.Random(0))]
        return driver.begin(messages, headers={"x-stainless-retry-count": "1", **self.headers})


def a_reply(text: str, commands: list[str]) -> Message:
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "shell", "arguments": json.dumps({"command": c, "n": n})},
        }
        for n, c in enumerate(commands)
    ]
    return {
        "role": "assistant",
        "content": text or None,
        **({"tool_calls": calls} if calls else {}),
    }


def check_no_conversation_mixes(agents: list[Agent], calls: list[Call]) -> None:
    """In order of arrival, each request of a conversation extends the latest or repeats one."""
    truth = {id(call): history for agent in agents for history, call in agent.log}
    seen: dict[str, list[tuple[str, ...]]] = {}
    for call in calls:
        history = truth[id(call)]
        earlier = seen.setdefault(call.conversation, [])
        if call.kind is MatchKind.RETRY:
            assert history in earlier
        elif earlier:
            assert history[: len(earlier[-1])] == earlier[-1]
            assert len(history) > len(earlier[-1])
        earlier.append(history)


def check_no_run_is_lost(agents: list[Agent]) -> None:
    """After its first request no agent counts as new; with a unique history it keeps its
    conversation."""
    for agent in agents:
        others = {h for other in agents if other is not agent for h, _ in other.log}
        own: set[str] = set()
        for history, call in agent.log:
            assert call.kind is not MatchKind.NEW or len(history) == 1
            if own:
                assert call.kind is MatchKind.CONTINUE
            if history not in others and call.kind is not MatchKind.RETRY:
                own.add(call.conversation)
        assert len(own) <= 1


TEXTS = st.sampled_from(["", "Looking.", "Again."])
COMMANDS = st.sampled_from(["ls", "cat"])


@st.composite
def agent_runs(draw: st.DrawFn, echoes: list[Echo], min_calls: int = 0) -> Agent:
    length = draw(st.integers(1, 4))
    replies = st.builds(a_reply, TEXTS, st.lists(COMMANDS, min_size=min_calls, max_size=2))
    return Agent(
        task=draw(st.sampled_from(["Fix it", "Find it"])),
        replies=draw(st.lists(replies, min_size=length, max_size=length)),
        results=draw(st.lists(st.sampled_from(["ok", "fail"]), min_size=length, max_size=length)),
        echo=draw(st.sampled_from(echoes)),
    )


def interleave(agents: list[Agent], rng: random.Random) -> list[Call]:
    """Send requests and replies of the agents in random order; all calls in order of arrival."""
    driver, calls = Driver(), []
    in_progress: list[Agent] = []
    while waiting := [agent for agent in agents if agent in in_progress or not agent.done]:
        agent = rng.choice(waiting)
        if agent in in_progress:
            in_progress.remove(agent)
            agent.finish(driver, rng)
        else:
            in_progress.append(agent)
            calls.append(agent.begin(driver, rng))
    return calls


@given(st.lists(agent_runs(FAITHFUL), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_no_interleaving_mixes_runs(agents: list[Agent], rng: random.Random) -> None:
    """Runs from a small vocabulary, which are often equal for a while, are never mixed."""
    calls = interleave(agents, rng)
    check_no_conversation_mixes(agents, calls)


@given(st.lists(agent_runs([rendered]), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_rewriting_clients_are_not_mixed(agents: list[Agent], rng: random.Random) -> None:
    """The same for clients that send every reply back in another form."""
    calls = interleave(agents, rng)
    check_no_conversation_mixes(agents, calls)


@given(
    # Agents that share an id belong to one client, which echoes all replies in the same form.
    st.sampled_from(FAITHFUL).flatmap(
        lambda echo: st.lists(agent_runs([echo], min_calls=1), min_size=1, max_size=5)
    ),
    st.randoms(use_true_random=False),
)
def test_one_id_for_parallel_agents_mixes_nothing(agents: list[Agent], rng: random.Random) -> None:
    """Agents that share an id and work in parallel are never mixed."""
    for agent in agents:
        agent.headers = {"x-session-id": "shared"}
    check_no_conversation_mixes(agents, interleave(agents, rng))


@pytest.mark.parametrize("echo", [*FAITHFUL, rendered], ids=lambda echo: echo.__name__)
def test_fifty_parallel_runs_separate_when_their_replies_differ(echo: Echo) -> None:
    """Fifty runs with one first message are fifty conversations, whenever they begin to differ."""
    rng = random.Random(7)
    agents = [
        Agent(
            task="Fix it",
            replies=[a_reply("Same.", ["ls"]), *(a_reply(f"{n}", ["cat"]) for _ in range(4))],
            results=["same"] * 5,
            echo=echo,
        )
        for n in range(50)
    ]
    driver, calls = Driver(), []
    for _ in range(5):
        for agent in rng.sample(agents, len(agents)):
            calls.append(agent.ask(driver, rng))
    check_no_conversation_mixes(agents, calls)
    rounds = [[agent.log[step][1] for agent in agents] for step in range(5)]
    assert [len({call.conversation for call in asked}) for asked in rounds] == [50] * 5
    assert {call.kind for call in rounds[0]} == {MatchKind.NEW}
    assert {call.kind for asked in rounds[1:] for call in asked} == {MatchKind.CONTINUE}


@given(agent_runs(FAITHFUL), st.data())
def test_sending_again_never_advances(agent: Agent, data: st.DataObject) -> None:
    """However often a request is sent, branches, prefix hashes and conversation do not change."""
    driver, rng = Driver(), random.Random(1)
    while not agent.done:
        call = agent.ask(driver, rng)
        before, hashes = dict(driver.branches), {h: list(r) for h, r in driver.refs.items()}
        for _ in range(data.draw(st.integers(0, 3))):
            again = agent.ask_again(driver)
            assert again.conversation == call.conversation
            assert driver.branches == before
            assert driver.refs == hashes
    assert len({call.conversation for _, call in agent.log}) == 1


def test_realistic_runs_keep_their_conversations() -> None:
    """Eighty runs, eight at a time, on few tasks, several clients: no merge, no split."""
    rng = random.Random(20)
    verbs, files = ["read", "edit", "run tests of", "search"], ["a.py", "b.py", "c.py"]

    def a_run(n: int) -> Agent:
        length = rng.randint(3, 25)
        replies = [
            a_reply(
                rng.choice(["", f"Step {step}: next.", "I made a mistake, let me try again."]),
                [f"{rng.choice(verbs)} {rng.choice(files)}" for _ in range(rng.randint(1, 2))],
            )
            for step in range(length - 1)
        ]
        return Agent(
            task=f"Fix issue {rng.randint(1, 60)}",
            replies=[*replies, a_reply("Done.", [])],
            results=[rng.choice(["ok", "error: no such file", ""]) for _ in range(length)],
            echo=rng.choice([*FAITHFUL, rendered]),
        )

    agents = [a_run(n) for n in range(80)]
    driver, calls, waiting = Driver(), [], list(agents)
    active: list[Agent] = []
    while waiting or active:
        while waiting and len(active) < 8:
            active.append(waiting.pop())
        agent = rng.choice(active)
        calls.append(agent.ask(driver, rng))
        active = [agent for agent in active if not agent.done]
    check_no_conversation_mixes(agents, calls)
    check_no_run_is_lost(agents)
