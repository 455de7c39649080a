"""The OpenAI Agents SDK, which speaks Responses, with its own tool loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.looping import GUIDANCE, STEERING, Start, looping_model, states
from steering_gateway_testing.official import openai

agents = pytest.importorskip("agents", reason="openai-agents is not installed")


def an_agent(client: openai.AsyncOpenAI) -> Any:
    """An agent with one tool that always fails."""
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def bash(command: str) -> str:
        """Run a command."""
        return f"$ {command}\nFAILED tests/test_parser.py::test_empty - AssertionError"

    model = agents.OpenAIResponsesModel(model="gpt-5", openai_client=client)
    return agents.Agent(name="fixer", instructions="Repair programs.", model=model, tools=[bash])


@pytest.mark.parametrize("by_id", [False, True])
async def test_its_tool_loop_is_steered(
    gateway_server: Start, upstream: ScriptedUpstream, by_id: bool
) -> None:
    """Resending its items or naming the last response: the loop completes and is followed."""
    upstream.default = looping_model(6)
    server = await asyncio.to_thread(gateway_server, STEERING)
    async with openai.AsyncOpenAI(api_key="sk", base_url=server.base_url, max_retries=0) as client:
        result = await agents.Runner.run(
            an_agent(client), "Repair the parser.", auto_previous_response_id=by_id
        )
    assert result.final_output == "The suite passes now."
    rows = await asyncio.to_thread(states, server)
    assert [row[0] for row in rows] == list(range(7))
    assert "streak" in rows[-1][3]
    instructions = [r.fields["instructions"] for r in upstream.requests]
    assert all(text.startswith("Repair programs.") for text in instructions)
    assert instructions[-1].count(GUIDANCE) >= 2
    assert all(
        bool(r.fields.get("previous_response_id")) is by_id for r in list(upstream.requests)[1:]
    )


async def test_its_stream_is_steered(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The streamed loop sees every event it needs."""
    upstream.default = looping_model(3)
    server = await asyncio.to_thread(gateway_server, STEERING)
    async with openai.AsyncOpenAI(api_key="sk", base_url=server.base_url, max_retries=0) as client:
        result = agents.Runner.run_streamed(an_agent(client), "Repair the parser.")
        kinds = [event.type async for event in result.stream_events()]
    assert result.final_output == "The suite passes now."
    assert "raw_response_event" in kinds
    assert [row[0] for row in await asyncio.to_thread(states, server)] == list(range(4))
