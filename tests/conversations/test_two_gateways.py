"""Two gateways serve one agent in an outage, in which neither knows what the other one decided."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.conversations.decision import Decision
from gateway.tasks import DeadlinePassed
from tests.conversations.steering import Agent, Expiring, Patterns, step
from tests.examples import examples

GUIDED = {
    "etraces": {"e2_when": "at_risk", "e2_gate": 0.0, "recall_threshold": 0.0},
}
Block = tuple[str, int, str]
"""Place, offset and text of a piece of guidance."""


class Served(NamedTuple):
    """One call: the gateway that gets it, whether that has time to decide, and whether the agent
    moves on or lets the failing test run again."""

    gateway: int
    in_time: bool = True
    moves_on: bool = False


def given_with(result: Decision) -> set[Block]:
    """The guidance of a request, but for what holds for this call alone."""
    blocks = result.placed.state.injections if result.placed is not None else ()
    return {(block.place, block.offset, block.text) for block in blocks}


@examples(60)
@given(st.lists(st.builds(Served, st.integers(0, 1), st.booleans(), st.booleans()), max_size=24))
@example([Served(1)] + [Served(0)] * 12 + [Served(1)])
@example([Served(0)] * 5 + [Served(0, moves_on=True)] * 12 + [Served(0)] * 5 + [Served(1)])
@example([Served(0)] * 5 + [Served(1, in_time=False), Served(0), Served(1)])
async def test_what_one_has_given_comes_again_at_the_other(calls: list[Served]) -> None:
    """At the same place, whoever serves the next call, and however many went to one of them or out
    without a decision."""
    gateways = [Agent(GUIDED, lookup=Patterns()) for _ in range(2)]
    gateways[1].messages = gateways[0].messages
    gateways[0].shared = gateways[1].shared = True
    seen: set[Block] = set()
    for number, served in enumerate(calls):
        agent = gateways[served.gateway]
        result = await agent.resolved()
        try:
            result = await agent.steered(result, Expiring(0 if served.in_time else 1))
        except DeadlinePassed:
            result = agent.late(agent.made)
        assert seen <= given_with(result) or not served.in_time
        seen |= given_with(result)
        if served.moves_on:
            reply, outcome = step(number, f"cat src/part_{number}.py", f"def part_{number}(): ...")
        else:
            reply, outcome = step(number)
        agent.finish(result, reply, "tool_calls")
        agent.messages.append(outcome)


async def test_what_was_decided_late_is_not_decided_again() -> None:
    """The calls that another gateway served wait for one decision, and are forgotten with it."""
    agent = Agent(GUIDED, lookup=Patterns())
    agent.shared = True
    for number in range(3):
        result = await agent.turn(number)
        assert result.conversation.run.undecided == []
    late = await agent.resolved()
    await agent.caught_up(late)
    assert [each.position.step for each in late.conversation.run.undecided] == [3]
