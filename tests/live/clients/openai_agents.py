"""The OpenAI Agents SDK, on chat completions."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from task import API_KEY, BASE_URL, MODEL, prompt, run_both, weather

set_tracing_disabled(True)


def converse(traveller: str) -> str:
    @function_tool
    async def look_up(city: str) -> str:
        """The weather of a city."""
        return await asyncio.to_thread(weather, city, traveller)

    async def run() -> str:
        client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
        agent = Agent(
            name="Weather",
            instructions="You look up the weather.",
            tools=[look_up],
            model=OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
        )
        return (await Runner.run(agent, prompt(traveller))).final_output

    return asyncio.run(run())


run_both(converse)
